"""Makes and stores the base policy of a task, once for the same settings."""

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tokenizers
import torch
import transformers

from data_prep.problems import draw_problems
from data_prep.tasks import task_named
from data_prep.tiny_model import (
    SupervisedSettings,
    measure,
    parameter_count,
    seeded_torch,
    supervised_batch,
    supervised_start,
    untrained_model,
)
from data_prep.tokenizer import build_tokenizer

MANIFEST = "base.json"
RECIPE = 1  # raise it when the code here changes what is made, so that finished folders are not reused


@dataclass(frozen=True)
class BaseSettings:
    """Everything that decides the weights and the measured accuracy."""

    task: str
    seed: int = 0
    threads: int = 1  # torch's; with two, any other load on the machine makes them wait for each other, 30 times slower
    eval_problems: int = 256  # held-out problems on which the base policy is measured
    supervised: SupervisedSettings = field(default_factory=SupervisedSettings)


def random_streams(seed: int) -> dict[str, np.random.Generator]:
    """Independent generators by purpose, so that asking for more rows of one kind changes no other."""
    purposes = ("train", "heldout", "demonstrations", "batches")
    children = np.random.SeedSequence(seed).spawn(len(purposes))
    return {purpose: np.random.default_rng(child) for purpose, child in zip(purposes, children, strict=True)}


def identity(settings: BaseSettings) -> dict:
    """What must be equal for a finished folder to be reused: recipe, settings and versions."""
    return {
        "recipe": RECIPE,
        "settings": asdict(settings),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
    }


def read_manifest(folder: Path) -> dict | None:
    """The manifest of a finished folder; None if there is none or it is damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def make_base(folder: Path, settings: BaseSettings, *, force: bool = False) -> tuple[dict, bool]:
    """Make the base policy in `folder`, or reuse what is there if it was made with the same identity.

    Args:
        folder: model, tokenizer, chat template, generation config and base.json; appears whole or not at all.
        force: make it again in any case.

    Returns:
        (manifest, reused)

    Raises:
        ValueError: unknown task, or `folder` holds something that was not made here and force is off.
    """
    manifest = read_manifest(folder)
    if not force:
        if manifest is not None and manifest.get("identity") == identity(settings):
            return manifest, True
        if manifest is None and folder.exists():
            raise ValueError(
                f"data_prep: {folder} exists without a readable {MANIFEST}, so it was not made here or is damaged; "
                "choose another output folder, or replace it with --force"
            )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        unfinished, replaced = Path(scratch, "unfinished"), Path(scratch, "replaced")
        manifest = build_base(unfinished, settings)
        if folder.exists():
            os.replace(folder, replaced)
        os.replace(unfinished, folder)
    return manifest, False


def build_base(folder: Path, settings: BaseSettings) -> dict:
    """Train, measure and save a base policy into `folder`, which does not exist yet; returns its manifest."""
    start = time.monotonic()
    task, streams = task_named(settings.task), random_streams(settings.seed)
    tokenizer = build_tokenizer()
    problems = draw_problems(
        task, streams["demonstrations"], settings.supervised.demonstrations, heldout=False, unique=False
    )
    pairs = [(problem.prompt, task.demonstrate(problem, streams["demonstrations"])) for problem in problems]
    ids, labels = supervised_batch(tokenizer, pairs)
    heldout = draw_problems(task, streams["heldout"], settings.eval_problems, heldout=True)
    with seeded_torch(settings.seed, settings.threads):
        model = untrained_model(tokenizer)
        losses = supervised_start(model, ids, labels, streams["batches"], settings.supervised)
        accuracy = measure(model, tokenizer, task, heldout, task.EVAL_K)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    manifest = {
        "identity": identity(settings),
        "parameters": parameter_count(model),
        "loss": {"first": losses[0], "last": losses[-1]},
        "accuracy": {"mean_at_k": accuracy.mean_at_k, "greedy": accuracy.greedy, "temperature": 1.0}
        | {"k": task.EVAL_K, "n": settings.eval_problems},
        "seconds": round(time.monotonic() - start, 1),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return manifest
