"""Output folders of scripts/evaluate.py, one or more an arm -> the paper's table of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.comparing.arms import difference_over_seeds
from scripts.evaluating.scoring import check_baseline, read_results
from verl_replay.evaluation import aes, bootstrap_difference

Results = Mapping[str, Any]


def read_arms(folders: Mapping[str, Sequence[Path]], baseline: str) -> dict[str, list[Results]]:
    """The results of every arm.

    Raises:
        ValueError: the baseline has none, or the problems are not the same everywhere.
    """
    arms = {name: [read_results(folder) for folder in paths] for name, paths in folders.items() if paths}
    if arms and baseline not in arms:
        raise ValueError(
            f"the baseline {baseline} has no evaluation, {sorted(arms)} have. Add its folder to {baseline}=."
        )
    for name, paths in folders.items():
        for path, results in zip(paths, arms.get(name, ()), strict=True):
            check_baseline(arms[baseline][0], results["settings"]["data"], folders[baseline][0])
            check_baseline(results, arms[baseline][0]["settings"]["data"], path)
    return arms


def rows_of(arms: Mapping[str, Sequence[Results]], baseline: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    """One row an arm: accuracy by benchmark and on average, pass@k, AES, lengths; means over the arm's runs.

    The interval of a difference is over seeds where both arms have several, else over problems, paired ("over").
    """
    base = arms[baseline]
    rows = []
    for name, runs in arms.items():
        row: dict[str, Any] = {"arm": name, "seeds": len(runs)}
        row["benchmarks"] = {
            b: _mean(run["benchmarks"][b]["mean"]["estimate"] for run in runs) for b in base[0]["benchmarks"]
        }
        row["average"] = _mean(_accuracy(run) for run in runs)
        row["pass"] = {k: _mean(run["average"]["pass"].get(k) for run in runs) for k in base[0]["average"]["pass"]}
        row["tokens"] = {
            part: _mean(run["average"]["tokens"][part] for run in runs) for part in ("all", "correct", "wrong")
        }
        row |= {"difference": None, "low": None, "high": None, "over": None, "aes": None}
        if name != baseline:
            over = "seeds" if min(len(runs), len(base)) > 1 else "problems"
            found = _over_seeds(runs, base, rng) if over == "seeds" else _over_problems(runs, base, rng)
            row |= {"difference": found.estimate, "low": found.low, "high": found.high, "over": over}
        rows.append(row)
    first = next(row for row in rows if row["arm"] == baseline)
    for row in rows:
        if row is not first and first["average"] and first["tokens"]["all"] and row["tokens"]["all"]:
            row["aes"] = aes(
                row["average"], row["tokens"]["all"], base_accuracy=first["average"], base_length=first["tokens"]["all"]
            )
    return rows


def _accuracy(run: Results) -> float:
    return run["average"]["mean"]["estimate"]


def _over_seeds(runs: Sequence[Results], base: Sequence[Results], rng: np.random.Generator) -> Any:
    return difference_over_seeds(*(np.array([_accuracy(run) for run in part]) for part in (runs, base)), rng)


def _over_problems(runs: Sequence[Results], base: Sequence[Results], rng: np.random.Generator) -> Any:
    """Problems paired by id; their scores are means over the arm's runs."""

    def scores(part: Sequence[Results], benchmark: str) -> np.ndarray:
        ids = base[0]["benchmarks"][benchmark]["ids"]
        of = [
            dict(zip(r["benchmarks"][benchmark]["ids"], r["benchmarks"][benchmark]["scores"], strict=True))
            for r in part
        ]
        return np.mean([[scored[name] for name in ids] for scored in of], axis=0)

    names = list(base[0]["benchmarks"])
    return bootstrap_difference([scores(runs, b) for b in names], [scores(base, b) for b in names], rng)


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
