"""scripts/evaluate.py with vLLM on the CPU: right numbers, and the same ones however often it was stopped."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_prep import addition
from data_prep.base_policy import random_streams
from data_prep.parquet import write_parquet
from data_prep.problems import draw_problems
from scripts.evaluating.store import read_generations
from tests.e2e.conftest import ROOT
from tests.e2e.processes import kill_all_with, processes_with
from verl_replay.guard import with_mark

pytestmark = pytest.mark.e2e

N = 16
BENCH = ROOT.parent / "shared" / "data" / "bench" / "math500.jsonl"
REWARD = """
from data_prep import reward

def compute_score(data_source, solution_str, ground_truth, extra_info):
    if data_source == "verl_replay/addition":
        return reward.compute_score(data_source, solution_str, ground_truth, extra_info)
    return float(solution_str == ground_truth)
"""


@pytest.fixture(scope="module")
def inputs(task, tmp_path_factory) -> Path:
    """The held-out problems on which make_tiny measured the model; ten that it was not made for; a reward."""
    folder = tmp_path_factory.mktemp("inputs")
    measured = json.loads((task / "model/base.json").read_text())["accuracy"]
    problems = draw_problems(addition, random_streams(0)["heldout"], measured["n"], heldout=True)
    write_parquet(folder / "sums.parquet", addition, problems, "heldout")
    lines = [f'{{"id": {i}, "problem": "√{i} · ∫ x dx {"long " * 40 * (i % 2)}", "answer": "{i}"}}' for i in range(10)]
    if BENCH.exists():
        lines[5:] = BENCH.read_text().splitlines()[:5]
    (folder / "odd.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "reward.py").write_text(REWARD)
    return folder


@pytest.fixture(scope="module")
def start(task, inputs, tmp_path_factory):
    """Starts the command with its output in a folder of its own."""

    def start(output: Path, mark: str = "evaluate") -> subprocess.Popen:
        command = [sys.executable, "-m", "scripts.evaluate", "--model", str(task / "model"), "--output", str(output)]
        command += [
            "--data",
            str(inputs / "sums.parquet"),
            str(inputs / "odd.jsonl"),
            "--too-long",
            "wrong",
            "--suffix",
            "",
        ]
        command += ["--reward", f"{inputs / 'reward.py'}:compute_score", "--n", str(N), "--max-tokens", "8"]
        command += ["--dtype", "float32"]
        env = with_mark(os.environ, mark)
        output.mkdir(exist_ok=True)
        with (output / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)

    return start


def lines_of(folder: Path) -> int:
    path = folder / "generations.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_more(run: subprocess.Popen, folder: Path, lines: int) -> None:
    """Until answers have come in addition to `lines`, in the middle of the run."""
    end = time.monotonic() + 300
    while lines_of(folder) <= lines:
        assert run.poll() is None and time.monotonic() < end, (folder / "log").read_text(errors="replace")[-3000:]
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert start(folder).wait(300) == 0, (folder / "log").read_text(errors="replace")[-3000:]
    return folder


@pytest.fixture(scope="module")
def stopped_twice(start, tmp_path_factory) -> tuple[Path, list[int]]:
    """Stopped by Ctrl-C, gone on, killed as a whole tree, gone on to the end; the lines there at each stop."""
    folder, mark = tmp_path_factory.mktemp("stopped"), f"evaluate{os.getpid()}"
    stops = []
    run = start(folder, mark)
    wait_for_more(run, folder, 10 * N)  # more than what needs no sampling, prompts that do not fit
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 128 + signal.SIGINT
    assert processes_with(mark) == []
    stops.append(lines_of(folder))
    assert read_generations(folder / "generations.jsonl")[1] == (folder / "generations.jsonl").stat().st_size

    run = start(folder, mark)
    wait_for_more(run, folder, stops[0])
    kill_all_with(mark)
    run.wait(30)
    assert processes_with(mark) == []
    stops.append(lines_of(folder))
    assert not (folder / "results.json").exists()
    assert start(folder).wait(300) == 0, (folder / "log").read_text(errors="replace")[-3000:]
    return folder, stops


def results_of(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def test_the_accuracy_is_the_one_that_make_tiny_measured(task, whole):
    """Two samples of the same problems. The variance of a mean of M answers is at most p (1 - p) / M, so the difference
    of M = 256 x 8 and M = 256 x 16 answers has a standard deviation of at most sqrt(.25/2048 + .25/4096) = .0135."""
    measured = json.loads((task / "model/base.json").read_text())["accuracy"]
    row = results_of(whole)["benchmarks"]["sums"]
    assert row["problems"] == measured["n"] == 256 and row["n"] == N
    error = math.sqrt(0.25 / (measured["n"] * measured["k"]) + 0.25 / (256 * N))
    assert abs(row["mean"]["estimate"] - measured["mean_at_k"]) < 4 * error < 0.055
    assert row["mean"]["low"] < row["mean"]["estimate"] < row["mean"]["high"]
    passes = [row["pass"][str(k)] for k in (1, 2, 4, 8, 16)]
    assert passes[0] == pytest.approx(row["mean"]["estimate"]) and passes == sorted(passes) and passes[-1] > 0.95
    assert row["tokens"]["correct"] == 5  # four digits and the end


def test_problems_in_unknown_characters_are_scored_and_long_ones_counted(whole):
    row = results_of(whole)["benchmarks"]["odd"]
    assert row["problems"] == 10 and 2 <= row["too_long"] < 8
    generations = [g for g in read_generations(whole / "generations.jsonl")[0] if g.benchmark == "odd"]
    assert len(generations) == 10 * N
    assert all(g.tokens for g in generations if g.id in "024")  # short enough, and half of it unknown characters
    assert sum(g.finish_reason == "prompt_too_long" for g in generations) == row["too_long"] * N
    assert f"{row['too_long']} prompts did not fit" in (whole / "results.md").read_text()


def test_a_stopped_evaluation_ends_as_one_that_was_not(whole, stopped_twice):
    folder, (interrupted, killed) = stopped_twice
    total = (256 + 10) * N
    assert 10 * N < interrupted < killed < total
    again, once = (sorted(read_generations(f / "generations.jsonl")[0]) for f in (folder, whole))
    assert len(once) == total
    assert again == once
    ours, theirs = results_of(folder), results_of(whole)
    for part in ("settings", "benchmarks", "average"):
        assert ours[part] == theirs[part]
