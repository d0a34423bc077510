"""Priorities: how much a rollout is worth drawing again. `table -> p`, (N,) float64, p >= 0."""

from __future__ import annotations

import numpy as np

from verl_replay.table import RolloutTable


def abs_advantage(table: RolloutTable) -> np.ndarray:
    """p = |A_i|: the rare outcome of a lopsided group comes first (arXiv:2606.04560, rollout-level priority).

    Of a binary reward with k of G correct, |A| is sqrt((G-k)/k) for the correct and sqrt(k/(G-k)) for the wrong.
    """
    return np.abs(table.advantage)


def sigma_g(table: RolloutTable) -> np.ndarray:
    """p = sigma_g, the standard deviation of the group's rewards: the query-level baseline. Peaks at k = G/2."""
    return table.group_std


def uniform(table: RolloutTable) -> np.ndarray:
    """p = 1: every rollout alike, the control that a priority has to beat."""
    return np.ones(len(table))


def reward_rarity(table: RolloutTable) -> np.ndarray:
    """p = G / k, where k of the G rollouts of the group have this rollout's reward.

    Like |A_i| it prefers the minority, but looks at how few there are and not at how far their reward lies: of binary
    rewards with k correct it is G/k and G/(G-k), where |A_i|^2 is G/k - 1 and G/(G-k) - 1.
    """
    return 1.0 / table.reward_share


def recency_decayed(table: RolloutTable, *, step: int, priority_decay_steps: float) -> np.ndarray:
    """p = |A_i| exp(-age / tau): old rollouts fade instead of leaving all at once (FreshPER, arXiv:2604.16918).

    Here on |A_i|, before the exponent alpha; FreshPER decays the finished priority, which is alpha = 1.
    """
    return np.abs(table.advantage) * np.exp(-table.age(step) / priority_decay_steps)
