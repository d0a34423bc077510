"""Bytes a GPU needs, by the arithmetic of FSDP, Adam and vLLM. An estimate: allocators and kernels take more."""

from __future__ import annotations

from typing import NamedTuple

from verl_replay.dry_run.plan import Gpu, Plan
from verl_replay.dry_run.shapes import Shape

CONTEXT = 2e9  # CUDA context, NCCL buffers, graphs
TOKEN_BYTES = (
    8  # of a stored response token: int32 id, float32 log-prob; a mask of ones and the advantage are once a row
)
PROMPT_TOKEN_BYTES = 4


class Memory(NamedTuple):
    """Bytes on one GPU, but for `buffer`: host memory of the trainer's process."""

    state: float  # parameters, gradients and Adam's moments, fp32, shared out among the ranks
    working: float  # gathered layers, activations, logits of one micro-batch
    weights: float  # vLLM's, bf16
    cache: float  # left for its keys and values
    cache_tokens: float  # that these hold, on one replica
    update: float  # all at the peak of an update, vLLM asleep
    rollout: float  # all while vLLM runs, gradients freed
    buffer: float
    buffer_at_most: float


def memory(plan: Plan, shape: Shape, gpu: Gpu) -> Memory:
    """The estimate of one run."""
    state = 16 * shape.parameters / plan.ranks
    gathered = 2 * (shape.embedding_parameters + 2 * shape.layer_parameters)
    # Checkpointing keeps each layer's input and computes the inside of one again: queries to values, attention, gates.
    inside = 2 * (4 * shape.hidden + 2 * shape.head_dim * (shape.heads + shape.kv_heads) + 4 * shape.intermediate)
    activations = plan.micro_batch * (2 * shape.layers * shape.hidden + 2 * inside)
    logits = plan.micro_batch * shape.vocabulary * 4  # bf16, and their gradient
    working = gathered + activations + logits
    weights = 2 * shape.parameters / plan.tensor_parallel
    resident = 0 if plan.offload else 12 * shape.parameters / plan.ranks
    cache = max(0.0, plan.memory_share * gpu.memory - weights - CONTEXT)
    return Memory(
        state=state,
        working=working,
        weights=weights,
        cache=cache,
        cache_tokens=cache * plan.tensor_parallel / shape.kv_bytes_a_token(),
        update=state + working + CONTEXT,
        rollout=resident + plan.memory_share * gpu.memory + CONTEXT,
        buffer=plan.stored * _rollout_bytes(plan),
        buffer_at_most=plan.stored_at_most * _rollout_bytes(plan),
    )


def _rollout_bytes(plan: Plan) -> float:
    return TOKEN_BYTES * plan.response + PROMPT_TOKEN_BYTES * plan.prompt
