"""The real data, where it is present, and one grader for the session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_prep.maths.grading import Grader

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
BENCHMARKS = ("math500", "aime_2025", "aime_2026", "hmmt_feb_2025", "hmmt_feb_2026")
PROOFS = (31, 32, 33)  # of hmmt_feb_2026


@pytest.fixture(scope="session")
def real_data() -> Path:
    if not DATA.is_dir():
        pytest.skip("the real data sets are not in ../shared/data")
    return DATA


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="session")
def bench_answers(real_data) -> list[str]:
    """The gold answers of the five benchmarks' 620 scored problems, each once."""
    answers: dict[str, None] = {}
    for name in BENCHMARKS:
        for row in read_jsonl(real_data / "bench" / f"{name}.jsonl"):
            if not (name == "hmmt_feb_2026" and row["id"] in PROOFS):
                answers[row["answer"]] = None
    return list(answers)


@pytest.fixture(scope="session")
def grader():
    grader = Grader()
    yield grader
    grader.helpers.close()
