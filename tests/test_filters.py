"""verl_replay.filters: which groups carry a signal, up to rounding; whole groups; NaN."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import make_table, numbers, repeatable
from verl_replay import filters
from verl_replay.table import RolloutTable

ALL = [filters.zero_variance, filters.zero_advantage, filters.none, filters.finite_groups]


def with_rewards(rewards, group=None) -> RolloutTable:
    """A table of one group (or of `group`) with these float64 rewards, where a test is about their arithmetic."""
    rewards = np.array(rewards, dtype=np.float64)
    table = make_table([[0.0] * len(rewards)])
    group = np.zeros(len(rewards)) if group is None else group
    return dataclasses.replace(table, reward=rewards, group=group, finite=np.isfinite(rewards))


def test_zero_variance_keeps_mixed_groups_and_drops_equal_ones():
    table = make_table([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1]])
    assert filters.zero_variance(table).tolist() == [True] * 4 + [False] * 8 + [True] * 4


def test_only_the_second_of_two_groups_varies():
    """O8: exactly its rows, not "group 0"."""
    table = make_table([[1, 1, 1, 1], [1, 0, 1, 0]])
    assert np.flatnonzero(filters.zero_variance(table)).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("estimator", ["grpo", "grpo_vectorized"])
def test_rewards_that_differ_by_rounding_are_equal(estimator):
    """.7000001 is .7 and one float32 step. verl's own GRPO makes (0, 0, 0, .11) of it: noise divided by noise."""
    table = make_table([[0.7, 0.7, 0.7, 0.7000001]], estimator=estimator)
    assert table.advantage[:3].tolist() == [0, 0, 0]
    assert 0.1 < table.advantage[3] < 0.12
    assert not filters.zero_variance(table).any()


@pytest.mark.parametrize("estimator", ["grpo", "grpo_vectorized"])
def test_groups_of_one_are_dropped(estimator):
    """Nothing to be relative to, yet verl's "grpo" gives such a rollout its raw reward as advantage."""
    table = make_table([[0.7], [1, 0], [3]], estimator=estimator)
    if estimator == "grpo":
        np.testing.assert_allclose(table.advantage[[0, 3]], [0.7, 3.0], rtol=1e-5)  # over 0 + 1 + 1e-6
    assert filters.zero_variance(table).tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([-1, -1, -1, 0], True),
        ([-5, -5, -5], False),
        ([-1, 1], True),
        ([1e-12, 0], True),  # small is not equal
        ([0, 0], False),
        ([-0.0, 0.0], False),
        ([1e30, 1e30 * (1 + 1e-7)], False),  # 1e-7 of the largest
        ([1e6, 1e6 + 0.5], False),  # .5 <= 1e-6 * 1,000,000.5
        ([1e6, 1e6 + 2], True),  # 2 > 1e-6 * 1,000,002
        ([-1e6 - 2, -1e6], True),
        ([-1e6 - 0.5, -1e6], False),
    ],
)
def test_equal_is_relative_to_the_largest_reward(rewards, kept):
    assert filters.zero_variance(with_rewards(rewards)).tolist() == [kept] * len(rewards)


groups_of_rewards = st.lists(st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=5), min_size=1, max_size=5)


@repeatable
@given(groups_of_rewards, st.integers(-60, 60), st.sampled_from([-1, 1]))
def test_zero_variance_does_not_depend_on_the_scale_of_rewards(groups, power, sign):
    table = make_table(groups)
    scaled = dataclasses.replace(table, reward=table.reward * sign * 2.0**power)
    np.testing.assert_array_equal(filters.zero_variance(scaled), filters.zero_variance(table))


@repeatable
@given(groups_of_rewards, st.randoms(use_true_random=False))
def test_zero_variance_takes_whole_groups_in_any_order_of_rows(groups, random):
    table = make_table(groups)
    keep = filters.zero_variance(table)
    for group in range(len(groups)):
        assert len(set(keep[table.group == group].tolist())) == 1
    order = np.array(random.sample(range(len(table)), len(table)))
    np.testing.assert_array_equal(filters.zero_variance(table.take(order)), keep[order])


@repeatable
@given(groups_of_rewards)
def test_zero_variance_does_not_look_at_other_groups(groups):
    alone = [filters.zero_variance(make_table([group])) for group in groups]
    np.testing.assert_array_equal(filters.zero_variance(make_table(groups)), np.concatenate(alone))


def test_zero_advantage_drops_also_the_rollouts_of_the_mean_reward():
    """(0, .5, 1): advantages (-1, 0, 1). (1, 1, 1) has no variance. (1, 0): the mean .5 is nobody's."""
    table = make_table([[0, 0.5, 1], [1, 1, 1], [1, 0]])
    np.testing.assert_allclose(table.advantage[:3], [-1, 0, 1], rtol=1e-5)
    assert filters.zero_advantage(table).tolist() == [True, False, True] + [False] * 3 + [True] * 2


@pytest.mark.parametrize(
    "rewards",
    [[0.1, 0.2, 0.3], [0.8, 0.9, 1.0], [8, 8.1, 8.2], [-70.1, -70.2, -70], [999, 1001, 1000], [1e-9, 3e-9, 2e-9]],
)
def test_an_advantage_is_zero_up_to_rounding(rewards):
    """verl's float32 mean may miss the middle reward by a digit, whatever the size of the rewards."""
    middle = sorted(range(3), key=rewards.__getitem__)[1]
    assert filters.zero_advantage(make_table([rewards])).tolist() == [i != middle for i in range(3)]


def test_an_advantage_of_rounding_alone_by_hand():
    """(8, 8.1, 8.2): verl's mean is one float32 step, 2^-20, off 8.1; over the standard deviation .1, 9.5e-6."""
    assert abs(make_table([[8, 8.1, 8.2]]).advantage[1]) == pytest.approx(2**-20 / 0.1, rel=1e-3)


def test_a_small_advantage_is_not_zero():
    """1 of 1,000 correct: |A| of the wrong is .032, of the correct 31.6. Advantages of any scale: 1e-9 of theirs."""
    table = make_table([[1] + [0] * 999])
    assert filters.zero_advantage(table).all()
    assert filters.zero_advantage(dataclasses.replace(table, advantage=1e-9 * table.advantage)).all()


def test_zero_advantage_does_not_keep_what_zero_variance_drops():
    """Noise divided by noise, (0, 0, 0, .11), and the raw reward that verl's GRPO gives a group of one."""
    table = make_table([[0.7, 0.7, 0.7, 0.7000001], [3]])
    assert (np.abs(table.advantage[3:]) > 0.1).all()
    assert not filters.zero_advantage(table).any()


@repeatable
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=5))
def test_of_binary_rewards_zero_advantage_is_zero_variance(groups):
    table = make_table(groups)
    np.testing.assert_array_equal(filters.zero_advantage(table), filters.zero_variance(table))


def test_none_keeps_every_rollout():
    table = make_table([[1, 1], [0, 0], [1, 0]])
    assert filters.none(table).tolist() == [True] * 6
    assert filters.none(RolloutTable.empty()).tolist() == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_one_rollout_that_is_not_finite_drops_its_whole_group(bad):
    """I10, O9: verl's advantages of the group are spoilt too, so none of it can be trained on or stored."""
    table = make_table([[1, 0], [bad, 1, 0], [0, 1]])
    assert not np.isfinite(table.advantage[2:5]).all()
    assert filters.finite_groups(table).tolist() == [True, True, False, False, False, True, True]
    filters.zero_variance(table)  # may say what it likes of that group, but must not fail


def test_finite_groups_keeps_all_that_is_finite():
    assert filters.finite_groups(make_table([[1, 0], [1, 1]])).all()
    assert filters.finite_groups(RolloutTable.empty()).tolist() == []


@pytest.mark.parametrize("policy", ALL)
def test_a_filter_of_nothing(policy):
    keep = policy(RolloutTable.empty())
    assert keep.dtype == bool and keep.shape == (0,)


def test_finite_groups_drops_a_group_whose_log_probs_alone_are_not_finite():
    """Rewards and advantages may be fine: the flag counts, not the numbers."""
    table = make_table([[1, 0], [1, 0]])
    table = dataclasses.replace(table, finite=np.array([True, True, True, False]))
    assert filters.finite_groups(table).tolist() == [True, True, False, False]


@pytest.mark.parametrize("policy", ALL)
def test_filters_do_not_change_the_table(policy):
    table = make_table([[1, 0], [1, 1]])
    before = numbers(table)
    keep = policy(table)
    assert keep.dtype == bool and keep.shape == (4,)
    assert numbers(table) == before
