"""Samplers: draw k of N by priority. `(p, k, rng) -> positions`, (<= k,) int64, in order of drawing."""

from __future__ import annotations

import numpy as np


def proportional(priority: np.ndarray, k: int, rng: np.random.Generator, *, exponent: float, eps: float) -> np.ndarray:
    """Draw without replacement, P(i) = w_i / sum of the w not drawn yet, with w_i = (p_i + eps)^exponent.

    Schaul et al. 2016, eq. 1 (arXiv:1511.05952), here without replacement. Drawn as the k least exponential keys
    E_i / w_i, which has exactly the law of k successive draws (Efraimidis and Spirakis 2006): one pass, no tree.

    Args:
        priority: (N,) float, finite, >= 0.
        k: how many to draw, >= 0.
        rng: the buffer's own generator. N numbers are taken from it, or none where k or N is 0.
        exponent: alpha, >= 0. 0 is uniform.
        eps: >= 0. With eps = 0 a rollout of priority 0 is never drawn, with eps > 0 it can be.

    Returns:
        (min(k, rollouts of positive weight),) int64 positions in order of drawing, all different.
    """
    priority = np.asarray(priority, dtype=np.float64)
    if priority.ndim != 1:
        raise ValueError(f"priorities must be (N,), got {priority.shape}")
    if not (np.isfinite(priority).all() and (priority >= 0).all()):
        raise ValueError("priorities must be finite and >= 0; the priority function returned NaN, infinity or less")
    if k <= 0 or not len(priority):
        return np.empty(0, dtype=np.int64)
    base = priority + eps
    # 0 ** 0 is 1, yet what has no priority at all must not be drawn, whatever the exponent
    log_weight = np.where(base > 0, exponent * np.log(np.where(base > 0, base, 1.0)), -np.inf)
    # in logarithms, so that (1e-300)^2 and (1e+300)^2 keep their order: least E/w is greatest log w - log E
    keys = log_weight - np.log(rng.exponential(size=len(base)))
    k = min(k, int(np.count_nonzero(base > 0)))
    if not k:
        return np.empty(0, dtype=np.int64)
    chosen = np.argpartition(-keys, k - 1)[:k]
    return chosen[np.argsort(-keys[chosen], kind="stable")]
