"""The comparison as Markdown and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from scripts.evaluating.report import percent, table

Rows = Sequence[Mapping[str, Any]]


def training_table(rows: Rows, baseline: str) -> str:
    """Final values at equal steps, and tokens to the baseline's."""
    what = "held-out accuracy" if rows[0]["measure"] == "accuracy" else "training reward (mean of 10 steps)"
    base = next(row for row in rows if row["arm"] == baseline)
    headers = ["arm", "seeds", f"{what} at step {rows[0]['step']}, %", f"to {baseline}, points [95 %]"]
    headers += ["reward, %", "tokens generated", "trained", f"generated to {baseline}'s final", "trained to it"]
    lines = []
    for row in rows:
        spread = "" if row["spread"] is None else f" ± {percent(row['spread'])}"
        lines.append(
            [
                row["arm"],
                str(row["seeds"]),
                f"{percent(row['final'])}{spread}",
                difference(row),
                percent(row["reward"]),
                tokens(row["generated"]),
                tokens(row["trained"]),
                *(_against(row[name], base[name]) for name in ("generated_to_reach", "trained_to_reach")),
            ]
        )
    notes = (
        "± is the standard deviation over seeds; intervals are bootstraps over seeds, where both arms have several "
        "(with a handful of seeds they are too narrow). Tokens are those of responses, up to that step. Tokens to the "
        "baseline's final value are read from the mean curve, straight between validations."
    )
    return f"{table(headers, lines)}\n\n{notes}"


def difference(row: Mapping[str, Any]) -> str:
    if row["difference"] is None:
        return "-"
    text = percent(row["difference"], sign=True)
    return (
        text if row["low"] is None else f"{text} [{percent(row['low'], sign=True)}, {percent(row['high'], sign=True)}]"
    )


def tokens(count: float | None) -> str:
    if count is None:
        return "-"
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:.0f}"


def _against(count: float | None, base: float | None) -> str:
    """Tokens, and how many more than the baseline's."""
    if count is None or base is None:
        return "-" if base is None else "not reached"
    return tokens(count) if count == base or not base else f"{tokens(count)} ({count / base - 1:+.0%})"


def evaluation_table(rows: Rows, baseline: str) -> str:
    """The paper's table: benchmarks, their average, pass@k, AES, lengths."""
    base = next(row for row in rows if row["arm"] == baseline)
    ks = list(base["pass"])
    headers = ["arm", "seeds", *base["benchmarks"], "average, %", f"to {baseline}, points [95 %]", "interval over"]
    headers += [*(f"pass@{k}, %" for k in ks), "AES", "tokens", "of correct", "of wrong"]
    lines = []
    for row in rows:
        scores = [percent(row["benchmarks"][name]) for name in base["benchmarks"]]
        lengths = [_length(row["tokens"][part], base["tokens"][part]) for part in ("all", "correct", "wrong")]
        lines.append(
            [
                row["arm"],
                str(row["seeds"]),
                *scores,
                percent(row["average"]),
                difference(row),
                row["over"] or "-",
                *(percent(row["pass"][k]) for k in ks),
                "-" if row["aes"] is None else f"{row['aes']:+.3f}",
                *lengths,
            ]
        )
    return (
        f"{table(headers, lines)}\n\nThe average is the plain mean over benchmarks. AES is of average accuracy and "
        "mean length: off-policy updates by themselves favour shorter answers, so read it beside the lengths."
    )


def _length(value: float | None, base: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if base is None or value == base else f"{value:.1f} ({value / base - 1:+.1%})"


def assumptions(assumed: Mapping[str, Sequence[str]]) -> str:
    """What was assumed of which runs, each once."""
    by_text: dict[str, list[str]] = {}
    for run, texts in assumed.items():
        for text in texts:
            by_text.setdefault(text, []).append(run)
    everyone = len(assumed)
    lines = [
        f"- {text} ({'all runs' if len(runs) == everyone else ', '.join(runs)})." for text, runs in by_text.items()
    ]
    return "\n".join(["Assumed:", "", *lines]) if lines else ""


def long_table(arms: Mapping[str, Sequence[pd.DataFrame]]) -> pd.DataFrame:
    """Every value of every run: arm, seed, step, generated, trained, accuracy, reward."""
    parts = [
        run.reset_index(names="step").assign(arm=name, seed=number)
        for name, runs in arms.items()
        for number, run in enumerate(runs)
    ]
    return pd.concat(parts)[["arm", "seed", "step", "generated", "trained", "accuracy", "reward"]]
