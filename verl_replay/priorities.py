"""Priorities: how much a rollout is worth drawing again. `(table, step) -> p`, (N,) float64, p >= 0."""

from __future__ import annotations

import numpy as np

from verl_replay.table import RolloutTable


def abs_advantage(table: RolloutTable, *, step: int) -> np.ndarray:
    """p = |A_i|: the rare outcome of a lopsided group comes first (arXiv:2606.04560, rollout-level priority).

    Of a binary reward with k of G correct, |A| is sqrt((G-k)/k) for the correct and sqrt(k/(G-k)) for the wrong.
    """
    del step  # frozen at birth
    return np.abs(table.advantage)


def sigma_g(table: RolloutTable, *, step: int) -> np.ndarray:
    """p = sigma_g, the standard deviation of the group's rewards: the query-level baseline. Peaks at k = G/2."""
    del step  # frozen at birth
    return table.group_std


def uniform(table: RolloutTable, *, step: int) -> np.ndarray:
    """p = 1: every rollout alike, the control that a priority has to beat."""
    del step  # age does not matter
    return np.ones(len(table))
