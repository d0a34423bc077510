"""The numbers of an evaluation as Markdown, and as a picture of its pass@k curves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only
from matplotlib import pyplot as plt

from verl_replay.files import written_whole

AVERAGE = "average"


def markdown(results: Mapping[str, Any]) -> str:
    """Tables and what they mean."""
    rows = {**results["benchmarks"], AVERAGE: results[AVERAGE]}
    parts = [f"# Evaluation of {results['model']}", _line(results["settings"]), _scores(rows), _notes(results)]
    if results["baseline"]:
        parts += [_differences(results["baseline"])]
    parts.append(_timing(results["timing"]))
    return "\n\n".join(part for part in parts if part) + "\n"


def table(headers: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column to the left, numbers to the right."""
    rule = ["---", *("---:" for _ in headers[1:])]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in (headers, rule, *rows))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def percent(value: float | None, *, sign: bool = False) -> str:
    return "-" if value is None else f"{100 * value:{'+' if sign else ''}.2f}"


def interval(value: Mapping[str, float], *, sign: bool = False) -> str:
    low, high = (percent(value[name], sign=sign) for name in ("low", "high"))
    return f"{percent(value['estimate'], sign=sign)} [{low}, {high}]"


def _line(settings: Mapping[str, Any]) -> str:
    sampling = ", ".join(f"{name} {value}" for name, value in settings["sampling"].items())
    return f"Model digest {settings['model']}; {sampling}; reward `{settings['reward']}`."


def _scores(rows: Mapping[str, Mapping[str, Any]]) -> str:
    ks = list(rows[AVERAGE]["pass"])
    headers = ["benchmark", "problems", "n", "mean@n, % [95 %]", *(f"pass@{k}, %" for k in ks)]
    headers += ["tokens", "of correct", "of wrong", "cut, %"]
    lines = []
    for name, row in rows.items():
        tokens = ["-" if row["tokens"][part] is None else f"{row['tokens'][part]:.1f}" for part in row["tokens"]]
        passes = [percent(row["pass"].get(k)) for k in ks]
        counts = [f"{row['problems']}", f"{row['n']}"]
        lines.append([name, *counts, interval(row["mean"]), *passes, *tokens, percent(row["cut_share"])])
    return table(headers, lines)


def _notes(results: Mapping[str, Any]) -> str:
    averaged = results[AVERAGE]
    notes = [
        "The average is the plain mean over benchmarks. Intervals are bootstraps over problems: they hold the "
        "choice of problems, not another training run. Cut: answers that reached the limit of tokens."
    ]
    if averaged["too_long"]:
        notes.append(
            f"{averaged['too_long']} prompts did not fit into the context and count as wrong, without a length."
        )
    if not averaged["binary"]:
        notes.append("Not every score is 0 or 1: mean@n averages the scores, pass@k counts those of at least 1.")
    notes += results["notes"]
    return "\n".join(notes)


def _differences(baseline: Mapping[str, Any]) -> str:
    rows = baseline["differences"]
    ks = list(rows[AVERAGE]["pass"])
    headers = ["to the baseline", "mean@n, points [95 %]", *(f"pass@{k}" for k in ks), "AES"]
    lines = [
        [
            name,
            interval(row["mean"], sign=True),
            *(interval(row["pass"][k], sign=True) if k in row["pass"] else "-" for k in ks),
            "-" if row["aes"] is None else f"{row['aes']:+.3f}",
        ]
        for name, row in rows.items()
    ]
    head = f"Baseline: {baseline['model']} ({baseline['folder']}). Differences are paired by problem."
    return f"{head}\n\n{table(headers, lines)}"


def _timing(timing: Mapping[str, Any]) -> str:
    if not timing["answers"]:
        return "Last run: there was nothing to generate."
    return (
        f"Last run: {timing['answers']} answers, {timing['tokens']} tokens; generation {timing['generation']:.1f} s, "
        f"grading {timing['grading']:.1f} s in its workers, waiting for it {timing['waiting']:.2f} s, "
        f"other {timing['other']:.2f} s. Beside generation: {timing['overhead']:.1%} of it."
    )


def plot(results: Mapping[str, Any], base: Mapping[str, Any] | None, path: Path) -> None:
    """pass@k of every benchmark; the baseline's dashed."""
    figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
    rows = {**results["benchmarks"], AVERAGE: results[AVERAGE]}
    if len(results["benchmarks"]) == 1:
        del rows[AVERAGE]  # the same curve
    for number, (name, row) in enumerate(rows.items()):
        style = {"color": "black", "linewidth": 2.5} if name == AVERAGE else {"color": f"C{number}"}
        _curve(axes, row["pass"], marker="o", label=name, **style)
        if base and name in base["benchmarks"]:
            _curve(axes, base["benchmarks"][name]["pass"], linestyle="--", label=f"{name}, baseline", **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.set(title="pass@k", xlabel="k (answers drawn)", ylabel="problems with a correct answer, %")
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    with written_whole(path) as unfinished:
        figure.savefig(unfinished, dpi=110)
    plt.close(figure)


def _curve(axes: Any, passes: Mapping[str, float], **style: Any) -> None:
    axes.plot([int(k) for k in passes], [100 * value for value in passes.values()], **style)
