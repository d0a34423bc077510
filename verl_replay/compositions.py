"""Compositions: how fresh and stored rollouts make one update. `(fresh, stored, draw, ratio) -> Composition`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from verl_replay.table import RolloutTable

Draw = Callable[[RolloutTable, int], np.ndarray]  # (table, k) -> positions (<= k,), all different


class Composition(NamedTuple):
    """Positions of the rollouts that one update trains on."""

    fresh: np.ndarray  # (F,) int64, positions among this step's survivors, ascending
    stored: np.ndarray  # (R,) int64, positions in the buffer, in order of drawing


def _half_up(x: float) -> int:
    return int(np.floor(x + 0.5))  # Python's round(0.5) is 0: the nearest even, which would starve small batches


def fresh_anchored(fresh: RolloutTable, stored: RolloutTable, draw: Draw, *, ratio: float) -> Composition:
    """Every fresh survivor, and round(r * B') stored rollouts beside them (arXiv:2606.04560, fresh-anchored).

    Every update keeps its whole on-policy batch as an anchor. Fewer stored than asked for: all there are.
    """
    wanted = min(_half_up(ratio * len(fresh)), len(stored))
    return Composition(np.arange(len(fresh)), draw(stored, wanted))


def pooled(fresh: RolloutTable, stored: RolloutTable, draw: Draw, *, ratio: float) -> Composition:
    """One mixed draw of min((1 + r) B', pool) from survivors and stored together: the baseline the paper rejects.

    Trains on the draw alone: a fresh rollout may be left out (and is stored even so), and nothing anchors the update.
    """
    pool = RolloutTable.concat([fresh, stored])
    drawn = draw(pool, min(_half_up((1 + ratio) * len(fresh)), len(pool)))
    return Composition(np.sort(drawn[drawn < len(fresh)]), drawn[drawn >= len(fresh)] - len(fresh))


def everything_fresh(fresh: RolloutTable) -> Composition:
    """The survivors alone: what the warm-up trains on, in every arm, so that arms part at the first replayed step."""
    return Composition(np.arange(len(fresh)), np.empty(0, np.int64))
