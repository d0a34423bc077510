"""verl_replay.samplers: the law of successive draws without replacement, exactly, and the numbers that it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import make_table, repeatable
from verl_replay.priorities import abs_advantage
from verl_replay.samplers import proportional

DRAWS = 40_000


def law(weights: Sequence[float], k: int) -> dict[tuple[int, ...], float]:
    """Probability of every ordered draw: w_i over the sum of the weights not drawn yet, one after another.

    Weights 1, 2, 3 and k = 2: P(2, 0) = 3/6 * 1/3 = 1/6.
    """
    probabilities = {}
    for drawn in permutations(range(len(weights)), k):
        p, left = 1.0, float(sum(weights))
        for i in drawn:
            p, left = p * weights[i] / left if left > 0 else 0.0, left - weights[i]
        probabilities[drawn] = p
    return probabilities


def test_the_law_by_hand():
    assert law([1, 2, 3], 2)[(2, 0)] == pytest.approx(1 / 6)
    assert sum(law([1, 2, 3, 4], 3).values()) == pytest.approx(1)


def frequencies(priority, k, *, exponent, eps, seed=0) -> dict[tuple[int, ...], float]:
    rng, priority = np.random.default_rng(seed), np.array(priority, dtype=np.float64)
    counts = Counter(tuple(proportional(priority, k, rng, exponent=exponent, eps=eps).tolist()) for _ in range(DRAWS))
    return {drawn: count / DRAWS for drawn, count in counts.items()}


def distance(a: dict, b: dict) -> float:
    """Largest difference in standard deviations of DRAWS draws (at least that of p = 1/400)."""
    worst = 0.0
    for drawn in set(a) | set(b):
        p, q = a.get(drawn, 0.0), b.get(drawn, 0.0)
        worst = max(worst, abs(p - q) / np.sqrt(max(p * (1 - p), 1 / 400) / DRAWS))
    return worst


FAULTS: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "exponent 1": lambda p, exponent, eps: p + eps,
    "exponent 0": lambda p, exponent, eps: np.ones(len(p)),
    "exponent doubled": lambda p, exponent, eps: (p + eps) ** (2 * exponent),
    "no eps": lambda p, exponent, eps: p**exponent,
    "eps outside the power": lambda p, exponent, eps: p**exponent + eps,
}


@pytest.mark.parametrize(
    ("groups", "k", "eps"),
    [
        ([[1, 0, 0.5]], 2, 0.2),  # |A| 1, 1, 0
        ([[1, 0, 0.5], [0, 1]], 3, 0.2),  # |A| 1, 1, 0, .71, .71
    ],
)
def test_draws_have_exactly_the_law_of_successive_draws(groups, k, eps):
    """Every ordered draw within 5 standard deviations, and each fault's law lies more than 10 away."""
    p, exponent = abs_advantage(make_table(groups), step=1), 0.5
    right = law((p + eps) ** exponent, k)
    assert distance(right, frequencies(p, k, exponent=exponent, eps=eps)) < 5
    for name, weights in FAULTS.items():
        assert distance(right, law(weights(p, exponent, eps), k)) > 10, name


def test_with_the_papers_settings_a_rollout_of_priority_0_is_rare_but_drawn():
    """eps = 1e-6, alpha = .5: weights .001, 1, 1, so first with probability .001 / 2.001 = 5.0e-4: 20 of 40,000."""
    first = frequencies([0, 1, 1], 1, exponent=0.5, eps=1e-6)
    assert 5 < first[(0,)] * DRAWS < 40
    np.testing.assert_allclose([first[(1,)], first[(2,)]], 0.5, atol=0.0125)  # 5 standard deviations


def test_the_first_draw_is_schauls_formula_whatever_follows():
    """P(i) = w_i / sum w (eq. 1), w = sqrt(0, 1, 4, 9) = 0, 1, 2, 3: 0, 1/6, 1/3, 1/2,
    whatever is drawn after it."""
    rates: Counter[int] = Counter()
    for drawn, rate in frequencies([0, 1, 4, 9], 3, exponent=0.5, eps=0.0).items():
        rates[drawn[0]] += rate
    np.testing.assert_allclose([rates[i] for i in range(4)], [0, 1 / 6, 1 / 3, 1 / 2], atol=0.0125)


def test_exponent_0_is_uniform():
    assert distance(law([1, 1, 1], 2), frequencies([1e-9, 1, 1e9], 2, exponent=0.0, eps=1e-6)) < 5


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_eps_0_never_draws_priority_0(exponent):
    """O9. Also with exponent 0, where 0 ** 0 is 1: four are asked for, the two of positive priority are drawn."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        drawn = proportional(np.array([0, 1, 0, 2, 0]), 4, rng, exponent=exponent, eps=0.0)
        assert sorted(drawn.tolist()) == [1, 3]
    assert len(proportional(np.zeros(3), 2, rng, exponent=exponent, eps=0.0)) == 0


def test_all_priorities_0_are_drawn_uniformly_by_eps():
    """O9: advantages 0, 0, 0."""
    assert distance(law([1, 1, 1], 1), frequencies([0, 0, 0], 1, exponent=0.5, eps=1e-6)) < 5


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_extreme_priorities_keep_their_order(exponent):
    """(1e300)^2 overflows and (1e-300)^2 is 0 as floats; neither is lost."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        assert proportional(np.array([1e-300, 1e300, 1.0]), 3, rng, exponent=exponent, eps=0.0).tolist() == [1, 2, 0]
        assert proportional(np.array([1e-300, 1e300, 1.0]), 2, rng, exponent=exponent, eps=0.0).tolist() == [1, 2]


def test_more_asked_for_than_there_are():
    """I10."""
    drawn = proportional(np.array([1.0, 2, 3]), 10, np.random.default_rng(0), exponent=0.5, eps=0.0)
    assert sorted(drawn.tolist()) == [0, 1, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-300])
def test_a_priority_that_is_no_priority_is_refused_and_takes_no_numbers(bad):
    """O9."""
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="must be finite and >= 0"):
        proportional(np.array([1, bad, 2]), 1, rng, exponent=0.5, eps=1e-6)
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state


@pytest.mark.parametrize("shape", [(3, 1), ()])
def test_priorities_of_another_shape_are_refused(shape):
    """O8."""
    with pytest.raises(ValueError, match=r"priorities must be \(N,\), got"):
        proportional(np.ones(shape), 1, np.random.default_rng(0), exponent=0.5, eps=1e-6)


priorities_ = st.lists(st.one_of(st.just(0.0), st.floats(0, 1e300)), max_size=12)


@repeatable
@given(priorities_, st.integers(0, 15), st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.sampled_from([0.0, 1e-6]))
def test_a_draw_is_different_positions_and_takes_n_numbers_or_none(priority, k, exponent, eps):
    """I11: N numbers where k and N are positive, else none, so the stream does not depend on the priorities."""
    priority = np.array(priority, dtype=np.float64)
    before = priority.copy()
    rng, twin = np.random.default_rng(7), np.random.default_rng(7)
    drawn = proportional(priority, k, rng, exponent=exponent, eps=eps)

    assert drawn.dtype == np.int64
    assert len(set(drawn.tolist())) == len(drawn) == min(k, int((priority + eps > 0).sum()))
    assert all(0 <= i < len(priority) for i in drawn.tolist())
    np.testing.assert_array_equal(priority, before)
    if k and len(priority):
        twin.exponential(size=len(priority))
    assert rng.bit_generator.state == twin.bit_generator.state


def test_the_same_seed_draws_the_same():
    """I11."""
    p = np.random.default_rng(1).random(50)
    first, second, other = (
        [proportional(p, 5, rng, exponent=0.5, eps=1e-6).tolist() for _ in range(4)]
        for rng in map(np.random.default_rng, (3, 3, 4))
    )
    assert first == second != other
    assert first[0] != first[1]


@pytest.mark.parametrize(("rollouts", "k"), [(1, 1), (5, 2), (20, 20), (500, 100), (3000, 50)])
def test_fewer_draws_are_the_first_of_more(rollouts, k):
    """In order of drawing: the first k of a draw of all."""
    p = np.random.default_rng(0).random(rollouts)
    few, all_ = (proportional(p, n, np.random.default_rng(5), exponent=0.5, eps=1e-6).tolist() for n in (k, rollouts))
    assert few == all_[:k]
