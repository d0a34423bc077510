"""verl_replay.samplers: weights by hand, against their formula, and where floats end. The draw is in test_drawing."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import repeatable
from verl_replay.samplers import proportional, rank_based

BOTH = [partial(proportional, priority_eps=1e-6), rank_based]
priorities = st.lists(st.one_of(st.just(0.0), st.floats(0, 1e300)), max_size=12)


def weights(log_weight: np.ndarray) -> list[float]:
    return np.exp(log_weight).tolist()


# ---- proportional ----------------------------------------------------------------------------------------------------


def test_proportional_by_hand():
    """(p + eps)^alpha with eps 1: p = 0, 3, 8 and alpha .5: sqrt(1) = 1, sqrt(4) = 2, sqrt(9) = 3."""
    log_weight = proportional(np.array([0.0, 3, 8]), priority_exponent=0.5, priority_eps=1.0)
    assert weights(log_weight) == pytest.approx([1, 2, 3])


@repeatable
@given(st.lists(st.floats(0, 1e3), max_size=8), st.floats(0, 3), st.floats(1e-6, 1))
def test_proportional_is_schauls_formula(priority, exponent, eps):
    log_weight = proportional(np.array(priority), priority_exponent=exponent, priority_eps=eps)
    assert weights(log_weight) == pytest.approx([(p + eps) ** exponent for p in priority])


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_eps_0_never_draws_priority_0(exponent):
    """O9. Also with exponent 0, where 0 ** 0 is 1."""
    log_weight = proportional(np.array([0, 2.0, 0]), priority_exponent=exponent, priority_eps=0.0)
    assert weights(log_weight) == pytest.approx([0, 2**exponent, 0])


def test_all_priorities_0_are_alike_by_eps():
    """O9: advantages 0, 0, 0."""
    log_weight = proportional(np.zeros(3), priority_exponent=0.5, priority_eps=1e-6)
    assert weights(log_weight) == pytest.approx([1e-3] * 3)


def test_extreme_priorities_are_not_lost():
    """(1e300)^2 overflows and (1e-300)^2 is 0 as floats; their logarithms are -1381.6 and 1381.6."""
    log_weight = proportional(np.array([1e-300, 1e300]), priority_exponent=2.0, priority_eps=0.0)
    np.testing.assert_allclose(log_weight, np.log(10) * np.array([-600, 600]))


# ---- rank_based ------------------------------------------------------------------------------------------------------


def test_rank_based_by_hand():
    """p = 5, 1, 1, 9: ranks 2, 3.5, 3.5, 1, the two equal ones sharing places 3 and 4. alpha 1: 1/2, 2/7, 2/7, 1."""
    log_weight = rank_based(np.array([5.0, 1, 1, 9]), priority_exponent=1.0)
    assert weights(log_weight) == pytest.approx([1 / 2, 2 / 7, 2 / 7, 1])


def test_rank_based_with_an_exponent_by_hand():
    """Ranks 1..4 and alpha .5: 1, 1 / sqrt 2, 1 / sqrt 3, 1/2."""
    log_weight = rank_based(np.array([4.0, 3, 2, 0]), priority_exponent=0.5)
    assert weights(log_weight) == pytest.approx([1, 2**-0.5, 3**-0.5, 1 / 2])


def test_equal_priorities_are_alike_wherever_they_stand():
    log_weight = rank_based(np.zeros(7), priority_exponent=1.0)
    assert weights(log_weight) == pytest.approx([1 / 4] * 7)  # mean rank of 1..7


@repeatable
@given(priorities, st.sampled_from([0.5, 1.0, 3.0]))
def test_rank_based_is_one_over_the_mean_rank(priority, exponent):
    """The mean of the places that equal ones take: those greater, and half of the others equal, and one."""
    rank = [sum(q > p for q in priority) + (sum(q == p for q in priority) + 1) / 2 for p in priority]
    got = weights(rank_based(np.array(priority), priority_exponent=exponent))
    assert got == pytest.approx([(1 / r) ** exponent for r in rank])


def test_rank_based_looks_at_the_order_alone():
    """Robust against outliers."""
    p = np.array([0.1, 0.7, 0.0, 0.4, 0.7])
    same_order = np.where(p == 0.7, 1e12, p**3)
    np.testing.assert_array_equal(rank_based(p, priority_exponent=0.7), rank_based(same_order, priority_exponent=0.7))


# ---- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", BOTH)
def test_exponent_0_is_uniform(sampler):
    assert weights(sampler(np.array([1e-9, 3, 0, 1e9]), priority_exponent=0.0)) == [1, 1, 1, 1]


@pytest.mark.parametrize("sampler", BOTH)
@repeatable
@given(priorities, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.randoms(use_true_random=False))
def test_a_weight_goes_with_its_priority_and_greater_ones_do_not_weigh_less(sampler, priority, exponent, random):
    priority = np.array(priority, dtype=np.float64)
    before = priority.copy()
    log_weight = sampler(priority, priority_exponent=exponent)
    assert log_weight.dtype == np.float64 and log_weight.shape == priority.shape
    assert np.isfinite(log_weight).all()
    np.testing.assert_array_equal(priority, before)
    order = np.array(random.sample(range(len(priority)), len(priority)), dtype=np.int64)
    np.testing.assert_allclose(sampler(priority[order], priority_exponent=exponent), log_weight[order], rtol=1e-12)
    assert (np.diff(log_weight[np.argsort(priority, kind="stable")]) >= -1e-9).all()
