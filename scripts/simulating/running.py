"""One run through the real transform with one setting: what each step would generate, draw, train on and store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scripts.simulating.footprint import Footprint
from scripts.simulating.tables import Run
from verl_replay import filters
from verl_replay.options import ReplayOptions
from verl_replay.ragged import Ragged
from verl_replay.store import Rows
from verl_replay.table import RolloutTable
from verl_replay.transform import ReplayTransform, Selection

COUNTS = (  # one number a step
    "step",
    "groups",
    "zero_variance_groups",
    "nonfinite_groups",
    "generated",
    "generated_tokens",
    "survivors",
    "trained_fresh",
    "drawn",
    "trained_tokens",
    "drawable",  # rollouts in the buffer when it is drawn from, after eviction by age
    "evicted_capacity",
    "size",  # rollouts in the buffer after storing
    "stored_tokens",  # their response tokens
    "nbytes",
)


@dataclass
class Trace:
    """What a run of N steps did.

    Attributes:
        counts: name of COUNTS -> one int a step.
        age: drawn rollouts by age: age[a] of age a.
        born, uses: (stored,) int64: of every rollout ever stored its birth, and how often it was drawn.
    """

    counts: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in COUNTS})
    age: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    born: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    uses: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __getitem__(self, name: str) -> np.ndarray:
        """(steps,) int64."""
        return np.array(self.counts[name], dtype=np.int64)

    def count(self, **numbers: int) -> None:
        for name in COUNTS:
            self.counts[name].append(int(numbers[name]))


def zero_variance(fresh: RolloutTable) -> tuple[int, int, int]:
    """Groups, those without signal and those with a NaN or infinity, whatever the setting's own filter does."""
    finite = filters.finite_groups(fresh)
    clean, mixed = (len(np.unique(fresh.group[mask])) for mask in (finite, finite & filters.zero_variance(fresh)))
    groups = len(np.unique(fresh.group))
    return groups, clean - mixed, groups - clean


def simulate(run: Run, options: ReplayOptions, footprint: Footprint, *, done: Callable[[], None]) -> Trace:
    """Select and store as the trainers do, step by step. What is stored of a rollout is its number, no tokens.

    Args:
        run: its tables; not changed.
        options: of one setting.
        footprint: bytes of what would be stored.
        done: called after each step.
    """
    transform, trace = ReplayTransform(options), Trace()
    for step, fresh in run.steps.items():
        if options.enabled:
            chosen = transform.select(fresh, step=step)
            drawable = len(transform.buffer)
            _count_draws(trace, chosen, step)
            evicted = _store(transform, trace, fresh.take(chosen.survivors), step)
        else:  # stock verl trains on everything
            chosen, drawable, evicted = None, 0, 0
        trained = np.arange(len(fresh)) if chosen is None else chosen.trained
        drawn = RolloutTable.empty() if chosen is None else chosen.replayed.table
        stored = transform.buffer.table
        groups, without_signal, nonfinite = zero_variance(fresh)
        trace.count(
            step=step,
            groups=groups,
            zero_variance_groups=without_signal,
            nonfinite_groups=nonfinite,
            generated=len(fresh),
            generated_tokens=fresh.tokens.sum(),
            survivors=len(fresh) if chosen is None else len(chosen.survivors),
            trained_fresh=len(trained),
            drawn=len(drawn),
            trained_tokens=fresh.tokens[trained].sum() + drawn.tokens.sum(),
            drawable=drawable,
            evicted_capacity=evicted,
            size=len(stored),
            stored_tokens=stored.tokens.sum(),
            nbytes=footprint.nbytes(
                rollouts=len(stored),
                prompt_tokens=int(run.prompt_tokens[stored.group].sum()),
                response_tokens=int(stored.tokens.sum()),
                steps=len(np.unique(stored.stored_at)),
            ),
        )
        done()
    return trace


def _count_draws(trace: Trace, chosen: Selection, step: int) -> None:
    if not len(chosen.replayed.table):
        return
    np.add.at(trace.uses, chosen.replayed.rows.columns["number"].values, 1)
    ages = np.bincount(chosen.replayed.table.age(step), minlength=len(trace.age))
    ages[: len(trace.age)] += trace.age
    trace.age = ages


def _store(transform: ReplayTransform, trace: Trace, survivors: RolloutTable, step: int) -> int:
    """Store the survivors, if anything stored is ever drawn. Returns how many rollouts the capacity evicted."""
    if not (transform.options.replays and len(survivors)):
        return 0
    numbers = len(trace.uses) + np.arange(len(survivors))
    trace.uses = np.concatenate([trace.uses, np.zeros(len(survivors), np.int64)])
    trace.born = np.concatenate([trace.born, survivors.born])
    each = np.arange(len(survivors) + 1)
    return transform.store(survivors, Rows({"number": Ragged(numbers, each)}, each), step=step)
