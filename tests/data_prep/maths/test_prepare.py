"""The command on small files in every layout: what is read, dropped, written and said."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.maths.__main__ import main
from data_prep.maths.contamination import BenchIndex, BenchProblem
from data_prep.maths.helper import ROOT
from data_prep.maths.output import SUFFIX

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
VERLS = "Let's think step by step and output the final answer within \\boxed{}."
BENCH = [
    {"id": 1, "problem": "Compute the sum of all primes below 20 that are one more than a square.", "answer": "24"},
    {"id": 2, "problem": "Find $x$.", "answer": r"\frac{1}{2}"},
]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path):
    return pq.read_table(path).to_pylist()


def prepare(tmp_path, name, source, *more):
    status = main(["--dataset", name, "--source", str(source), "--output", str(tmp_path / "out"), *more])
    assert status == 0
    return rows_of(tmp_path / "out" / f"{name}.parquet"), json.loads((tmp_path / "out" / f"{name}.json").read_text())


def test_rows_are_in_verls_columns(tmp_path):
    rows, report = prepare(tmp_path, "aime_2025", write_jsonl(tmp_path / "a.jsonl", BENCH))
    assert rows[1] == {
        "data_source": "aime_2025",
        "prompt": [{"role": "user", "content": "Find $x$." + SUFFIX}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": r"\frac{1}{2}"},
        "extra_info": {"split": "test", "index": 1, "id": "2", "problem": "Find $x$."},
    }
    assert (report["rows_read"], report["rows_written"], report["dropped"]) == (2, 2, {})


LAYOUTS = {
    "problem and answer": {"problem": "P?", "answer": "5"},
    "question and answer": {"question": "P?", "answer": "5"},
    "with numbers": {"id": 1, "problem": "P?", "answer": 5},
    "MathArena": {"problem_idx": 1, "problem": "P?", "answer": "5", "problem_type": ["Algebra"]},
    "MATH-500": {
        "problem": "P?",
        "solution": r"It is \boxed{5}.",
        "answer": "5",
        "subject": "A",
        "level": 1,
        "unique_id": "u",
    },
    "verl": {
        "data_source": "x",
        "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "P?"}],
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"index": 7},
    },
    "verl with its instruction": {
        "prompt": [{"role": "user", "content": f"P? {VERLS}"}],
        "reward_model": {"style": "rule", "ground_truth": " 5 "},
    },
    "DAPO-Math-17k": {
        "prompt": [{"role": "user", "content": DAPO.format("P?")}],
        "reward_model": {"style": "rule-lighteval/MATH_v2", "ground_truth": "5"},
        "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
    },
}
IDS = {
    "problem and answer": "0",
    "question and answer": "0",
    "MATH-500": "u",
    "verl": "7",
    "verl with its instruction": "0",
    "DAPO-Math-17k": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_every_layout_gives_the_same_row(tmp_path, layout, ending):
    row, path = LAYOUTS[layout], tmp_path / f"file.{ending}"
    if ending == "jsonl":
        write_jsonl(path, [row])
    elif ending == "json":
        path.write_text(json.dumps([row]))
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    (made,), _ = prepare(tmp_path, "dapo_math_17k", path)
    assert made["prompt"] == [{"role": "user", "content": "P?" + SUFFIX}]
    assert made["reward_model"] == {"style": "rule", "ground_truth": "5"}
    assert made["extra_info"] == {"split": "train", "index": 0, "id": IDS.get(layout, "1"), "problem": "P?"}


def test_csv(tmp_path):
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["problem", "answer"])
        writer.writeheader()
        writer.writerow({"problem": "One,\n two?", "answer": r"\text{even}"})
    (row,), _ = prepare(tmp_path, "math", tmp_path / "a.csv")
    assert row["extra_info"]["problem"] == "One,\n two?" and row["reward_model"]["ground_truth"] == r"\text{even}"


def test_the_answers_of_math_and_gsm8k_are_taken_out_of_their_solutions(tmp_path):
    source = write_jsonl(
        tmp_path / "math.jsonl",
        [
            {
                "problem": "A?",
                "solution": r"First \boxed{1}, so $\boxed{\frac{1}{2}}$.",
                "level": "Level 5",
                "type": "Algebra",
            },
            {"problem": "B?", "solution": "No box."},
        ],
    )
    rows, report = prepare(tmp_path, "math", source)
    assert [row["reward_model"]["ground_truth"] for row in rows] == [r"\frac{1}{2}"]
    assert report["dropped"] == {"empty": 1}
    source = write_jsonl(tmp_path / "g.jsonl", [{"question": "Q?", "answer": "48/2 = <<48/2=24>>24\n#### 1,024"}])
    rows, _ = prepare(tmp_path, "gsm8k", source)
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["1,024"]


def test_what_is_dropped_and_why(tmp_path):
    """Three of eleven rows stay: 11 = 3 + 2 empty + 1 too long + 1 not gradable + 1 + 1 repeated + 2 contradicting."""
    source = write_jsonl(
        tmp_path / "d.jsonl",
        [
            {"problem": "One plus one?", "answer": "2"},
            {"problem": "One plus one?", "answer": "2"},  # the same prompt
            {"problem": r"One   \left plus$ one?", "answer": "2.0"},  # the same problem, the same answer
            {"problem": "Two plus two?", "answer": "4"},
            {"problem": "Two plus  two?", "answer": "5"},  # contradicts it: both go
            {"problem": "", "answer": "1"},
            {"problem": "No answer?", "answer": None},
            {"problem": "x" * 20_001, "answer": "1"},
            {"problem": "Unreadable?", "answer": r"\frac{1}{"},
            {"problem": "Three?", "answer": "3"},
            {"problem": "一加一?", "answer": "2"},
        ],
    )
    rows, report = prepare(tmp_path, "dapo_math_17k", source)
    assert [row["extra_info"]["problem"] for row in rows] == ["One plus one?", "Three?", "一加一?"]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2]
    assert report["dropped"] == {
        "answer not gradable": 1,
        "conflicting answers": 2,
        "empty": 2,
        "same problem": 1,
        "same prompt": 1,
        "too long": 1,
    }
    assert report["conflicting_rows"] == [[3, 4]]
    assert report["not_gradable"] == [{"index": 8, "answer": r"\frac{1}{"}]
    assert report["rows_read"] == 11 == report["rows_written"] + sum(report["dropped"].values())
    assert report["distinct_prompts"] == 10 and report["prompts_with_conflicting_answers"] == 0
    assert report["share_with_chinese"] == round(1 / 11, 4)


def test_proofs_are_left_out_of_hmmt_2026_and_benchmarks_keep_their_repetitions(tmp_path):
    numbers = [{"problem_idx": number, "problem": "Same?", "answer": "1"} for number in range(1, 34)]
    rows, report = prepare(tmp_path, "hmmt_feb_2026", write_jsonl(tmp_path / "h.jsonl", numbers))
    assert len(rows) == 30 and report["dropped"] == {"proof": 3}
    assert {row["extra_info"]["id"] for row in rows} == {str(number) for number in range(1, 31)}


def test_problems_of_benchmarks_are_removed_and_listed(tmp_path):
    prepare(tmp_path, "aime_2025", write_jsonl(tmp_path / "bench.jsonl", BENCH))
    long = BENCH[0]["problem"]
    train = [
        {"problem": long.replace("Compute", "Compute "), "answer": "24"},  # exact, but for a space
        {"problem": long + " Give it as $m$.", "answer": "24"},  # all its words and more
        {"problem": long.replace("20", "30"), "answer": "24"},  # another number: another problem
        {"problem": "FIND  x .", "answer": "1"},  # exact, though short
        {"problem": "Find x in all of this.", "answer": "1"},  # too short to be compared by words
    ]
    rows, report = prepare(tmp_path, "dapo_math_17k", write_jsonl(tmp_path / "t.jsonl", train))
    assert [row["extra_info"]["id"] for row in rows] == ["2", "4"]
    assert report["contaminated"] == [
        {"index": 0, "benchmark": "aime_2025", "id": "1", "kind": "exact", "similarity": 1.0},
        {"index": 1, "benchmark": "aime_2025", "id": "1", "kind": "near", "similarity": 1.0},
        {"index": 3, "benchmark": "aime_2025", "id": "2", "kind": "exact", "similarity": 1.0},
    ]
    assert report["compared_with"] == ["aime_2025"]
    # The same by naming the file or its folder from elsewhere.
    for against in ("out", "out/aime_2025.parquet"):
        options = [
            "--dataset",
            "dapo_math_17k",
            "--source",
            str(tmp_path / "t.jsonl"),
            "--against",
            str(tmp_path / against),
        ]
        assert main([*options, "--output", str(tmp_path / "other")]) == 0
        assert rows_of(tmp_path / "other" / "dapo_math_17k.parquet") == rows


def test_suffixes(tmp_path):
    source = write_jsonl(
        tmp_path / "a.jsonl",
        [{"problem": "A?", "answer": "1"}, {"problem": r"B? Write \boxed{} around it.", "answer": "1"}],
    )

    def prompts(*more):
        return [row["prompt"][0]["content"] for row in prepare(tmp_path, "math500", source, *more)[0]]

    assert prompts() == ["A?" + SUFFIX, r"B? Write \boxed{} around it."]
    assert prompts("--no-suffix") == ["A?", r"B? Write \boxed{} around it."]
    assert prompts("--suffix", " Go.") == ["A? Go.", r"B? Write \boxed{} around it."]
    assert prompts("--suffix", "?") == ["A?", r"B? Write \boxed{} around it."]  # it is there


def test_the_same_rows_give_the_same_bytes(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", BENCH)
    for folder in ("a", "b"):
        assert main(["--dataset", "math500", "--source", str(source), "--output", str(tmp_path / folder)]) == 0
    for name in ("math500.parquet", "math500.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["math500.json", "math500.parquet"]


def test_a_folder_with_a_clone_of_the_hub_repository(tmp_path):
    """gsm8k's: two subsets with two splits each."""
    for subset in ("main", "socratic"):
        for split in ("train", "test"):
            path = tmp_path / "clone" / subset / f"{split}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            row = {"question": f"{subset} {split}?", "answer": "x\n#### 5"}
            pq.write_table(pa.Table.from_pylist([row]), path)
    (row,), _ = prepare(tmp_path, "gsm8k", tmp_path / "clone")
    assert row["extra_info"]["problem"] == "main train?"
    (row,), _ = prepare(tmp_path, "gsm8k_test", tmp_path / "clone")
    assert row["extra_info"]["problem"] == "main test?"


def test_several_shards_are_read_in_order(tmp_path):
    for shard in range(3):
        row = {"problem": f"{shard}?", "answer": "5"}
        (tmp_path / "data").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "data" / f"train-0000{shard}-of-00003.parquet")
    rows, _ = prepare(tmp_path, "aime_2025", tmp_path / "data")
    assert [row["extra_info"]["problem"] for row in rows] == ["0?", "1?", "2?"]


def test_the_hub_is_read_through_datasets(tmp_path, monkeypatch):
    """datasets.load_dataset finds a folder of that name before it asks the hub: the real code without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write_jsonl(
        tmp_path / "MathArena" / "aime_2025" / "train.jsonl", [{"problem_idx": 3, "problem": "P?", "answer": "5"}]
    )
    assert main(["--dataset", "aime_2025", "--output", "out"]) == 0
    (row,) = rows_of(tmp_path / "out" / "aime_2025.parquet")
    assert row["extra_info"] == {"split": "test", "index": 0, "id": "3", "problem": "P?"}


def test_without_the_hub_the_error_names_source(tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")}
    command = [sys.executable, "-m", "data_prep.maths", "--dataset", "aime_2025", "--output", str(tmp_path / "out")]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.strip().count("\n") == 0
    assert "MathArena/aime_2025 could not be loaded from the hub" in run.stderr and "with --source" in run.stderr
    assert not (tmp_path / "out").exists()


def test_bad_input_is_one_line_and_status_2(tmp_path, capsys):
    good = write_jsonl(tmp_path / "good.jsonl", BENCH)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.jsonl").write_text('{"problem": ')
    (tmp_path / "broken.parquet").write_text("no parquet")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "a.txt").write_text("x")
    write_jsonl(tmp_path / "columns.jsonl", [{"text": "x"}])
    write_jsonl(tmp_path / "unusable.jsonl", [{"problem": "", "answer": ""}])
    write_jsonl(tmp_path / "twice" / "a" / "math500.jsonl", BENCH)
    write_jsonl(tmp_path / "twice" / "b" / "math500.jsonl", BENCH)
    cases = {
        "no data set 'maths'; choose of": ["--dataset", "maths", "--source", good],
        "does not exist": ["--dataset", "math", "--source", tmp_path / "none"],
        "is one file for": ["--dataset", "bench", "--source", good],
        "no file of math500 in": ["--dataset", "math500", "--source", tmp_path / "empty"],
        "must end in one of": ["--dataset", "math500", "--source", tmp_path / "a.txt"],
        "broken.jsonl cannot be read": ["--dataset", "math500", "--source", tmp_path / "broken.jsonl"],
        "broken.parquet cannot be read": ["--dataset", "math500", "--source", tmp_path / "broken.parquet"],
        "row 0 must be an object": ["--dataset", "math500", "--source", tmp_path / "list.jsonl"],
        "it needs `problem` and `answer`": ["--dataset", "math500", "--source", tmp_path / "columns.jsonl"],
        "none of 1 rows is left": ["--dataset", "math500", "--source", tmp_path / "unusable.jsonl"],
        "several files in": ["--dataset", "math500", "--source", tmp_path / "twice"],
        "no parquet file of a benchmark is there": [
            "--dataset",
            "math",
            "--source",
            good,
            "--against",
            tmp_path / "empty",
        ],
        "not a parquet file in verl's columns": [
            "--dataset",
            "math",
            "--source",
            good,
            "--against",
            tmp_path / "broken.parquet",
        ],
    }
    for message, options in cases.items():
        assert main([*map(str, options), "--output", str(tmp_path / "out")]) == 2, message
        error = capsys.readouterr().err.replace("\r", "\n").strip().splitlines()[-1]
        assert message in error and error.startswith("data_prep.maths: ")
        assert "data_prep.maths: data_prep.maths" not in error
    assert not (tmp_path / "out").exists()


def test_verl_reads_the_rows(tmp_path, monkeypatch):
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from data_prep.tokenizer import build_tokenizer

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows, _ = prepare(tmp_path, "aime_2025", write_jsonl(tmp_path / "a.jsonl", BENCH))
    config = OmegaConf.create({"max_prompt_length": 512, "cache_dir": str(tmp_path)})
    dataset = RLHFDataset([str(tmp_path / "out" / "aime_2025.parquet")], build_tokenizer(), config)
    assert len(dataset) == 2
    for index, row in enumerate(rows):
        assert dataset[index]["index"] == index and dataset[index]["data_source"] == "aime_2025"
        assert dataset[index]["reward_model"] == row["reward_model"]
        assert list(dataset[index]["raw_prompt"]) == row["prompt"]


def test_short_problems_are_compared_exactly_only():
    index = BenchIndex([BenchProblem("math500", "1", "Find the area of the triangle.")])
    assert index.find("find the area  of the triangle.")
    assert not index.find("Find the area of the triangle. Its sides are 3, 4 and 5.")
