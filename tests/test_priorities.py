"""verl_replay.priorities, on verl's own advantages."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from tests.factories import make_table, numbers
from verl_replay import priorities
from verl_replay.table import RolloutTable

ALL = [
    priorities.abs_advantage,
    priorities.sigma_g,
    priorities.uniform,
    priorities.reward_rarity,
    partial(priorities.recency_decayed, step=3, priority_decay_steps=5.0),
]


def binary(correct: int, size: int) -> list[float]:
    return [1.0] * correct + [0.0] * (size - correct)


def test_abs_advantage_favours_the_rare_outcome():
    """1 of 16 correct: sqrt(15 / 1) * sqrt(15/16) = 3.75 and sqrt(1 / 15) * sqrt(15/16) = .25 (unbiased std)."""
    p = priorities.abs_advantage(make_table([binary(1, 16)]))
    np.testing.assert_allclose(p, [3.75] + [0.25] * 15, rtol=1e-5)


@pytest.mark.parametrize("correct", [1, 3, 8, 15])
def test_abs_advantage_gives_correct_and_wrong_the_same_sum(correct):
    p = priorities.abs_advantage(make_table([binary(correct, 16)]))
    np.testing.assert_allclose(p[:correct].sum(), p[correct:].sum(), rtol=1e-5)
    expected = np.sqrt((16 - correct) / correct * 15 / 16)
    np.testing.assert_allclose(p[:correct], expected, rtol=1e-5)


def test_abs_advantage_is_the_size_of_verls_advantage():
    table = make_table([[0.3, -2, 1, 5], [0, 1, 1, 1]])
    assert (table.advantage < 0).any()
    assert priorities.abs_advantage(table).tolist() == [abs(a) for a in table.advantage.tolist()]


def test_sigma_g_is_one_number_a_group_and_peaks_at_half():
    """k of 8 correct: variance k (8 - k) / 8 / 7, largest at k = 4: sqrt(2 / 7) = .5345."""
    p = [priorities.sigma_g(make_table([binary(k, 8)])) for k in range(9)]
    assert all(len(set(group.tolist())) == 1 for group in p)
    assert int(np.argmax([group[0] for group in p])) == 4
    np.testing.assert_allclose(p[4], np.sqrt(2 / 7))
    np.testing.assert_allclose([p[1][0], p[0][0], p[8][0]], [np.sqrt(1 / 8), 0, 0])


def test_uniform_gives_every_rollout_the_same():
    assert priorities.uniform(make_table([[1, 0, 0], [1, 1]])).tolist() == [1.0] * 5


def test_reward_rarity_is_one_over_the_share_of_the_group():
    """2 of 8 correct: 8 / 2 and 8 / 6. Rewards 0, .5, .5, 1: 4, 2, 2, 4."""
    p = priorities.reward_rarity(make_table([binary(2, 8), [0, 0.5, 0.5, 1]]))
    np.testing.assert_allclose(p, [4] * 2 + [8 / 6] * 6 + [4, 2, 2, 4])


@pytest.mark.parametrize("correct", [1, 3, 8, 15])
def test_reward_rarity_of_binary_rewards_is_the_square_of_the_advantage_and_one(correct):
    """|A|^2 = (G - k) / k * (G - 1) / G of the k correct (unbiased std), so |A|^2 G / (G - 1) + 1 = G / k."""
    table = make_table([binary(correct, 16)])
    np.testing.assert_allclose(priorities.reward_rarity(table), table.advantage**2 * 16 / 15 + 1, rtol=1e-5)


def test_reward_rarity_looks_at_how_few_and_abs_advantage_at_how_far():
    """(0, 10, 11): each alone, so alike; |A| is greatest of the 0."""
    table = make_table([[0, 10, 11]])
    assert priorities.reward_rarity(table).tolist() == [3, 3, 3]
    assert np.argmax(priorities.abs_advantage(table)) == 0


def test_recency_decayed_by_hand():
    """Ages 0, 5 and 10 with tau 5: |A| times 1, e^-1 = .3679 and e^-2 = .1353."""
    table = RolloutTable.concat([make_table([[1, 0]], born=born) for born in (20, 15, 10)])
    p = priorities.recency_decayed(table, step=20, priority_decay_steps=5.0)
    decay = np.repeat([1, 0.36788, 0.13534], 2)
    np.testing.assert_allclose(p, np.abs(table.advantage) * decay, rtol=1e-4)
    np.testing.assert_allclose(p[:2], [0.70711] * 2, rtol=1e-4)  # (1 - 1/2) / sqrt(1/2)


def test_recency_decayed_falls_by_the_same_factor_every_step():
    table = make_table([[1, 0, 0.3]], born=1)
    by_step = [priorities.recency_decayed(table, step=step, priority_decay_steps=2.0) for step in range(1, 8)]
    for earlier, later in pairwise(by_step):
        np.testing.assert_allclose(later, earlier * np.exp(-1 / 2))
    np.testing.assert_array_equal(by_step[0], priorities.abs_advantage(table))  # age 0


@pytest.mark.parametrize("priority", ALL)
def test_a_priority_is_nonnegative_float64_and_leaves_the_table(priority):
    table = make_table([[1, 0, 0], [-1, 2, 0]])
    before = numbers(table)
    p = priority(table)
    assert p.dtype == np.float64 and p.shape == (6,) and (p >= 0).all()
    assert numbers(table) == before
    assert priority(RolloutTable.empty()).shape == (0,)
