"""The benchmark of saving and loading runs from end to end at 1/50 of its size. Its times are not asserted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scripts.benchmark.rollouts import QUICK
from scripts.benchmark_checkpoint import QUICK_ROUNDS, make_buffer, make_table

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def test_a_quick_run_has_every_row_and_leaves_no_file(tmp_path):
    (tmp_path / "here").mkdir()
    command = [sys.executable, "-m", "scripts.benchmark_checkpoint", "--quick", "--seed", "3"]
    command += ["--folder", str(tmp_path / "here")]
    command += ["--json", str(tmp_path / "numbers.json"), "--output", str(tmp_path / "table.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "here").iterdir()) == []
    numbers, written = json.loads((tmp_path / "numbers.json").read_text()), (tmp_path / "table.md").read_text()
    assert done.stdout.strip() == written.strip()
    rows = make_table(numbers)
    assert [row._asdict() for row in rows] == numbers["table"]
    assert all(f"| {row.what} | {row.value} |" in written for row in rows)
    assert [row.what for row in rows if row.target] == [
        "- speed of save / speed of bare write",
        "- speed of load / speed of bare read",
        "- speed of load, cache dropped / speed of bare read, cache dropped",
        "memory more while saving / buffer",
    ]
    assert len(rows) == 12 and "seed 3" in written and "--quick" in written
    for times in numbers["ms"].values():
        assert len(times) == QUICK_ROUNDS and all(math.isfinite(time) and time > 0 for time in times)
    assert numbers["bare_bytes"] <= numbers["written_bytes"] < 1.02 * numbers["bare_bytes"]


def test_the_buffer_that_is_saved_is_full(rng):
    """600 rollouts, 16 a step: the 38th step's push out the oldest eight. One segment a step."""
    buffer = make_buffer(QUICK, rng)
    assert len(buffer) == QUICK.stored == 600
    assert buffer.check_valid() == (True, "")
    assert len(buffer._store._segments) == QUICK.max_age == 38
    assert np.array_equal(np.unique(buffer.table.born), np.arange(1, 39))
