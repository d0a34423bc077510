"""Seconds of a training step, by counting operations and bytes. Good to a factor of two, for planning."""

from __future__ import annotations

from typing import NamedTuple

from verl_replay.dry_run.memory import Memory
from verl_replay.dry_run.plan import Gpu, Plan
from verl_replay.dry_run.shapes import Shape

TRAIN_EFFICIENCY = 0.35  # of the peak operations a second
DECODE_EFFICIENCY = 0.5  # of the memory bandwidth
DECODE_OVERHEAD = 5e-3  # seconds a decoding iteration
FIXED = 10.0  # seconds a step: weight sync, rewards, data


class Duration(NamedTuple):
    """Seconds a step."""

    generation: float
    log_probs: float  # verl's pass for old_log_probs
    update: float  # the forward pass again, for checkpointing, and the backward pass
    fixed: float

    @property
    def step(self) -> float:
        return sum(self)


def duration(plan: Plan, shape: Shape, gpu: Gpu, memory: Memory) -> Duration:
    """The estimate of one step with a full buffer."""
    replicas = max(1, plan.ranks // plan.tensor_parallel)
    length = plan.prompt + plan.response
    waiting = plan.rollouts / replicas
    at_once = max(1.0, min(waiting, plan.max_sequences, memory.cache_tokens / length))
    # One iteration is one token for each sequence that runs; the longest answer sets the least number of them.
    iterations = max(plan.longest_response, waiting * plan.response / at_once)
    running = waiting * plan.response / iterations
    read = (2 * shape.parameters + running * length * shape.kv_bytes_a_token()) / plan.tensor_parallel
    iteration = DECODE_OVERHEAD + read / (gpu.bandwidth * DECODE_EFFICIENCY)
    forward = shape.flops_a_token(length) * length / (plan.ranks * gpu.flops * TRAIN_EFFICIENCY)
    return Duration(
        generation=iterations * iteration,
        log_probs=plan.rollouts * forward,
        update=4 * plan.trained * forward,
        fixed=FIXED,
    )
