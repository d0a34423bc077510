"""Benchmarks: verl's parquet files, or JSON lines of {id, problem, answer}."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

SUFFIX = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
_PARQUET = ("data_source", "prompt", "reward_model")
_JSONL = ("id", "problem", "answer")


class Problem(NamedTuple):
    """One problem, as verl hands it to the model and to the reward.

    Attributes:
        id: identity within the benchmark.
        messages: the chat so far.
    """

    id: str
    data_source: str
    messages: list[dict[str, str]]
    ground_truth: str
    extra_info: dict[str, Any]


class Benchmark(NamedTuple):
    name: str
    problems: list[Problem]

    @property
    def digest(self) -> str:
        """Of everything that decides what is asked and how it is graded."""
        return hashlib.sha256(json.dumps(self.problems, sort_keys=True, default=str).encode()).hexdigest()


def read_benchmark(path: Path, *, suffix: str = SUFFIX, limit: int | None = None) -> Benchmark:
    """The problems of a file, named after it.

    Args:
        suffix: what follows a problem of a JSON lines file. A parquet file holds whole prompts.
        limit: only so many of the first problems.

    Raises:
        ValueError: not of one of the two forms, no problem, or one id twice.
        OSError: the file cannot be read.
    """
    readers = {".parquet": _from_parquet, ".jsonl": _from_jsonl}
    if path.suffix not in readers:
        raise ValueError(f"{path}: data files end in .parquet or .jsonl. Convert it, or rename it.")
    problems = readers[path.suffix](path, suffix)[:limit]
    if not problems:
        raise ValueError(f"{path} holds no problem. Give a file with at least one row.")
    twice = [name for name, count in Counter(problem.id for problem in problems).items() if count > 1]
    if twice:
        raise ValueError(f"{path}: ids must differ, {twice[:3]} come more than once. Number the rows anew.")
    return Benchmark(path.stem, problems)


def read_benchmarks(paths: Sequence[Path], *, suffix: str = SUFFIX, limit: int | None = None) -> list[Benchmark]:
    """As `read_benchmark`, of several files, whose names must differ."""
    benchmarks = [read_benchmark(path, suffix=suffix, limit=limit) for path in paths]
    twice = [name for name, count in Counter(benchmark.name for benchmark in benchmarks).items() if count > 1]
    if twice:
        raise ValueError(f"benchmarks are told apart by file name, {twice} come more than once. Rename the files.")
    return benchmarks


def _from_parquet(path: Path, suffix: str) -> list[Problem]:
    del suffix  # Unused: the prompts are whole.
    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is no parquet file ({error}). Give one with verl's columns.") from error
    problems = []
    for number, row in enumerate(rows):
        _need(row, _PARQUET, f"{path}, row {number}")
        info = row.get("extra_info") or {}
        index = info.get("index")
        problems.append(
            Problem(
                id=str(number if index is None else index),
                data_source=row["data_source"],
                messages=_messages(row["prompt"], f"{path}, row {number}"),
                ground_truth=_ground_truth(row["reward_model"], f"{path}, row {number}"),
                extra_info=info,
            )
        )
    return problems


def _from_jsonl(path: Path, suffix: str) -> list[Problem]:
    problems = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is not JSON ({error}). One object a line is expected.") from error
        _need(row, _JSONL, f"{path}, line {number}")
        content = str(row["problem"]) + suffix
        problems.append(
            Problem(
                id=str(row["id"]),
                data_source=path.stem,
                messages=[{"role": "user", "content": content}],
                ground_truth=str(row["answer"]),
                extra_info={"index": row["id"]},
            )
        )
    return problems


def _need(row: Any, names: Sequence[str], where: str) -> None:
    missing = [name for name in names if not isinstance(row, Mapping) or row.get(name) is None]
    if missing:
        raise ValueError(f"{where}: {missing} missing. A row needs {list(names)}; see data_prep for how to make them.")


def _messages(prompt: Any, where: str) -> list[dict[str, str]]:
    texts = [(message.get("role"), message.get("content")) for message in prompt] if isinstance(prompt, list) else []
    if not texts or not all(isinstance(part, str) for message in texts for part in message):
        raise ValueError(
            f"{where}: prompt must be chat messages of text, got {str(prompt)[:60]!r}. Write role, content."
        )
    return [{"role": role, "content": content} for role, content in texts]


def _ground_truth(reward_model: Any, where: str) -> str:
    if not isinstance(reward_model, Mapping) or reward_model.get("ground_truth") is None:
        raise ValueError(f"{where}: reward_model.ground_truth is missing. Nothing can be graded without it.")
    return reward_model["ground_truth"]
