"""End-to-end runs: the recipe as a user starts it, each in a folder of its own, each once a session."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock
from safetensors.numpy import load_file

from verl_replay.analysis import read_metrics

ROOT = Path(__file__).resolve().parents[2]
SECONDS_A_RUN = 900  # a failed weight sync hangs

# The run that is compared with one that is killed after it has saved, and goes on (test_resume.py).
STEPS, SAVED = 6, 3
RESUMABLE = (
    f"trainer.save_freq={SAVED}",
    "trainer.resume_mode=auto",
    "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
)


# By the number of their runs: two processes share the files, and should end together.
LONGEST_FIRST = ("arms", "off", "trainers", "resume", "evaluate", "maths", "evaluate_math500", "smoke")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {Path(__file__).with_name(f"test_{name}.py"): number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path, -1))


@dataclass(frozen=True)
class Run:
    """A run and what it left."""

    folder: Path

    @property
    def output(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        return read_metrics(self.folder / "metrics.jsonl")

    @cached_property
    def records(self) -> list[dict]:
        paths = sorted((self.folder / "records").glob("step_*.json"), key=lambda p: int(p.stem.split("_")[1]))
        return [json.loads(path.read_text()) for path in paths]

    def weights(self, step: int) -> str:
        """Digest of the weights saved at a step."""
        path = self.folder / "checkpoints" / f"global_step_{step}" / "actor/huggingface/model.safetensors"
        digest = hashlib.sha256()
        for name, array in sorted(load_file(path).items()):
            digest.update(name.encode() + array.tobytes())
        return digest.hexdigest()


def recipe_overrides(steps: int, *overrides: str) -> list[str]:
    """The tiny recipe as the tests run it: a few steps, two optimizer steps each, replay from the second."""
    return [
        f"trainer.total_training_steps={steps}",
        f"trainer.save_freq={SAVED}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]",
        "replay.warmup_steps=0",
        "replay.diagnostics_every=1",
        *overrides,
    ]


def recipe_command(steps: int, *overrides: str) -> list[str]:
    return ["bash", str(ROOT / "recipes/tiny_cpu/run.sh"), *recipe_overrides(steps, *overrides)]


def recipe_environment(folder: Path, task: Path, module: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHON": sys.executable,
        "DATA_DIR": str(task),
        "OUTPUT_DIR": str(folder),
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
        "MODULE": module,
        "TIMEOUT": str(SECONDS_A_RUN),
    }


def run_to_its_end(command: list[str], env: dict[str, str], folder: Path) -> Run:
    """Its output goes to `folder`/log."""
    with (folder / "log").open("ab") as log:
        done = subprocess.run(command, env=env, stdout=log, stderr=log, cwd=ROOT, timeout=SECONDS_A_RUN + 120)
    run = Run(folder)
    assert done.returncode == 0, f"{folder.name} ended with {done.returncode}:\n{run.output[-6000:]}"
    return run


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, worker_id):
    """Makes a folder that tests in several processes use: the first that asks makes it, the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    common = (base if worker_id == "master" else base.parent) / "made_once"
    common.mkdir(exist_ok=True)

    def made_once(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = common / name, common / f"{name}.done"
        with FileLock(common / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made_once


@pytest.fixture(scope="session")
def task(made_once) -> Path:
    """Noisy addition and a base policy that is partly right, made as a user makes them."""

    def make(folder: Path) -> None:
        command = ["-m", "data_prep.make_tiny", "--task", "addition", "--output", str(folder), "--heldout-rows", "16"]
        subprocess.run([sys.executable, *command], check=True, cwd=ROOT, timeout=600)

    return made_once("task", make)


@pytest.fixture(scope="session")
def run_recipe(task, tmp_path_factory):
    """Runs the tiny recipe with overrides, through `module`."""

    def run(
        name: str,
        *overrides: str,
        module: str = "tests.e2e.recording",
        steps: int = 4,
        folder: Path | None = None,
    ) -> Run:
        folder = folder or tmp_path_factory.mktemp(name)
        return run_to_its_end(recipe_command(steps, *overrides), recipe_environment(folder, task, module), folder)

    return run


@pytest.fixture(scope="session")
def fresh_anchored(made_once, run_recipe) -> Run:
    """The default arm, without interruption, with checkpoints that a run goes on from."""

    def make(folder: Path) -> None:
        run_recipe("fresh_anchored", "replay=fresh_anchored", *RESUMABLE, steps=STEPS, folder=folder)

    return Run(made_once("fresh_anchored", make))
