"""The stage of a preset, at the size of the soak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

import verl_replay.config
from scripts.soaking.steps import GROUP_SIZE, GROUPS, UPDATES
from verl_replay.options import ReplayOptions
from verl_replay.trainers import columns
from verl_replay.trainers.stage import ReplayStage

RANKS = 2
PRESETS = sorted(
    path.stem for path in (Path(verl_replay.config.__file__).parent / "replay").glob("*.yaml") if path.stem != "off"
)  # of `off` there is nothing to soak


def compose_config(preset: str, overrides: Sequence[str] = ()) -> DictConfig:
    """verl's config with the preset, as verl_replay.main_ppo would compose it."""
    given = [
        f"replay={preset}",
        "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.rollout.n={GROUP_SIZE}",
        f"data.train_batch_size={GROUPS}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={GROUPS // UPDATES}",
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        *overrides,
    ]
    with initialize_config_module("verl_replay.config", version_base=None):
        return compose("replay_trainer", overrides=given)


def make_stage(config: DictConfig) -> ReplayStage:
    return ReplayStage(config, ReplayOptions.from_config(config.replay), reward=columns.SCORE)
