"""The command itself: ten wrong inputs, each refused in seconds with one clear error, and the right one accepted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

RIGHT = [
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "trainer.n_gpus_per_node=1",
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
    "trainer.v1.trainer_mode=separate_async": ("trainer.v1.trainer_mode", "'separate_async'", "trainer_mode=sync"),
    "algorithm.filter_groups.enable=true": ("algorithm.filter_groups.enable", "true", "replay.filter=none"),
    "actor_rollout_ref.actor.shuffle=true": ("actor_rollout_ref.actor.shuffle", "true", "shuffle=false"),
}


def start(folder: Path, *overrides: str) -> tuple[subprocess.CompletedProcess, float]:
    env = {**os.environ, "DRY_RUN": "1", "VERL_PLATFORM": "cpu"}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "verl_replay.main_ppo", *RIGHT, *overrides, f"hydra.run.dir={folder}"],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
    )
    return done, time.monotonic() - started


@pytest.mark.parametrize("override", WRONG)
def test_wrong_input_is_refused_before_ray_starts(override, record_property, tmp_path):
    done, seconds = start(tmp_path, override)
    record_property("seconds", seconds)
    said = [line for line in done.stderr.splitlines() if line.startswith("verl_replay: ")]
    assert done.returncode == 1 and len(said) == 1, done.stderr[-2000:]
    assert all(part in said[0] for part in WRONG[override]), said
    assert "Traceback" not in done.stderr and "ray" not in done.stdout.lower()


def test_the_right_input_passes_validation(tmp_path):
    done, _ = start(tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "All configuration checks passed" in done.stdout and "the configuration is valid" in done.stdout


def test_an_unknown_option_is_refused_with_its_name(tmp_path):
    done, _ = start(tmp_path, "+replay.ratoi=0.5")
    assert done.returncode == 1
    assert "verl_replay: replay.ratoi is not an option. Remove it; the options are enabled, ratio," in done.stderr
