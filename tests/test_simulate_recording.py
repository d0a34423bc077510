"""scripts/simulate.py: what it reads. Files of every kind give the same steps, and a line that is wrong is named."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from scripts.simulating.detecting import detect, parse
from scripts.simulating.reading import read_lines
from scripts.simulating.recording import Recording, Step, gather

GROUPS = [  # two steps, groups of 3 and 2 rollouts
    {"step": 1, "group": "a", "reward": [1, 0, 0], "len": [5, 6, 7]},
    {"step": 1, "group": "b", "reward": [1.0, 1.0], "len": [8, 9]},
    {"step": 2, "group": "a", "reward": [0, 0, 1], "len": [1, 2, 3]},
]
SINGLE = [
    {"step": line["step"], "group": line["group"], "reward": reward, "len": length}
    for line in GROUPS
    for reward, length in zip(line["reward"], line["len"], strict=True)
]


def write_lines(path: Path, lines: Sequence[Any]) -> Path:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.write(text)
    return path


def read(*paths: Path, columns: Sequence[str] = (), **options: Any) -> Recording:
    return gather(read_lines(list(paths)), parse(columns), **options)


def plain(steps: Sequence[Step]) -> list[list[Any]]:
    return [[None if part is None else getattr(part, "tolist", lambda p=part: p)() for part in step] for step in steps]


EXPECTED = [
    [1, [0, 0, 0, 1, 1], [1, 0, 0, 1, 1], [5, 6, 7, 8, 9], None],
    [2, [0, 0, 0], [0, 0, 1], [1, 2, 3], None],
]


@pytest.mark.parametrize("lines", [GROUPS, SINGLE], ids=["a line a group", "a line a rollout"])
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_every_kind_of_file_and_line_gives_the_same_steps(tmp_path, lines, ending):
    path = tmp_path / f"kept{ending}"
    if ending == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(lines), path)
    else:
        write_lines(path, lines)
    recording = read(path)
    assert list(recording.runs) == ["kept"]
    assert plain(recording.runs["kept"]) == EXPECTED
    assert recording.columns == {"reward": "reward", "group": "group", "step": "step", "tokens": "len"}


def test_rollouts_of_a_group_need_not_lie_together_nor_steps_in_order(tmp_path):
    steps = read(write_lines(tmp_path / "a.jsonl", [SINGLE[i] for i in (5, 3, 0, 6, 4, 1, 2, 7)])).runs["a"]
    assert plain(steps) == [
        [1, [0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [8, 9, 5, 6, 7], None],  # b comes first in the file
        [2, [0, 0, 0], [0, 0, 1], [1, 2, 3], None],
    ]


def test_runs_by_column_and_by_file(tmp_path):
    """The same group name in two runs is two groups."""
    lines = [{"run": r, "step": 1, "group": 0, "reward": v} for r, v in (("x", 1), ("y", 0), ("x", 0))]
    runs = read(write_lines(tmp_path / "both.jsonl", lines)).runs
    assert {name: steps[0].reward.tolist() for name, steps in runs.items()} == {"x": [1, 0], "y": [0]}
    of_run = {r: [{k: v for k, v in line.items() if k != "run"} for line in lines if line["run"] == r] for r in "xy"}
    paths = [write_lines(tmp_path / f"{name}.jsonl", kept) for name, kept in of_run.items()]
    by_file = read(*paths).runs
    assert {name: steps[0].reward.tolist() for name, steps in by_file.items()} == {"x": [1, 0], "y": [0]}


def test_two_files_of_one_name_are_two_runs(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_lines(tmp_path / folder / "r.jsonl", GROUPS)
    paths = [tmp_path / folder / "r.jsonl" for folder in ("a", "b")]
    assert list(read(*paths).runs) == [str(path) for path in paths]


def test_without_steps_groups_are_cut_in_order(tmp_path):
    lines = [{"idx": i, "correct": [i % 2 == 0, False], "rm_score": [0.3, 0.4]} for i in range(5)]
    recording = read(write_lines(tmp_path / "a.jsonl", lines), groups_a_step=2)
    assert recording.columns == {"reward": "correct", "group": "idx"}  # a model's score is not taken for the reward
    assert [(s.number, s.reward.tolist()) for s in recording.runs["a"]] == [
        (1, [1, 0, 0, 0]),
        (2, [1, 0, 0, 0]),
        (3, [1, 0]),
    ]
    named = read(tmp_path / "a.jsonl", columns=["reward=rm_score"], groups_a_step=5)
    assert named.runs["a"][0].reward.tolist() == [0.3, 0.4] * 5


def test_files_of_a_folder_are_read_by_number(tmp_path):
    for number in (10, 9, 1):
        write_lines(tmp_path / f"{number}.jsonl", [{"reward": [number]}])
    (steps,) = read(tmp_path, groups_a_step=1).runs.values()
    assert [s.reward.tolist() for s in steps] == [[1], [9], [10]]


def test_steps_from_zero_are_counted_from_one_and_holes_stay(tmp_path):
    lines = [{"step": s, "group": 0, "reward": [0, 1]} for s in (0, 1, 4.0)]
    assert [s.number for s in read(write_lines(tmp_path / "a.jsonl", lines)).runs["a"]] == [1, 2, 5]


def test_a_missing_reward_is_not_a_number_and_numbers_of_tokens_may_be_lists_of_ids(tmp_path):
    lines = [
        {"step": 1, "group": 0, "reward": None, "prompt_tokens": [9, 9], "tokens": [4, 4, 4]},
        {"step": 1, "group": 0, "reward": math.nan, "prompt_tokens": [9, 9], "tokens": []},
    ]
    step = read(write_lines(tmp_path / "a.jsonl", lines), columns=["reward=reward", "tokens=tokens"]).runs["a"][0]
    assert np.isnan(step.reward).all()
    assert step.tokens.tolist() == [3, 0] and step.prompt_tokens.tolist() == [2]


def test_verls_own_dump_of_rollouts(tmp_path):
    """A folder of N.jsonl, written by verl itself. V1's uid is "{uid}_{session}_{trajectory}": a rollout of two rows is
    one, with the score of its last row."""
    for step in (10, 9):
        keys = ["u_0_0", "u_1_0", "u_1_1", "v_0_0", "v_1_0"]
        scores = [1.0, 0.0, 0.5, float(step), 0.0]
        texts = ["p"] * 3 + ["q"] * 2
        PPOTrainer._write_generations(texts, texts, [None] * 5, scores, {"uid": keys}, str(tmp_path / "dumps"), step)
    recording = read(tmp_path / "dumps")
    assert recording.columns == {"reward": "score", "group": "uid", "step": "step"}
    assert plain(recording.runs["dumps"]) == [[s, [0, 0, 1, 1], [1.0, 0.5, s, 0.0], None, None] for s in (9, 10)]


def test_a_dump_without_uid_is_grouped_by_its_prompts(tmp_path):
    """verl's V0 trainer."""
    PPOTrainer._write_generations(["p", "q", "p"], ["", "", ""], [None] * 3, [1.0, 0.0, 0.0], {}, str(tmp_path), 3)
    recording = read(tmp_path)
    assert recording.columns == {"reward": "score", "group": "input", "step": "step"}
    (step,) = next(iter(recording.runs.values()))
    assert (step.group.tolist(), step.reward.tolist()) == ([0, 0, 1], [1, 0, 0])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"step": 1, "group"\n', "line 4 is not JSON"),
        ("[1, 2]\n", "line 4 must be a JSON object with a reward, got a list"),
        ({"step": 1, "group": "a", "len": [1]}, "line 4 has no reward"),
        ({"step": 1, "group": "a", "reward": "1", "len": 1}, "line 4: reward must be a number, got '1'"),
        ({"step": 1, "group": "a", "reward": [[1]], "len": [1]}, "line 4: reward must be a number, got [1]"),
        ({"step": 1, "group": "a", "reward": [], "len": []}, "line 4: reward must hold a reward a rollout, got []"),
        ({"step": 1, "group": "a", "reward": [1, 0], "len": [1]}, "line 4: len must be a list of 2"),
        ({"step": 1, "group": "a", "reward": [1, 0], "len": 7}, "line 4: len must be a list of 2"),
        ({"step": 1, "group": "a", "reward": [1], "len": [-1]}, "line 4: len must be a whole number of tokens, got -1"),
        ({"step": 1, "group": "a", "reward": [1], "len": [1.5]}, "line 4: len must be a whole number of tokens"),
        ({"step": 1, "group": "a", "reward": [1], "len": [math.inf]}, "line 4: len must be a whole number of tokens"),
        ({"step": -1, "group": "a", "reward": [1], "len": [1]}, "line 4: step must be a whole number >= 0, got -1"),
        ({"step": 1.5, "group": "a", "reward": [1], "len": [1]}, "line 4: step must be a whole number >= 0, got 1.5"),
        ({"step": True, "group": "a", "reward": [1], "len": [1]}, "line 4: step must be a whole number"),
        ({"step": math.nan, "group": "a", "reward": [1], "len": [1]}, "line 4: step must be a whole number"),
        ({"step": None, "group": "a", "reward": [1], "len": [1]}, "line 4: step must be a whole number"),
        ({"step": 1, "group": None, "reward": 1, "len": 1}, "line 4: group must name a group, got None"),
        ({"step": 1, "group": math.nan, "reward": 1, "len": 1}, "line 4: group must name a group, got nan"),
        ({"step": 1, "reward": 1, "len": 1}, "line 4 has no group"),
        ('{"step": 1, "group": 0, "len": [1], "reward": [1' + 5000 * "0" + "]}\n", "line 4 is not JSON"),
        ({"step": 1, "group": 0, "len": [1], "reward": [10**400]}, "line 4: reward must be a number that a float can"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, told):
    """Line 4: three good ones are before it."""
    path = write_lines(tmp_path / "a.jsonl", [*GROUPS, line])
    with pytest.raises(ValueError) as error:
        read(path)
    assert told in str(error.value) and str(error.value).startswith(str(path))


def test_empty_lines_are_skipped_and_counted(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["\n", GROUPS[0], "  \n", {"step": 1}])
    with pytest.raises(ValueError, match="line 4 has no reward"):
        read(path)


def test_a_bad_row_of_a_parquet_file_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([*GROUPS, {**GROUPS[0], "step": None}]), path)
    with pytest.raises(ValueError, match="row 4: step must be a whole number"):
        read(path)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_an_empty_file(tmp_path, ending):
    with pytest.raises(ValueError, match="holds no rollout"):
        read(write_lines(tmp_path / f"a{ending}", []))


@pytest.mark.parametrize("cut", [1, 15, -9])
def test_a_gzip_file_that_is_cut(tmp_path, cut):
    path = write_lines(tmp_path / "a.jsonl.gz", GROUPS * 50)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"a.jsonl.gz cannot be read after line \d+ .*Copy it again"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl.gz", b"not gzip"), ("a.parquet", b"not parquet"), ("a.jsonl", b'{"a": "\xff"}\n')]
)
def test_a_file_that_is_not_what_its_name_says(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read .*Copy it again"):
        read(tmp_path / name)


def test_paths_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        read(tmp_path / "nothing.jsonl")
    with pytest.raises(ValueError, match="holds no recording"):
        read(tmp_path)
    (tmp_path / "a.csv").write_text("reward\n1\n")
    with pytest.raises(ValueError, match="must end in .jsonl"):
        read(tmp_path / "a.csv")


def test_what_is_missing_or_asked_for_twice(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", GROUPS)
    with pytest.raises(ValueError, match="--column step=NAME, or cut it into steps with --groups-a-step"):
        read(path, columns=["step="])
    with pytest.raises(ValueError, match="--groups-a-step is for recordings without steps"):
        read(path, groups_a_step=2)
    assert [s.number for s in read(path, columns=["step="], groups_a_step=2).runs["a"]] == [1, 2]
    with pytest.raises(ValueError, match="no column says of which group"):
        read(write_lines(tmp_path / "b.jsonl", SINGLE), columns=["group="])


def test_columns_named_wrongly():
    with pytest.raises(ValueError, match=r"no column looks like a reward .*a.jsonl, line 1 has text, value"):
        detect({"text": "x", "value": "1"}, {}, where="a.jsonl, line 1")
    with pytest.raises(ValueError, match="--column group must name a column of the recording, got 'uidd'"):
        detect({"reward": 1, "uid": 2}, {"group": "uidd"}, where="a.jsonl, line 1")
    for bad in ("rewrad=x", "reward", "=x"):
        with pytest.raises(ValueError, match="--column must be ROLE=NAME"):
            parse([bad])
    with pytest.raises(ValueError, match="must be given once"):
        parse(["reward=a", "reward=b"])
    with pytest.raises(ValueError, match="--column reward must name a column"):
        parse(["reward="])


def test_a_reward_that_is_text_is_not_detected():
    """A `score` in words does not hide the numbers of another column."""
    record = {"score": "good", "acc": 1.0, "step": 1, "group": 0}
    assert detect(record, {}, where="")["reward"] == "acc"
