"""recipes/ablations.sh: what it lists, runs, resumes and refuses. A few lines of bash stand in for a training run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from verl_replay.options import ReplayOptions

ROOT = Path(__file__).resolve().parents[1]
GRID = [line.split() for line in (ROOT / "recipes/ablations.txt").read_text().splitlines() if line[:1] not in ("#", "")]
RECIPE = """#!/usr/bin/env bash
echo "$OUTPUT_DIR $*" >> "$CALLS"
[[ "$*" == *"$FAIL"* ]] && exit 3
sleep "${SLEEP:-0}"
"""


@pytest.fixture
def ablations(tmp_path):
    recipe = tmp_path / "stub/run.sh"
    recipe.parent.mkdir()
    recipe.write_text(RECIPE)
    env = {
        **os.environ,
        "RECIPE": str(recipe),
        "ABLATIONS_DIR": str(tmp_path / "out"),
        "CALLS": str(tmp_path / "calls"),
    }
    env |= {"FAIL": "nothing fails", "SEEDS": "1 2"}

    def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
        (tmp_path / "calls").write_text("")
        return subprocess.run(
            ["bash", str(ROOT / "recipes/ablations.sh"), *arguments],
            env=env | variables, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    start.env, start.calls = env, lambda: (tmp_path / "calls").read_text().splitlines()
    return start


def test_the_grid_has_the_papers_comparisons():
    arms = {name: overrides for name, *overrides in GRID}
    assert len(arms) == len(GRID)
    needed = {"off", "filtered", "fresh_anchored", "uniform", "sigma_g", "pooled", "pooled_uniform", "pooled_sigma_g"}
    assert needed | {"max_age_2", "max_age_5", "max_age_20", "no_age_limit"} <= set(arms)
    presets = {path.stem for path in (ROOT / "verl_replay/config/replay").glob("*.yaml")}
    for overrides in arms.values():
        assert overrides[0].removeprefix("replay=") in presets
        assert all(o.partition("=")[0].removeprefix("replay.") in ReplayOptions.__annotations__ for o in overrides[1:])


def test_without_run_it_lists_and_starts_nothing(ablations, tmp_path):
    done = ablations("trainer.total_training_steps=5")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(GRID) and all(" open " in line for line in lines)
    assert lines[0].endswith(
        "replay=off replay.seed=1 data.seed=1 actor_rollout_ref.rollout.seed=1 trainer.total_training_steps=5"
    )
    assert not ablations.calls() and not (tmp_path / "out").exists()


def test_a_finished_arm_is_not_run_again_and_a_failed_one_is(ablations, tmp_path):
    only = {"RUN": "1", "ONLY": "off|pooled"}
    done = ablations(**only, FAIL="replay=pooled replay.seed=2")
    assert done.returncode == 1 and "1 of 4 failed" in done.stderr and "pooled/seed_2/train.log" in done.stderr
    assert [call.split()[0].removeprefix(f"{tmp_path}/out/") for call in ablations.calls()] == [
        "off/seed_1", "off/seed_2", "pooled/seed_1", "pooled/seed_2",
    ]  # fmt: skip
    again = ablations(**only)
    assert again.returncode == 0 and [call.split()[0][-13:] for call in ablations.calls()] == ["pooled/seed_2"]
    assert [line.split()[1] for line in again.stdout.splitlines()] == ["finished"] * 3 + ["stopped"]
    assert ablations(**only).returncode == 0 and not ablations.calls()


def test_other_settings_are_refused_not_mixed(ablations):
    only = {"RUN": "1", "ONLY": "off", "SEEDS": "1"}
    ablations(**only)
    done = ablations("trainer.total_training_steps=7", **only)
    assert done.returncode == 1 and "was made with other settings" in done.stderr and "ABLATIONS_DIR" in done.stderr
    assert not ablations.calls()


def test_a_stopped_arm_goes_on(ablations):
    only = {"RUN": "1", "ONLY": "off", "SEEDS": "1"}
    (Path(ablations.env["CALLS"])).write_text("")
    process = subprocess.Popen(
        ["bash", str(ROOT / "recipes/ablations.sh")],
        env=ablations.env | only | {"SLEEP": "30"}, start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not ablations.calls():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130 and "run it again to go on" in said
    assert ablations(**only).stdout.split()[1] == "stopped" and len(ablations.calls()) == 1
    assert ablations(**only).stdout.split()[1] == "finished"


@pytest.mark.parametrize(
    ("variables", "said"),
    [({"ONLY": "of"}, "leave no arm"), ({"SEEDS": " "}, "leave no arm"), ({"RECIPE": "/nowhere"}, "RECIPE must be")],
)
def test_wrong_words_are_refused(ablations, variables, said):
    done = ablations(RUN="1", **variables)
    assert done.returncode == 2 and said in done.stderr


def test_dry_run_checks_every_arm(ablations):
    done = ablations(DRY_RUN="1", ONLY="off|filtered", FAIL="replay=filtered")
    assert done.returncode == 1 and "filtered is refused" in done.stderr and len(ablations.calls()) == 4
