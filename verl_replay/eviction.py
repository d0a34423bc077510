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


def newest(table: RolloutTable, *, capacity: int) -> np.ndarray:
    """Keep the `capacity` rollouts stored last: a backstop for memory, first in first out.

    Returns:
        keep: (N,) bool. The table is in order of storing.
    """
    return np.arange(len(table)) >= len(table) - capacity
