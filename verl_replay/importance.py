"""Importance treatment of drawn rollouts: what their ratio is taken to, and how much each of their tokens weighs.

behavior   the ratio is pi_theta / pi_birth: log-probs stay as they were at birth (the paper, arXiv:2606.04560).
proximal   log-probs are recomputed at the start of the step: the clip is anchored there, age is not corrected.
decoupled  as proximal, and each token weighs min(pi_start / pi_birth, C): truncated importance sampling.
"""

from __future__ import annotations

import numpy as np

from verl_replay.ragged import Ragged


def truncated_ratio(now: Ragged, birth: Ragged, *, cap: float) -> Ragged:
    """min(pi_start / pi_birth, C) of each token.

    Args:
        now: log-probs under the policy at the start of the step, one entry a row.
        birth: log-probs of the engine that sampled the tokens, at birth.
        cap: C.

    Returns:
        float32, one number a token.
    """
    log_ratio = now.values.astype(np.float64) - birth.values.astype(np.float64)
    return Ragged(np.exp(np.minimum(log_ratio, np.log(cap))).astype(np.float32), now.offsets)


def scaled(column: Ragged, by_row: np.ndarray) -> Ragged:
    """The column with every number of row i multiplied by by_row[i]; float32."""
    factor = np.repeat(by_row, column.lengths)
    return Ragged((column.values * factor).astype(np.float32), column.offsets)


def ones_like(column: Ragged) -> Ragged:
    """One float32 1 a token."""
    return Ragged(np.ones(len(column.values), np.float32), column.offsets)
