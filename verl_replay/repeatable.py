"""An agent loop whose rollouts are the same in every run: each session samples with a seed of its own.

verl's `rollout.full_determinism` gives all requests one seed, so the rollouts of a group come out alike and GRPO has
nothing to compare. Here the seed depends on what the session is, not on when it runs, and rollouts of a group differ.
Temperature and all other sampling parameters stay as configured. Overrides of verl (V1) that use it:

    actor_rollout_ref.rollout.agent.default_agent_loop=repeatable_single_turn
    actor_rollout_ref.rollout.agent.agent_loop_config_path=<verl_replay>/config/repeatable_agent_loop.yaml

The path is a file's path (verl does not resolve pkg:// here); `agent_loop_config_path()` gives it. The run's seed is
`actor_rollout_ref.rollout.seed`. A repeatable run also needs `verl_replay.queues.OrderedPromptRolloutQueue`, a fixed
`data.seed`, one worker, one vLLM replica and float32: other batches mean other roundings.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


def agent_loop_config_path() -> str:
    """Absolute path of the file for `actor_rollout_ref.rollout.agent.agent_loop_config_path`."""
    return str(Path(__file__).parent / "config" / "repeatable_agent_loop.yaml")


def session_seed(
    *, run_seed: int, global_step: int, validate: bool, dataset_index: int | str, session_id: int, prompt: Any = None
) -> int:
    """A seed in [0, 2^63) that depends on its arguments alone: not on the process, the time or Python's hash seed.

    `prompt` keeps sessions apart where the index does not: verl sets it to 0 in rows without extra_info.index, and
    several files may use the same ones. Of images and other objects in it only the type counts.
    """
    phase = "validate" if validate else "train"
    identity = json.dumps(
        [run_seed, global_step, phase, dataset_index, session_id, prompt], default=lambda other: type(other).__name__
    )
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big") >> 1


@register("repeatable_single_turn")
class RepeatableSingleTurnAgentLoop(SingleTurnAgentLoop):
    """verl's single-turn loop with one seed a session."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Raises ValueError where verl does not say which session this is (V0, trainer.use_v1=false)."""
        missing = [name for name in ("global_steps", "index", "session_id") if name not in kwargs]
        if missing:
            raise ValueError(
                f"repeatable_single_turn needs verl's fields ['global_steps', 'index', 'session_id'], {missing} "
                "are missing; run with trainer.use_v1=true, whose agent loop worker passes them"
            )
        seed = session_seed(
            run_seed=int(self.rollout_config.seed),
            global_step=int(kwargs["global_steps"]),
            validate=_validating(),
            dataset_index=_plain(kwargs["index"]),
            session_id=int(kwargs["session_id"]),
            prompt=list(kwargs["raw_prompt"]),
        )
        return await super().run({**sampling_params, "seed": seed}, **kwargs)


def _plain(index: Any) -> int | str:
    """The dataset index as verl passes it (Python number, numpy number, 0-d tensor, text) for json."""
    value = index.item() if hasattr(index, "item") else index
    return value if isinstance(value, int) else str(value)


def _validating() -> bool:
    """Is this session one of validation?

    verl does not pass it on. Its AgentLoopWorker._run_agent_loop, which awaits `run`, has it as trajectory["validate"],
    so it is read there. Without it, validation on training prompts would sample with the very random numbers that the
    policy was just trained on.

    Raises:
        RuntimeError: the caller is not that of verl 0.9.1.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "_run_agent_loop":
        frame = frame.f_back
    trajectory = frame.f_locals.get("trajectory") if frame is not None else None
    if not isinstance(trajectory, dict) or "validate" not in trajectory:
        raise RuntimeError(
            "repeatable_single_turn reads trajectory['validate'] of its caller, AgentLoopWorker._run_agent_loop of "
            "verl 0.9.1, and did not find it; install verl 0.9.1 or adapt verl_replay.repeatable._validating"
        )
    return bool(trajectory["validate"])
