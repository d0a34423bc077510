"""Four panels: zero-variance share and buffer size over steps, ages of drawn rollouts, uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")  # files only
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scripts.simulating.running import Trace
from scripts.simulating.show import printable
from scripts.simulating.summary import ages, over_steps, whole_lives
from verl_replay.options import ReplayOptions

SMOOTH = 5  # steps of the moving mean, of runs that are
LONG = 20  # steps or more
MOST_USES = 20  # more share the last bar
STYLES = ("-", "--", ":", "-.")  # lines that lie on each other are both seen


class Curves(NamedTuple):
    """One setting over all runs."""

    name: str
    options: ReplayOptions
    traces: Sequence[Trace]


def plot(shares: Mapping[str, tuple[np.ndarray, np.ndarray]], settings: Sequence[Curves], *, title: str) -> Figure:
    """The picture; close it when written.

    Args:
        shares: run -> its step numbers and zero-variance shares.
        settings: in the order of the legend.
    """
    replaying = [s for s in settings if s.options.enabled and s.options.replays]
    figure, panels = plt.subplots(2, 2, figsize=(12, 8 + 0.12 * len(replaying)), layout="constrained")
    figure.suptitle(printable(title))
    _zero_variance(panels[0, 0], shares)
    _size(panels[0, 1], replaying)
    _ages(panels[1, 0], replaying)
    _uses(panels[1, 1], replaying)
    handles, labels = panels[0, 1].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(handles), 3), fontsize="small")
    return figure


def _style(number: int) -> dict[str, str]:
    return {"color": f"C{number % 10}", "linestyle": STYLES[number % len(STYLES)]}


def _zero_variance(axes: Axes, shares: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    axes.set(title="Groups without signal", xlabel="step", ylabel="zero-variance share", ylim=(0, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    width = SMOOTH if max(len(steps) for steps, _ in shares.values()) >= LONG else 1
    smoothed = f", mean of {width} steps" if width > 1 else ""
    for steps, share in shares.values():
        marker = "o" if len(steps) == 1 else ""  # a line of one point is not seen
        axes.plot(steps, moving_mean(share, width), color="tab:gray", alpha=0.45, linewidth=1, marker=marker)
    axes.plot([], [], color="tab:gray", label=f"a run{smoothed}")
    steps = np.concatenate([steps for steps, _ in shares.values()])
    numbers, inverse, counts = np.unique(steps, return_inverse=True, return_counts=True)
    mean = np.bincount(inverse, weights=np.concatenate([share for _, share in shares.values()])) / counts
    if len(shares) > 1:
        label = f"mean of {len(shares)} runs{smoothed}"
        axes.plot(numbers, moving_mean(mean, width), color="tab:red", linewidth=2, label=label)
    axes.legend(loc="best", fontsize="small")


def moving_mean(values: np.ndarray, width: int) -> np.ndarray:
    """(N,) mean of each value and up to `width` - 1 before it."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(last - width, 0)
    return (total[last] - total[first]) / (last - first)


def _size(axes: Axes, settings: Sequence[Curves]) -> None:
    axes.set(title="Buffer size", xlabel="step", ylabel="rollouts after storing, mean of the runs")
    for number, setting in enumerate(settings):
        axes.plot(*over_steps(setting.traces, "size"), **_style(number), label=printable(setting.name))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    _say_if_none(axes, settings)


def _ages(axes: Axes, settings: Sequence[Curves]) -> None:
    axes.set(title="Ages of drawn rollouts", xlabel="age (steps since birth)", ylabel="share of the setting's draws")
    drawing = [(number, ages(s.traces)) for number, s in enumerate(settings) if ages(s.traces).any()]
    for number, age in drawing:
        axes.plot(np.arange(1, len(age)), age[1:] / age.sum(), marker=".", **_style(number))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _say_if_none(axes, drawing)


def _uses(axes: Axes, settings: Sequence[Curves]) -> None:
    axes.set(title="Uses over a whole life", xlabel=f"times drawn ({MOST_USES}: or more)", ylabel="share of rollouts")
    shown = []
    for number, setting in enumerate(settings):
        uses = np.concatenate([trace.uses[whole_lives(trace, setting.options)] for trace in setting.traces])
        if len(uses):
            shown.append(number)
            bars = np.bincount(np.minimum(uses, MOST_USES))
            axes.plot(np.arange(len(bars)), bars / len(uses), marker=".", **_style(number))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _say_if_none(axes, shown)


def _say_if_none(axes: Axes, shown: Sequence[object]) -> None:
    if not shown:
        axes.text(0.5, 0.5, "none", ha="center", transform=axes.transAxes)
