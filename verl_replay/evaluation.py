"""Scores of sampled answers: pass@k, mean@k, AES, lengths, and bootstrap intervals over problems. Numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
_AT_ONCE = 500  # resamples held in memory together: 40 MB for 5,000 problems


class Interval(NamedTuple):
    """A confidence interval around an estimate."""

    estimate: float
    low: float
    high: float


class Lengths(NamedTuple):
    """Mean tokens of an answer; None where there is no such answer."""

    all: float | None
    correct: float | None
    wrong: float | None


def pass_at_k(correct: np.ndarray, n: int, k: int) -> np.ndarray:
    """Probability that k of a problem's n samples, drawn without replacement, hold a correct one.

    1 - C(n - c, k) / C(n, k), unbiased (Chen et al. 2021, arXiv:2107.03374, section 2.1). verl's best@N draws with
    replacement and is another number. The ratio is the product over i < k of 1 - c / (n - i), taken as a sum of
    logarithms: no factorial overflows, and nothing cancels where c / n is tiny.

    Args:
        correct: (P,) integers, correct samples c of each problem, 0 <= c <= n.
        n: samples a problem.
        k: samples drawn, 1 <= k <= n.

    Returns:
        (P,) float64 in [0, 1].

    Raises:
        ValueError: k or a count is out of its range.
    """
    correct = np.asarray(correct)
    if correct.ndim != 1 or not np.issubdtype(correct.dtype, np.integer):
        raise ValueError(f"pass@k: correct must be (P,) integers, got {correct.dtype} {correct.shape}. Count the hits.")
    if not 1 <= k <= n:
        raise ValueError(f"pass@k: k must be between 1 and n = {n}, got {k}. Sample at least k answers a problem.")
    if len(correct) and not 0 <= correct.min() <= correct.max() <= n:
        raise ValueError(
            f"pass@k: correct must lie between 0 and n = {n}, got {correct.min()} to {correct.max()}. "
            "Give the number of samples that were counted as n."
        )
    counts, which = np.unique(correct, return_inverse=True)
    left = n - np.arange(k)  # samples that are left at the i-th draw
    values = [1.0 if n - c < k else -np.expm1(np.log1p(-c / left).sum()) for c in counts]
    return np.asarray(values, dtype=np.float64)[which]


def mean_at_k(scores: np.ndarray) -> np.ndarray:
    """Average score of each problem's samples; its mean over problems is mean@k.

    Args:
        scores: (P, k), one row a problem.

    Returns:
        (P,) float64.

    Raises:
        ValueError: not two dimensions, no sample, or a score that is not a number.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"mean@k: scores must be (P, k) with P and k above 0, got {scores.shape}. Score samples.")
    if not np.isfinite(scores).all():
        raise ValueError(
            f"mean@k: {np.sum(~np.isfinite(scores))} scores are not finite. Make the reward return numbers."
        )
    return scores.mean(axis=1)


def aes(
    accuracy: float,
    length: float,
    *,
    base_accuracy: float,
    base_length: float,
    a: float = 1.0,
    b: float = 3.0,
    c: float = 5.0,
) -> float:
    """Accuracy-efficiency score against a baseline. O1-Pruner (arXiv:2501.12570), both changes relative.

    dL = (L_base - L) / L_base, dA = (Acc - Acc_base) / Acc_base; a dL + b |dA| if dA >= 0, else a dL - c |dA|.

    Args:
        accuracy, base_accuracy: in the same unit, share or per cent.
        length, base_length: mean tokens of an answer, right and wrong ones together.

    Raises:
        ValueError: the baseline has no accuracy or no length to compare with.
    """
    for name, value in (("base_accuracy", base_accuracy), ("base_length", base_length)):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"AES: {name} must be above 0, got {value}: changes are relative to it. Take another.")
    for name, value in (("accuracy", accuracy), ("length", length)):
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"AES: {name} must be a number of at least 0, got {value}. Evaluate some samples first.")
    shorter = (base_length - length) / base_length
    better = (accuracy - base_accuracy) / base_accuracy
    return float(a * shorter + (b if better >= 0 else c) * better)


def mean_lengths(tokens: np.ndarray, correct: np.ndarray) -> Lengths:
    """Mean length of all, of the correct and of the wrong answers.

    Args:
        tokens: (N,) tokens of each answer.
        correct: (N,) bool.
    """
    tokens, correct = np.asarray(tokens), np.asarray(correct, dtype=bool)
    if tokens.shape != correct.shape or tokens.ndim != 1:
        raise ValueError(
            f"lengths: tokens and correct must be (N,), got {tokens.shape}, {correct.shape}. Pair them up."
        )
    return Lengths(*(float(part.mean()) if len(part) else None for part in (tokens, tokens[correct], tokens[~correct])))


def bootstrap(
    strata: Sequence[np.ndarray],
    rng: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """Percentile interval of the plain mean of the strata's means. Units are resampled within each stratum.

    With one stratum, the interval of a benchmark's mean over its problems; with several, of the average over
    benchmarks, in which each counts the same whatever its size.

    Args:
        strata: (P_s,) finite values of each stratum, one a problem, P_s > 0.
        rng: decides the resamples; the same state gives the same interval.

    Raises:
        ValueError: nothing to resample, or a value that is not finite.
    """
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"bootstrap: level must lie in (0, 1) and resamples above 0, got {level} and {resamples}.")
    values = [np.asarray(part, dtype=np.float64) for part in strata]
    if not values or any(part.ndim != 1 or not len(part) or not np.isfinite(part).all() for part in values):
        raise ValueError(
            f"bootstrap: every stratum must be (P,) finite values, P > 0, got {[part.shape for part in values]}. "
            "Leave out benchmarks without problems, and problems without a score."
        )
    means = np.mean([_resampled_means(part, rng, resamples) for part in values], axis=0)
    low, high = np.quantile(means, ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(np.mean([part.mean() for part in values])), float(low), float(high))


def bootstrap_difference(
    ours: Sequence[np.ndarray],
    base: Sequence[np.ndarray],
    rng: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """As `bootstrap`, of ours minus base. Paired: the p-th value of both is of the same problem.

    Raises:
        ValueError: the two are not of the same problems.
    """
    if [np.shape(part) for part in ours] != [np.shape(part) for part in base]:
        raise ValueError(
            f"bootstrap_difference: pairs are of the same problems, got {[np.shape(part) for part in ours]} and "
            f"{[np.shape(part) for part in base]}. Evaluate both runs on the same data."
        )
    return bootstrap(
        [np.subtract(x, y) for x, y in zip(ours, base, strict=True)], rng, level=level, resamples=resamples
    )


def _resampled_means(values: np.ndarray, rng: np.random.Generator, resamples: int) -> np.ndarray:
    """(resamples,) means of P values drawn with replacement."""
    count = len(values)
    parts = [min(_AT_ONCE, resamples - start) for start in range(0, resamples, _AT_ONCE)]
    return np.concatenate([values[rng.integers(0, count, (size, count))].mean(axis=1) for size in parts])
