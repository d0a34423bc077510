"""What the estimates calculate with: the numbers of a run, taken from its configuration, and of a GPU, from a table."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from verl_replay import feasible
from verl_replay.feasible import get

MEAN_PROMPT, MEAN_RESPONSE = 150, 1200  # tokens; assumed, where the limits allow as many
KEPT = 0.45  # share of rollouts in groups with variance: the paper saw 35 to 50 %


@dataclass(frozen=True)
class Gpu:
    """Data-sheet numbers."""

    memory: float  # bytes
    flops: float  # dense bf16 a second
    bandwidth: float  # bytes a second


GPUS = {
    "A100-80GB": Gpu(80e9, 312e12, 2.0e12),
    "H100-80GB": Gpu(80e9, 989e12, 3.35e12),
    "H200-141GB": Gpu(141e9, 989e12, 4.8e12),
}
DEFAULT_GPU = "H100-80GB"


@dataclass(frozen=True)
class Plan:
    """A run in numbers."""

    ranks: int  # GPUs
    prompts: int  # a step
    group: int  # rollouts a prompt
    prompt: float  # mean tokens
    response: float  # mean tokens
    longest_response: int
    steps: int | None  # of the whole run, where the configuration says so
    micro_batch: int  # tokens of a micro-batch on a GPU
    memory_share: float  # of a GPU that vLLM takes
    max_sequences: int  # that a vLLM replica runs at once
    tensor_parallel: int
    offload: bool  # parameters and optimizer in host memory while vLLM runs
    replays: bool
    filters: bool
    ratio: float
    max_age: int
    capacity: int
    warmup: int

    @property
    def rollouts(self) -> int:
        """Generated a step."""
        return self.prompts * self.group

    @property
    def trained(self) -> float:
        """Rollouts a step of the update, once the buffer is full."""
        fresh = self.rollouts * (KEPT if self.filters else 1.0)
        return fresh * (1 + (self.ratio if self.replays else 0.0))

    @property
    def stored(self) -> int:
        """Rollouts in the buffer, at KEPT."""
        return min(self.capacity, round(self.max_age * self.rollouts * KEPT)) if self.replays else 0

    @property
    def stored_at_most(self) -> int:
        """Were no group dropped."""
        return min(self.capacity, self.max_age * self.rollouts) if self.replays else 0


def plan_of(config: DictConfig) -> Plan:
    """The numbers of a configuration that feasible.faults found none in."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    replay = OmegaConf.to_container(config.replay, resolve=True)
    longest, prompt = get(config, feasible.RESPONSE), get(config, feasible.PROMPT)
    evicts = replay["eviction"] in ("age", "age_or_uses")
    rows = get(config, feasible.MICRO, 1) * (longest + prompt)
    return Plan(
        ranks=feasible.ranks(config),
        prompts=get(config, feasible.TRAIN),
        group=get(config, feasible.N),
        prompt=min(MEAN_PROMPT, prompt),
        response=min(MEAN_RESPONSE, longest),
        longest_response=longest,
        steps=get(config, "trainer.total_training_steps"),
        micro_batch=get(config, f"{actor}.ppo_max_token_len_per_gpu") if get(config, feasible.DYNAMIC, False) else rows,
        memory_share=get(config, f"{rollout}.gpu_memory_utilization", 0.5),
        max_sequences=get(config, f"{rollout}.max_num_seqs", 256),
        tensor_parallel=get(config, feasible.TP, 1),
        offload=get(config, f"{actor}.fsdp_config.optimizer_offload", False),
        replays=replay["enabled"] and replay["ratio"] > 0,
        filters=replay["enabled"] and replay["filter"] != "none",
        ratio=replay["ratio"],
        max_age=replay["max_age"] if evicts else replay["capacity"],
        capacity=replay["capacity"],
        warmup=replay["warmup_steps"],
    )
