"""Every generation, one JSON object a line: what is complete is kept, whatever ended the run."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verl_replay.files import written_whole

GENERATIONS, MANIFEST = "generations.jsonl", "manifest.json"
FORMAT = 1  # of both files
AT_LEAST = 256  # lines that are written together, or
AT_LATEST = 5.0  # seconds between two writes


class Generation(NamedTuple):
    """One sampled answer.

    Attributes:
        tokens: sampled ones, the end of sequence included.
        finish_reason: "stop"; "length" where it was cut; "prompt_too_long" where nothing could be sampled.
        score: the reward function's.
    """

    benchmark: str
    id: str
    sample: int
    tokens: int
    finish_reason: str
    text: str
    score: float

    @property
    def key(self) -> tuple[str, str, int]:
        return self.benchmark, self.id, self.sample


class Store:
    """The file of generations, open for more of them. One process at a time."""

    def __init__(self, folder: Path) -> None:
        """Open or create it, and cut off a last line that was not written to its end.

        Raises:
            ValueError: another process has it open, or a complete line is damaged.
        """
        self.path = folder / GENERATIONS
        self._file = self.path.open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ValueError(f"{self.path} is being written by another evaluation. Wait for it, or end it.") from error
        try:
            self.generations, whole = read_generations(self.path)
        except ValueError:
            self._file.close()
            raise
        self._file.truncate(whole)
        self._lines: list[str] = []
        self._written = 0.0

    def append(self, generations: Sequence[Generation], *, now: float) -> None:
        """Keep them; on disk once there are enough, or `now` (seconds) is some seconds after the last write."""
        self.generations += generations
        self._lines += [json.dumps(generation._asdict(), ensure_ascii=True) for generation in generations]
        if len(self._lines) >= AT_LEAST or now - self._written >= AT_LATEST:
            self._written = now
            self.flush()

    def flush(self) -> None:
        if self._lines:
            # Forgotten first: a Ctrl-C may come between any two of these lines, and close() flushes again. At worst
            # some answers are generated once more; written twice they would be an error.
            lines, self._lines = self._lines, []
            self._file.write(("\n".join(lines) + "\n").encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self.flush()
        self._file.close()  # and with it the lock


def read_generations(path: Path) -> tuple[list[Generation], int]:
    """The complete lines of a file, and the bytes that they take.

    Raises:
        ValueError: a line that is complete is not a generation, or comes twice.
    """
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    found: dict[tuple[str, str, int], Generation] = {}
    for number, line in enumerate(content[:whole].split(b"\n")[:-1], start=1):
        try:
            generation = Generation(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number} is damaged ({error}): {line[:60]!r}. Delete that line; it is generated again."
            ) from error
        if generation.key in found:
            raise ValueError(f"{path}, line {number} holds {generation.key} a second time. Delete one of the lines.")
        found[generation.key] = generation
    return list(found.values()), whole


def check_manifest(folder: Path, settings: Mapping[str, Any]) -> None:
    """Compare with the settings of the run that began the folder, or write them down if this is the first.

    Args:
        settings: whatever decides the generations and their scores; JSON.

    Raises:
        ValueError: they differ, or generations lie there without a manifest.
    """
    path = folder / MANIFEST
    ours = {"format": FORMAT, **settings}
    if not path.exists():
        if (folder / GENERATIONS).exists():
            raise ValueError(f"{folder} holds {GENERATIONS} without {MANIFEST}. Give another --output folder.")
        write_json(path, ours)
        return
    try:
        theirs = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}). Give another --output folder.") from error
    ours = json.loads(json.dumps(ours))  # tuples and lists are the same there
    changed = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    if changed:
        what = "; ".join(f"{name}: {theirs.get(name)} there, {ours.get(name)} now" for name in changed)
        raise ValueError(f"{folder} was begun with other settings ({what}). Give them again, or another --output.")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    with written_whole(path) as unfinished:
        unfinished.write_text(text)
