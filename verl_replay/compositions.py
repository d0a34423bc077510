"""Compositions: how fresh and stored rollouts make one update. `(fresh, stored, draw, ratio) -> Composition`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from verl_replay.drawing import Draw
from verl_replay.table import RolloutTable


class Composition(NamedTuple):
    """The rollouts that one update trains on.

    Attributes:
        fresh: (F,) int64, positions among this step's survivors, ascending. A draw with replacement may repeat one.
        stored: (R,) int64, positions in the buffer, in order of drawing.
        fresh_weight, stored_weight: (F,) and (R,) float64, importance-sampling weight of each.
    """

    fresh: np.ndarray
    stored: np.ndarray
    fresh_weight: np.ndarray
    stored_weight: np.ndarray


def _half_up(x: float) -> int:
    return int(np.floor(x + 0.5))  # Python's round(0.5) is 0: the nearest even, which would starve small batches


def fresh_anchored(
    fresh: RolloutTable, stored: RolloutTable, draw: Callable[[RolloutTable, int], Draw], *, ratio: float
) -> Composition:
    """Every fresh survivor, and round(r * B') stored rollouts beside them (arXiv:2606.04560, fresh-anchored).

    Every update keeps its whole on-policy batch as an anchor. Fewer stored than asked for: all there are.
    """
    drawn = draw(stored, min(_half_up(ratio * len(fresh)), len(stored)))
    return Composition(np.arange(len(fresh)), drawn.positions, np.ones(len(fresh)), drawn.weight)


def pooled(
    fresh: RolloutTable, stored: RolloutTable, draw: Callable[[RolloutTable, int], Draw], *, ratio: float
) -> Composition:
    """One mixed draw of min((1 + r) B', pool) from survivors and stored together: the baseline the paper rejects.

    Trains on the draw alone: a fresh rollout may be left out (and is stored even so), and nothing anchors the update.
    """
    pool = RolloutTable.concat([fresh, stored])
    drawn = draw(pool, min(_half_up((1 + ratio) * len(fresh)), len(pool)))
    is_fresh = drawn.positions < len(fresh)
    chosen = np.flatnonzero(is_fresh)
    chosen = chosen[np.argsort(drawn.positions[chosen], kind="stable")]
    return Composition(
        fresh=drawn.positions[chosen],
        stored=drawn.positions[~is_fresh] - len(fresh),
        fresh_weight=drawn.weight[chosen],
        stored_weight=drawn.weight[~is_fresh],
    )


def everything_fresh(fresh: RolloutTable) -> Composition:
    """The survivors alone: what the warm-up trains on, in every arm, so that arms part at the first replayed step."""
    none = np.empty(0, np.int64)
    return Composition(np.arange(len(fresh)), none, np.ones(len(fresh)), np.empty(0))
