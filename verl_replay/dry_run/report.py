"""The dry run's text: inputs, memory, time, buffer, and what looks wrong without being an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig

from verl_replay.dry_run.duration import Duration, duration
from verl_replay.dry_run.inputs import Input, fetch_commands, inputs
from verl_replay.dry_run.memory import Memory, memory
from verl_replay.dry_run.plan import DEFAULT_GPU, GPUS, KEPT, Plan, plan_of
from verl_replay.dry_run.shapes import Shape, shape_of

FULL = 0.95  # share of a GPU's memory above which the estimate leaves no room


def gpu_named(environ: Mapping[str, str]) -> str:
    """The GPU to calculate for: the variable GPU.

    Raises:
        ValueError: it is not in the table.
    """
    name = environ.get("GPU") or DEFAULT_GPU
    if name not in GPUS:
        raise ValueError(f"GPU must be one of {', '.join(GPUS)}, got {name!r}. Leave it out for {DEFAULT_GPU}.")
    return name


def report(config: DictConfig, gpu_name: str) -> tuple[str, list[Input]]:
    """The text, and everything that the run reads."""
    found, plan = inputs(config), plan_of(config)
    shape = shape_of(str(config.actor_rollout_ref.model.path))
    lines = ["inputs", *map(_input, found), *(f"  fetch: {command}" for command in fetch_commands(found)), ""]
    if config.trainer.device == "cpu":
        lines += ["no estimate: the table of speeds is of GPUs, and this run is on the CPU"]
    elif shape is None:
        lines += ["no estimate: the model's shape is not known before it is fetched"]
    else:
        needs = memory(plan, shape, GPUS[gpu_name])
        lines += [*_memory(plan, shape, needs, gpu_name), ""]
        lines += [*_duration(plan, duration(plan, shape, GPUS[gpu_name], needs))]
        lines += _full(needs, gpu_name)
    lines += _notes(plan)
    return "\n".join(lines), found


def _input(each: Input) -> str:
    state = {True: "present ", False: "to fetch", None: "remote  "}[each.present]
    return f"  {state}  {each.what}: {each.where}"


def _memory(plan: Plan, shape: Shape, needs: Memory, gpu_name: str) -> Iterator[str]:
    yield f"memory a GPU, estimated ({plan.ranks} x {gpu_name}, {shape.parameters / 1e9:.2f} B parameters)"
    yield (
        f"  update   {_gb(needs.update)}: {_gb(needs.state)} parameters, gradients and Adam, "
        f"{_gb(needs.working)} at work"
    )
    yield (
        f"  rollout  {_gb(needs.rollout)}: vLLM's share {plan.memory_share:g}, of it {_gb(needs.weights)} weights and "
        f"{_gb(needs.cache)} cache ({needs.cache_tokens / 1e3:,.0f} thousand tokens a replica)"
    )
    if plan.replays:
        yield (
            f"  buffer   {_gb(needs.buffer)} of host memory for {plan.stored:,} rollouts, at most "
            f"{_gb(needs.buffer_at_most)} for {plan.stored_at_most:,}"
        )


def _duration(plan: Plan, takes: Duration) -> Iterator[str]:
    share = f", {KEPT:.0%} of groups kept" if plan.filters else ""
    yield (
        f"a step, estimated to a factor of two ({plan.rollouts:,} rollouts of {plan.response:,.0f} tokens{share}, "
        f"{plan.trained:,.0f} trained on)"
    )
    yield (
        f"  {takes.step:,.0f} s: generation {takes.generation:,.0f}, log-probs {takes.log_probs:,.0f}, update "
        f"{takes.update:,.0f}, else {takes.fixed:,.0f}"
    )
    if plan.steps:
        hours = plan.steps * takes.step / 3600
        yield f"  {plan.steps:,} steps: {hours:,.1f} h, {hours * plan.ranks:,.0f} GPU hours, without validation"


def _full(needs: Memory, gpu_name: str) -> Iterator[str]:
    for name, size, remedy in (
        ("update", needs.update, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"),
        ("rollout", needs.rollout, "actor_rollout_ref.rollout.gpu_memory_utilization"),
    ):
        if size > FULL * GPUS[gpu_name].memory:
            room = _gb(GPUS[gpu_name].memory)
            yield f"note: the {name} needs {_gb(size)} of {room}: lower {remedy}, or take more GPUs"


def _notes(plan: Plan) -> Iterator[str]:
    if plan.replays and plan.steps and plan.warmup >= plan.steps:
        yield (
            f"note: replay.warmup_steps={plan.warmup} of {plan.steps} steps: nothing is ever replayed. "
            "Set replay.warmup_steps=0, say"
        )
    if plan.replays and plan.capacity < plan.max_age * plan.rollouts * KEPT:
        yield (
            f"note: replay.capacity={plan.capacity:,} holds fewer rollouts than {plan.max_age} steps may store: it "
            "evicts before replay.max_age does"
        )


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
