"""Filters: which fresh rollouts carry a signal. A filter is `table -> keep`, (N,) bool, whole groups at a time."""

from __future__ import annotations

import numpy as np

from verl_replay.table import RolloutTable, group_statistics

# Share of the group's largest |reward|: some eight float32 steps, so sums that differ in their last digits are equal.
ROUNDING = 1e-6


def zero_variance(table: RolloutTable) -> np.ndarray:
    """Drop groups whose rewards are all equal: their advantages are zero (DAPO, arXiv:2503.14476, eq. 11).

    Equal means equal up to rounding: (greatest - least) <= 1e-6 * max |reward|. Rewards (.7, .7, .7, .7000001) have
    standard deviation 6.9e-8 and yet advantages (0, 0, 0, .11), because GRPO divides noise by noise. A group of one has
    nothing to be relative to and is dropped too.

    Returns:
        keep: (N,) bool.
    """
    _, least, greatest = group_statistics(table.group, table.reward)
    with np.errstate(invalid="ignore"):  # infinite rewards: finite_groups drops them
        spread = greatest - least
    return spread > ROUNDING * np.maximum(np.abs(least), np.abs(greatest))


def none(table: RolloutTable) -> np.ndarray:
    """Keep every rollout: the neutral element."""
    return np.ones(len(table), dtype=bool)


def finite_groups(table: RolloutTable) -> np.ndarray:
    """Keep groups in which every rollout is finite. Not an option: a NaN is never trained on nor stored.

    Returns:
        keep: (N,) bool. One NaN or infinity drops its whole group, whose statistics it has spoilt.
    """
    return ~np.isin(table.group, table.group[~table.finite])
