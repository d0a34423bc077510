"""Ten real problems through scripts/evaluate.py as it is used: default reward, default instruction, real prompts.

The tiny model ends its answer to most of them at once; that is an answer too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import addition
from data_prep.maths.reward import compute_score
from data_prep.parquet import SCHEMA, verl_rows
from data_prep.problems import draw_problems
from scripts.evaluating.store import read_generations
from tests.e2e.conftest import ROOT

pytestmark = pytest.mark.e2e

BENCH = ROOT.parent / "shared" / "data" / "bench" / "math500.jsonl"
N, TOKENS, DIGIT = 4, 24, "7"


@pytest.fixture(scope="module")
def evaluated(task, tmp_path_factory) -> tuple[Path, list[dict]]:
    """By the tiny model, which reads letter by letter and is given room for that; a digit of its ends an answer too."""
    folder = tmp_path_factory.mktemp("math500")
    model = folder / "model"
    shutil.copytree(task / "model", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "ends").mkdir()
    (folder / "ends/generation_config.json").write_text(json.dumps({"eos_token_id": [vocabulary[DIGIT]]}))
    lines = [f'{{"id": {i}, "problem": "What is {i} + \\\\sqrt{{{i}}}?", "answer": "{i}"}}' for i in range(10)]
    if BENCH.exists():
        lines = BENCH.read_text().splitlines()[:10]
    (folder / "math500.jsonl").write_text("\n".join(lines) + "\n")
    sums = draw_problems(addition, np.random.default_rng(0), 16, heldout=True)
    rows = [row | {"data_source": "gsm8k"} for row in verl_rows(addition, sums, "heldout")]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "sums.parquet")
    data = [str(folder / "math500.jsonl"), str(folder / "sums.parquet")]
    command = ["-m", "scripts.evaluate", "--model", str(model), "--data", *data]
    command += ["--n", str(N), "--max-tokens", str(TOKENS), "--generation-config", str(folder / "ends")]
    done = subprocess.run(
        [sys.executable, *command, "--dtype", "float32", "--output", str(folder / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "out", [json.loads(line) for line in lines]


def test_every_problem_is_answered_graded_and_reported(evaluated):
    folder, problems = evaluated
    generations = [g for g in read_generations(folder / "generations.jsonl")[0] if g.benchmark == "math500"]
    assert sorted({g.id for g in generations}) == sorted(str(problem["id"]) for problem in problems)
    assert len(generations) == 10 * N and all(0 < g.tokens <= TOKENS for g in generations)
    gold = {str(problem["id"]): problem["answer"] for problem in problems}
    assert [g.score for g in generations] == [
        compute_score("math500", g.text, gold[g.id])["score"] for g in generations
    ]
    row = json.loads((folder / "results.json").read_text())["benchmarks"]["math500"]
    assert row["problems"] == 10 and row["n"] == N and row["too_long"] == 0
    right = sum(g.score for g in generations)
    assert row["mean"]["estimate"] == pytest.approx(right / len(generations))
    assert (folder / "results.md").exists() and (folder / "plot.png").stat().st_size > 10_000


def test_the_end_tokens_that_were_given_end_an_answer(evaluated):
    folder, _ = evaluated
    generations = [g for g in read_generations(folder / "generations.jsonl")[0] if g.benchmark == "sums"]
    assert len(generations) == 16 * N
    assert any(g.text.endswith(DIGIT) and g.finish_reason == "stop" for g in generations)
    assert all(g.text.count(DIGIT) <= 1 for g in generations)
    assert len(json.loads((folder / "results.json").read_text())["settings"]["end_tokens"]) == 1
