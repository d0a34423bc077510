"""pass@k, mean@k, AES, lengths and bootstrap intervals, against brute force, hand-worked cases and properties."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_replay.evaluation import (
    Lengths,
    aes,
    bootstrap,
    bootstrap_difference,
    mean_at_k,
    mean_lengths,
    pass_at_k,
)


def share_of_subsets_with_a_hit(c: int, n: int, k: int) -> float:
    """pass@k by looking at every subset of k of n samples, the first c of which are correct."""
    subsets = list(combinations(range(n), k))
    return sum(min(subset) < c for subset in subsets) / len(subsets)


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_is_the_share_of_all_subsets_that_hold_a_hit(n):
    correct = np.arange(n + 1)
    for k in range(1, n + 1):
        expected = [share_of_subsets_with_a_hit(c, n, k) for c in correct]
        np.testing.assert_allclose(pass_at_k(correct, n, k), expected, rtol=1e-13, atol=0)


def test_pass_at_k_worked_by_hand():
    # 4 samples, 1 correct, k 2: 3 of the 6 pairs hold it. 2 correct: 1 - C(2,2)/C(4,2) = 1 - 1/6.
    assert pass_at_k(np.array([0, 1, 2, 3]), 4, 2).tolist() == pytest.approx([0, 3 / 6, 5 / 6, 1])


@settings(max_examples=200)
@given(st.data())
def test_pass_at_k_properties(data):
    n = data.draw(st.integers(1, 60))
    correct = np.array(data.draw(st.lists(st.integers(0, n), min_size=1, max_size=8)))
    curve = np.array([pass_at_k(correct, n, k) for k in range(1, n + 1)])  # (n, P)
    assert ((curve >= 0) & (curve <= 1)).all()
    np.testing.assert_allclose(curve[0], correct / n, rtol=1e-12)  # pass@1 is the mean
    assert (np.diff(curve, axis=0) >= -1e-12).all()  # more draws never hurt
    assert (curve[-1] == (correct > 0)).all()  # all n of them: is there one at all?
    exact = [[1 - math.comb(n - int(c), k) / math.comb(n, k) for c in correct] for k in range(1, n + 1)]
    np.testing.assert_allclose(curve, exact, rtol=1e-9, atol=1e-12)
    order = np.argsort(correct, kind="stable")
    assert (np.diff(curve[:, order], axis=1) >= 0).all()  # more correct ones never hurt


def test_pass_at_k_is_stable_where_factorials_overflow():
    # C(1e6, 5e5) has 300,000 digits. c = 1: exactly k / n. c = 2: 1 - (n-k)(n-k-1) / (n(n-1)).
    n, k = 1_000_000, 500_000
    two = 1 - (n - k) * (n - k - 1) / (n * (n - 1))
    assert pass_at_k(np.array([1, 2]), n, k).tolist() == pytest.approx([k / n, two], rel=1e-9)
    assert pass_at_k(np.array([1]), 10**15, 1)[0] == pytest.approx(1e-15, rel=1e-12)  # nothing cancels


@pytest.mark.parametrize(
    ("correct", "n", "k", "message"),
    [
        ([1], 4, 5, "k must be between 1 and n = 4, got 5. Sample at least k"),
        ([1], 4, 0, "k must be between 1 and n = 4, got 0"),
        ([1, 5], 4, 1, "between 0 and n = 4, got 1 to 5"),
        ([-1], 4, 1, "between 0 and n = 4, got -1"),
        ([0.5], 4, 1, r"must be \(P,\) integers"),
        ([[1]], 4, 1, r"must be \(P,\) integers"),
    ],
)
def test_pass_at_k_refuses(correct, n, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(np.array(correct), n, k)


def test_mean_at_k_is_of_samples_first():
    assert mean_at_k(np.array([[1, 0, 0, 0], [1, 1, 1, 0]])).tolist() == [0.25, 0.75]
    for bad in (np.zeros(3), np.zeros((0, 4)), np.zeros((4, 0))):
        with pytest.raises(ValueError, match="P and k above 0"):
            mean_at_k(bad)
    with pytest.raises(ValueError, match="1 scores are not finite"):
        mean_at_k(np.array([[0.0, math.nan]]))


def test_aes_of_the_papers_4b_numbers():
    """METHOD.md: 31.06 against 26.71 and a 9.0 % shorter mean length give the +0.579 of the abstract.

    dA = (31.06 - 26.71) / 26.71 = 4.35 / 26.71 = 0.16286; 1 x 0.090 + 3 x 0.16286 = 0.090 + 0.48858 = 0.57858.
    """
    score = aes(31.06, 910, base_accuracy=26.71, base_length=1000)
    assert score == pytest.approx(0.57858, abs=1e-5) and round(score, 3) == 0.579
    assert aes(0.3106, 0.91, base_accuracy=0.2671, base_length=1) == pytest.approx(score)  # units do not matter


def test_aes_takes_a_loss_of_accuracy_harder_than_a_gain():
    # dL = (1000 - 800) / 1000 = 0.2. dA = -0.1: 0.2 - 5 x 0.1 = -0.3. dA = +0.1: 0.2 + 3 x 0.1 = 0.5.
    assert aes(45, 800, base_accuracy=50, base_length=1000) == pytest.approx(-0.3)
    assert aes(55, 800, base_accuracy=50, base_length=1000) == pytest.approx(0.5)
    assert aes(50, 1200, base_accuracy=50, base_length=1000) == pytest.approx(-0.2)  # longer, as good
    assert aes(55, 800, base_accuracy=50, base_length=1000, a=2, b=1) == pytest.approx(2 * 0.2 + 0.1)
    assert aes(45, 800, base_accuracy=50, base_length=1000, c=1) == pytest.approx(0.2 - 0.1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((50, 800, 0, 1000), "base_accuracy must be above 0, got 0"),
        ((50, 800, 50, 0), "base_length must be above 0, got 0"),
        ((50, 800, math.nan, 1000), "base_accuracy must be above 0, got nan"),
        ((50, math.nan, 50, 1000), "length must be a number of at least 0"),
        ((-1, 800, 50, 1000), "accuracy must be a number of at least 0"),
    ],
)
def test_aes_refuses(values, message):
    accuracy, length, base_accuracy, base_length = values
    with pytest.raises(ValueError, match=message):
        aes(accuracy, length, base_accuracy=base_accuracy, base_length=base_length)


def test_mean_lengths_are_none_where_there_is_no_answer():
    tokens = np.array([10, 20, 60])
    assert mean_lengths(tokens, np.array([True, True, False])) == Lengths(all=30, correct=15, wrong=60)
    assert mean_lengths(tokens, np.zeros(3, bool)) == Lengths(all=30, correct=None, wrong=30)
    assert mean_lengths(tokens, np.ones(3, bool)) == Lengths(all=30, correct=30, wrong=None)
    assert mean_lengths(np.zeros(0), np.zeros(0, bool)) == Lengths(None, None, None)
    with pytest.raises(ValueError, match=r"must be \(N,\)"):
        mean_lengths(tokens, np.ones(2, bool))


def test_the_bootstrap_interval_of_a_mean_is_the_normal_one_for_many_problems(rng):
    values = rng.normal(3.0, 2.0, size=4_000)
    found = bootstrap([values], np.random.default_rng(1))
    half = NormalDist().inv_cdf(0.975) * values.std() / math.sqrt(len(values))
    assert found.estimate == values.mean()
    assert found.low == pytest.approx(values.mean() - half, abs=0.05 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.05 * half)
    narrower = bootstrap([values], np.random.default_rng(1), level=0.5)
    assert found.low < narrower.low < narrower.high < found.high


def test_the_bootstrap_gives_benchmarks_the_same_weight(rng):
    large, small = rng.normal(0.0, 1.0, size=900), rng.normal(1.0, 1.0, size=100)
    found = bootstrap([large, small], np.random.default_rng(1))
    assert found.estimate == pytest.approx((large.mean() + small.mean()) / 2)
    error = math.sqrt(large.var() / 900 + small.var() / 100) / 2  # of independent strata
    half = NormalDist().inv_cdf(0.975) * error
    assert found.high - found.low == pytest.approx(2 * half, rel=0.05)


def test_a_paired_difference_is_free_of_what_problems_have_in_common(rng):
    hard = rng.normal(0.0, 10.0, size=500)  # problems differ far more than runs do
    ours, base = hard + rng.normal(0.5, 0.1, size=500), hard
    found = bootstrap_difference([ours], [base], np.random.default_rng(1))
    assert found.estimate == pytest.approx(0.5, abs=0.02)
    assert 0 < found.high - found.low < 0.05
    swapped = bootstrap_difference([base], [ours], np.random.default_rng(1))
    assert (swapped.low, swapped.high) == pytest.approx((-found.high, -found.low))
    with pytest.raises(ValueError, match="Evaluate both runs on the same data"):
        bootstrap_difference([ours], [base[:-1]], rng)
    with pytest.raises(ValueError, match="Evaluate both runs on the same data"):
        bootstrap_difference([ours], [base, base], rng)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(0, 2**32))
def test_bootstrap_properties(values, seed):
    values = np.array(values, float)
    first, again = (bootstrap([values], np.random.default_rng(seed), resamples=500) for _ in range(2))
    assert first == again  # the generator decides, nothing else
    assert 0 <= first.low <= first.high <= 1
    if values.min() == values.max():
        assert first.low == pytest.approx(first.high) == pytest.approx(first.estimate)


def test_bootstrap_refuses():
    rng = np.random.default_rng(0)
    for strata in ([], [np.zeros(0)], [np.ones(3), np.zeros(0)], [np.array([1.0, math.nan])], [np.ones((2, 2))]):
        with pytest.raises(ValueError, match="every stratum"):
            bootstrap(strata, rng)
    for level, resamples in ((0.0, 10), (1.0, 10), (0.9, 0)):
        with pytest.raises(ValueError, match="level must lie in"):
            bootstrap([np.ones(2)], rng, level=level, resamples=resamples)
