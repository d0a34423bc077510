"""verl's own config with the replay node, as verl_replay.main_ppo would compose it."""

from __future__ import annotations

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from scripts.benchmark.rollouts import Size

UPDATES = 4  # optimizer steps a training step


def compose_config(size: Size) -> DictConfig:
    """The paper's settings at this size: so many drawn for each survivor, evicted by age alone."""
    overrides = [
        "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.rollout.n={size.group_size}",
        f"data.train_batch_size={size.groups}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={max(size.groups // UPDATES, 1)}",
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true",
        f"data.max_prompt_length={size.prompt[1]}",
        f"data.max_response_length={size.response[1]}",
        "replay.warmup_steps=0",
        f"replay.ratio={size.drawn / size.survivors}",
        f"replay.max_age={size.max_age}",
        f"replay.capacity={2 * size.stored}",
    ]
    with initialize_config_module("verl_replay.config", version_base=None):
        return compose("replay_trainer", overrides=overrides)
