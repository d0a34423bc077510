"""Drawing: k of N by weight, with or without replacement, single rollouts or whole groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from verl_replay.table import RolloutTable


class Draw(NamedTuple):
    """What was drawn of a table of N.

    Attributes:
        positions: (K,) int64, in order of drawing; all different without replacement.
        weight: (K,) float64, importance-sampling weight of each, at most 1; 1 where none is asked for.
    """

    positions: np.ndarray
    weight: np.ndarray


def without_replacement(log_weight: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """k successive draws, P(i) = w_i / sum of the w not drawn yet.

    As the k least exponential keys E_i / w_i, which has exactly that law (Efraimidis and Spirakis 2006): one pass.

    Args:
        log_weight: (N,) float64, -inf where it is never drawn.
        k: how many to draw, >= 0.
        rng: the buffer's own generator. N numbers are taken from it, or none where k or N is 0.

    Returns:
        (min(k, those of positive weight),) int64 positions in order of drawing, all different.
    """
    if k <= 0 or not len(log_weight):
        return np.empty(0, dtype=np.int64)
    keys = np.log(rng.standard_exponential(len(log_weight))) - log_weight
    k = min(k, int(np.count_nonzero(log_weight > -np.inf)))
    if not k:
        return np.empty(0, dtype=np.int64)
    chosen = np.argpartition(keys, k - 1)[:k]
    return chosen[np.argsort(keys[chosen], kind="stable")]


def with_replacement(log_weight: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """k independent draws, P(i) = w_i / sum of w: by the inverse of the cumulative distribution.

    Args:
        log_weight: (N,) float64, -inf where it is never drawn.
        k: how many to draw, >= 0.
        rng: k numbers are taken from it, or none where k is 0 or nothing can be drawn.

    Returns:
        (k,) int64 positions, or none where nothing has weight.
    """
    if k <= 0 or not (log_weight > -np.inf).any():
        return np.empty(0, dtype=np.int64)
    cumulative = np.cumsum(probabilities(log_weight))
    drawn = np.searchsorted(cumulative, rng.random(k) * cumulative[-1], side="right")
    return np.minimum(drawn, np.flatnonzero(log_weight > -np.inf)[-1])  # a product that rounds up to the total


def probabilities(log_weight: np.ndarray) -> np.ndarray:
    """(N,) float64: P(i) = w_i / sum of w. At least one weight must be positive."""
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def importance_weights(log_weight: np.ndarray, *, exponent: float) -> np.ndarray:
    """(N P(i))^-beta, divided by the greatest of the draw so that it only scales down. PER, section 3.4.

    N and the sum of all weights cancel: what is left is (w_i / least w drawn)^-beta, in logarithms as the weights are.

    Args:
        log_weight: (K,) log w_i of those that were drawn.
        exponent: beta. 0 is all ones, 1 corrects in full.
    """
    log = -exponent * log_weight
    return np.exp(log - log.max(initial=-np.inf))


def draw(
    table: RolloutTable,
    k: int,
    rng: np.random.Generator,
    *,
    log_weights: Callable[[RolloutTable], np.ndarray],
    whole_groups: bool,
    replacement: bool,
    importance_sampling_exponent: float,
) -> Draw:
    """Draw about k rollouts of the table.

    Args:
        table: (N,).
        k: how many rollouts.
        log_weights: the sampler on the priority.
        whole_groups: draw groups, all rollouts of each: as many groups as come nearest to k rollouts.
        replacement: whether what was drawn can be drawn again.
        importance_sampling_exponent: beta.

    Raises:
        ValueError: groups are drawn whole and the rollouts of one differ in weight.
    """
    take = with_replacement if replacement else without_replacement
    if not whole_groups:
        log_weight = log_weights(table)
        positions = take(log_weight, k, rng)
        return Draw(positions, importance_weights(log_weight[positions], exponent=importance_sampling_exponent))
    _, first, inverse, sizes = np.unique(table.group, return_index=True, return_inverse=True, return_counts=True)
    if k <= 0 or not len(sizes):
        return Draw(np.empty(0, dtype=np.int64), np.empty(0))
    each = log_weights(table)
    if not np.array_equal(each, each[first][inverse]):
        raise ValueError(
            "replay.unit=group needs a priority that all rollouts of a group share. "
            "Set replay.priority=sigma_g or uniform, or replay.unit=rollout."
        )
    log_weight = log_weights(table.take(first))  # one entry a group: a rank counts groups, not rollouts
    groups = take(log_weight, k, rng)  # at most one group a rollout asked for
    before = np.cumsum(sizes[groups]) - sizes[groups]
    groups = groups[before + sizes[groups] / 2 <= k]
    members = np.argsort(inverse, kind="stable")
    starts = np.cumsum(sizes) - sizes
    positions = [members[starts[g] : starts[g] + sizes[g]] for g in groups.tolist()]
    weight = importance_weights(log_weight[groups], exponent=importance_sampling_exponent)
    return Draw(np.concatenate([np.empty(0, np.int64), *positions]), np.repeat(weight, sizes[groups]))
