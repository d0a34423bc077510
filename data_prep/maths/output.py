"""The parquet file in verl's columns, and the report beside it; the same bytes for the same rows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.maths.cleaning import Cleaned
from data_prep.maths.contamination import BenchProblem
from data_prep.maths.sources import DATASETS, Dataset, without_instructions
from verl_replay.files import written_whole

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct([("split", pa.string()), ("index", pa.int64()), ("id", pa.string()), ("problem", pa.string())]),
        ),
    ]
)
SUFFIX = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


def with_suffix(problem: str, suffix: str) -> str:
    """The prompt: the problem and the instruction, which is not doubled."""
    return problem if not suffix or "\\boxed{}" in problem or problem.endswith(suffix.strip()) else problem + suffix


def verl_rows(dataset: Dataset, cleaned: Cleaned, suffix: str) -> list[dict[str, Any]]:
    """The rows of verl's RLHFDataset; extra_info.index is the row's number here, by which verl tells prompts apart."""
    return [
        {
            "data_source": dataset.name,
            "prompt": [{"role": "user", "content": with_suffix(row.problem, suffix)}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": row.answer},
            "extra_info": {"split": dataset.output_split, "index": index, "id": row.id, "problem": row.problem},
        }
        for index, row in enumerate(cleaned.rows)
    ]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write the rows whole or not at all; returns the file's sha256."""
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    with written_whole(path) as unfinished:
        # Not through pandas: it writes its own version into the file.
        pq.write_table(table, unfinished)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write the report whole or not at all."""
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    with written_whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def make_report(dataset: Dataset, cleaned: Cleaned, *, suffix: str, sha256: str, against: list[str]) -> dict[str, Any]:
    """All counts, and every row that was dropped for a reason one may want to look at. No problem texts."""
    return {
        "dataset": dataset.name,
        "role": dataset.role,
        "rows_read": cleaned.read,
        "rows_written": len(cleaned.rows),
        "distinct_prompts": cleaned.prompts,
        "prompts_with_conflicting_answers": cleaned.torn,
        "share_with_chinese": round(cleaned.chinese / max(1, cleaned.read), 4),
        "dropped": dict(sorted(cleaned.dropped.items())),
        "conflicting_rows": cleaned.conflicts,
        "not_gradable": [{"index": index, "answer": answer} for index, answer in cleaned.ungradable],
        "compared_with": against,
        "contaminated": [{"index": index, **match._asdict()} for index, match in cleaned.contaminated],
        "suffix": suffix,
        "sha256": sha256,
    }


def read_bench(path: Path) -> list[BenchProblem]:
    """The problems of a parquet file in verl's columns.

    Raises:
        ValueError: it is no such file.
    """
    try:
        rows = pq.read_table(path).to_pylist()
        return [
            BenchProblem(
                row.get("data_source") or path.stem,
                str((row.get("extra_info") or {}).get("id", number)),
                (row.get("extra_info") or {}).get("problem") or without_instructions(row["prompt"][-1]["content"]),
            )
            for number, row in enumerate(rows)
        ]
    except (KeyError, IndexError, TypeError, ValueError, OSError) as error:
        raise ValueError(
            f"data_prep.maths: {path} is not a parquet file in verl's columns ({type(error).__name__}: {error}); "
            "make it with `python -m data_prep.maths --dataset bench`"
        ) from error


def bench_files(places: list[Path]) -> list[Path]:
    """Parquet files, and those of benchmarks in folders.

    Raises:
        ValueError: a place does not exist, or holds none.
    """
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            found = [path for path in sorted(place.glob("*.parquet")) if is_bench(path.stem)]
        else:
            found = [place] if place.is_file() else []
        if not found:
            raise ValueError(
                f"data_prep.maths: --against {place}: no parquet file of a benchmark is there; "
                f"make them with `python -m data_prep.maths --dataset bench --output {place}`"
            )
        files += found
    return files


def is_bench(name: str) -> bool:
    """Whether a file of that name (without ending) is a benchmark's."""
    return name in DATASETS and DATASETS[name].role == "bench"
