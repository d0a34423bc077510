"""Logs of runs -> tables, summaries and plots. Reads what verl's file logger writes, one JSON object a step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")  # files only: a run may have no screen
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

ACCURACY = re.compile(r"val-core/.*/mean@\d+")
AGE = re.compile(r"replay/ratio/age_(\d+)/log_ratio_abs")


def read_metrics(path: Path) -> pd.DataFrame:
    """One row a step (index `step`), one column a metric; NaN where a step has no such metric.

    Raises:
        ValueError: the file has no complete line yet, or a line that is not verl's.
    """
    rows: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(path.read_text().split("\n")[:-1], start=1):  # the last part is not ended yet
        try:
            record = json.loads(line)
            rows.setdefault(int(record["step"]), {}).update(record["data"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number} is not one of verl's file logger ({error!r}): {line[:80]}"
            ) from error
    if not rows:
        raise ValueError(f"{path} holds no step yet. Wait for the first, or look at the run's log for what stopped it.")
    frame = pd.DataFrame.from_dict(rows, orient="index").sort_index()
    return frame.rename_axis("step")


def accuracy(frame: pd.DataFrame) -> pd.Series:
    """Held-out accuracy (verl's mean@k) at the steps that were validated."""
    names = [name for name in frame.columns if ACCURACY.fullmatch(name)]
    if len(names) != 1:
        raise ValueError(f"expected one held-out accuracy in the metrics, got {names}. Set trainer.test_freq above 0.")
    return frame[names[0]].dropna()


def log_ratio_by_age(frame: pd.DataFrame) -> pd.DataFrame:
    """|log ratio| of replayed rows: one row a diagnosed step, one column an age (int)."""
    found = {int(match[1]): name for name in frame.columns if (match := AGE.fullmatch(name))}
    return pd.DataFrame({age: frame[found[age]] for age in sorted(found)}, index=frame.index).dropna(how="all")


def summarize(frame: pd.DataFrame) -> dict[str, Any]:
    """The figures of one run with replay. What a run has none of (ages where nothing was drawn) is None."""
    steps = frame.loc[frame.index > 0]
    drawn = steps["replay/draw/rollouts"]
    held_out = accuracy(frame)
    ages = steps.get("replay/draw/age/mean")
    replayed = int(drawn.sum())
    return {
        "steps": len(steps),
        "rollouts_generated": int(steps["replay/fresh/generated"].sum()),
        "rollouts_trained": int(steps["replay/fresh/rollouts"].sum()) + replayed,
        "rollouts_replayed": replayed,
        "buffer_size": int(steps["replay/buffer/size"].iloc[-1]),
        "drawn_age_mean": float((ages * drawn).sum() / replayed) if replayed else None,
        "drawn_age_min": int(steps["replay/draw/age/min"].min()) if replayed else None,
        "drawn_age_max": int(steps["replay/draw/age/max"].max()) if replayed else None,
        "zero_variance_frac": float(steps["replay/filter/zero_variance_frac"].mean()),
        "val_accuracy_before": float(held_out.iloc[0]),
        "val_accuracy_after": float(held_out.iloc[-1]),
        "seconds_a_step": float(steps["timing_s/step"].iloc[1:].median()),
        "seconds_replay_a_step": float(steps["timing_s/replay"].iloc[1:].median()),
        "seconds_adv_a_step": float(steps["timing_s/adv"].iloc[1:].median()),
    }


def plot_run(frame: pd.DataFrame, path: Path, *, title: str) -> None:
    """Four panels of one run with replay, written to `path`."""
    steps = frame.loc[frame.index > 0]
    figure, panels = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    figure.suptitle(title)
    _reward(panels[0, 0], steps, accuracy(frame))
    _buffer(panels[0, 1], steps)
    _zero_variance(panels[1, 0], steps)
    _log_ratio(panels[1, 1], log_ratio_by_age(frame))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _reward(axes: Axes, steps: pd.DataFrame, held_out: pd.Series) -> None:
    axes.set_title("Reward and held-out accuracy")
    reward = steps["critic/score/mean"]
    axes.plot(reward, color="tab:blue", alpha=0.3, label="training reward, each step")
    axes.plot(reward.rolling(5, min_periods=1).mean(), color="tab:blue", label="training reward, mean of 5 steps")
    axes.plot(held_out, "o-", color="tab:orange", label="held-out accuracy (mean@k)")
    axes.set(xlabel="step", ylabel="share correct", ylim=(0, 1))
    axes.legend(loc="lower right", fontsize="small")


def _buffer(axes: Axes, steps: pd.DataFrame) -> None:
    axes.set_title("Buffer size and drawn ages")
    axes.plot(steps["replay/buffer/size"], color="tab:green", label="stored rollouts")
    axes.set(xlabel="step", ylabel="rollouts in the buffer")
    axes.yaxis.label.set_color("tab:green")
    ages = axes.twinx()
    if "replay/draw/age/mean" in steps:
        low, high = steps["replay/draw/age/min"], steps["replay/draw/age/max"]
        ages.fill_between(steps.index, low, high, color="tab:purple", alpha=0.15, label="drawn ages, least to greatest")
        ages.plot(steps["replay/draw/age/mean"], color="tab:purple", label="drawn age, mean")
    ages.set(ylabel="age of drawn rollouts (steps)", ylim=(0, None))
    ages.yaxis.label.set_color("tab:purple")
    handles = [handle for axis in (axes, ages) for handle in axis.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, loc="lower right", fontsize="small")


def _zero_variance(axes: Axes, steps: pd.DataFrame) -> None:
    axes.set_title("Zero-variance share")
    share = steps["replay/filter/zero_variance_frac"]
    axes.plot(share, color="tab:red", alpha=0.3, label="each step")
    axes.plot(share.rolling(5, min_periods=1).mean(), color="tab:red", label="mean of 5 steps")
    axes.set(xlabel="step", ylabel="share of groups without signal", ylim=(0, 1))
    axes.legend(loc="upper left", fontsize="small")


def _log_ratio(axes: Axes, measured: pd.DataFrame) -> None:
    axes.set_title("|log ratio| of replayed rows by age")
    axes.set(xlabel="age (steps since birth)", ylabel="mean |log π / π at birth| a token")
    if measured.empty:
        axes.text(0.5, 0.5, "not measured: replay.diagnostics_every=0", ha="center", transform=axes.transAxes)
        return
    for age, column in measured.items():
        values = column.dropna()
        axes.scatter(np.full(len(values), age), values, color="tab:gray", s=12, alpha=0.5)
    axes.plot(measured.columns, measured.mean(), "o-", color="black", label="mean over steps")
    axes.scatter([], [], color="tab:gray", s=12, label="one step")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", fontsize="small")
