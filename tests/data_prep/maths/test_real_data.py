"""Every real file of ../shared/data/bench and train: the counts of its README, and what is found in it."""

from __future__ import annotations

import json
import re

import pyarrow.parquet as pq
import pytest

from data_prep.maths.__main__ import main
from data_prep.maths.cleaning import canonical
from data_prep.maths.contamination import BenchIndex, BenchProblem
from data_prep.maths.output import read_bench
from data_prep.maths.reading import read_rows
from data_prep.maths.sources import DATASETS
from data_prep.maths.texts import words_of
from tests.data_prep.maths.conftest import BENCHMARKS, read_jsonl

pytestmark = pytest.mark.slow

READ = {
    "math500": 500,
    "aime_2025": 30,
    "aime_2026": 30,
    "hmmt_feb_2025": 30,
    "hmmt_feb_2026": 33,
    "aime_2024": 30,
    "amc_2023": 40,
    "dapo_math_17k": 17_917,
    "math": 7_500,
    "gsm8k": 7_473,
    "math_test": 5_000,
    "gsm8k_test": 1_319,
}
OTHERS = ("aime_2024", "amc_2023", "math_test", "gsm8k_test")
DROPPED = {
    "hmmt_feb_2026": {"proof": 3},
    "dapo_math_17k": {"benchmark problem": 22, "conflicting answers": 43, "same problem": 674, "same prompt": 650},
    "math": {"answer not gradable": 3, "benchmark problem": 12, "empty": 2, "same problem": 5},
    "math_test": {"answer not gradable": 1},
}
# Of MATH-500, by id within test/; with AIME 2026's problem 1 the only ones with the same writing.
DAPO_EXACT = {
    "algebra/1282",
    "intermediate_algebra/991",
    "intermediate_algebra/90",
    "intermediate_algebra/2146",
    "intermediate_algebra/1411",
    "intermediate_algebra/1849",
}
SIGN_CHANGED = "precalculus/285"  # the README counts it as exact: the same words with another sign


@pytest.fixture(scope="module")
def made(real_data, tmp_path_factory):
    """The paper's benchmarks and all training sets, made by the command from the real files as they are."""
    output = tmp_path_factory.mktemp("maths")
    assert main(["--dataset", "all", "--source", str(real_data), "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def made_others(real_data, tmp_path_factory):
    """The other sets to evaluate on."""
    output = tmp_path_factory.mktemp("others")
    assert main(["--dataset", *OTHERS, "--source", str(real_data), "--output", str(output)]) == 0
    return output


def report_of(made, name) -> dict:
    return json.loads((made / f"{name}.json").read_text())


@pytest.mark.parametrize("name", [name for name in READ if name not in OTHERS])
def test_counts(made, name):
    check_counts(made, name)


@pytest.mark.parametrize("name", OTHERS)
def test_counts_of_others(made_others, name):
    check_counts(made_others, name)


def check_counts(made, name):
    report, rows = report_of(made, name), pq.read_table(made / f"{name}.parquet").to_pylist()
    assert report["rows_read"] == READ[name]
    assert report["dropped"] == DROPPED.get(name, {})
    assert report["rows_written"] == len(rows) == READ[name] - sum(report["dropped"].values())
    assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))
    assert {row["data_source"] for row in rows} == {name}
    for row in rows:
        assert row["prompt"][0]["content"].count(r"\boxed{}") == 1, row["extra_info"]
        assert "####" not in row["prompt"][0]["content"] and row["reward_model"]["ground_truth"]


def test_dapo_is_as_its_readme_says(made):
    report = report_of(made, "dapo_math_17k")
    assert report["distinct_prompts"] == 17_290
    assert report["prompts_with_conflicting_answers"] == 11
    assert report["share_with_chinese"] == pytest.approx(0.19, abs=0.005)
    assert sum(map(len, report["conflicting_rows"])) == report["dropped"]["conflicting answers"]


def matches(report: dict, kind: str) -> set[tuple[str, str]]:
    return {
        (match["benchmark"], re.sub(r"^test/|\.json$", "", match["id"]))
        for match in report["contaminated"]
        if match["kind"] == kind
    }


def test_contamination_is_found_and_listed(made):
    dapo, math = report_of(made, "dapo_math_17k"), report_of(made, "math")
    assert dapo["compared_with"] == math["compared_with"] == sorted(BENCHMARKS)
    assert matches(dapo, "exact") == {("aime_2026", "1")} | {("math500", id) for id in DAPO_EXACT}
    assert ("math500", SIGN_CHANGED) in matches(dapo, "near")
    assert matches(math, "exact") == set() and ("math500", SIGN_CHANGED) in matches(math, "near")
    assert report_of(made, "gsm8k")["contaminated"] == []
    assert len(dapo["contaminated"]) == 22 and len(math["contaminated"]) == 12


def test_the_examples_that_settle_the_threshold(made, real_data):
    """As the docstring of contamination.py tells them."""
    dapo = report_of(made, "dapo_math_17k")
    similarity = {(match["index"], match["id"]): match["similarity"] for match in dapo["contaminated"]}
    for index, id, share in [(16906, "geometry/229", 0.79), (5886, "intermediate_algebra/1063", 0.83)]:
        assert similarity[index, f"test/{id}.json"] == pytest.approx(share, abs=0.005)
    assert similarity[17728, "test/geometry/561.json"] == pytest.approx(0.94, abs=0.005)
    bench = {row["id"]: row["problem"] for row in read_jsonl(real_data / "bench" / "math500.jsonl")}
    train = {row.index: row.problem for row in read_rows(DATASETS["dapo_math_17k"], real_data)}
    rewritten = shared(train[17521], bench["test/intermediate_algebra/1566.json"])
    assert rewritten == pytest.approx(0.68, abs=0.005)
    math = read_rows(DATASETS["math"], real_data)
    siblings = [row for row in math if "arrange the letters of the word" in row.problem]
    same_kind = [shared(row.problem, bench["test/counting_and_probability/1060.json"]) for row in siblings]
    assert sum(share > 0.9 for share in same_kind) >= 6


def shared(train: str, bench: str) -> float:
    wanted = words_of(bench).shingles
    return len(wanted & words_of(train).shingles) / len(wanted)


def test_a_benchmark_is_wholly_found_in_itself(made):
    for name in BENCHMARKS:
        problems = read_bench(made / f"{name}.parquet")
        index = BenchIndex(problems)
        for problem in problems:
            assert problem.id in {match.id for match in index.find(problem.problem) if match.kind == "exact"}


def test_math_test_holds_math_500(made, made_others):
    index = BenchIndex(read_bench(made_others / "math_test.parquet"))
    bench = read_bench(made / "math500.parquet")
    assert sum(any(match.kind == "exact" for match in index.find(problem.problem)) for problem in bench) > 490


def test_answers_of_the_bench_files_are_kept_as_they_are(made, real_data):
    for name in BENCHMARKS:
        answers = {str(row["id"]): row["answer"] for row in read_jsonl(real_data / "bench" / f"{name}.jsonl")}
        for row in pq.read_table(made / f"{name}.parquet").to_pylist():
            assert row["reward_model"]["ground_truth"] == answers[row["extra_info"]["id"]]


def test_every_written_answer_is_right_for_itself(made, grader):
    """In a box, through the reward's own rules: a tenth of all, and what is no number."""
    for name in set(READ) - set(OTHERS):
        rows = pq.read_table(made / f"{name}.parquet", columns=["reward_model"])["reward_model"].to_pylist()
        for row in rows[::10]:
            assert grader.grade(rf"\boxed{{{row['ground_truth']}}}", row["ground_truth"])


def test_rows_that_are_dropped_as_conflicting_conflict(made, real_data):
    rows = {row.index: row for row in read_rows(DATASETS["dapo_math_17k"], real_data)}
    for group in report_of(made, "dapo_math_17k")["conflicting_rows"]:
        assert len({canonical(rows[index].answer) for index in group}) > 1


def test_a_shuffled_or_cut_problem_is_not_found(real_data):
    """The rule on words needs three in a row, and most of them."""
    (row,) = [row for row in read_jsonl(real_data / "bench" / "aime_2026.jsonl") if row["id"] == 1]
    index = BenchIndex([BenchProblem("aime_2026", "1", row["problem"])])
    words = row["problem"].split()
    assert index.find(" ".join(words)) and index.find(" ".join([*words, "And more of it."]))
    assert not index.find(" ".join(sorted(words))) and not index.find(" ".join(words[: len(words) // 2]))
