"""Six panels of a buffer."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")  # files only
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from scripts.inspecting.reading import RESPONSE, Stored

POINTS = 3_000  # rollouts that are drawn as points; curves and histograms are of all
BARS = 40  # at most; a bar of whole numbers holds as many of them as its neighbour


def plot_buffer(stored: Stored, path: Path) -> None:
    """Histograms of age, advantage, uses and response length; |A| against age, uses against |A|."""
    table = stored.table
    age, size = table.age(stored.step), np.abs(table.advantage)
    figure, panels = plt.subplots(2, 3, figsize=(15, 8), layout="constrained")
    figure.suptitle(f"Replay buffer at step {stored.step}: {len(table):,} rollouts")
    _histogram(panels[0, 0], age, "Ages", "age (steps since birth)", "tab:purple")
    _histogram(panels[0, 1], table.advantage, "Advantages", "advantage at birth", "tab:blue")
    _histogram(panels[0, 2], table.uses, "Uses", "times drawn", "tab:orange")
    length = stored.lengths.get(RESPONSE, table.tokens)
    _histogram(panels[1, 0], length, "Response lengths", "response tokens", "tab:green")
    points = np.random.default_rng(0).permutation(len(table))[:POINTS]
    _size_by_age(panels[1, 1], age, size, points)
    _uses_by_size(panels[1, 2], size, table.uses, points)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _histogram(axes: Axes, values: np.ndarray, title: str, label: str, color: str) -> None:
    axes.set(title=title, xlabel=label, ylabel="rollouts")
    if not len(values):
        return
    whole = np.issubdtype(values.dtype, np.integer)
    axes.hist(values, bins=bar_edges(values), color=color, alpha=0.75, rwidth=0.9 if whole else 1.0)
    axes.axvline(np.median(values), color="black", linewidth=1, linestyle="--", label=f"median {np.median(values):.3g}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=whole))
    axes.set_ylim(top=1.12 * axes.get_ylim()[1])  # room for the legend
    axes.legend(loc="upper right", fontsize="small")


def bar_edges(values: np.ndarray) -> np.ndarray:
    """(bars + 1,) float64 edges around all of (N,) numbers, N > 0. At most 40 bars, all of one width."""
    low, high = values.min().item(), values.max().item()
    if np.issubdtype(values.dtype, np.integer):
        width = -(-(high - low + 1) // BARS)
        return low - 0.5 + width * np.arange((high - low) // width + 2)
    half = max((high - low) / (BARS - 1), 1e-3) / 2
    return np.linspace(low - half, high + half, BARS + 1)


def _size_by_age(axes: Axes, age: np.ndarray, size: np.ndarray, points: np.ndarray) -> None:
    axes.set(title="|A| by age", xlabel="age (steps since birth)", ylabel="|advantage| at birth")
    if not len(age):
        return
    _points(axes, age[points], size[points])
    ages = np.unique(age)
    of_age = [size[age == a] for a in ages.tolist()]
    low, median, high = np.array([np.quantile(values, (0.1, 0.5, 0.9)) for values in of_age]).T
    axes.fill_between(ages, low, high, color="tab:blue", alpha=0.15, label="10 % to 90 %")
    axes.plot(ages, median, "o-", markersize=3, color="tab:blue", label="median")
    axes.plot(ages, [values.mean() for values in of_age], "o-", markersize=3, color="tab:red", label="mean")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.2 * size.max() or 1)
    axes.legend(loc="upper right", ncols=3, fontsize="small")


def _uses_by_size(axes: Axes, size: np.ndarray, uses: np.ndarray, points: np.ndarray) -> None:
    axes.set(title="Uses by |A|", xlabel="|advantage| at birth", ylabel="times drawn")
    if not len(size):
        return
    _points(axes, size[points], uses[points])
    values, which = np.unique(size.round(3), return_inverse=True)  # few, where rewards are binary
    label = "mean of each |A|"
    if len(values) > BARS:
        edges = np.quantile(size, np.linspace(0, 1, 13)[1:-1])
        _, which = np.unique(np.searchsorted(edges, size), return_inverse=True)
        label = "mean of a twelfth of the rollouts"
    axes.plot(*(_means(numbers, which) for numbers in (size, uses)), "o-", markersize=4, color="tab:red", label=label)
    axes.set_xlim(left=-0.02 * size.max())
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right", fontsize="small")


def _means(values: np.ndarray, which: np.ndarray) -> np.ndarray:
    return np.bincount(which, weights=values) / np.bincount(which)


def _points(axes: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Some rollouts, whole numbers spread a little so that equal ones do not hide each other."""
    rng = np.random.default_rng(1)
    x, y = (v + rng.uniform(-0.3, 0.3, len(v)) if np.issubdtype(v.dtype, np.integer) else v for v in (x, y))
    axes.scatter(x, y, s=6, alpha=0.25 if len(x) > 500 else 0.6, color="tab:gray", linewidths=0)
