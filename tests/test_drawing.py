"""verl_replay.drawing: the exact law of every kind of draw, importance weights, and the random numbers taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import make_table, repeatable
from verl_replay.drawing import Draw, draw, importance_weights, with_replacement, without_replacement
from verl_replay.priorities import abs_advantage, sigma_g, uniform
from verl_replay.samplers import proportional, rank_based
from verl_replay.table import RolloutTable

DRAWS = 20_000
Law = dict[tuple[int, ...], float]  # probability of every ordered draw


def law(weights: Sequence[float], k: int, replacement: bool) -> Law:
    """k draws one after another: w_i over the sum of the weights that can be drawn.

    Weights 1, 2, 3 and k = 2: P(2, 0) = 3/6 * 1/6 = 1/12 with replacement, 3/6 * 1/3 = 1/6 without.
    """
    orders = product(range(len(weights)), repeat=k) if replacement else permutations(range(len(weights)), k)
    probabilities = {}
    for drawn in orders:
        p, left = 1.0, float(sum(weights))
        for i in drawn:
            p *= weights[i] / left
            left -= 0 if replacement else weights[i]
        probabilities[drawn] = p
    return probabilities


def test_the_law_by_hand():
    assert law([1, 2, 3], 2, True)[(2, 0)] == pytest.approx(1 / 12)
    assert law([1, 2, 3], 2, False)[(2, 0)] == pytest.approx(1 / 6)
    for replacement in (True, False):
        assert sum(law([1, 2, 3, 4], 3, replacement).values()) == pytest.approx(1)


def chi_square(observed: Law, expected: Law, draws: int) -> float:
    """Sum of (observed - expected)^2 / expected over the counts; infinite if the impossible was drawn."""
    if any(observed[drawn] > 0 and not expected.get(drawn) for drawn in observed):
        return np.inf
    return draws * sum((observed.get(drawn, 0) - p) ** 2 / p for drawn, p in expected.items() if p > 0)


def bound(expected: Law) -> float:
    """Chi-square of d degrees of freedom has mean d and variance 2 d; 5 standard deviations."""
    freedom = sum(p > 0 for p in expected.values()) - 1
    return freedom + 5 * np.sqrt(2 * freedom)


def frequencies(one_draw: Callable[[], Sequence[int]], draws: int) -> Law:
    counts = Counter(tuple(one_draw()) for _ in range(draws))
    return {drawn: count / draws for drawn, count in counts.items()}


# ---- the law of every kind of draw -----------------------------------------------------------------------------------


def mean_ranks(p: np.ndarray) -> np.ndarray:
    return np.array([(p > x).sum() + ((p == x).sum() + 1) / 2 for x in p])


EPS = 0.05
WEIGHTS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "proportional": lambda p, alpha: (p + EPS) ** alpha,
    "rank_based": lambda p, alpha: (1 / mean_ranks(p)) ** alpha,
}
SAMPLERS = {"proportional": partial(proportional, priority_eps=EPS), "rank_based": rank_based}
FAULTS: dict[str, dict[str, Callable[[np.ndarray], np.ndarray]]] = {  # with alpha .5
    "proportional": {
        "no eps": lambda p: p**0.5,
        "eps outside the power": lambda p: p**0.5 + EPS,
        "ranks": lambda p: mean_ranks(p) ** -0.5,
    },
    "rank_based": {
        "ties by place": lambda p: (1 + np.argsort(np.argsort(-p, kind="stable"))) ** -0.5,
        "least first": lambda p: mean_ranks(-p) ** -0.5,
        "ranks from 0": lambda p: (mean_ranks(p) + 1) ** -0.5,
    },
}


def faults(sampler: str, p: np.ndarray, replacement: bool, wrong_alphas: Sequence[float]) -> dict[str, Law]:
    """The laws of draws that are wrong in one thing."""
    laws = {name: law(weights(p), 2, replacement) for name, weights in FAULTS[sampler].items()}
    laws |= {f"alpha {alpha}": law(WEIGHTS[sampler](p, alpha), 2, replacement) for alpha in wrong_alphas}
    return {**laws, "other replacement": law(WEIGHTS[sampler](p, 0.5), 2, not replacement)}


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_rollouts_are_drawn_by_exactly_their_law(sampler, replacement):
    """Chi-square of all ordered draws of 2 of 6 is within its bound, and each fault's law is so far away that it alone
    would be past it: alpha a tenth off, eps left out, ties in order, the other kind of replacement."""
    table = make_table([[1, 0, 0], [0, 0.5, 1]])  # |A| 1.15 .58 .58 1 0 1
    p, rng = abs_advantage(table), np.random.default_rng(1)

    def one_draw() -> list[int]:
        drawn = draw(
            table,
            2,
            rng,
            log_weights=lambda rollouts: SAMPLERS[sampler](abs_advantage(rollouts), priority_exponent=0.5),
            whole_groups=False,
            replacement=replacement,
            importance_sampling_exponent=0.0,
        )
        return drawn.positions.tolist()

    right = law(WEIGHTS[sampler](p, 0.5), 2, replacement)
    assert chi_square(frequencies(one_draw, DRAWS), right, DRAWS) < bound(right)
    for name, wrong in faults(sampler, p, replacement, (0, 0.4, 0.6, 1)).items():
        assert chi_square(wrong, right, DRAWS) > 1.5 * bound(right), name


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_groups_are_drawn_by_exactly_their_law(sampler, replacement):
    """The same of 2 of 5 groups of two rollouts, by the numbers of a group among the groups."""
    table, draws = make_table([[0, 9], [0, 0], [0, 9], [0, 0.2], [0, 1]]), 6000  # sigma_g 6.4 0 6.4 .14 .71
    p, rng = sigma_g(table)[::2], np.random.default_rng(1)

    def one_draw() -> list[int]:
        drawn = draw(
            table,
            4,
            rng,
            log_weights=lambda rollouts: SAMPLERS[sampler](sigma_g(rollouts), priority_exponent=0.5),
            whole_groups=True,
            replacement=replacement,
            importance_sampling_exponent=0.0,
        )
        groups = [i // 2 for i in drawn.positions.tolist()[::2]]
        assert drawn.positions.tolist() == [i for g in groups for i in (2 * g, 2 * g + 1)]  # whole
        return groups

    right = law(WEIGHTS[sampler](p, 0.5), 2, replacement)
    assert chi_square(frequencies(one_draw, draws), right, draws) < bound(right)
    wrong_alphas = (0, 0.4, 0.6, 1) if sampler == "proportional" else (0, 1)
    for name, wrong in faults(sampler, p, replacement, wrong_alphas).items():
        assert name == "ranks from 0" or chi_square(wrong, right, draws) > 1.5 * bound(right), name


@pytest.mark.parametrize(("weights", "k"), [([1, 2, 3], 2), ([1, 2, 3, 4], 3), ([5, 1, 1], 3), ([1, 0, 2, 3, 3], 2)])
@pytest.mark.parametrize("take", [without_replacement, with_replacement])
def test_ordered_draws_are_as_enumerated(take, weights, k):
    """All ordered draws of small cases; a weight of 0 is never drawn."""
    with np.errstate(divide="ignore"):
        log_weight = np.log(np.array(weights, dtype=np.float64))
    rng, right = np.random.default_rng(2), law(weights, k, take is with_replacement)
    got = frequencies(lambda: take(log_weight, k, rng).tolist(), DRAWS)
    assert chi_square(got, right, DRAWS) < bound(right)


def test_with_the_papers_settings_a_rollout_of_priority_0_is_rare_but_drawn():
    """eps = 1e-6, alpha = .5: weights .001, 1, 1, so first with probability .001 / 2.001 = 5.0e-4: 10 of 20,000."""
    log_weight = proportional(np.array([0.0, 1, 1]), priority_exponent=0.5, priority_eps=1e-6)
    rng = np.random.default_rng(0)
    for take in (without_replacement, with_replacement):
        first = frequencies(lambda take=take: take(log_weight, 1, rng).tolist(), DRAWS)
        assert 1 < first[(0,)] * DRAWS < 26


def test_ranks_are_of_groups_whatever_their_size():
    """Groups of 4 and 2 rollouts, sigma_g .5 and .14: ranks 1 and 2, so with alpha = beta = 1 their weights are
    1 / (1/2) = 2 for the second to 1 for the first. Ranks of rollouts would be 2.5 and 5.5."""
    drawn = draw(
        make_table([[1, 0, 0, 0], [0, 0.2]]),
        6,
        np.random.default_rng(0),
        log_weights=lambda rollouts: rank_based(sigma_g(rollouts), priority_exponent=1.0),
        whole_groups=True,
        replacement=False,
        importance_sampling_exponent=1.0,
    )
    weight = dict(zip(drawn.positions.tolist(), drawn.weight.tolist(), strict=True))
    assert weight == pytest.approx({0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5, 4: 1, 5: 1})


# ---- without replacement ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_extreme_priorities_keep_their_order(exponent):
    rng = np.random.default_rng(0)
    log_weight = proportional(np.array([1e-300, 1e300, 1.0]), priority_exponent=exponent, priority_eps=0.0)
    for _ in range(100):
        assert without_replacement(log_weight, 3, rng).tolist() == [1, 2, 0]
        assert without_replacement(log_weight, 2, rng).tolist() == [1, 2]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_eps_0_never_draws_priority_0(exponent):
    """O9, I10: four are asked for, the two of positive priority are drawn; with replacement, each of the four is one
    of them."""
    log_weight = proportional(np.array([0, 1.0, 0, 2.0, 0]), priority_exponent=exponent, priority_eps=0.0)
    none = proportional(np.zeros(3), priority_exponent=exponent, priority_eps=0.0)
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert sorted(without_replacement(log_weight, 4, rng).tolist()) == [1, 3]
        drawn = with_replacement(log_weight, 4, rng)
        assert len(drawn) == 4 and set(drawn.tolist()) <= {1, 3}
    for take in (without_replacement, with_replacement):
        assert take(none, 2, rng).tolist() == []


def test_more_asked_for_than_there_are():
    """I10: without replacement all there are, with replacement as many as asked for."""
    assert sorted(without_replacement(np.zeros(3), 10, np.random.default_rng(0)).tolist()) == [0, 1, 2]
    assert len(with_replacement(np.zeros(3), 10, np.random.default_rng(0))) == 10


@pytest.mark.parametrize(("rollouts", "k"), [(1, 1), (5, 2), (20, 20), (500, 100), (3000, 50)])
def test_fewer_draws_are_the_first_of_more(rollouts, k):
    """In order of drawing: the first k of a draw of all."""
    log_weight = np.random.default_rng(0).normal(size=rollouts)
    for take in (without_replacement, with_replacement):
        few, all_ = (take(log_weight, n, np.random.default_rng(5)).tolist() for n in (k, rollouts))
        assert few == all_[:k]


# ---- random numbers --------------------------------------------------------------------------------------------------

log_weights_ = st.lists(st.one_of(st.just(-np.inf), st.floats(-1e3, 1e3)), max_size=12)


@repeatable
@given(log_weights_, st.integers(0, 15))
def test_without_replacement_takes_n_numbers_or_none_and_repeats_none(log_weight, k):
    """I11: N numbers where k and N are positive, so the stream does not depend on the weights."""
    log_weight = np.array(log_weight, dtype=np.float64)
    before = log_weight.copy()
    rng, twin = np.random.default_rng(7), np.random.default_rng(7)
    drawn = without_replacement(log_weight, k, rng)
    assert drawn.dtype == np.int64
    assert len(set(drawn.tolist())) == len(drawn) == min(k, int((log_weight > -np.inf).sum()))
    assert (log_weight[drawn] > -np.inf).all()
    np.testing.assert_array_equal(log_weight, before)
    if k and len(log_weight):
        twin.exponential(size=len(log_weight))
    assert rng.bit_generator.state == twin.bit_generator.state


@repeatable
@given(log_weights_, st.integers(0, 15))
def test_with_replacement_takes_k_numbers_or_none(log_weight, k):
    """Weights as far apart as e^2000 included: what underflows is not drawn, and no position is off the end."""
    log_weight = np.array(log_weight, dtype=np.float64)
    before = log_weight.copy()
    rng, twin = np.random.default_rng(7), np.random.default_rng(7)
    drawn = with_replacement(log_weight, k, rng)
    some = bool((log_weight > -np.inf).any())
    assert drawn.dtype == np.int64 and len(drawn) == (k if some else 0)
    assert (log_weight[drawn] > -np.inf).all()
    np.testing.assert_array_equal(log_weight, before)
    if some:
        twin.random(k)
    assert rng.bit_generator.state == twin.bit_generator.state


class Fixed:
    """A generator whose numbers are known."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = np.array(numbers)

    def random(self, size: int) -> np.ndarray:
        return self.numbers[:size]


def test_with_replacement_by_hand_and_at_the_ends():
    """Weights 0, 1, 0, 3, 0: cumulative 0, 1/4, 1/4, 1, 1. 0 and .2499 are the first, .25 and .9999 the second; never
    one of weight 0, not even for 0 or the number next to 1."""
    with np.errstate(divide="ignore"):
        log_weight = np.log(np.array([0, 1.0, 0, 3.0, 0]))
    rng = Fixed(0, 0.2499, 0.25, 0.9999, np.nextafter(1, 0), 1.0)
    assert with_replacement(log_weight, 6, rng).tolist() == [1, 1, 3, 3, 3, 3]


@pytest.mark.parametrize("take", [without_replacement, with_replacement])
def test_the_same_seed_draws_the_same(take):
    """I11."""
    log_weight = np.random.default_rng(1).normal(size=50)
    first, second, other = (
        [take(log_weight, 5, rng).tolist() for _ in range(4)] for rng in map(np.random.default_rng, (3, 3, 4))
    )
    assert first == second != other
    assert first[0] != first[1]


# ---- importance weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beta", "expected"),
    [
        (1.0, [1 / 2, 1, 1 / 2]),
        (0.5, [2**-0.5, 1, 2**-0.5]),
        (0.0, [1, 1, 1]),
        (2.0, [1 / 4, 1, 1 / 4]),
    ],
)
def test_importance_weights_by_hand(beta, expected):
    """Weights 1, 2, 3, 4 of N = 4: P = .1, .2, .3, .4, N P = .4, .8, 1.2, 1.6. Drawn the 4, the 2 and the 4 again:
    beta 1: 1 / 1.6 = .625, 1 / .8 = 1.25, .625; over the greatest, 1.25: .5, 1, .5."""
    log_weight = np.log([1.0, 2, 3, 4])
    assert importance_weights(log_weight[[3, 1, 3]], exponent=beta).tolist() == pytest.approx(expected)


@repeatable
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.floats(0, 2), st.data())
def test_importance_weights_are_pers_formula(weights, beta, data):
    """(N P(i))^-beta over its greatest in the draw, at most 1 and 1 for one of them."""
    drawn = data.draw(st.lists(st.integers(0, len(weights) - 1), min_size=1, max_size=6))
    formula = (len(weights) * np.array(weights) / np.sum(weights))[drawn] ** -beta
    got = importance_weights(np.log(weights)[drawn], exponent=beta)
    np.testing.assert_allclose(got, formula / formula.max(), rtol=1e-9)
    assert got.max() == 1


def test_importance_weights_where_probabilities_underflow():
    """e^-1381 is 0 as a float: what has it still weighs most, and no weight is NaN."""
    got = importance_weights(np.array([-1381.0, 0.0, -1381.0]), exponent=1.0)
    assert got.tolist() == [1, 0, 1]
    assert importance_weights(np.empty(0), exponent=1.0).shape == (0,)


def mean_weighed(weights: Sequence[float], f: np.ndarray, k: int, beta: float) -> float:
    """E[w f] times the normaliser, over every ordered draw of k with replacement."""
    log_weight, total = np.log(weights), 0.0
    raw = (len(weights) * np.array(weights) / sum(weights)) ** -beta
    for drawn, p in law(weights, k, True).items():
        chosen = list(drawn)
        total += p * (importance_weights(log_weight[chosen], exponent=beta) * f[chosen]).mean() * raw[chosen].max()
    return total


def test_beta_1_with_replacement_is_unbiased():
    """E[f_i / (N P_i)] = sum P_i f_i / (N P_i) = mean f, exactly; beta .5 and 0 are not."""
    weights, f = [1.0, 2.0, 5.0], np.array([3.0, -1.0, 10.0])
    assert mean_weighed(weights, f, 2, 1.0) == pytest.approx(4.0)
    assert mean_weighed(weights, f, 2, 0.0) == pytest.approx((1 * 3 - 2 * 1 + 5 * 10) / 8)
    assert abs(mean_weighed(weights, f, 2, 0.5) - 4.0) > 0.5


@pytest.mark.parametrize("unit", ["rollout", "group"])
def test_a_draw_is_weighed_back_to_the_mean(unit):
    """The same through `draw`: 20,000 drawn with replacement, beta 1. The mean weighed by w / sum w is the mean of all,
    within 5 standard errors, where the unweighed one is far off."""
    groups = [[0, 1], [0, 0.1], [0, 0.3], [0, 3]]
    table = make_table(groups if unit == "group" else [[x for group in groups for x in group]])
    priority = sigma_g if unit == "group" else abs_advantage
    drawn = draw(
        table,
        20_000,
        np.random.default_rng(0),
        log_weights=lambda rollouts: proportional(priority(rollouts), priority_exponent=0.6, priority_eps=1e-3),
        whole_groups=unit == "group",
        replacement=True,
        importance_sampling_exponent=1.0,
    )
    f = priority(table)
    at = f[drawn.positions]
    weighed = (drawn.weight * at).sum() / drawn.weight.sum()
    error = np.sqrt((drawn.weight**2 * (at - weighed) ** 2).sum()) / drawn.weight.sum()
    error *= np.sqrt(2) if unit == "group" else 1  # the two of a group are one draw
    assert abs(weighed - f.mean()) < 5 * error < 0.1 * f.mean()
    assert abs(at.mean() - f.mean()) > 20 * error


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_the_weights_of_a_draw_are_those_of_what_was_drawn(whole_groups, replacement, beta):
    """Of rollouts N P of the rollout, of groups N P of the group, the same for all its rollouts."""
    table = make_table([[0, 1, 1], [0, 0.2], [0, 0.5, 0.1, 0.3], [0, 0.1]])
    drawn = draw(
        table,
        9,
        np.random.default_rng(3),
        log_weights=lambda rollouts: proportional(sigma_g(rollouts), priority_exponent=1.0, priority_eps=0.0),
        whole_groups=whole_groups,
        replacement=replacement,
        importance_sampling_exponent=beta,
    )
    units = sigma_g(table)[[0, 3, 5, 9]] if whole_groups else sigma_g(table)
    formula = (len(units) * sigma_g(table)[drawn.positions] / units.sum()) ** -beta
    assert len(drawn.positions) == len(drawn.weight) > 3
    np.testing.assert_allclose(drawn.weight, formula / formula.max())
    assert (len(set(drawn.weight.tolist())) > 1) == (beta > 0)


# ---- whole groups ----------------------------------------------------------------------------------------------------


def groups_drawn(table: RolloutTable, k: int, *, seed: int = 0, replacement: bool = False) -> Draw:
    return draw(
        table,
        k,
        np.random.default_rng(seed),
        log_weights=uniform_log_weights,
        whole_groups=True,
        replacement=replacement,
        importance_sampling_exponent=0.0,
    )


def uniform_log_weights(table: RolloutTable) -> np.ndarray:
    return np.log(uniform(table))


@pytest.mark.parametrize(("k", "groups"), [(0, 0), (1, 0), (2, 1), (4, 1), (5, 1), (6, 2), (9, 2), (10, 3), (100, 3)])
def test_as_many_groups_as_come_nearest_to_k(k, groups):
    """Groups of 4: 1 rollout is nearer to none, 2 lie half way and make one, 5 are one, 6 two; 3 groups are all."""
    table = make_table([[1, 0, 0, 0]] * 3)
    assert len(groups_drawn(table, k).positions) == 4 * groups
    assert len(groups_drawn(table, min(k, 12), replacement=True).positions) == 4 * groups


@repeatable
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 25), st.integers(0, 3))
def test_groups_of_any_sizes_are_drawn_whole_and_nearest_to_k(sizes, k, seed):
    """The order of groups is that of a draw of all, cut where the total comes nearest to k, the larger if both do."""
    table = make_table([[1.0] * size for size in sizes])
    order = table.group[groups_drawn(table, len(table) + 5, seed=seed).positions].tolist()
    order = list(dict.fromkeys(order))
    assert sorted(order) == list(range(len(sizes)))
    totals = np.cumsum([0, *(sizes[g] for g in order)])
    best = max(n for n, total in enumerate(totals) if abs(total - k) == abs(totals - k).min())
    expected = [i for g in order[:best] for i in np.flatnonzero(table.group == g).tolist()]
    assert groups_drawn(table, k, seed=seed).positions.tolist() == expected


def test_rollouts_of_a_group_come_together_wherever_they_stand():
    """Groups 5, 2, 9 interleaved: each comes whole, in the order of the table."""
    table = make_table([[1.0]] * 7)
    table.group[:] = [5, 2, 5, 9, 2, 5, 9]
    drawn = groups_drawn(table, 7).positions.tolist()
    assert sorted(drawn) == list(range(7))
    blocks = {(0, 2, 5), (1, 4), (3, 6)}
    while blocks:
        block = next(b for b in blocks if tuple(drawn[: len(b)]) == b)
        blocks, drawn = blocks - {block}, drawn[len(block) :]


def test_groups_with_replacement_repeat_whole():
    table = make_table([[1, 0], [1, 0]])
    drawn = groups_drawn(table, 4, replacement=True, seed=1)
    seen = {tuple(groups_drawn(table, 4, replacement=True, seed=seed).positions.tolist()) for seed in range(20)}
    assert seen == {(0, 1, 0, 1), (0, 1, 2, 3), (2, 3, 0, 1), (2, 3, 2, 3)}
    assert drawn.weight.tolist() == [1] * 4


@pytest.mark.parametrize("replacement", [False, True])
def test_a_priority_that_a_group_does_not_share_is_refused_and_takes_no_numbers(replacement):
    """A group is drawn by one number; (1, 0, 0) has |A| 1.15, .58, .58."""
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="replay.unit=group needs a priority that all rollouts of a group share. Set"):
        draw(
            make_table([[1, 0, 0], [1, 0]]),
            2,
            rng,
            log_weights=lambda table: np.log(abs_advantage(table)),
            whole_groups=True,
            replacement=replacement,
            importance_sampling_exponent=0.0,
        )
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize(("rollouts", "k"), [(0, 3), (4, 0), (0, 0)])
def test_nothing_to_draw_takes_no_numbers(whole_groups, replacement, beta, rollouts, k):
    """O7."""
    rng = np.random.default_rng(0)
    drawn = draw(
        make_table([[1.0] * rollouts]) if rollouts else RolloutTable.empty(),
        k,
        rng,
        log_weights=uniform_log_weights,
        whole_groups=whole_groups,
        replacement=replacement,
        importance_sampling_exponent=beta,
    )
    assert drawn.positions.dtype == np.int64
    assert (len(drawn.positions), len(drawn.weight)) == (0, 0)
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state


@pytest.mark.parametrize("replacement", [False, True])
def test_groups_of_which_none_has_weight_draw_nothing(replacement):
    """sigma_g 0 and eps 0."""
    drawn = draw(
        make_table([[1, 1], [0, 0]]),
        2,
        np.random.default_rng(0),
        log_weights=lambda table: proportional(sigma_g(table), priority_exponent=0.5, priority_eps=0.0),
        whole_groups=True,
        replacement=replacement,
        importance_sampling_exponent=1.0,
    )
    assert drawn.positions.tolist() == [] and drawn.weight.tolist() == []
