"""Eviction: which stored rollouts stay. `table -> keep`, (N,) bool."""

from __future__ import annotations

import numpy as np

from verl_replay.table import RolloutTable


def age(table: RolloutTable, *, step: int, max_age: int) -> np.ndarray:
    """Keep rollouts of age <= tau_max: a step bound means the same for every model size and data set.

    Paper: "Rollout-Level Advantage-Prioritized Experience Replay for GRPO" (arXiv:2606.04560), age eviction. Applied
    before the draw of `step`, so ages 1..max_age can be drawn and max_age = 0 keeps nothing.

    Returns:
        keep: (N,) bool.
    """
    return table.age(step) <= max_age


def uses(table: RolloutTable, *, max_uses: int) -> np.ndarray:
    """Keep rollouts drawn fewer than `max_uses` times, however old: none is learned from without end.

    Returns:
        keep: (N,) bool.
    """
    return table.uses < max_uses


def age_or_uses(table: RolloutTable, *, step: int, max_age: int, max_uses: int) -> np.ndarray:
    """Keep what both `age` and `uses` keep: the paper's eviction, with a cap on repetition."""
    return age(table, step=step, max_age=max_age) & uses(table, max_uses=max_uses)


def none(table: RolloutTable) -> np.ndarray:
    """Keep all, so that the capacity alone bounds the buffer: the ablation of age eviction."""
    return np.ones(len(table), dtype=bool)


def newest(table: RolloutTable, *, capacity: int, whole_groups: bool = False) -> np.ndarray:
    """Keep the `capacity` rollouts stored last: a backstop for memory, first in first out.

    Args:
        table: (N,) in order of storing.
        capacity: in rollouts.
        whole_groups: drop the rest of a group that would stay in part.

    Returns:
        keep: (N,) bool.
    """
    keep = np.arange(len(table)) >= len(table) - capacity
    if whole_groups and not keep.all():
        keep &= ~np.isin(table.group, table.group[~keep])
    return keep
