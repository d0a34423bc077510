"""The algorithm of arXiv:2606.04560, one training step, decided on the table of rollouts.

fresh rollouts -> filter -> survivors
buffer         -> evict (age > tau_max) -> draw by priority
composition    =  survivors (x) drawn
buffer         <- survivors, after the draw
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from verl_replay import compositions, filters
from verl_replay.buffer import Drawn, RolloutBuffer
from verl_replay.options import ReplayOptions
from verl_replay.store import Rows
from verl_replay.table import RolloutTable


class Selection(NamedTuple):
    """What one step trains on, and the counts that its metrics report.

    Attributes:
        survivors: (B',) int64, positions among the fresh rollouts that passed the filter.
        trained: (F,) int64, positions among the fresh rollouts that are trained on; of a fresh-anchored composition all
            the survivors.
        replayed: the rollouts drawn from the buffer.
        rollouts: how many fresh rollouts there were, dropped ones included.
        groups, kept_groups, zero_variance_groups, nonfinite_groups: of these.
        evicted_age: rollouts that the eviction policy removed before the draw.
    """

    survivors: np.ndarray
    trained: np.ndarray
    replayed: Drawn
    rollouts: int
    groups: int
    kept_groups: int
    zero_variance_groups: int
    nonfinite_groups: int
    evicted_age: int


class ReplayTransform:
    """Filter, evict, draw, store: everything that replay decides, over one RolloutBuffer."""

    def __init__(self, options: ReplayOptions) -> None:
        self.options = options
        self.buffer = RolloutBuffer(capacity=options.capacity, seed=options.seed)
        self._filter = options.policy("filter")
        self._evict = partial(options.policy("eviction"), max_age=options.max_age)
        self._priority = options.policy("priority")
        self._sample = partial(options.policy("sampler"), exponent=options.priority_exponent, eps=options.priority_eps)
        self._compose = partial(options.policy("composition"), ratio=options.ratio)

    def select(self, fresh: RolloutTable, *, step: int) -> Selection:
        """Decide what the update of `step` trains on. Evicts from the buffer and counts uses; stores nothing yet.

        Args:
            fresh: (B,) this step's rollouts in canonical order, padding left out.
            step: t, from 1.
        """
        finite = filters.finite_groups(fresh)
        keep = finite & _mask("filter", self._filter(fresh), fresh)
        survivors = np.flatnonzero(keep)

        evicted = self.buffer.keep(_mask("eviction", self._evict(self.buffer.table, step=step), self.buffer.table))

        chosen = self._composition(fresh.take(survivors), step)
        replayed = self.buffer.draw(chosen.stored)

        groups, kept, clean = (len(np.unique(fresh.group[mask])) for mask in (slice(None), keep, finite))
        return Selection(
            survivors=survivors,
            trained=survivors[chosen.fresh],
            replayed=replayed,
            rollouts=len(fresh),
            groups=groups,
            kept_groups=kept,
            zero_variance_groups=clean - kept,
            nonfinite_groups=groups - clean,
            evicted_age=evicted,
        )

    def store(self, survivors: RolloutTable, rows: Rows) -> int:
        """Store this step's survivors, frozen as they were born. Call after `select`, which must not draw them.

        Returns:
            How many rollouts the capacity evicted.
        """
        return self.buffer.add(survivors, rows)

    def _composition(self, survivors: RolloutTable, step: int) -> compositions.Composition:
        if step <= self.options.warmup_steps:
            return compositions.everything_fresh(survivors)
        rng = self.buffer.rng

        def draw(table: RolloutTable, k: int) -> np.ndarray:
            return self._sample(self._priority(table, step=step), k, rng)

        return self._compose(survivors, self.buffer.table, draw)


def _mask(kind: str, mask: np.ndarray, table: RolloutTable) -> np.ndarray:
    """The mask, if it is one: a policy of the user's may return anything."""
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (len(table),):
        got = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise ValueError(
            f"replay.{kind} must return a mask (N,) = ({len(table)},) of bool, got {got}. Mend the function."
        )
    return mask
