"""Where the buffer of a checkpoint is, and what it holds."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from verl_replay import checkpoint
from verl_replay.buffer import RolloutBuffer
from verl_replay.checkpoint import State
from verl_replay.store import Rows
from verl_replay.table import RolloutTable
from verl_replay.trainers.resuming import FOLDER, steps_with

PROMPT, RESPONSE = "prompts", "responses"  # as in trainers/columns.py, which imports torch: seconds
_STEP = re.compile(r"global_step_(\d+)")
_UNTOLD = ("segments", "random_state", "rollouts")  # of the manifest: layout, generator, and what is counted anyway


class NoBuffer(ValueError):
    """Nothing to inspect at this path: what is there, and what to give instead."""


class Stored(NamedTuple):
    """A buffer as it was saved.

    Attributes:
        folder: global_step_N/replay.
        step: N.
        disk_bytes: of the files that the buffer is made of.
        memory_bytes: that it holds once it is loaded.
        fingerprint: what a run must have in common with the one that saved it.
        facts: what else the manifest says of it, options included where it has them.
        columns: dtype of each column as it comes back.
        table: (N,).
        lengths: (N,) int64 tokens of each rollout, all its rows together, by column.
        buffer: to draw from. Its use counts then go on; those of `table` do not.
    """

    folder: Path
    step: int
    disk_bytes: int
    memory_bytes: int
    fingerprint: dict[str, Any]
    facts: dict[str, Any]
    columns: dict[str, str]
    table: RolloutTable
    lengths: dict[str, np.ndarray]
    buffer: RolloutBuffer

    def rows(self, positions: np.ndarray) -> Rows:
        """Copies of the rollouts at `positions` ((K,) int64)."""
        return self.buffer.draw(positions).rows


def find_buffer(path: Path) -> Path:
    """The folder of the buffer: `path` itself, its replay/, or that of the newest step below it.

    Raises:
        NoBuffer: there is none.
    """
    if not path.exists():
        raise NoBuffer(f"{path} does not exist. Give a global_step_N folder, or the folder that holds them.")
    if not path.is_dir():
        raise NoBuffer(f"{path} is a file. Give the folder that it is in.")
    path = path.resolve()
    if path.name == FOLDER or (path / checkpoint.MANIFEST).exists():
        return path
    if (path / FOLDER).is_dir():
        return path / FOLDER
    if steps := steps_with(path, FOLDER):
        return path / f"global_step_{max(steps)}" / FOLDER
    if _STEP.fullmatch(path.name) or list(path.glob("global_step_*")):
        raise NoBuffer(f"{path} is of checkpoints without a replay buffer: made with replay=off, or nothing to replay.")
    raise NoBuffer(f"{path} holds no replay buffer. Give a global_step_N folder, or the folder that holds them.")


def read_buffer(folder: Path) -> Stored:
    """Read and check the buffer in `folder`, as a resumed run would.

    Raises:
        CheckpointError: it is damaged or incomplete: what, and what to do.
        ValueError: its files are intact and do not make a buffer.
    """
    manifest = checkpoint.read_manifest(folder)
    named = _STEP.fullmatch(folder.parent.name)
    step = int(named[1]) if named else manifest["step"]
    state = checkpoint.load(folder, step=step, fingerprint=manifest["fingerprint"])
    buffer = RolloutBuffer(capacity=sys.maxsize, seed=0)
    buffer.load(state)
    files = (folder / checkpoint.MANIFEST, folder / manifest["arrays"]["file"])
    return Stored(
        folder=folder,
        step=step,
        disk_bytes=sum(file.stat().st_size for file in files),
        memory_bytes=buffer.nbytes,
        fingerprint=manifest["fingerprint"],
        facts={name: value for name, value in state.meta.items() if name not in _UNTOLD},
        columns=_columns(state),
        table=buffer.table.take(np.arange(len(buffer))),
        lengths=_lengths(state),
        buffer=buffer,
    )


def _columns(state: State) -> dict[str, str]:
    segments = state.meta["segments"]
    return {name: np.dtype(column["dtype"]).name for s in segments[:1] for name, column in s["columns"].items()}


def _lengths(state: State) -> dict[str, np.ndarray]:
    """(N,) tokens of every rollout by column, from the offsets alone: no token is touched."""
    segments = state.meta["segments"]
    return {
        name: np.concatenate([_of_segment(state.arrays, segment, name) for segment in segments])
        for name in _columns(state)
    }


def _of_segment(arrays: Mapping[str, np.ndarray], segment: Mapping[str, Any], name: str) -> np.ndarray:
    rollouts, live = arrays[segment["rollouts"]], arrays[segment["live"]]
    return np.diff(arrays[segment["columns"][name]["offsets"]][rollouts])[live]
