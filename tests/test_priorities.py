"""verl_replay.priorities, on verl's own advantages."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from tests.factories import make_table, numbers
from verl_replay import priorities
from verl_replay.table import RolloutTable

ALL = [priorities.abs_advantage, priorities.sigma_g, priorities.uniform]


def binary(correct: int, size: int) -> list[float]:
    return [1.0] * correct + [0.0] * (size - correct)


def test_abs_advantage_favours_the_rare_outcome():
    """1 of 16 correct: sqrt(15 / 1) * sqrt(15/16) = 3.75 and sqrt(1 / 15) * sqrt(15/16) = .25 (unbiased std)."""
    p = priorities.abs_advantage(make_table([binary(1, 16)]), step=9)
    np.testing.assert_allclose(p, [3.75] + [0.25] * 15, rtol=1e-5)


@pytest.mark.parametrize("correct", [1, 3, 8, 15])
def test_abs_advantage_gives_correct_and_wrong_the_same_sum(correct):
    p = priorities.abs_advantage(make_table([binary(correct, 16)]), step=1)
    np.testing.assert_allclose(p[:correct].sum(), p[correct:].sum(), rtol=1e-5)
    expected = np.sqrt((16 - correct) / correct * 15 / 16)
    np.testing.assert_allclose(p[:correct], expected, rtol=1e-5)


def test_abs_advantage_is_the_size_of_verls_advantage():
    table = make_table([[0.3, -2, 1, 5], [0, 1, 1, 1]])
    assert (table.advantage < 0).any()
    assert priorities.abs_advantage(table, step=1).tolist() == [abs(a) for a in table.advantage.tolist()]


def test_sigma_g_is_one_number_a_group_and_peaks_at_half():
    """k of 8 correct: variance k (8 - k) / 8 / 7, largest at k = 4: sqrt(2 / 7) = .5345."""
    p = [priorities.sigma_g(make_table([binary(k, 8)]), step=1) for k in range(9)]
    assert all(len(set(group.tolist())) == 1 for group in p)
    assert int(np.argmax([group[0] for group in p])) == 4
    np.testing.assert_allclose(p[4], np.sqrt(2 / 7))
    np.testing.assert_allclose([p[1][0], p[0][0], p[8][0]], [np.sqrt(1 / 8), 0, 0])


def test_uniform_gives_every_rollout_the_same():
    assert priorities.uniform(make_table([[1, 0, 0], [1, 1]]), step=1).tolist() == [1.0] * 5


@pytest.mark.parametrize("priority", ALL)
def test_a_priority_is_nonnegative_float64_whatever_the_step_and_leaves_the_table(priority):
    table = make_table([[1, 0, 0], [-1, 2, 0]])
    before = numbers(table)
    p = priority(table, step=1)
    assert p.dtype == np.float64 and p.shape == (6,) and (p >= 0).all()
    np.testing.assert_array_equal(priority(table, step=50), p)
    assert numbers(table) == before
    assert priority(RolloutTable.empty(), step=1).shape == (0,)
    assert inspect.signature(priority).parameters["step"].kind is inspect.Parameter.KEYWORD_ONLY
