"""Every metric of replay, by name. Scalars only; counts are counts of rollouts unless the name says rows or tokens.

verl's own names keep their meaning: critic/*, response_length/* and rollout dumps describe the fresh batch alone.
"""

from __future__ import annotations

import numpy as np

from verl_replay.buffer import RolloutBuffer
from verl_replay.transform import Selection


def selection(chosen: Selection, *, step: int) -> dict[str, float]:
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


def log_ratio_by_age(log_ratio: np.ndarray, mask: np.ndarray, age: np.ndarray) -> dict[str, float]:
    """|log pi_theta / pi_birth| of replayed rows before the update, over tokens with loss, in all and by age.

    Args:
        log_ratio: (tokens,) float.
        mask: (tokens,) bool, tokens with loss.
        age: (tokens,) int, steps since birth of the token's rollout.
    """
    kept, ages = np.abs(log_ratio[mask]), age[mask]
    if not len(kept):
        return {}
    metrics = {"replay/ratio/replayed/log_ratio_abs": float(kept.mean())}
    for a in np.unique(ages).tolist():
        metrics[f"replay/ratio/replayed/log_ratio_abs/age_{a:02d}"] = float(kept[ages == a].mean())
    return metrics
