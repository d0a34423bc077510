"""The buffer as files beside verl's checkpoint: global_step_N/replay/{manifest.json, rollouts-<checksum>.safetensors}.

Flat arrays in one safetensors file, everything else in a small JSON manifest: no pickle. The manifest names the arrays
file and its checksum, and is put in place last and at once (written under another name, fsynced, renamed). So at every
instant the folder holds the last complete state or none; what was being written when a run was killed is never read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

FORMAT = 1
MANIFEST = "manifest.json"
_REMEDY = (
    "Resume from an earlier global_step folder (trainer.resume_mode=resume_path trainer.resume_from_path=...), or "
    "start with an empty buffer: replay.resume=fresh."
)


class CheckpointError(ValueError):
    """A stored buffer that cannot be used, or could not be written: what is wrong, where, and what to do."""


class State(NamedTuple):
    """The state of a buffer.

    Attributes:
        arrays: flat arrays by name. References, not copies: to be written at once.
        meta: what JSON can hold: counts, layout of the segments, the random state.
    """

    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


def save(folder: Path, state: State, *, step: int, fingerprint: Mapping[str, Any]) -> int:
    """Write the state. An earlier state in the folder stays until the new one is complete, and then goes.

    Args:
        folder: global_step_N/replay; made where it is missing.
        state: arrays and what describes them.
        step: N.
        fingerprint: what a run must have in common with this one to use it.

    Returns:
        Bytes written.

    Raises:
        CheckpointError: the disk is full, or writing failed otherwise. What was complete before still is.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clean(folder)  # after a save that was killed: its space is needed now
        size = _save(folder, state, step, fingerprint)
        _clean(folder)
        return size
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            _clean(folder)
            folder.rmdir()  # where nothing was complete before
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        raise CheckpointError(
            f"the replay buffer could not be written to {folder}: {error}. "
            + ("Free space there" if full else "Mend what is wrong there")
            + ", or train without saving (trainer.save_freq=-1). Checkpoints already complete are as they were."
        ) from error


def _save(folder: Path, state: State, step: int, fingerprint: Mapping[str, Any]) -> int:
    writing = folder / "rollouts.safetensors.tmp"
    save_file({name: np.ascontiguousarray(array) for name, array in state.arrays.items()}, writing)
    writing.chmod(folder.stat().st_mode & 0o666)  # safetensors lets the owner alone read it
    _fsync(writing)
    checksum = _checksum(writing)
    arrays = folder / f"rollouts-{checksum}.safetensors"
    os.replace(writing, arrays)
    _fsync(folder)
    payload = {
        "format": FORMAT,
        "step": step,
        "fingerprint": dict(fingerprint),
        "arrays": {"file": arrays.name, "bytes": arrays.stat().st_size, "xxh3_128": checksum},
        "buffer": state.meta,
    }
    text = _manifest_text(payload)
    writing = folder / f"{MANIFEST}.tmp"
    writing.write_text(text, encoding="ascii")
    _fsync(writing)
    os.replace(writing, folder / MANIFEST)
    for path in (folder, folder.parent):
        _fsync(path)
    return arrays.stat().st_size + len(text)


def _clean(folder: Path) -> None:
    """Remove what no intact manifest names: of the state before the last, or of a save that failed or was killed."""
    try:
        named = read_manifest(folder)["arrays"]["file"]
    except CheckpointError:
        named = None
    for pattern in ("*.tmp", ".tmp*", "rollouts-*.safetensors"):  # the second is how safetensors names what it writes
        for path in folder.glob(pattern):
            if path.name != named:
                path.unlink()


def load(folder: Path, *, step: int, fingerprint: Mapping[str, Any]) -> State | None:
    """Read a state, checked as a whole before anything of it is used. The arrays are the caller's own.

    Args:
        folder: global_step_N/replay.
        step: N.
        fingerprint: of the run that wants it.

    Returns:
        None where there is no such folder: the checkpoint was made without replay.

    Raises:
        CheckpointError: damaged, incomplete, of another step, or of a run this one has too little in common with.
    """
    if not folder.exists():
        return None
    manifest = read_manifest(folder)
    if manifest["step"] != step:
        raise CheckpointError(
            f"{folder / MANIFEST} is of step {manifest['step']}, its folder of step {step}. {_REMEDY}"
        )
    stored = manifest["fingerprint"]
    differing = [name for name in {**stored, **fingerprint} if stored.get(name) != fingerprint.get(name)]
    if differing:
        told = "; ".join(f"{n}: stored {stored.get(n)!r}, now {fingerprint.get(n)!r}" for n in sorted(differing))
        raise CheckpointError(
            f"the rollouts in {folder} were stored by a run that differs in what they mean ({told}). Set these as they "
            "were, or start with an empty buffer: replay.resume=fresh."
        )
    return State(_read_arrays(folder, manifest["arrays"]), manifest["buffer"])


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, whose every byte is checked.

    Raises:
        CheckpointError: missing, unreadable or damaged, or of another format.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes().decode("ascii")
        payload = json.loads(text)["payload"]
        intact = text == _manifest_text(payload)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): no complete state is there. {_REMEDY}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}). {_REMEDY}") from error
    if not intact:
        raise CheckpointError(f"{path} is damaged: its checksum does not match. {_REMEDY}")
    if payload["format"] != FORMAT:
        raise CheckpointError(f"{path} has format {payload['format']}, this version reads {FORMAT}. {_REMEDY}")
    return payload


def _read_arrays(folder: Path, described: Mapping[str, Any]) -> dict[str, np.ndarray]:
    path = folder / described["file"]
    try:
        size = path.stat().st_size
        if size != described["bytes"]:
            raise CheckpointError(f"{path} has {size} bytes, {described['bytes']} were written. {_REMEDY}")
        if _checksum(path) != described["xxh3_128"]:
            raise CheckpointError(f"{path} is damaged: its checksum does not match. {_REMEDY}")
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}, which {MANIFEST} names, cannot be read ({error}). {_REMEDY}") from error


def _manifest_text(payload: Mapping[str, Any]) -> str:
    """The only text that stands for the payload: any other byte is damage."""
    body = json.dumps(payload, sort_keys=True)
    return (
        json.dumps({"payload": payload, "xxh3_128": xxhash.xxh3_128_hexdigest(body.encode())}, sort_keys=True, indent=1)
        + "\n"
    )


def _checksum(path: Path) -> str:
    with path.open("rb", buffering=0) as file:  # read, not mapped: a mapped file counts as memory of the process
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
