"""verl_replay.compositions: how many are drawn, and from what."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import make_table, numbers, repeatable
from verl_replay.compositions import everything_fresh, fresh_anchored, pooled
from verl_replay.drawing import Draw, without_replacement
from verl_replay.priorities import abs_advantage, uniform
from verl_replay.samplers import proportional
from verl_replay.table import RolloutTable


class Recorder:
    """A draw that takes the last k, latest first, of weights 1, 1/2, 1/3, ..., and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[RolloutTable, int]] = []

    def __call__(self, table: RolloutTable, k: int) -> Draw:
        self.asked.append((table, k))
        positions = np.arange(len(table))[::-1][:k]
        return Draw(positions, 1 / np.arange(1, len(positions) + 1))


def rollouts(count: int, born: int = 1) -> RolloutTable:
    return make_table([[float(i % 2) for i in range(count)]], born=born) if count else RolloutTable.empty()


THREE_HUNDRED = rollouts(300)

# ---- fresh_anchored --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fresh", "ratio", "drawn"),
    [
        (4, 0.5, 2),
        (1, 0.5, 1),  # .5 rounds up; Python's round gives 0, the nearest even
        (3, 0.5, 2),  # 1.5
        (5, 0.5, 3),  # 2.5 rounds up; Python's round gives 2
        (5, 0.25, 1),  # 1.25
        (6, 0.25, 2),  # 1.5
        (7, 0.25, 2),  # 1.75
        (4, 1.0, 4),
        (2, 3.0, 6),
        (8, 0.0, 0),
        (2, 0.2, 0),  # .4
        (0, 0.5, 0),
    ],
)
def test_fresh_anchored_draws_ratio_times_survivors_rounded_half_up(fresh, ratio, drawn):
    draw, stored = Recorder(), rollouts(10)
    composition = fresh_anchored(rollouts(fresh), stored, draw, ratio=ratio)
    assert composition.fresh.tolist() == list(range(fresh))  # I2: all of them
    assert composition.stored.tolist() == [9 - i for i in range(drawn)]
    assert composition.fresh_weight.tolist() == [1] * fresh
    assert composition.stored_weight.tolist() == [1 / (i + 1) for i in range(drawn)]
    assert [(table is stored, k) for table, k in draw.asked] == [(True, drawn)]


@pytest.mark.parametrize("stored", [0, 1, 3])
def test_fresh_anchored_draws_what_there_is(stored):
    """I10, O7: 8 are wanted."""
    draw = Recorder()
    composition = fresh_anchored(rollouts(16), rollouts(stored), draw, ratio=0.5)
    assert len(composition.stored) == stored == draw.asked[0][1]
    assert len(composition.fresh) == 16


@repeatable
@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 40))
def test_fresh_anchored_counts(fresh, stored, tenths):
    """Against whole numbers: round half up of B' * tenths / 10 is (2 B' tenths + 10) // 20."""
    draw, table = Recorder(), THREE_HUNDRED
    fresh_anchored(table.take(np.arange(fresh)), table.take(np.arange(stored)), draw, ratio=tenths / 10)
    assert draw.asked[0][1] == min((2 * fresh * tenths + 10) // 20, stored)


# ---- pooled ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fresh", "stored", "ratio", "drawn"),
    [
        (4, 10, 0.5, 6),
        (1, 10, 0.5, 2),  # 1.5 rounds up
        (3, 10, 0.5, 5),  # 4.5 rounds up; Python's round gives 4
        (4, 1, 0.5, 5),  # the pool
        (4, 0, 0.5, 4),
        (4, 10, 0.0, 4),
        (4, 10, 9.0, 14),
    ],
)
def test_pooled_draws_once_from_survivors_and_stored_together(fresh, stored, ratio, drawn):
    """METHOD: min((1 + r) B', pool). The Recorder draws the last of the pool first: stored, then fresh."""
    draw = Recorder()
    survivors, held = rollouts(fresh, born=9), rollouts(stored, born=2)
    composition = pooled(survivors, held, draw, ratio=ratio)
    ((pool, asked),) = draw.asked
    assert asked == drawn
    assert numbers(pool) == numbers(survivors) + numbers(held)
    order = [*range(fresh), *range(stored)]
    drawn_positions = list(range(fresh + stored))[::-1][:drawn]
    assert composition.stored.tolist() == [order[i] for i in drawn_positions if i >= fresh]  # in order of drawing
    assert composition.fresh.tolist() == sorted(i for i in drawn_positions if i < fresh)
    weight = {position: 1 / (i + 1) for i, position in enumerate(drawn_positions)}
    assert composition.fresh_weight.tolist() == [weight[i] for i in composition.fresh.tolist()]
    assert composition.stored_weight.tolist() == [weight[i + fresh] for i in composition.stored.tolist()]


def test_pooled_may_repeat_and_each_repeat_keeps_its_weight():
    """3 fresh, 2 stored, r = 1. Drawn 4, 1, 3, 1, 0, 4 with weights .1 .2 .3 .4 .5 .6: fresh 0, 1, 1 in order and of
    the two equal ones the first drawn first; stored 1, 0, 1 as drawn."""
    drawn = Draw(np.array([4, 1, 3, 1, 0, 4]), np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    composition = pooled(rollouts(3), rollouts(2), lambda table, k: drawn, ratio=1.0)
    assert composition.fresh.tolist() == [0, 1, 1]
    assert composition.fresh_weight.tolist() == [0.5, 0.2, 0.4]
    assert composition.stored.tolist() == [1, 0, 1]
    assert composition.stored_weight.tolist() == [0.1, 0.3, 0.6]


def test_fresh_anchored_may_repeat_stored_rollouts_but_no_fresh_one():
    drawn = Draw(np.array([1, 1]), np.array([1.0, 0.5]))
    composition = fresh_anchored(rollouts(4), rollouts(2), lambda table, k: drawn, ratio=0.5)
    assert composition.fresh.tolist() == [0, 1, 2, 3]
    assert (composition.stored.tolist(), composition.stored_weight.tolist()) == ([1, 1], [1, 0.5])


def by_priority(table: RolloutTable, k: int, *, rng: np.random.Generator, priority=abs_advantage) -> Draw:
    log_weight = proportional(priority(table), priority_exponent=0.5, priority_eps=1e-6)
    positions = without_replacement(log_weight, k, rng)
    return Draw(positions, np.ones(len(positions)))


def test_pooled_draws_by_the_arms_priority_from_the_one_pool():
    """Against a draw over the joined priorities from the same generator."""
    survivors, held = make_table([[1, 0, 0, 0]], born=5), make_table([[1, 1, 0], [0, 1]], born=2)
    composition = pooled(survivors, held, partial(by_priority, rng=np.random.default_rng(3)), ratio=0.5)
    p = np.concatenate([np.abs(survivors.advantage), np.abs(held.advantage)])
    log_weight = proportional(p, priority_exponent=0.5, priority_eps=1e-6)
    expected = without_replacement(log_weight, 6, np.random.default_rng(3)).tolist()
    assert composition.fresh.tolist() == sorted(i for i in expected if i < 4)
    assert composition.stored.tolist() == [i - 4 for i in expected if i >= 4]


def test_pooled_leaves_fresh_rollouts_out():
    """10 fresh and 30 stored, uniform, 15 drawn of 40: 15 * 10 / 40 = 3.75 fresh on average, never an anchor of 10."""
    draw = partial(by_priority, rng=np.random.default_rng(0), priority=uniform)
    survivors, held, counts = rollouts(10), rollouts(30), []
    for _ in range(400):
        composition = pooled(survivors, held, draw, ratio=0.5)
        counts.append(len(composition.fresh))
        assert len(composition.fresh) + len(composition.stored) == 15
    assert abs(np.mean(counts) - 3.75) < 0.35  # 5 standard deviations


# ---- neutral elements ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compose", [partial(fresh_anchored, ratio=0.5), partial(pooled, ratio=0.5)])
def test_no_survivors_no_update(compose):
    """I10, O20: a batch is never made of stored rollouts alone."""
    draw = Recorder()
    composition = compose(RolloutTable.empty(), rollouts(5), draw)
    assert (len(composition.fresh), len(composition.stored)) == (0, 0)
    assert sum(k for _, k in draw.asked) == 0
    assert (len(composition.fresh_weight), len(composition.stored_weight)) == (0, 0)
    assert composition.fresh.dtype == composition.stored.dtype == np.int64


def test_everything_fresh_draws_nothing():
    composition = everything_fresh(rollouts(3))
    assert (composition.fresh.tolist(), composition.stored.tolist()) == ([0, 1, 2], [])
    assert (composition.fresh_weight.tolist(), composition.stored_weight.tolist()) == ([1, 1, 1], [])
    assert composition.stored.dtype == np.int64
