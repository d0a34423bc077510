"""Traces -> the figures of a setting; a recording -> the figures of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scripts.simulating.running import Trace, zero_variance
from scripts.simulating.tables import Run
from verl_replay.options import ReplayOptions

PARTS = 5  # of a run's steps: zero-variance shares over time
_BY_AGE = ("age", "age_or_uses")


def describe(run: Run) -> dict[str, Any]:
    """The figures of one recorded run, before any setting.

    zero_variance_parts are the shares in the first, second, ... fifth of the run's steps, None where a part holds none.
    """
    steps = np.array(list(run.steps))
    counts = np.array([zero_variance(table) for table in run.steps.values()])
    part = (steps - steps[0]) * PARTS // (steps[-1] - steps[0] + 1)
    sizes = np.concatenate([np.unique(table.group, return_counts=True)[1] for table in run.steps.values()])
    reward = np.concatenate([table.reward for table in run.steps.values()])
    finite = reward[np.isfinite(reward)]
    return {
        "steps": len(steps),
        "first_step": int(steps[0]),
        "last_step": int(steps[-1]),
        "groups": int(counts[:, 0].sum()),
        "group_size_min": int(sizes.min()),
        "group_size_max": int(sizes.max()),
        "rollouts": len(reward),
        "reward_mean": float(finite.mean()) if len(finite) else None,
        "nonfinite_groups": int(counts[:, 2].sum()),
        "zero_variance_frac": _share(counts[:, 1], counts[:, 0]),
        "zero_variance_parts": [_share(*counts[part == p, 1::-1].T) for p in range(PARTS)],
    }


def summarize(traces: Sequence[Trace], options: ReplayOptions) -> dict[str, Any]:
    """The figures of one setting over some runs. Sums are over all runs, peaks the greatest of any; what there is none
    of (ages where nothing was drawn) is None.

    Uses are of whole lives: rollouts born when the warm-up was over the step after, and old enough at the end of the
    recording to have left by age. Without eviction by age no life is whole.
    """
    total = {name: int(sum(trace[name].sum() for trace in traces)) for name in ("generated", "drawn", "trained_fresh")}
    tokens = {name: int(sum(trace[name].sum() for trace in traces)) for name in ("generated_tokens", "trained_tokens")}
    trained = total["drawn"] + total["trained_fresh"]
    age = ages(traces)
    uses = np.concatenate([trace.uses[whole_lives(trace, options)] for trace in traces])
    every_use = np.concatenate([trace.uses for trace in traces])
    size = np.concatenate([trace["size"] for trace in traces])
    drawable = np.concatenate([trace["drawable"][trace["step"] > options.warmup_steps] for trace in traces])
    return {
        **total,
        "kept_frac": sum(trace["survivors"].sum() for trace in traces) / total["generated"],
        "replayed_frac": total["drawn"] / trained if trained else None,
        "age_mean": float(np.average(np.arange(len(age)), weights=age)) if age.any() else None,
        "age_p90": int(np.searchsorted(np.cumsum(age), 0.9 * age.sum())) if age.any() else None,
        "age_max": len(np.trim_zeros(age, "b")) - 1 if age.any() else None,
        "whole_lives": len(uses),
        "uses_mean": float(uses.mean()) if len(uses) else None,
        "never_drawn_frac": float((uses == 0).mean()) if len(uses) else None,
        "uses_max": int(every_use.max()) if len(every_use) else None,
        "drawable_mean": float(drawable.mean()) if len(drawable) else None,
        "size_max": int(size.max()),
        "size_last_mean": float(np.mean([trace["size"][-1] for trace in traces])),
        "stored_tokens_max": int(max(trace["stored_tokens"].max() for trace in traces)),
        "nbytes_max": int(max(trace["nbytes"].max() for trace in traces)),
        "evicted_capacity": int(sum(trace["evicted_capacity"].sum() for trace in traces)),
        "steps_without_update": int(sum((trace["trained_fresh"] + trace["drawn"] == 0).sum() for trace in traces)),
        "rows_trained_per_generated": trained / total["generated"],
        **tokens,
        "tokens_trained_per_generated": (
            tokens["trained_tokens"] / tokens["generated_tokens"] if tokens["generated_tokens"] else None
        ),
    }


def whole_lives(trace: Trace, options: ReplayOptions) -> np.ndarray:
    """(stored,) bool."""
    if options.eviction not in _BY_AGE:
        return np.zeros(len(trace.born), dtype=bool)
    return (trace.born >= options.warmup_steps) & (trace.born + options.max_age <= trace["step"].max(initial=0))


def ages(traces: Sequence[Trace]) -> np.ndarray:
    """Drawn rollouts of all traces by age, from 0."""
    total = np.zeros(max(len(trace.age) for trace in traces), dtype=np.int64)
    for trace in traces:
        total[: len(trace.age)] += trace.age
    return total


def over_steps(traces: Sequence[Trace], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Step numbers, and the mean of a count over the runs that have the step."""
    steps = np.concatenate([trace["step"] for trace in traces])
    values = np.concatenate([trace[name] for trace in traces])
    numbers, inverse, counts = np.unique(steps, return_inverse=True, return_counts=True)
    return numbers, np.bincount(inverse, weights=values) / counts


def shares_over_steps(runs: Mapping[str, Run]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Run -> step numbers, and the share of groups without signal at each."""
    shares = {}
    for name, run in runs.items():
        counts = np.array([zero_variance(table) for table in run.steps.values()])
        shares[name] = np.array(list(run.steps)), counts[:, 1] / counts[:, 0]
    return shares


def _share(part: np.ndarray, whole: np.ndarray) -> float | None:
    return float(part.sum() / whole.sum()) if whole.sum() else None
