"""The command itself: wrong inputs, each refused in seconds with one clear error, and the right one accepted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_command import run_forked

RIGHT = [
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "trainer.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",  # verl's default is 2
]
# override -> what the error must say: option, value, remedy
WRONG = {
    "replay.ratio=-1": ("replay.ratio", "-1", "0 replays nothing"),
    "replay.max_age=-3": ("replay.max_age", "-3", "0 replays nothing"),
    "replay.capacity=0": ("replay.capacity", "0", "replay=off"),
    "replay.priority_exponent=-0.5": ("replay.priority_exponent", "-0.5", "0 draws uniformly"),
    "replay.priority=novelty": ("replay.priority", "'novelty'", "abs_advantage, sigma_g, uniform"),
    "algorithm.adv_estimator=gae": ("algorithm.adv_estimator", "'gae'", "algorithm.adv_estimator=grpo"),
    "actor_rollout_ref.rollout.n=1": ("actor_rollout_ref.rollout.n", "1", "at least 2"),
    "replay.unit=group": ("replay.unit=group", "abs_advantage", "replay.priority=sigma_g"),
    "replay=decoupled actor_rollout_ref.rollout.calculate_log_probs=false": (
        "replay.importance=decoupled",
        "calculate_log_probs must be true, got false",
        "or replay.importance=behavior",
    ),
    "replay=proximal algorithm.rollout_correction.bypass_mode=true": (
        "replay.importance=proximal",
        "bypass_mode=true",
        "Set replay.importance=behavior",
    ),
    "actor_rollout_ref.actor.policy_loss.loss_mode=gpg": ("loss_mode", "'gpg'", "Set it to vanilla"),
    "algorithm.filter_groups.enable=true": ("algorithm.filter_groups.enable", "true", "replay.filter=none"),
    "actor_rollout_ref.actor.shuffle=true": ("actor_rollout_ref.actor.shuffle", "true", "shuffle=false"),
}


ACCEPTED = {"": "", "V0": "trainer.use_v1=false", "ahead": "trainer.v1.trainer_mode=colocate_async"}
UNKNOWN = "+replay.ratoi=0.5"


ALONE = ["replay.ratio=-1", "", UNKNOWN]  # in processes of their own, as a user starts them; the others in forks


def arguments(overrides: str, folder: Path) -> list[str]:
    return [*RIGHT, *overrides.split(), f"hydra.run.dir={folder}"]


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> dict[str, subprocess.CompletedProcess]:
    """Every command of this file."""
    folder = tmp_path_factory.mktemp("dry_run")
    env = {**os.environ, "DRY_RUN": "1", "VERL_PLATFORM": "cpu"}
    results = {}
    for overrides in ALONE:
        command = [sys.executable, "-m", "verl_replay.main_ppo", *arguments(overrides, folder)]
        results[overrides] = subprocess.run(command, capture_output=True, text=True, env=env, timeout=240)
    others = [overrides for overrides in (*WRONG, *ACCEPTED.values()) if overrides not in ALONE]
    commands = [arguments(overrides, folder) for overrides in others]
    return results | dict(zip(others, run_forked("verl_replay.main_ppo", commands, folder, env), strict=True))


@pytest.mark.parametrize("override", WRONG)
def test_wrong_input_is_refused_before_ray_starts(done, override):
    refused = done[override]
    said = [line for line in refused.stderr.splitlines() if line.startswith("verl_replay: ")]
    assert refused.returncode == 1 and len(said) == 1, refused.stderr[-2000:]
    assert all(part in said[0] for part in WRONG[override]), said
    assert "Traceback" not in refused.stderr and "ray" not in refused.stdout.lower()


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_right_input_passes_validation(done, name):
    accepted = done[ACCEPTED[name]]
    assert accepted.returncode == 0, accepted.stderr[-2000:]
    assert "All configuration checks passed" in accepted.stdout and "the configuration is valid" in accepted.stdout


def test_an_unknown_option_is_refused_with_its_name(done):
    refused = done[UNKNOWN]
    assert refused.returncode == 1
    assert "verl_replay: replay.ratoi is not an option. Remove it; the options are enabled, ratio," in refused.stderr
