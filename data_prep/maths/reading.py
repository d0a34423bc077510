"""Reads rows of a data set, from the hub or from files, in any of the layouts that are about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.maths.boxed import last_boxed
from data_prep.maths.sources import Dataset, row_id, without_instructions

ENDINGS = (".jsonl", ".json", ".parquet", ".csv")


class Row(NamedTuple):
    """One row as it was read.

    Attributes:
        index: its number in the source, from 0.
        id: what the source calls it, else its number.
        written: the prompt as it stands there.
        problem: without instructions.
        answer: None where there is none.
    """

    index: int
    id: str
    written: str
    problem: str
    answer: str | None


def read_rows(dataset: Dataset, source: Path | None) -> Iterator[Row]:
    """The data set's rows in order.

    Args:
        source: a file, or a folder that holds the data set's files; None for the hub.

    Raises:
        ValueError: nothing there, or not in a known layout.
    """
    rows = hub_rows(dataset) if source is None else file_rows(find_files(dataset, source))
    for index, row in enumerate(rows):
        written, answer = problem_of(dataset, row, index), answer_of(dataset, row)
        name = row_id(row)
        yield Row(index, str(index) if name is None else name, written, without_instructions(written), answer)


def hub_rows(dataset: Dataset) -> Iterable[Mapping[str, Any]]:
    """The rows of the Hugging Face hub, or of its cache on this machine.

    Raises:
        ValueError: they cannot be had.
    """
    from datasets import load_dataset

    if dataset.hub is None:
        raise ValueError(f"data_prep.maths: {dataset.name} is not on the hub; give its file with --source")
    try:
        return load_dataset(dataset.hub, dataset.subset, split=dataset.split)
    except Exception as error:  # what it raises without a network, without the repository, and for a gate, all differ
        reason = str(error).strip().splitlines()
        raise ValueError(
            f"data_prep.maths: {dataset.name}: {dataset.hub} could not be loaded from the hub "
            f"({type(error).__name__}: {reason[0] if reason else 'no message'}); "
            "download it where there is a network, and give the file or folder with --source"
        ) from error


def find_files(dataset: Dataset, source: Path) -> list[Path]:
    """The data set's files in a folder: NAME.jsonl or the like, else a clone of its hub repository.

    Raises:
        ValueError: there are none, or too many to choose from.
    """
    if source.is_file():
        if source.suffix not in ENDINGS:
            raise ValueError(f"data_prep.maths: {source} must end in one of {list(ENDINGS)}")
        return [source]
    files = sorted(path for path in source.rglob("*") if path.suffix in ENDINGS and path.is_file())
    named = [path for path in files if path.stem in (dataset.name, *dataset.files)]
    if named:
        found = named
    else:
        of_subset = [path for path in files if dataset.subset and dataset.subset in path.relative_to(source).parts[:-1]]
        found = [path for path in of_subset or files if path.stem.split("-")[0] == dataset.split]
    if not found:
        wanted = " or ".join((dataset.name, *dataset.files))
        raise ValueError(
            f"data_prep.maths: no file of {dataset.name} in {source}: it is named {wanted}, or {dataset.split}* as in "
            f"a clone of {dataset.hub}, and ends in one of {list(ENDINGS)}; give the file itself with --source"
        )
    if len({(path.parent, path.suffix) for path in found}) > 1 or len(named) > 1:
        raise ValueError(
            f"data_prep.maths: several files in {source} may be {dataset.name}: {[str(path) for path in found]}; "
            "give one with --source"
        )
    return found


def file_rows(paths: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """The rows of JSON lines, a JSON list, parquet or CSV files.

    Raises:
        ValueError: a file is damaged, or a row is not an object.
    """
    for path in paths:
        try:
            if path.suffix == ".parquet":
                import pyarrow.parquet as pq

                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(1000):
                        yield from batch.to_pylist()
                continue
            if path.suffix == ".csv":
                import csv

                with path.open(newline="", encoding="utf-8-sig") as file:
                    yield from csv.DictReader(file)
                continue
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".json" and text.lstrip().startswith("["):
                rows = json.loads(text)
            else:
                rows = [json.loads(line) for line in text.split("\n") if line.strip()]
        except ValueError as error:  # of JSON, UTF-8 and pyarrow
            raise ValueError(f"data_prep.maths: {path} cannot be read: {error}; fetch it again") from error
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                raise ValueError(f"data_prep.maths: {path}: row {number} must be an object, got {type(row).__name__}")
            yield row


def problem_of(dataset: Dataset, row: Mapping[str, Any], index: int) -> str:
    """The problem's text: of verl's prompt, or of a column.

    Raises:
        ValueError: the row has neither.
    """
    if row.get("prompt") is not None and not isinstance(row["prompt"], str):
        users = [message["content"] for message in row["prompt"] if message.get("role") == "user"]
        return str(users[-1]) if users else ""
    for column in (dataset.problem, "problem", "question", "prompt"):
        if column in row:
            return str(row[column] or "")
    raise ValueError(
        f"data_prep.maths: {dataset.name}: row {index} has columns {sorted(row)}; it needs `problem` and `answer`, "
        "or verl's `prompt` and `reward_model`"
    )


def answer_of(dataset: Dataset, row: Mapping[str, Any]) -> str | None:
    """The gold answer: of verl's reward_model, of a column, the last box of a solution, or behind ####."""
    if isinstance(row.get("reward_model"), Mapping):
        value = row["reward_model"].get("ground_truth")
        return None if value is None else str(value).strip()
    if dataset.answer_in == "boxed" and row.get("answer") is None:
        return last_boxed(row.get(dataset.answer) or "")
    value = row.get("answer")
    if value is None:
        return None
    text = str(value)
    if dataset.answer_in == "hashes" and "####" in text:
        text = text.rsplit("####", 1)[1]
    return text.strip()
