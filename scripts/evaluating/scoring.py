"""Generations -> the numbers of each benchmark, of their average, and of their difference to a baseline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.evaluating.store import Generation
from verl_replay.evaluation import (
    Interval,
    Lengths,
    aes,
    bootstrap,
    bootstrap_difference,
    mean_at_k,
    mean_lengths,
    pass_at_k,
)

RESULTS = "results.json"
CUT = "length"
TOO_LONG = "prompt_too_long"


def powers(n: int) -> list[int]:
    """1, 2, 4, ... up to n."""
    return [2**i for i in range(n.bit_length())]


def score_benchmark(
    ids: Sequence[str], generations: Sequence[Generation], *, n: int, rng: np.random.Generator
) -> dict[str, Any]:
    """The numbers of one benchmark; an answer is correct where its score is at least 1.

    Args:
        ids: of all problems, in order.
        generations: n of each.
        rng: of the bootstrap.

    Raises:
        ValueError: some are missing.
    """
    by_key = {(g.id, g.sample): g for g in generations}
    rows = [[by_key.get((name, sample)) for sample in range(n)] for name in ids]
    missing = sum(entry is None for row in rows for entry in row)
    if missing:
        raise ValueError(f"{missing} of {n * len(ids)} answers are missing. Run evaluate again: it generates them.")
    scores = np.array([[g.score for g in row] for row in rows])
    hits = scores >= 1
    correct, tokens = hits.sum(axis=1), np.array([[g.tokens for g in row] for row in rows])
    reasons = np.array([[g.finish_reason for g in row] for row in rows])
    sampled = reasons != TOO_LONG  # an answer that could not be sampled has no length
    return {
        "problems": len(ids),
        "n": n,
        "mean": bootstrap([mean_at_k(scores)], rng)._asdict(),
        "pass": {str(k): float(pass_at_k(correct, n, k).mean()) for k in powers(n)},
        "tokens": mean_lengths(tokens[sampled], hits[sampled])._asdict(),
        "cut_share": float((reasons == CUT).mean()),
        "too_long": int((~sampled).all(axis=1).sum()),
        "binary": bool(np.isin(scores, (0, 1)).all()),
        "ids": list(ids),
        "correct": correct.tolist(),
        "scores": mean_at_k(scores).tolist(),
    }


def average(benchmarks: Mapping[str, Mapping[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
    """The plain mean of the benchmarks' numbers, as the paper's five-benchmark average."""
    every = list(benchmarks.values())
    most = min(b["n"] for b in every)
    return {
        "problems": sum(b["problems"] for b in every),
        "n": most,
        "mean": bootstrap([np.array(b["scores"]) for b in every], rng)._asdict(),
        "pass": {str(k): _mean(b["pass"][str(k)] for b in every) for k in powers(most)},
        "tokens": Lengths(*(_mean(b["tokens"][part] for b in every) for part in Lengths._fields))._asdict(),
        "cut_share": _mean(b["cut_share"] for b in every),
        "too_long": sum(b["too_long"] for b in every),
        "binary": all(b["binary"] for b in every),
    }


def _mean(values: Any) -> float | None:
    """Of those that there are."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def read_results(folder: Path) -> dict[str, Any]:
    """What an earlier evaluation wrote.

    Raises:
        ValueError: nothing, or not that.
    """
    path = folder / RESULTS
    try:
        results = json.loads(path.read_text())
        return results | {"benchmarks": dict(results["benchmarks"]), "settings": dict(results["settings"])}
    except FileNotFoundError as error:
        raise ValueError(f"{folder} holds no {RESULTS}. Give the --output folder of a finished evaluation.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}). Run that evaluation again: it only scores anew.") from error


def check_baseline(base: Mapping[str, Any], data: Mapping[str, str], where: Path) -> None:
    """Both must be of the same problems.

    Args:
        data: digest of each benchmark.

    Raises:
        ValueError: a benchmark is missing there, or is not the same.
    """
    theirs = base["settings"]["data"]
    missing, other = sorted(data.keys() - theirs), sorted(k for k in data if k in theirs and theirs[k] != data[k])
    if missing or other:
        raise ValueError(
            f"--baseline {where}: lacks {missing}, has other problems or prompts in {other}. Evaluate the baseline on "
            "the same files."
        )


def compare(
    benchmarks: Mapping[str, Mapping[str, Any]],
    averaged: Mapping[str, Any],
    base: Mapping[str, Any],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Differences to a baseline, paired by problem, and AES; "average" is over the benchmarks of both."""
    pairs = {name: (ours, base["benchmarks"][name]) for name, ours in benchmarks.items()}
    base_average = average({name: theirs for name, (_, theirs) in pairs.items()}, rng)
    compared = {name: _difference([pair], rng) | {"aes": _aes(*pair)} for name, pair in pairs.items()}
    compared["average"] = _difference(list(pairs.values()), rng) | {"aes": _aes(averaged, base_average)}
    return compared


def _difference(pairs: Sequence[tuple[Mapping, Mapping]], rng: np.random.Generator) -> dict[str, Any]:
    k_most = min(run["n"] for pair in pairs for run in pair)

    def paired(values: Any) -> Interval:
        return bootstrap_difference([values(ours) for ours, _ in pairs], [values(base) for _, base in pairs], rng)

    def passes(k: int) -> Any:
        return lambda run: pass_at_k(np.array(run["correct"]), run["n"], k)

    return {
        "mean": paired(lambda run: np.array(run["scores"]))._asdict(),
        "pass": {str(k): paired(passes(k))._asdict() for k in powers(k_most)},
    }


def _aes(ours: Mapping[str, Any], base: Mapping[str, Any]) -> float | None:
    """None where a change cannot be relative to the baseline."""
    if not base["mean"]["estimate"] > 0 or not base["tokens"]["all"] or ours["tokens"]["all"] is None:
        return None
    return aes(
        ours["mean"]["estimate"],
        ours["tokens"]["all"],
        base_accuracy=base["mean"]["estimate"],
        base_length=base["tokens"]["all"],
    )
