"""I9, O14 end to end: a run whose whole process tree is killed in the middle goes on as if nothing had happened.

The run that goes on is ended by Ctrl-C after the steps that are compared; that leaves no process and no shared memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import RESUMABLE, SAVED, SECONDS_A_RUN, STEPS, Run, recipe_command, recipe_environment
from tests.e2e.processes import kill_all_with, processes_with
from tests.e2e.test_off import compared
from verl_replay.analysis import read_metrics
from verl_replay.guard import shared_memory_of, with_mark

pytestmark = pytest.mark.e2e

AGAIN = list(range(SAVED + 1, STEPS + 1))


@dataclass(frozen=True)
class Stopped:
    """A run that was stopped from outside in the middle of a step."""

    run: Run
    last: int  # step in the log
    saved: str  # step that verl would go on from
    status: int
    processes: int  # just before the stop
    segments: set[Path]  # files of shared memory that they had mapped


def logged(folder: Path) -> int:
    """The last step in the log of metrics."""
    path = folder / "metrics.jsonl"
    return int(read_metrics(path).index.max()) if path.exists() and b"\n" in path.read_bytes() else 0


@pytest.fixture(scope="module")
def stop_after(task):
    def stop_after(step: int, folder: Path, steps: int, stop: Callable[[subprocess.Popen, str], None]) -> Stopped:
        """Starts the run of `folder`, or goes on with it, and stops it when `step` has been logged."""
        mark = f"stopped_after_{step}_{os.getpid()}"
        env = with_mark(recipe_environment(folder, task, "tests.e2e.recording"), mark)
        command = recipe_command(steps, "replay=fresh_anchored", *RESUMABLE)
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        run = Run(folder)
        try:
            end = time.monotonic() + SECONDS_A_RUN
            while logged(folder) < step:
                assert process.poll() is None and time.monotonic() < end, run.output[-6000:]
                time.sleep(0.02)
            time.sleep(0.3)  # into the next step
            pids = processes_with(mark)
            segments = shared_memory_of(pids)
            stop(process, mark)
            status = process.wait(90)
            assert processes_with(mark) == []
        finally:
            kill_all_with(mark)
        saved = (folder / "checkpoints/latest_checkpointed_iteration.txt").read_text()
        return Stopped(run, logged(folder), saved, status, len(pids), segments)

    return stop_after


@pytest.fixture(scope="module")
def killed(stop_after, tmp_path_factory) -> Stopped:
    """It saved at step 3 and was killed during step 5."""
    stopped = stop_after(SAVED + 1, tmp_path_factory.mktemp("killed"), STEPS, lambda process, mark: kill_all_with(mark))
    for segment in stopped.segments:  # what a killed run cannot clean up itself
        segment.unlink(missing_ok=True)
    return stopped


@pytest.fixture(scope="module")
def resumed(killed, stop_after) -> Stopped:
    """The same command again, with more steps to go, and a Ctrl-C."""
    folder = killed.run.folder
    (folder / "metrics.jsonl").rename(folder / "metrics_before.jsonl")
    for record in (folder / "records").iterdir():
        record.unlink()
    return stop_after(STEPS, folder, 100, lambda process, mark: process.send_signal(signal.SIGINT))


def test_the_run_was_killed_after_its_checkpoint_and_before_its_end(killed):
    assert killed.last in (SAVED + 1, SAVED + 2) and killed.saved == str(SAVED)
    assert (killed.run.folder / f"checkpoints/global_step_{SAVED}/replay/manifest.json").exists()


def test_o14_the_resumed_run_is_the_uninterrupted_one_to_the_last_digit(fresh_anchored, resumed):
    whole, again = fresh_anchored.metrics.loc[AGAIN], resumed.run.metrics.iloc[: len(AGAIN)]
    assert list(again.index) == AGAIN
    assert (whole["replay/draw/rollouts"] > 0).all()
    assert len(compared(again).columns) > 20
    assert compared(again).equals(compared(whole))
    ours = sorted(name for name in whole.dropna(axis=1, how="all") if name.startswith("replay/"))
    assert ours == sorted(name for name in again.dropna(axis=1, how="all") if name.startswith("replay/"))
    assert again[ours].equals(whole[ours])
    assert resumed.run.weights(STEPS) == fresh_anchored.weights(STEPS)


def test_every_row_that_the_resumed_run_trains_on_is_the_same(fresh_anchored, resumed):
    expected = {record["step"]: record["trained"] for record in fresh_anchored.records}
    records = resumed.run.records[: len(AGAIN)]
    assert [record["step"] for record in records] == AGAIN
    replayed = 0
    for record in records:
        same = [{k: v for k, v in row.items() if k != "key"} for row in record["trained"]]
        assert same == [{k: v for k, v in row.items() if k != "key"} for row in expected[record["step"]]]
        replayed += sum(row["key"].startswith("replayed-") for row in record["trained"])
    assert replayed > 0


def test_ctrl_c_leaves_no_process_and_no_shared_memory(resumed):
    assert resumed.status == 128 + signal.SIGINT
    assert resumed.processes > 10  # Ray, vLLM and the workers were running
    assert len(resumed.segments) > 0 and not [segment for segment in resumed.segments if segment.exists()]
