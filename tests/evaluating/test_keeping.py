"""Rewards, and the file of generations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scripts.evaluating.grading import Answer, Grader, load_reward, score_of
from scripts.evaluating.store import Store, read_generations
from tests.evaluating.stub import REWARD, generation


@pytest.mark.parametrize(
    ("result", "score"),
    [(1, 1.0), (0.5, 0.5), (True, 1.0), ({"score": -1, "acc": 1}, 1.0), ({"score": 0.25}, 0.25), (np.float32(1), 1.0)],
)
def test_accuracy_is_acc_where_there_is_one(result, score):
    assert score_of(result) == score


@pytest.mark.parametrize("result", [None, {}, "right", {"acc": None}, math.nan, {"score": math.inf}])
def test_rewards_without_a_finite_number_are_refused(result):
    with pytest.raises(ValueError, match="the reward returned"):
        score_of(result)


def test_a_reward_is_loaded_from_a_file_or_a_module():
    for spec in (REWARD, "data_prep.reward:compute_score"):
        assert load_reward(spec)("verl_replay/addition", "9750", "9750")["acc"] == 1
    for spec, message in (
        ("compute_score", "path_or_module:name"),
        ("no.such.module:f", "cannot be loaded"),
        ("no/such/file.py:f", "no file"),
        ("data_prep.reward:nothing", "cannot be loaded"),
        ("data_prep.reward:GRADES", "GRADES is no function"),
    ):
        with pytest.raises(ValueError, match=message):
            load_reward(spec)


def test_the_grader_gives_every_answer_its_own_score_in_time():
    answers = [
        Answer(("b", str(i), 0), "verl_replay/addition", "9750", "9750" if i % 3 else "0000", {}) for i in range(150)
    ]
    grader = Grader(REWARD, workers=2)
    graded = []
    for start in range(0, 150, 10):
        grader.submit(answers[start : start + 10], now=float(start))
        graded += grader.done()
    while some := grader.finish():
        graded += some
    grader.close()
    assert len(graded) == 150
    assert {answer.key: score for answer, score in graded} == {("b", str(i), 0): float(i % 3 > 0) for i in range(150)}
    assert grader.seconds > 0


def test_a_torn_line_is_cut_and_what_follows_is_whole(tmp_path):
    store = Store(tmp_path)
    store.append([generation(0), generation(1)], now=0.0)
    store.close()
    whole = store.path.read_bytes()
    for cut in range(len(whole)):
        store.path.write_bytes(whole[:cut])
        again = Store(tmp_path)
        complete = whole[:cut].count(b"\n")
        assert again.generations == [generation(0), generation(1)][:complete]
        again.append([generation(2)], now=0.0)
        again.close()
        assert read_generations(store.path)[0] == [*[generation(0), generation(1)][:complete], generation(2)]


def test_a_ctrl_c_while_lines_are_written_writes_none_twice(tmp_path, monkeypatch):
    def interrupt(descriptor: int) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    store = Store(tmp_path)
    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.append([generation(0), generation(1)], now=100.0)
    store.close()
    assert read_generations(store.path)[0] == [generation(0), generation(1)]


@pytest.mark.parametrize(
    ("line", "message"),
    [("garbage\n", "line 2 is damaged"), ('{"id": 1}\n', "line 2 is damaged"), (None, "a second time")],
)
def test_a_damaged_line_is_refused_and_the_file_left_alone(tmp_path, line, message):
    store = Store(tmp_path)
    store.append([generation()], now=0.0)
    store.close()
    whole = store.path.read_bytes() + (line.encode() if line else store.path.read_bytes())
    store.path.write_bytes(whole)
    with pytest.raises(ValueError, match=message):
        Store(tmp_path)
    assert store.path.read_bytes() == whole


def test_generations_are_on_disk_once_there_are_enough_or_after_some_seconds(tmp_path):
    def on_disk():
        return len(read_generations(tmp_path / "generations.jsonl")[0])

    store = Store(tmp_path)
    store.append([generation(0)], now=100.0)
    assert on_disk() == 1  # the first at once
    store.append([generation(1)], now=101.0)
    assert on_disk() == 1
    store.append([generation(2)], now=105.5)
    assert on_disk() == 3
    store.append([generation(i) for i in range(3, 300)], now=105.6)
    assert on_disk() == 300
    store.close()
