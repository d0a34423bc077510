"""Every metric of replay, by name. Scalars only; counts are counts of rollouts unless the name says rows or tokens.

verl's own names keep their meaning: critic/*, response_length/* and rollout dumps describe the fresh batch alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from verl_replay.buffer import RolloutBuffer
from verl_replay.transform import Selection

MAX_AGE_BIN = 32  # ages above share one bin of the histogram, so that the number of metrics is bounded
_COUNTS = {
    "replay/filter/kept_groups",
    "replay/filter/nonfinite_groups",
    "replay/buffer/evicted_age",
    "replay/buffer/evicted_capacity",
    "replay/buffer/stored",
    "replay/fresh/generated",
    "replay/fresh/rollouts",
    "replay/draw/rollouts",
    "replay/updates",
    "replay/trained_tokens",
    "replay/null_rows",
}


def age_histogram(age: np.ndarray, *, max_age: int) -> dict[str, int]:
    """Drawn rollouts of each age, 1..max_age. Ages above 32 are counted in one bin, over_32.

    Args:
        age: (R,) int, steps since birth of the drawn rollouts.
        max_age: greatest age that eviction leaves. Older ones are counted too where it does not bound the age.
    """
    binned = np.minimum(age, MAX_AGE_BIN + 1)
    last = max(min(max_age, MAX_AGE_BIN), int(binned.max(initial=0)))
    return {f"replay/draw/age_hist/{_bin(a)}": int(np.count_nonzero(binned == a)) for a in range(1, last + 1)}


def _bin(age: int) -> str:
    return f"{age:02d}" if age <= MAX_AGE_BIN else f"over_{MAX_AGE_BIN}"


def selection(chosen: Selection, *, step: int, max_age: int) -> dict[str, float]:
    """What the filter kept and what was drawn. Ages are of drawn rollouts and absent where nothing was drawn."""
    drawn = chosen.replayed.table
    total = len(chosen.trained) + len(drawn)
    metrics = {
        "replay/filter/zero_variance_frac": chosen.zero_variance_groups / max(chosen.groups, 1),
        "replay/filter/kept_groups": chosen.kept_groups,
        "replay/filter/nonfinite_groups": chosen.nonfinite_groups,
        "replay/buffer/evicted_age": chosen.evicted_age,
        "replay/fresh/generated": chosen.rollouts,
        "replay/fresh/rollouts": len(chosen.trained),
        "replay/draw/rollouts": len(drawn),
        "replay/draw/frac_of_batch": len(drawn) / max(total, 1),
    }
    if len(drawn):
        age = drawn.age(step)
        metrics |= {
            "replay/draw/age/mean": float(age.mean()),
            "replay/draw/age/p50": float(np.quantile(age, 0.5)),
            "replay/draw/age/p90": float(np.quantile(age, 0.9)),
            "replay/draw/age/min": int(age.min()),
            "replay/draw/age/max": int(age.max()),
            "replay/draw/reuse/mean": float(drawn.uses.mean()),
            "replay/draw/reuse/max": int(drawn.uses.max()),
            "replay/draw/abs_advantage/mean": float(np.abs(drawn.advantage).mean()),
            "replay/draw/importance_weight/mean": float(chosen.replayed_weight.mean()),
            **age_histogram(age, max_age=max_age),
        }
    return metrics


def buffer(state: RolloutBuffer, *, stored: int, evicted_capacity: int) -> dict[str, float]:
    """What the buffer holds after this step's survivors were stored."""
    return {
        "replay/buffer/size": len(state),
        "replay/buffer/bytes": state.nbytes,
        "replay/buffer/stored": stored,
        "replay/buffer/evicted_capacity": evicted_capacity,
    }


def update(updates: int, *, trained_tokens: int, null_rows: int) -> dict[str, float]:
    """The update: optimizer steps an epoch (U'), response tokens with loss, rows of padding."""
    return {
        "replay/updates": updates,
        "replay/trained_tokens": trained_tokens,
        "replay/null_rows": null_rows,
    }


class Clip(NamedTuple):
    """PPO's clip: ratios in 1 - low .. 1 + high keep their gradient; c bounds those of negative advantages."""

    low: float
    high: float
    c: float


def ratio(log_ratio: np.ndarray, advantage: np.ndarray, clip: Clip) -> dict[str, float]:
    """How far the policy is from rows, over their tokens with loss.

    log_ratio_abs is the mean of |log pi_theta / pi_birth|; clip_frac the share of tokens that PPO's clip leaves without
    a gradient; ess the effective sample size (sum w)^2 / (n sum w^2) of the ratios w, in 0..1.

    Args:
        log_ratio, advantage: (tokens,) float, at least one.
    """
    up, down = advantage > 0, advantage < 0
    with np.errstate(over="ignore"):
        w = np.exp(log_ratio)
    clipped = (up & (w > 1 + clip.high)) | (down & ((w < 1 - clip.low) | (w > clip.c)))
    scaled = np.exp(log_ratio - log_ratio.max())  # ess does not change, and does not overflow
    return {
        "log_ratio_abs": float(np.abs(log_ratio).mean()),
        "clip_frac": float(clipped.mean()),
        "ess": float(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum())),
    }


def ratios(
    log_ratio: np.ndarray, advantage: np.ndarray, mask: np.ndarray, age: np.ndarray, clip: Clip
) -> dict[str, float]:
    """`ratio` of fresh tokens, of replayed tokens, and of those by age (above 32 as one). Absent without tokens.

    Args:
        log_ratio, advantage: (tokens,) float.
        mask: (tokens,) bool, tokens with loss.
        age: (tokens,) int, steps since birth of the token's rollout; -1 of fresh ones.
    """
    replayed, binned = mask & (age >= 0), np.minimum(age, MAX_AGE_BIN + 1)
    parts = {"fresh": mask & (age < 0), "replayed": replayed}
    parts |= {f"age_{_bin(a)}": replayed & (binned == a) for a in np.unique(binned[replayed]).tolist()}
    return {
        f"replay/ratio/{part}/{name}": value
        for part, where in parts.items()
        if where.any()
        for name, value in ratio(log_ratio[where].astype(np.float64), advantage[where], clip).items()
    }


def summed(metrics: dict[str, float]) -> dict[str, float]:
    """The same with "/sum" behind every count that adds up over the updates of one step.

    verl's MetricsAggregator (parameter_sync_step > 1) sums names that hold "sum" and averages the rest.
    """
    return {f"{name}/sum" if _adds_up(name) else name: value for name, value in metrics.items()}


def _adds_up(name: str) -> bool:
    return name in _COUNTS or name.startswith("replay/draw/age_hist/")
