"""The maths data and reward through all of verl: files of data_prep.maths, graded in verl's reward loop.

The tiny policy writes no box, so every answer is wrong: no group has variance, and the run goes on without an update.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.e2e.conftest import ROOT, recipe_command, recipe_environment, run_to_its_end

pytestmark = pytest.mark.e2e


def test_a_run_on_maths_data_whose_answers_are_all_wrong(task, tmp_path):
    rows = [{"question": f"{100 + i}+{200 + i}=", "answer": f"#### {300 + 2 * i}"} for i in range(24)]
    for name, part in (("gsm8k", rows), ("gsm8k_test", rows[:8])):
        source = tmp_path / f"{name}.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in part))
        command = ["-m", "data_prep.maths", "--dataset", name, "--source", str(source), "--no-suffix"]
        subprocess.run([sys.executable, *command, "--output", str(tmp_path)], check=True, cwd=ROOT, timeout=300)
    command = recipe_command(
        2,
        f"data.train_files={tmp_path}/gsm8k.parquet",
        f"data.val_files={tmp_path}/gsm8k_test.parquet",
        "reward.custom_reward_function.path=pkg://data_prep.maths.reward",
        "trainer.test_freq=2",
        "trainer.save_freq=-1",
    )
    metrics = run_to_its_end(command, recipe_environment(tmp_path, task, "verl_replay.main_ppo"), tmp_path).metrics
    assert list(metrics.index) == [1, 2]
    assert (metrics["critic/score/mean"] == 0).all() and (metrics["replay/filter/zero_variance_frac"] == 1).all()
    assert (metrics["replay/updates"] == 0).all() and (metrics["replay/buffer/size"] == 0).all()
    assert metrics.loc[2, "val-core/gsm8k_test/acc/mean@8"] == 0
