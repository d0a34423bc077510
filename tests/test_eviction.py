"""verl_replay.eviction: who stays, by age, by uses and by order of storing."""

from __future__ import annotations

import dataclasses

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


def test_uses_keeps_what_was_drawn_fewer_times_than_max_uses():
    """max_uses 2: drawn 0 and 1 times stay, drawn 2 and 3 times go, however old."""
    table = dataclasses.replace(born_at(1, 2, 3, 4), uses=[0, 1, 2, 3])
    assert eviction.uses(table, max_uses=2).tolist() == [True, True, False, False]
    assert eviction.uses(table, max_uses=1).tolist() == [True, False, False, False]


def test_age_or_uses_evicts_for_either_reason():
    """At step 9 with max_age 4 and max_uses 2: young and unused, old, used up, both."""
    table = dataclasses.replace(born_at(5, 4, 8, 1), uses=[1, 0, 2, 7])
    assert eviction.age_or_uses(table, step=9, max_age=4, max_uses=2).tolist() == [True, False, False, False]


@repeatable
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=8), st.integers(0, 9), st.integers(1, 5))
def test_age_or_uses_keeps_what_both_keep(rollouts, max_age, max_uses):
    table = dataclasses.replace(born_at(*(born for born, _ in rollouts)), uses=[uses for _, uses in rollouts])
    keep = eviction.age_or_uses(table, step=9, max_age=max_age, max_uses=max_uses)
    assert keep.dtype == bool
    assert keep.tolist() == [9 - born <= max_age and uses < max_uses for born, uses in rollouts]


def test_none_keeps_all():
    table = dataclasses.replace(born_at(1, 2), uses=[0, 10**6])
    assert eviction.none(table).tolist() == [True, True]
    assert eviction.none(RolloutTable.empty()).tolist() == []


@repeatable
@given(st.integers(0, 12), st.integers(1, 15))
def test_newest_keeps_the_last_of_the_table(count, capacity):
    kept = np.flatnonzero(eviction.newest(born_at(*range(count)), capacity=capacity))
    assert kept.tolist() == list(range(count))[-capacity:]


def of_sizes(*sizes: int) -> RolloutTable:
    return make_table([[1.0] * size for size in sizes])


@pytest.mark.parametrize(
    ("capacity", "kept"),
    [
        (9, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (8, [3, 4, 5, 6, 7, 8]),  # the last 8 would leave two of the first group
        (6, [3, 4, 5, 6, 7, 8]),
        (5, [5, 6, 7, 8]),
        (4, [5, 6, 7, 8]),
        (3, []),  # the last group alone is too large
    ],
)
def test_newest_of_whole_groups_by_hand(capacity, kept):
    """Groups of 3, 2 and 4."""
    keep = eviction.newest(of_sizes(3, 2, 4), capacity=capacity, whole_groups=True)
    assert np.flatnonzero(keep).tolist() == kept


@repeatable
@given(st.lists(st.integers(1, 4), max_size=5), st.integers(1, 15))
def test_newest_of_whole_groups_is_the_longest_tail_of_groups_that_fits(sizes, capacity):
    table = of_sizes(*sizes)
    tails = [sizes[first:] for first in range(len(sizes) + 1)]
    expected = next(tail for tail in tails if sum(tail) <= capacity)
    keep = eviction.newest(table, capacity=capacity, whole_groups=True)
    assert np.flatnonzero(keep).tolist() == list(range(len(table)))[len(table) - sum(expected) :]
