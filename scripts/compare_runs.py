"""Runs and evaluations of several arms -> the paper's tables and curves.

    python -m scripts.compare_runs --output compared off=runs/off_1,runs/off_2 ours=runs/ours_1,runs/ours_2
    python -m scripts.compare_runs --output compared off=runs/off,eval/off ours=runs/ours,eval/ours --baseline off

An arm is NAME=PATH[,PATH...], one path a seed: a run's folder with metrics.jsonl, a log of verl's file logger (.jsonl)
or console (anything else; .gz too), table.csv::RUN; or an output folder of scripts.evaluate. The first arm is the
baseline. Replayed rollouts are trained on without being generated, so arms are compared at equal steps AND by tokens
generated and trained on. Writes comparison.md, comparison.json, curves.csv, curves.png and pass_at_k.png.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape

from scripts.comparing.arms import final_rows
from scripts.comparing.evaluations import read_arms, rows_of
from scripts.comparing.logs import is_evaluation, read_log
from scripts.comparing.plots import plot_curves, plot_passes
from scripts.comparing.report import assumptions, evaluation_table, long_table, training_table
from scripts.comparing.series import series_of
from scripts.evaluating.store import write_json, write_text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="+", metavar="NAME=PATH[,PATH...]")
    parser.add_argument("--output", type=Path, required=True, help="folder for tables and pictures")
    parser.add_argument("--baseline", help="name of the arm that the others are compared with; default is the first")
    parser.add_argument("--accuracy", help="metric of held-out accuracy; default is the mean of all val-core mean@k")
    parser.add_argument("--rollouts-a-step", type=int, help="for logs that do not tell how many tokens were generated")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: %(default)s)")
    given = parser.parse_args(arguments)
    try:
        compare(given)
    except (ValueError, OSError) as error:
        print(f"compare_runs: {error}", file=sys.stderr)
        return 2
    return 0


def parse_arms(texts: Sequence[str]) -> dict[str, list[str]]:
    """Paths by arm.

    Raises:
        ValueError: not of the form, or one name twice.
    """
    arms: dict[str, list[str]] = {}
    for text in texts:
        name, equals, paths = text.partition("=")
        if not (name and equals and all(paths.split(","))):
            raise ValueError(f"an arm is NAME=PATH[,PATH...], got {text!r}. E.g. off=runs/off_1,runs/off_2.")
        if name in arms:
            raise ValueError(f"arm {name} comes twice. List all its seeds once: {name}=PATH,PATH.")
        arms[name] = paths.split(",")
    return arms


def compare(given: argparse.Namespace) -> None:
    """Read everything, then write everything.

    Raises:
        ValueError: something cannot be compared: rule, value, remedy.
    """
    arms = parse_arms(given.arms)
    baseline = given.baseline or next(iter(arms))
    if baseline not in arms:
        raise ValueError(f"--baseline {baseline} is not one of the arms {list(arms)}. Name one of them.")
    rng = np.random.default_rng(given.seed)
    folders = {name: [Path(path) for path in paths if is_evaluation(Path(path))] for name, paths in arms.items()}
    runs: dict[str, list[pd.DataFrame]] = {}
    assumed: dict[str, list[str]] = {}
    for name, paths in arms.items():
        for path in (path for path in paths if not is_evaluation(Path(path))):
            series, notes = series_of(read_log(path), accuracy=given.accuracy, rollouts=given.rollouts_a_step)
            runs.setdefault(name, []).append(series)
            assumed[f"{name} {len(runs[name])}"] = notes
    if runs and baseline not in runs:
        raise ValueError(f"the baseline {baseline} has no log, {sorted(runs)} have. Add its log to {baseline}=.")
    training = final_rows(runs, baseline, rng) if runs else []
    evaluated = rows_of(read_arms(folders, baseline), baseline, rng) if any(folders.values()) else []

    parts = ["# Comparison of runs"]
    if training:
        parts += ["## Training", training_table(training, baseline), assumptions(assumed)]
    if evaluated:
        parts += ["## Evaluation", evaluation_table(evaluated, baseline)]
    text = "\n\n".join(part for part in parts if part) + "\n"
    given.output.mkdir(parents=True, exist_ok=True)
    write_text(given.output / "comparison.md", text)
    write_json(given.output / "comparison.json", {"baseline": baseline, "training": training, "evaluation": evaluated})
    if training:
        write_text(given.output / "curves.csv", long_table(runs).to_csv(index=False))
        plot_curves(runs, given.output / "curves.png")
    if evaluated:
        plot_passes(evaluated, given.output / "pass_at_k.png")
    Console(soft_wrap=True).print(escape(text))


if __name__ == "__main__":
    sys.exit(main())
