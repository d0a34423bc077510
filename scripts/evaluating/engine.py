"""vLLM, fed answer by answer: it never runs empty while the longest answer of a chunk is waited for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from scripts.evaluating.prompts import Request


@dataclass(frozen=True)
class Sampling:
    """How answers are sampled; as verl's rollout settings of the same names.

    Attributes:
        n: answers a problem.
        top_k: -1 for all.
        max_tokens: of an answer.
    """

    n: int
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    seed: int

    def __post_init__(self) -> None:
        rules = {
            "--n must be at least 1": self.n >= 1,
            "--temperature must be at least 0": self.temperature >= 0,
            "--top-p must lie in (0, 1]": 0 < self.top_p <= 1,
            "--top-k must be -1 (all) or at least 1": self.top_k == -1 or self.top_k >= 1,
            "--max-tokens must be at least 1": self.max_tokens >= 1,
            "--seed must be at least 0": self.seed >= 0,
            "--temperature 0 gives the same answer every time, so --n must be 1": self.temperature > 0 or self.n == 1,
        }
        broken = [rule for rule, kept in rules.items() if not kept]
        if broken:
            raise ValueError(f"{'; '.join(broken)}. Got {asdict(self)}.")


class Sampled(NamedTuple):
    """One answer as the engine gives it back: token ids, and "stop" or "length"."""

    request: Request
    ids: Sequence[int]
    finish_reason: str


class Engine(Protocol):
    window: int  # answers that it should have at a time

    def add(self, request: Request) -> None: ...

    def step(self) -> list[Sampled]: ...


def on_cpu(environ: dict[str, str] | os._Environ[str]) -> bool:
    """Whether vLLM runs on the CPU. Torch is asked only where its build has an accelerator."""
    if environ.get("VERL_PLATFORM", "").strip().lower() == "cpu" or metadata.version("torch").endswith("+cpu"):
        return True
    import torch

    return not torch.cuda.is_available()


def cpu_options(context: int) -> dict[str, Any]:
    """What vLLM's CPU build needs besides.

    Prompts are computed whole: where a part of one is left for the next step, vLLM 0.32 takes back a seeded answer's
    random number by Generator.get_offset, which a CPU generator does not have ("CPU Generator does not use offset").
    """
    whole_prompts = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(context, 2048)}
    return {"enforce_eager": True, **whole_prompts}


class Vllm:
    """vLLM's own engine loop (LLMEngine.add_request, step), as LLM.generate runs it on a list of prompts."""

    def __init__(self, model: Path, sampling: Sampling, *, context: int, **options: Any) -> None:
        """Load the model.

        Args:
            context: max_model_len.
            options: further arguments of vllm.LLM.
        """
        from vllm import LLM

        self._engine = LLM(
            model=str(model),
            max_model_len=context,
            seed=sampling.seed,
            disable_log_stats=True,
            **(cpu_options(context) if on_cpu(os.environ) else {}),
            **options,
        ).llm_engine
        self._sampling = sampling
        self._requests: dict[str, Request] = {}
        self._added = 0
        self.window = 2 * self._engine.vllm_config.scheduler_config.max_num_seqs

    def add(self, request: Request) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings = self._sampling
        params = SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            max_tokens=settings.max_tokens,
            seed=request.seed,
            detokenize=False,  # once, at the end, by the tokenizer itself, as verl does
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        name = str(self._added)
        self._added += 1
        self._requests[name] = request
        self._engine.add_request(name, {"prompt_token_ids": request.prompt}, params)

    def step(self) -> list[Sampled]:
        finished = [output for output in self._engine.step() if output.finished]
        return [
            Sampled(self._requests.pop(output.request_id), list(out.token_ids), out.finish_reason or "")
            for output in finished
            for out in output.outputs
        ]
