"""Several nodes: an existing Ray cluster, joined by address. Two nodes of one machine, with one (counted) GPU each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import SECONDS_A_RUN, Run, recipe_command, recipe_environment

pytestmark = pytest.mark.e2e


def test_a_run_on_two_nodes_of_a_cluster_that_runs_already(task, tmp_path):
    _, _, *overrides = recipe_command(3)
    command = ["-m", "verl_replay.guard", "--timeout", str(SECONDS_A_RUN), "--", "bash"]
    done = subprocess.run(
        [sys.executable, *command, str(Path(__file__).with_name("two_nodes.sh")), *overrides],
        env=recipe_environment(tmp_path, task, "verl_replay.main_ppo"),
        capture_output=True,
        text=True,
        timeout=SECONDS_A_RUN + 120,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    assert "nodes alive: 2" in output
    metrics = Run(tmp_path, output).metrics
    assert list(metrics.index) == [1, 2, 3]
    assert (metrics["replay/draw/rollouts"].iloc[1:] > 0).all()
    assert (metrics["actor/grad_norm"] > 0).all()
    assert (metrics["training/rollout_probs_diff_max"] < 1e-4).all()  # both replicas sample from the trained weights
