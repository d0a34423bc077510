"""The numbers of a buffer, as JSON can hold them."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.inspecting.reading import PROMPT, RESPONSE, Stored
from scripts.inspecting.texts import Decode, cut, visible
from verl_replay.table import RolloutTable

MOST_AGES = 30  # lines of the table of ages; more ages share a line
PROMPT_SHOWN, RESPONSE_SHOWN = 240, 480  # characters


def summarize(stored: Stored, decode: Decode, *, top: int) -> dict[str, Any]:
    """Everything that is printed. Ages are in steps at the checkpoint's step: what it stored itself has age 0.

    Args:
        decode: makes text of token ids.
        top: how many rollouts to show of the largest |A|, and of the most uses.
    """
    table = stored.table
    return {
        "folder": str(stored.folder),
        "step": stored.step,
        "rollouts": len(table),
        "groups": len(np.unique(table.group)),
        "bytes_on_disk": stored.disk_bytes,
        "bytes_in_memory": stored.memory_bytes,
        "columns": stored.columns,
        "fingerprint": stored.fingerprint,
        "also_saved": stored.facts,
        "never_drawn_share": _mean(table.uses == 0),
        "ages": by_age(table, stored.step),
        "distributions": {name: distribution(values) for name, values in measures(stored).items()},
        "top_abs_advantage": shown(stored, by_abs_advantage(table)[:top], decode),
        "top_uses": shown(stored, by_uses(table)[:top], decode),
    }


def measures(stored: Stored) -> dict[str, np.ndarray]:
    """(N,) numbers of each rollout, by name."""
    table, lengths = stored.table, stored.lengths
    tokens = {"response tokens": RESPONSE, "prompt tokens": PROMPT}
    return {
        "advantage": table.advantage,
        "|advantage|": np.abs(table.advantage),
        "reward": table.reward,
        "uses": table.uses,
        **{name: lengths[column] for name, column in tokens.items() if column in lengths},
        "tokens with loss": table.tokens,
    }


def distribution(values: np.ndarray) -> dict[str, float] | None:
    """Least, median, 90 % quantile, greatest and mean of (N,) numbers; None of none."""
    if not len(values):
        return None
    least, median, p90, greatest = np.quantile(values, (0, 0.5, 0.9, 1)).tolist()
    return {"min": least, "median": median, "p90": p90, "max": greatest, "mean": float(np.mean(values))}


def by_age(table: RolloutTable, step: int) -> list[dict[str, float]]:
    """One entry an age there is (or a range of ages, where there are many), youngest first."""
    if not len(table):
        return []
    age = table.age(step)
    youngest = int(age.min())
    width = -(-(int(age.max()) - youngest + 1) // MOST_AGES)
    bins, which, counts = np.unique((age - youngest) // width, return_inverse=True, return_counts=True)
    of_bin = {
        "mean_abs_advantage": np.abs(table.advantage),
        "mean_uses": table.uses,
        "mean_reward": table.reward,
        "never_drawn_share": table.uses == 0,
    }
    means = {name: np.bincount(which, weights=values) / counts for name, values in of_bin.items()}
    return [
        {
            "from": youngest + int(b) * width,
            "to": youngest + int(b) * width + width - 1,
            "count": int(counts[i]),
            **{name: float(values[i]) for name, values in means.items()},
        }
        for i, b in enumerate(bins)
    ]


def by_abs_advantage(table: RolloutTable) -> np.ndarray:
    """(N,) int64 positions, largest |A| first; of equal ones the one stored last."""
    return np.lexsort((-np.arange(len(table)), -np.abs(table.advantage)))


def by_uses(table: RolloutTable) -> np.ndarray:
    """(N,) int64 positions, most uses first; of equal ones the one stored last."""
    return np.lexsort((-np.arange(len(table)), -table.uses))


def shown(stored: Stored, positions: np.ndarray, decode: Decode) -> list[dict[str, Any]]:
    """The rollouts at `positions` ((K,) int64), with their texts: of several rows the last one, which was scored."""
    table, rows = stored.table.take(positions), stored.rows(positions)
    entries = []
    for i in range(len(table)):
        last = int(rows.rollouts[i + 1]) - 1
        texts = {
            name: cut(visible(decode(rows.columns[column].row(last).tolist())), most)
            for name, column, most in (
                ("prompt", PROMPT, PROMPT_SHOWN),
                ("response", RESPONSE, RESPONSE_SHOWN),
            )
            if column in rows.columns
        }
        numbers = {name: getattr(table, name)[i].item() for name in ("group", "born", "advantage", "reward", "uses")}
        count = int(rows.rollouts[i + 1] - rows.rollouts[i])
        entries.append({**numbers, "age": int(table.age(stored.step)[i]), "rows": count, **texts})
    return entries


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None
