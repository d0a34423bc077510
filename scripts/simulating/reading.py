"""Files of a recording -> one dict a line. JSON lines, plain or gzipped, and parquet; a folder is read file by file."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


class Line(NamedTuple):
    """One line of a recording.

    Attributes:
        where: "file, line 7", for messages.
        source: name of the run that its PATH stands for, where the line does not name one.
        record: what it holds.
    """

    where: str
    source: str
    record: dict[str, Any]


def read_lines(paths: list[Path]) -> Iterator[Line]:
    """The lines of all paths in order. Empty lines are skipped.

    Raises:
        ValueError: a file is missing or of another kind, or a line is not a JSON object; it is named.
        OSError: a file cannot be read.
    """
    for path, source in zip(paths, _names(paths), strict=True):
        for file in find_files(path):
            unit = "row" if file.name.endswith(".parquet") else "line"
            rows = _parquet(file) if unit == "row" else _json_lines(file)
            for number, record in rows:
                yield Line(f"{file}, {unit} {number}", source, record)


def find_files(path: Path) -> list[Path]:
    """The file, or the recordings in the folder: 2.jsonl before 10.jsonl, as verl names its rollout dumps by step."""
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise ValueError(f"a recording must end in {', '.join(SUFFIXES)}, got {path}. Convert it, or rename it.")
        return [path]
    if not path.is_dir():
        raise ValueError(f"{path} does not exist. Give a recording ({', '.join(SUFFIXES)}) or a folder of them.")
    files = sorted((f for f in path.iterdir() if f.name.endswith(SUFFIXES)), key=_by_number)
    if not files:
        raise ValueError(f"{path} holds no recording ({', '.join(SUFFIXES)}). Give the folder that does.")
    return files


def _by_number(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _names(paths: list[Path]) -> list[str]:
    """One a path: its name without the ending, or all of it where two have the same name."""
    names = [path.resolve().name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".parquet") for path in paths]
    return [str(path) if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, _object(text, f"{path}, line {number}")
    except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read after line {number} ({error}). Copy it again.") from error


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError also for a number of thousands of digits
        raise ValueError(f"{where} is not JSON ({error}). Mend it, or leave the line out.") from error
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise ValueError(f"{where} must be a JSON object with a reward, got a {kind}. Mend it, or leave the line out.")
    return record


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        number = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} cannot be read as parquet ({error}). Copy it again.") from error
