"""Samplers: how likely each of N is drawn. `p -> log w`, (N,) float64; a single draw has P(i) = w_i / sum of w.

In logarithms, so that (1e-300)^2 and (1e+300)^2 keep their order. Drawing itself is in drawing.py.
"""

from __future__ import annotations

import numpy as np


def proportional(priority: np.ndarray, *, priority_exponent: float, priority_eps: float) -> np.ndarray:
    """w_i = (p_i + eps)^alpha. Schaul et al. 2016, eq. 1 (arXiv:1511.05952).

    Args:
        priority: (N,) float, finite, >= 0.
        priority_exponent: alpha, >= 0. 0 is uniform.
        priority_eps: >= 0. With eps = 0 what has priority 0 is never drawn, with eps > 0 it can be.

    Returns:
        (N,) float64, -inf where it is never drawn.
    """
    base = priority + priority_eps
    # 0 ** 0 is 1, yet what has no priority at all must not be drawn, whatever the exponent
    return np.where(base > 0, priority_exponent * np.log(np.where(base > 0, base, 1.0)), -np.inf)


def rank_based(priority: np.ndarray, *, priority_exponent: float) -> np.ndarray:
    """w_i = (1 / rank(i))^alpha, rank 1 the greatest priority. Schaul et al. 2016, section 3.3 (arXiv:1511.05952).

    Robust against outliers: only the order of the priorities counts. Equal priorities share their mean rank, so that
    none is favoured by its place in the buffer. Everything can be drawn, also of priority 0.

    Args:
        priority: (N,) float.
        priority_exponent: alpha, >= 0. 0 is uniform.
    """
    _, inverse, counts = np.unique(-priority, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    return -priority_exponent * np.log(mean_rank[inverse])
