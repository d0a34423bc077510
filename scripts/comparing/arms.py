"""Runs of one arm -> their mean and spread, the last values at equal steps, tokens to the baseline's accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from scripts.comparing.series import GENERATED, TRAINED
from verl_replay.evaluation import Interval, bootstrap

LAST = 10  # training steps whose mean is the reward at the end: one step's is noise


def smooth(run: pd.DataFrame, column: str) -> pd.DataFrame:
    """The steps that have a value; training reward as the mean of the last steps."""
    known = run.loc[run[column].notna()]
    return known if column == "accuracy" else known.assign(reward=known[column].rolling(LAST, min_periods=1).mean())


def mean_curve(runs: Sequence[pd.DataFrame], column: str, *, until: int | None = None) -> pd.DataFrame:
    """By step, over the steps that every run has: mean, standard deviation over runs (NaN for one), tokens.

    Args:
        runs: frames of series_of.
        column: accuracy or reward (of the last ten steps).
        until: last step.
    """
    known = [smooth(run, column) for run in runs]
    steps = known[0].index
    for run in known[1:]:
        steps = steps.intersection(run.index)
    steps = steps if until is None else steps[steps <= until]
    values = np.array([run.loc[steps, column] for run in known])  # (runs, steps)
    spread = values.std(axis=0, ddof=1) if len(runs) > 1 else np.full(len(steps), np.nan)
    tokens = {name: np.mean([run.loc[steps, name] for run in known], axis=0) for name in (GENERATED, TRAINED)}
    return pd.DataFrame({"mean": values.mean(axis=0), "spread": spread, **tokens}, index=steps)


def last_common_step(arms: Mapping[str, Sequence[pd.DataFrame]], column: str) -> int | None:
    """The last step at which every run of every arm has a value."""
    indices = [run.index[run[column].notna()] for runs in arms.values() for run in runs]
    common = indices[0]
    for index in indices[1:]:
        common = common.intersection(index)
    return int(common.max()) if len(common) else None


def last_values(runs: Sequence[pd.DataFrame], column: str, step: int) -> np.ndarray:
    """(runs,) accuracy at a step, or training reward over the steps up to it; NaN where a run has none."""
    ends = [smooth(run, column).loc[:step, column] for run in runs]
    return np.array([end.iloc[-1] if len(end) else np.nan for end in ends])


def difference_over_seeds(ours: np.ndarray, base: np.ndarray, rng: np.random.Generator) -> Interval:
    """Ours minus base, of independent runs. Without an interval (NaN) where one of them has a single run."""
    difference = float(ours.mean() - base.mean())
    if min(len(ours), len(base)) < 2:
        return Interval(difference, float("nan"), float("nan"))
    half = bootstrap([ours, -base], rng)  # the mean of the two strata's means is half of the difference
    return Interval(difference, 2 * half.low, 2 * half.high)


def tokens_to_reach(curve: pd.DataFrame, target: float, tokens: str) -> float | None:
    """Tokens at which the mean curve first reaches a value, straight between validations; None: it does not.

    Args:
        curve: of mean_curve.
        tokens: generated or trained.
    """
    mean, spent = curve["mean"].to_numpy(), curve[tokens].to_numpy()
    above = np.flatnonzero(mean >= target)
    if not len(above) or not np.isfinite(spent).all():
        return None
    i = above[0]
    if i == 0 or mean[i] == target:
        return float(spent[i])
    share = (target - mean[i - 1]) / (mean[i] - mean[i - 1])
    return float(spent[i - 1] + share * (spent[i] - spent[i - 1]))


def final_rows(
    arms: Mapping[str, Sequence[pd.DataFrame]], baseline: str, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """The table: one row an arm.

    Raises:
        ValueError: the runs have no step in common, so nothing is at equal steps.
    """
    validated = all(run["accuracy"].notna().any() for runs in arms.values() for run in runs)
    column = "accuracy" if validated else "reward"
    step = last_common_step(arms, column)
    if step is None:
        raise ValueError(f"no step has a value of {column} in every run. Validate all at the same steps.")
    curves = {name: mean_curve(runs, column, until=step) for name, runs in arms.items()}
    base = last_values(arms[baseline], column, step)
    target = float(curves[baseline]["mean"].iloc[-1])
    rows = []
    for name, runs in arms.items():
        values, curve = last_values(runs, column, step), curves[name]
        difference = difference_over_seeds(values, base, rng) if name != baseline else None
        rows.append(
            {
                "arm": name,
                "seeds": len(runs),
                "step": step,
                "measure": column,
                "final": float(values.mean()),
                "spread": float(values.std(ddof=1)) if len(values) > 1 else None,
                "difference": None if difference is None else difference.estimate,
                "low": _known(difference and difference.low),
                "high": _known(difference and difference.high),
                "reward": _known(last_values(runs, "reward", step).mean()),
                **{name: _known(curve[name].iloc[-1]) for name in (GENERATED, TRAINED)},
                **{f"{name}_to_reach": tokens_to_reach(curve, target, name) for name in (GENERATED, TRAINED)},
            }
        )
    return rows


def _known(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
