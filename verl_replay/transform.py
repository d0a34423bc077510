"""The algorithm of arXiv:2606.04560, one training step, decided on the table of rollouts.

fresh rollouts -> filter -> survivors
buffer         -> evict (age > tau_max) -> draw by priority
composition    =  survivors (x) drawn
buffer         <- survivors, after the draw
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from verl_replay import compositions, drawing, filters
from verl_replay.buffer import Drawn, RolloutBuffer
from verl_replay.options import ReplayOptions
from verl_replay.store import Rows
from verl_replay.table import RolloutTable


class Selection(NamedTuple):
    """What one step trains on, and the counts that its metrics report.

    Attributes:
        survivors: (B',) int64, positions among the fresh rollouts that passed the filter.
        trained: (F,) int64, positions among the fresh rollouts that are trained on, ascending; of a fresh-anchored
            composition all the survivors, of a pooled one with replacement perhaps one twice.
        trained_weight: (F,) float64, importance-sampling weight of each.
        replayed: the rollouts drawn from the buffer.
        replayed_weight: (R,) float64.
        rollouts: how many fresh rollouts there were, dropped ones included.
        groups, kept_groups, zero_variance_groups, nonfinite_groups: of these.
        evicted_age: rollouts that the eviction policy removed before the draw.
    """

    survivors: np.ndarray
    trained: np.ndarray
    trained_weight: np.ndarray
    replayed: Drawn
    replayed_weight: np.ndarray
    rollouts: int
    groups: int
    kept_groups: int
    zero_variance_groups: int
    nonfinite_groups: int
    evicted_age: int


class Filtered(NamedTuple):
    """(B,) bool each: which fresh rollouts survive, and which are of groups without NaN or infinity."""

    keep: np.ndarray
    finite: np.ndarray


class ReplayTransform:
    """Filter, evict, draw, store: everything that replay decides, over one RolloutBuffer."""

    def __init__(self, options: ReplayOptions) -> None:
        self.options = options
        whole_groups = options.unit == "group"
        self.buffer = RolloutBuffer(capacity=options.capacity, seed=options.seed, whole_groups=whole_groups)
        self._filter = options.policy("filter")
        self._evict = options.policy("eviction")
        self._priority = options.policy("priority")
        self._sampler = options.policy("sampler")
        self._compose = options.policy("composition")

    def filter(self, fresh: RolloutTable, *, step: int) -> Filtered:
        """Decide which fresh rollouts survive. Changes nothing: what is wrong with their rows can still be told."""
        finite = filters.finite_groups(fresh)
        return Filtered(finite & _mask("filter", self._filter(fresh, step=step), fresh), finite)

    def select(self, fresh: RolloutTable, *, step: int, filtered: Filtered | None = None) -> Selection:
        """Decide what the update of `step` trains on. Evicts from the buffer and counts uses; stores nothing yet.

        Args:
            fresh: (B,) this step's rollouts in canonical order, padding left out.
            step: t, from 1.
            filtered: what `filter` said of them, where it was asked before.
        """
        keep, finite = filtered or self.filter(fresh, step=step)
        survivors = np.flatnonzero(keep)

        evicted = self.buffer.keep(_mask("eviction", self._evict(self.buffer.table, step=step), self.buffer.table))

        chosen = self._composition(fresh.take(survivors), step)
        replayed = self.buffer.draw(chosen.stored)

        groups, kept, clean = (len(np.unique(fresh.group[mask])) for mask in (slice(None), keep, finite))
        return Selection(
            survivors=survivors,
            trained=survivors[chosen.fresh],
            trained_weight=chosen.fresh_weight,
            replayed=replayed,
            replayed_weight=chosen.stored_weight,
            rollouts=len(fresh),
            groups=groups,
            kept_groups=kept,
            zero_variance_groups=clean - kept,
            nonfinite_groups=groups - clean,
            evicted_age=evicted,
        )

    def store(self, survivors: RolloutTable, rows: Rows, *, step: int) -> int:
        """Store the survivors of `step`, frozen as they were born. Call after `select`, which must not draw them.

        Returns:
            How many rollouts the capacity evicted.
        """
        return self.buffer.add(survivors.stored(step), rows)

    def _composition(self, survivors: RolloutTable, step: int) -> compositions.Composition:
        if step <= self.options.warmup_steps:
            return compositions.everything_fresh(survivors)
        # An earlier update of this very step may have stored some, at the end of the buffer: those are not drawn yet.
        earlier = int(np.searchsorted(self.buffer.table.stored_at, step))
        stored = self.buffer.table if earlier == len(self.buffer) else self.buffer.table.take(np.arange(earlier))

        def draw(table: RolloutTable, k: int) -> drawing.Draw:
            return drawing.draw(
                table,
                k,
                self.buffer.rng,
                log_weights=lambda candidates: self._log_weights(candidates, step),
                whole_groups=self.buffer.whole_groups,
                replacement=self.options.replacement,
                importance_sampling_exponent=self.options.importance_sampling_exponent,
            )

        return self._compose(survivors, stored, draw, step=step)

    def _log_weights(self, table: RolloutTable, step: int) -> np.ndarray:
        priority = _numbers("priority", self._priority(table, step=step), table)
        if not (np.isfinite(priority).all() and (priority >= 0).all()):
            raise ValueError("replay.priority must return finite numbers >= 0, got NaN, infinity or less. Mend it.")
        log_weight = _numbers("sampler", self._sampler(priority, step=step), table)
        if np.isnan(log_weight).any() or (log_weight == np.inf).any():
            raise ValueError("replay.sampler must return logarithms of weights, got NaN or +infinity. Mend it.")
        return log_weight


def _mask(kind: str, mask: np.ndarray, table: RolloutTable) -> np.ndarray:
    """The mask, if it is one: a policy of the user's may return anything."""
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (len(table),):
        got = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise ValueError(
            f"replay.{kind} must return a mask (N,) = ({len(table)},) of bool, got {got}. Mend the function."
        )
    return mask


def _numbers(kind: str, values: np.ndarray, table: RolloutTable) -> np.ndarray:
    """The values as (N,) float64, if they are: a policy of the user's may return anything."""
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (len(table),):
        raise ValueError(f"replay.{kind} must return (N,) = ({len(table)},) numbers, got {values.shape}. Mend it.")
    return values
