"""I9, O14 end to end: a run whose whole process tree is killed in the middle goes on as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, recipe_command, recipe_environment
from tests.e2e.test_interrupt import kill_all_with, processes_with
from tests.e2e.test_off import compared
from verl_replay.analysis import read_metrics
from verl_replay.guard import MARK

pytestmark = pytest.mark.e2e

STEPS, SAVED = 6, 3
OPTIONS = (
    f"trainer.save_freq={SAVED}",
    "trainer.resume_mode=auto",
    "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
)


@pytest.fixture(scope="module")
def uninterrupted(run_recipe):
    return run_recipe("uninterrupted", *OPTIONS, steps=STEPS)


@pytest.fixture(scope="module")
def killed(task, tmp_path_factory) -> tuple[Path, int]:
    """A folder in which a run saved at step 3 and was killed during step 5, and the last step that it logged."""
    folder = tmp_path_factory.mktemp("killed")
    mark = f"killed{os.getpid()}"
    env = recipe_environment(folder, task, "tests.e2e.recording")
    env[MARK] = ",".join(filter(None, (env.get(MARK), mark)))
    shared = set(os.listdir("/dev/shm"))
    with (folder / "log").open("wb") as log:
        run = subprocess.Popen(recipe_command(STEPS, *OPTIONS), env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 500
            while logged(folder) < SAVED + 1:
                assert run.poll() is None and time.monotonic() < end, (folder / "log").read_text(errors="replace")[
                    -3000:
                ]
                time.sleep(0.02)
            time.sleep(0.3)  # into step 5
        finally:
            kill_all_with(mark)
            run.wait(30)
    assert processes_with(mark) == []
    for name in set(os.listdir("/dev/shm")) - shared:  # what a killed run cannot clean up itself
        Path("/dev/shm", name).unlink(missing_ok=True)
    return folder, logged(folder)


def logged(folder: Path) -> int:
    """The last step in the log of metrics."""
    path = folder / "metrics.jsonl"
    return int(read_metrics(path).index.max()) if path.exists() and b"\n" in path.read_bytes() else 0


@pytest.fixture(scope="module")
def resumed(killed, run_recipe) -> Run:
    folder, _ = killed
    (folder / "metrics.jsonl").rename(folder / "metrics_before.jsonl")
    for record in (folder / "records").iterdir():
        record.unlink()
    return run_recipe("resumed", *OPTIONS, steps=STEPS, folder=folder)


def test_the_run_was_killed_after_its_checkpoint_and_before_its_end(killed):
    folder, last = killed
    assert last in (SAVED + 1, SAVED + 2)
    assert (folder / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == str(SAVED)
    assert list((folder / "checkpoints" / f"global_step_{SAVED}" / "replay").glob("manifest.json"))


def test_o14_the_resumed_run_is_the_uninterrupted_one_to_the_last_digit(uninterrupted, resumed):
    again = range(SAVED + 1, STEPS + 1)
    assert list(resumed.metrics.index) == list(again)
    whole = uninterrupted.metrics.loc[list(again)]
    assert (whole["replay/draw/rollouts"] > 0).all()
    assert len(compared(resumed).columns) > 20
    assert compared(resumed).equals(compared(uninterrupted).loc[list(again)])
    ours = sorted(name for name in whole.dropna(axis=1, how="all") if name.startswith("replay/"))
    assert ours == sorted(n for n in resumed.metrics.dropna(axis=1, how="all") if n.startswith("replay/"))
    assert resumed.metrics[ours].equals(whole[ours])
    assert resumed.weights_of(STEPS) == uninterrupted.weights_of(STEPS)


def test_every_row_that_the_resumed_run_trains_on_is_the_same(uninterrupted, resumed):
    expected = {record["step"]: record["trained"] for record in uninterrupted.records}
    assert [record["step"] for record in resumed.records] == list(range(SAVED + 1, STEPS + 1))
    replayed = 0
    for record in resumed.records:
        same = [{k: v for k, v in row.items() if k != "key"} for row in record["trained"]]
        assert same == [{k: v for k, v in row.items() if k != "key"} for row in expected[record["step"]]]
        replayed += sum(row["key"].startswith("replayed-") for row in record["trained"])
    assert replayed > 0
