"""The benchmark runs from end to end at 1/50 of its size. What it measures is not asserted: times are the machine's."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.benchmark.report import NOT_MEASURED, make_table
from scripts.benchmark.rollouts import QUICK, Size, information, make_batch, make_rewards, survivors
from verl_replay.ragged import Ragged

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PARTS = ("stage", "ten_times", "peers", "torchrl", "transfer_queue")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[dict[str, Any], str, str]:
    """(all numbers, the table as printed, the table as written) of a quick run."""
    folder = tmp_path_factory.mktemp("benchmark")
    command = [sys.executable, "-m", "scripts.benchmark_replay", "--quick", "--seed", "3"]
    command += ["--json", str(folder / "numbers.json"), "--output", str(folder / "table.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "numbers.json").read_text()), done.stdout, (folder / "table.md").read_text()


def leaves(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return [leaf for value in node.values() for leaf in leaves(value)]
    return [leaf for value in node for leaf in leaves(value)] if isinstance(node, list) else [node]


def test_every_number_is_finite_and_positive(run):
    numbers = run[0]
    for part in PARTS:
        if part == "torchrl" and "missing" in numbers[part]:
            continue  # optional
        assert "missing" not in numbers[part], numbers[part]
        assert all(math.isfinite(leaf) and leaf > 0 for leaf in leaves(numbers[part])), part


def test_the_table_has_every_row_and_a_verdict_for_every_target(run):
    numbers, printed, written = run
    assert printed.strip() == written.strip()
    rows = make_table(numbers)
    assert [row._asdict() for row in rows] == numbers["table"]
    for row in rows:
        assert f"| {row.what} | {row.value} |" in written
        if "torchrl" not in row.what:
            assert row.value != NOT_MEASURED
        assert (row.met is None) == (not row.target)
    assert sum(row.met is not None for row in rows) == 7
    assert "seed 3" in written and "--quick" in written and "torch" in written


def test_the_buffer_was_full_and_age_evicted_as_many_as_came(run):
    for part, times in (("stage", 1), ("ten_times", 10)):
        stage = run[0][part]
        assert stage["stored"] >= times * QUICK.stored
        assert stage["evicted"] == stage["survivors"] == QUICK.survivors
        assert stage["drawn"] == QUICK.drawn
    for queue in run[0]["transfer_queue"].values():
        assert (queue["rows"], queue["drawn"]) == (QUICK.rows, QUICK.drawn)
        assert queue["rows_sent_to_the_workers"] >= QUICK.survivors + QUICK.drawn


def test_what_could_not_be_measured_keeps_its_row(run):
    numbers = {**run[0], **{part: {"missing": "why"} for part in ("ten_times", "torchrl", "transfer_queue")}}
    values = {row.what: row.value for row in make_table(numbers)}
    assert sum(value == NOT_MEASURED for value in values.values()) >= 7


# ---- the made-up rollouts -------------------------------------------------------------------------------------------


def test_the_rollouts_are_of_the_size_that_design_asks_for(rng):
    size = Size()
    batch = make_batch(size, rng, name="a")
    response = batch.columns["responses"].lengths
    assert len(batch.keys) == len(set(batch.keys)) == 1024
    assert response.max() <= 4096
    assert abs(response.mean() - 1200) < 60
    assert abs(batch.columns["prompts"].lengths.mean() - 512) < 20
    assert len(survivors(batch)) == size.survivors == 464  # 55 % of the groups have zero variance


def test_advantages_are_those_of_grpo(rng):
    reward, advantage = make_rewards(QUICK, rng)
    for group, made in zip(reward.reshape(-1, 8), advantage.reshape(-1, 8), strict=True):
        expected = (group - group.mean()) / (group.std(ddof=1) + 1e-6)
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-7)
    assert sorted(len(set(group)) for group in reward.reshape(-1, 8).tolist()) == [1, 1, 2, 2]


def test_information_counts_ids_log_probs_and_a_mask_bit():
    def column(count: int) -> Ragged:
        return Ragged(np.zeros(count), np.array([0, count]))

    # 3 + 16 ids of 4 bytes, 16 log-probs of 4 bytes, 16 bits
    assert information({"prompts": column(3), "responses": column(16)}) == 4 * 19 + 4 * 16 + 2
