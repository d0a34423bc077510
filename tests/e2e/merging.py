"""A run's checkpoint merged as scripts/evaluate.py merges it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from scripts.evaluating.models import WEIGHTS, find_model, merge


def merged(step: Path, folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint (global_step_N) by its FSDP shards alone, whatever else was saved in it."""
    copy = folder / step.name
    shutil.copytree(step / "actor", copy / "actor", ignore=shutil.ignore_patterns(*WEIGHTS))
    source = find_model(copy)
    assert source.shards
    (folder / "out").mkdir()
    model = merge(source, folder / "out", environ=os.environ)
    assert find_model(model) == (model, ()) and (model / "tokenizer.json").exists()
    modified = (model / WEIGHTS[0]).stat().st_mtime_ns
    assert merge(source, folder / "out", environ={}) == model  # the same shards: nothing to do
    assert (model / WEIGHTS[0]).stat().st_mtime_ns == modified
    return load_file(model / WEIGHTS[0])
