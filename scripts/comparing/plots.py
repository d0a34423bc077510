"""Curves of all arms: by step, by generated token, by trained token; pass@k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")  # files only
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from scripts.comparing.arms import mean_curve
from scripts.comparing.series import GENERATED, TRAINED

_AXES = {"step": "step", GENERATED: "tokens generated", TRAINED: "tokens trained on"}
_ROWS = {"accuracy": "held-out accuracy", "reward": "training reward, mean of 10 steps"}


def plot_curves(arms: Mapping[str, Sequence[pd.DataFrame]], path: Path) -> None:
    """Means over seeds, with a band of one standard deviation."""
    rows = [name for name in _ROWS if any(run[name].notna().any() for runs in arms.values() for run in runs)]
    figure, panels = plt.subplots(len(rows), 3, figsize=(15, 4 * len(rows)), layout="constrained", squeeze=False)
    for panel_row, column in zip(panels, rows, strict=True):
        for axes, (against, label) in zip(panel_row, _AXES.items(), strict=True):
            _panel(axes, arms, column, against)
            axes.set(xlabel=label, ylabel=_ROWS[column])
            axes.grid(alpha=0.3)
            if against != "step":
                axes.xaxis.set_major_formatter(EngFormatter())
    panels[0][0].legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axes: Axes, arms: Mapping[str, Sequence[pd.DataFrame]], column: str, against: str) -> None:
    for number, (name, runs) in enumerate(arms.items()):
        known = [run for run in runs if run[column].notna().any()]
        if not known:
            continue
        curve = mean_curve(known, column)
        x = curve.index if against == "step" else curve[against]
        label = name if len(known) == 1 else f"{name} ({len(known)} seeds)"
        axes.plot(x, curve["mean"], marker="o" if column == "accuracy" else "", ms=3, color=f"C{number}", label=label)
        if len(known) > 1:
            low, high = curve["mean"] - curve["spread"], curve["mean"] + curve["spread"]
            axes.fill_between(x, low, high, color=f"C{number}", alpha=0.15, linewidth=0)


def plot_passes(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """pass@k on average over benchmarks, one curve an arm."""
    figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
    for row in rows:
        passes = {int(k): 100 * value for k, value in row["pass"].items() if value is not None}
        axes.plot(list(passes), list(passes.values()), marker="o", label=row["arm"])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.set(title="pass@k, average over benchmarks", xlabel="k (answers drawn)", ylabel="problems solved, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)
