"""End-to-end runs: the recipe as a user starts it, each in a folder of its own, each once a session."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd
import pytest
from safetensors.numpy import load_file

from verl_replay.analysis import read_metrics

ROOT = Path(__file__).resolve().parents[2]
SECONDS_A_RUN = 600  # a failed weight sync hangs


@dataclass
class Run:
    """One finished run and what it left."""

    folder: Path
    output: str = field(repr=False)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        return read_metrics(self.folder / "metrics.jsonl")

    @cached_property
    def records(self) -> list[dict]:
        paths = sorted((self.folder / "records").glob("step_*.json"), key=lambda p: int(p.stem.split("_")[1]))
        return [json.loads(path.read_text()) for path in paths]

    @cached_property
    def weights(self) -> str:
        """Digest of the final weights, of a run that saved once."""
        (path,) = (self.folder / "checkpoints").glob("global_step_*")
        return self.weights_of(int(path.name.rpartition("_")[2]))

    def weights_of(self, step: int) -> str:
        """Digest of the weights saved at a step."""
        path = self.folder / "checkpoints" / f"global_step_{step}" / "actor/huggingface/model.safetensors"
        digest = hashlib.sha256()
        for name, array in sorted(load_file(path).items()):
            digest.update(name.encode() + array.tobytes())
        return digest.hexdigest()


def recipe_command(steps: int, *overrides: str) -> list[str]:
    """The tiny recipe as the tests run it: a few steps, two optimizer steps each, replay from the second."""
    return [
        "bash",
        str(ROOT / "recipes/tiny_cpu/run.sh"),
        f"trainer.total_training_steps={steps}",
        f"trainer.save_freq={steps}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]",
        "replay.warmup_steps=0",
        "replay.diagnostics_every=1",
        *overrides,
    ]


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


@pytest.fixture(scope="session")
def task(tmp_path_factory) -> Path:
    """Noisy addition and a base policy that is partly right, made as a user makes them, with a shorter training."""
    folder = tmp_path_factory.mktemp("task")
    command = ["-m", "data_prep.make_tiny", "--task", "addition", "--output", str(folder), "--heldout-rows", "16"]
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT, timeout=600)
    return folder


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
        env = recipe_environment(folder, task, module)
        command = recipe_command(steps, *overrides)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS_A_RUN + 120)
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{output[-6000:]}"
        return Run(folder, output)

    return run
