"""Filters: which fresh rollouts carry a signal. A filter is `table -> keep`, (N,) bool."""

from __future__ import annotations

import numpy as np

from verl_replay.table import ROUNDING, RolloutTable, group_statistics


def zero_variance(table: RolloutTable) -> np.ndarray:
    """Drop groups whose rewards are all equal: their advantages are zero (DAPO, arXiv:2503.14476, eq. 11).

    Equal means equal up to rounding: (greatest - least) <= 1e-6 * max |reward|. Rewards (.7, .7, .7, .7000001) have
    standard deviation 6.9e-8 and yet advantages (0, 0, 0, .11), because GRPO divides noise by noise. A group of one has
    nothing to be relative to and is dropped too.

    Returns:
        keep: (N,) bool.
    """
    spread, largest = _spread(table.group, table.reward)
    return spread > ROUNDING * largest


def zero_advantage(table: RolloutTable) -> np.ndarray:
    """Drop also, in the groups that zero_variance keeps, every rollout whose own advantage is zero.

    Such a rollout, of its group's mean reward, moves nothing: rewards (0, .5, 1) have advantages (-1, 0, 1). With
    binary rewards there is none, and this is zero_variance. Under token-mean its tokens still divided the loss, so the
    others weigh more without it. Zero means up to rounding: of rewards (8, 8.1, 8.2) verl's float32 makes advantages
    (-1, 1e-5, 1). What the reward's rounding is to its spread, the advantage's is to the group's largest.

    Returns:
        keep: (N,) bool. Groups may be kept in part.
    """
    spread, largest = _spread(table.group, table.reward)
    _, largest_advantage = _spread(table.group, table.advantage)
    with np.errstate(invalid="ignore"):
        return np.abs(table.advantage) * spread > ROUNDING * largest * largest_advantage


def none(table: RolloutTable) -> np.ndarray:
    """Keep every rollout: the neutral element."""
    return np.ones(len(table), dtype=bool)


def finite_groups(table: RolloutTable) -> np.ndarray:
    """Keep groups in which every rollout is finite. Not an option: a NaN is never trained on nor stored.

    Returns:
        keep: (N,) bool. One NaN or infinity drops its whole group, whose statistics it has spoilt.
    """
    return ~np.isin(table.group, table.group[~table.finite])


def _spread(group: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Greatest less least value, and largest |value|, of each rollout's group."""
    _, least, greatest = group_statistics(group, values)
    with np.errstate(invalid="ignore"):  # infinite rewards: finite_groups drops them
        return greatest - least, np.maximum(np.abs(least), np.abs(greatest))
