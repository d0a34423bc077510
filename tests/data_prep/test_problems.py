"""The split and the drawing of problems, for every task."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import problems
from data_prep.problems import Problem, draw_problems, is_heldout
from data_prep.tasks import TASKS, task_named

HELDOUT_KEYS = ["116+500"]
EVERY_TASK = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def drawn(task, count, *, seed=0, **options):
    return draw_problems(task, np.random.default_rng(seed), count, **options)


@EVERY_TASK
def test_the_split_separates_keys_and_prompts(task):
    train, heldout = drawn(task, 1500, heldout=False), drawn(task, 500, heldout=True)
    assert {p.key for p in train}.isdisjoint(p.key for p in heldout)
    assert {p.prompt for p in train}.isdisjoint(p.prompt for p in heldout)
    assert len({p.key for p in train}) == 1500
    assert len({p.key for p in heldout}) == 500


@EVERY_TASK
def test_another_seed_never_crosses_the_split(task):
    train, heldout = drawn(task, 1500, seed=1, heldout=False), drawn(task, 500, seed=2, heldout=True)
    assert {p.key for p in train}.isdisjoint(p.key for p in heldout)


@EVERY_TASK
def test_one_key_in_ten_is_held_out(task):
    keys = list(task.all_keys())
    share = sum(map(is_heldout, keys)) / len(keys)
    assert abs(share - 0.1) < 5 * (0.1 * 0.9 / len(keys)) ** 0.5


def test_the_split_is_the_same_in_every_process():
    """hash() of a string differs from process to process. These held-out keys were found once and must never move."""
    keys = [f"{number}+500" for number in range(100, 140)]
    code = f"from data_prep.problems import is_heldout; print(*[key for key in {keys!r} if is_heldout(key)])"
    environment = {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.split() == [key for key in keys if is_heldout(key)] == HELDOUT_KEYS


@EVERY_TASK
@given(seed=st.integers(0, 2**32 - 1))
def test_answers_are_right_and_keys_are_known(task, seed):
    problem = task.make_problem(np.random.default_rng(seed))
    assert task.grade(problem.ground_truth, problem.answer) == 1
    assert problem.prompt.isascii() and problem.answer.isascii()


@EVERY_TASK
def test_every_key_drawn_is_among_all_keys(task):
    keys = list(task.all_keys())
    assert len(keys) == len(set(keys))
    assert {p.key for p in drawn(task, 2000, heldout=False, unique=False)} <= set(keys)


@EVERY_TASK
def test_fewer_problems_are_a_prefix_of_more(task):
    assert drawn(task, 20, heldout=True) == drawn(task, 50, heldout=True)[:20]
    assert drawn(task, 20, heldout=True) != drawn(task, 20, heldout=True, seed=1)


def test_a_space_too_small_is_refused_with_its_size():
    # countdown with two digits: 125 keys, 13 of them held out
    with pytest.raises(ValueError, match="14 distinct held-out .* 13 distinct ones exist.* at most [1-9]"):
        drawn(TASKS["countdown"], 14, heldout=True, digits=2)
    assert len(drawn(TASKS["countdown"], 9, heldout=True, digits=2)) == 9


def test_without_uniqueness_a_small_space_is_enough(monkeypatch):
    monkeypatch.setattr(problems, "DOUBT_AFTER", 1)  # count at once: 13 keys exist, and 500 problems can be drawn
    assert len(drawn(TASKS["countdown"], 500, heldout=True, unique=False, digits=2)) == 500


def test_only_misses_in_a_row_end_a_draw(monkeypatch):
    """60 held-out problems take about 540 misses; 300 in a row have probability .9 ** 300 = 2e-14."""
    monkeypatch.setattr(problems, "MAX_MISSES", 300)
    assert len(drawn(TASKS["addition"], 60, heldout=True)) == 60


def test_a_stalled_draw_ends():
    keys = ["100+500", "101+500", "102+500", "103+500"]  # all on the training side

    class OneOfFour:
        """Four keys exist, but only the first is ever made."""

        DATA_SOURCE = "stalled"
        make_problem = staticmethod(lambda rng: Problem("100+500=", "0060", "0060", keys[0]))
        all_keys = staticmethod(lambda: iter(keys))

    with pytest.raises(
        ValueError, match="2 distinct training .*; 4 distinct ones exist and drawing got to 1; .* most 1$"
    ):
        drawn(OneOfFour, 2, heldout=False)


def test_none_asked_for_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        drawn(TASKS["addition"], 0, heldout=True)


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no task 'division'; choose one of \['addition', 'countdown'\]"):
        task_named("division")
