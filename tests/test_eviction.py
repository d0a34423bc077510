"""verl_replay.eviction: who stays, by age and by order of storing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import make_table, repeatable
from verl_replay import eviction
from verl_replay.table import RolloutTable


def born_at(*steps: int) -> RolloutTable:
    return RolloutTable.concat([make_table([[1.0]], born=step) for step in steps])


@pytest.mark.parametrize(("step", "kept"), [(5, True), (6, True), (7, True), (8, False), (9, False)])
def test_born_at_5_with_max_age_2_is_drawable_at_6_and_7_and_gone_at_8(step, kept):
    """I4, O17: ages 1, 2, 3 at steps 6, 7, 8."""
    assert eviction.age(born_at(5), step=step, max_age=2).tolist() == [kept]


def test_max_age_0_keeps_nothing_born_before():
    """O19."""
    assert eviction.age(born_at(1, 4, 5), step=5, max_age=0).tolist() == [False, False, True]


def test_a_gap_of_5_steps_evicts_what_has_aged_in_it():
    """O19: born 1, 2, 3, next draw at 8, max_age 5: ages 7, 6, 5."""
    assert eviction.age(born_at(1, 2, 3), step=8, max_age=5).tolist() == [False, False, True]


@repeatable
@given(st.lists(st.integers(0, 20), max_size=8), st.integers(0, 20), st.integers(0, 10))
def test_age_keeps_exactly_those_not_older_than_max_age(born, step, max_age):
    keep = eviction.age(born_at(*born), step=step, max_age=max_age)
    assert keep.dtype == bool
    assert keep.tolist() == [step - b <= max_age for b in born]


@repeatable
@given(st.integers(0, 12), st.integers(1, 15))
def test_newest_keeps_the_last_of_the_table(count, capacity):
    kept = np.flatnonzero(eviction.newest(born_at(*range(count)), capacity=capacity))
    assert kept.tolist() == list(range(count))[-capacity:]
