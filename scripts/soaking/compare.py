"""Where a stage and its twin differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from scripts.soaking.twin import Expected, Rollout, Twin
from verl_replay.buffer import RolloutBuffer
from verl_replay.store import Rows
from verl_replay.table import RolloutTable
from verl_replay.trainers.stage import Plan

_EXACT = ("group", "reward", "advantage", "born", "stored_at", "tokens", "uses", "finite")
_ROUNDED = ("group_std", "reward_share")  # summed in another order


class Difference(Exception):
    """The stage and its twin differ: at which update, and in what."""


def differences(
    expected: Expected, twin: Twin, buffer: RolloutBuffer, log: dict[str, Any], plan: Plan | None, step: int
) -> Iterator[str]:
    """In words, after one update: decisions and metrics, then what is held."""
    yield from _metrics({**expected.metrics, **_known(expected, twin, buffer, log)}, log)
    if (plan is None) != (expected.updates == (0, 0)):
        yield f"the stage {'skips' if plan is None else 'makes'} the update, the twin does not"
    elif plan is not None:
        yield from _plan(expected, plan, step, twin.ranks)
    if len(buffer) > buffer.capacity:
        yield f"{len(buffer)} rollouts exceed the capacity {buffer.capacity}"
    yield from _table("held", buffer.table, twin.held, step)
    if buffer.rng.bit_generator.state != twin.rng.bit_generator.state:
        yield "the generators of stage and twin are in different states"


def _known(expected: Expected, twin: Twin, buffer: RolloutBuffer, log: dict[str, Any]) -> dict[str, float]:
    """The metrics that follow from what the stage has: its bytes, and of its mini-batches the null rows."""
    least, most = expected.updates
    updates = min(max(log.get("replay/updates", 0), least), most)  # another one differs from what was logged
    nulls = 0 if expected.untouched or not updates else -len(expected.loss) % (updates * twin.ranks)
    return {"replay/buffer/bytes": buffer.nbytes, "replay/updates": updates, "replay/null_rows": nulls}


def _metrics(expected: dict[str, float], log: dict[str, Any]) -> Iterator[str]:
    for name in sorted(expected.keys() | log.keys()):
        if not _close(log.get(name), expected.get(name)):
            yield f"{name}: stage {log.get(name)}, twin {expected.get(name)}"


def _close(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _plan(expected: Expected, plan: Plan, step: int, ranks: int) -> Iterator[str]:
    if plan.fresh_rows.tolist() != expected.fresh_rows:
        yield f"fresh rows trained on: {_first(plan.fresh_rows.tolist(), expected.fresh_rows)}"
    chosen = plan.chosen
    if plan.untouched != expected.untouched:
        yield f"untouched: stage {plan.untouched}, twin {expected.untouched}"
    weights = [*chosen.trained_weight.tolist(), *chosen.replayed_weight.tolist()]
    if len(weights) != len(expected.weights) or not np.allclose(weights, expected.weights, rtol=1e-9):
        yield f"weights: {_first(weights, expected.weights)}"
    yield from _table("drawn", chosen.replayed.table, expected.drawn, step)
    yield from rows_differ("drawn", chosen.replayed.rows, expected.drawn)
    yield from _layout(plan, expected.loss, ranks)


def _table(which: str, table: RolloutTable, rollouts: Sequence[Rollout], step: int) -> Iterator[str]:
    if len(table) != len(rollouts):
        yield f"{which}: stage {len(table)} rollouts, twin {len(rollouts)}"
        return
    for name in _EXACT:
        ours, theirs = getattr(table, name).tolist(), [x[name] for x in rollouts]
        if ours != theirs:
            yield f"{which}, {name}: {_first(ours, theirs)}"
    for name in _ROUNDED:
        ours, theirs = getattr(table, name).tolist(), [x[name] for x in rollouts]
        if not np.allclose(ours, theirs, rtol=1e-9, atol=1e-12):
            yield f"{which}, {name}: {_first(ours, theirs)}"
    ages, theirs = table.age(step).tolist(), [step - x["born"] for x in rollouts]
    if ages != theirs:
        yield f"{which}, age: {_first(ages, theirs)}"


def _first(ours: Sequence[Any], theirs: Sequence[Any]) -> str:
    """Where the two part."""
    if len(ours) != len(theirs):
        return f"stage {len(ours)} of them, twin {len(theirs)}"
    i = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
    return f"number {i} of {len(ours)}: stage {ours[i]}, twin {theirs[i]}"


def rows_differ(which: str, rows: Rows, rollouts: Sequence[Rollout]) -> Iterator[str]:
    """Whether every row of every column is, bit for bit and in dtype, what the rollout was born with."""
    if len(rows.rollouts) - 1 != len(rollouts):
        yield f"{which}: stage has rows of {len(rows.rollouts) - 1} rollouts, twin of {len(rollouts)}"
        return
    ranges = list(zip(rows.rollouts[:-1].tolist(), rows.rollouts[1:].tolist(), strict=True))
    for i, x in enumerate(rollouts):
        if rows.columns.keys() != x["rows"].keys():
            yield f"{which}: columns {sorted(rows.columns)}, born with {sorted(x['rows'])}"
            return
        for name, column in rows.columns.items():
            if [(column.values.dtype, column.row(row).tobytes()) for row in range(*ranges[i])] != x["rows"][name]:
                yield f"{which}, rollout {i} (group {x['group']}, born {x['born']}): column {name} is not as at birth"
                return


def _layout(plan: Plan, loss: list[bool], ranks: int) -> Iterator[str]:
    """Every row once; in every mini-batch a row with loss, and a fresh one where there are enough of them."""
    fresh, layout = len(plan.fresh_rows), plan.layout
    if not np.array_equal(np.sort(layout.order[layout.order >= 0]), np.arange(len(loss))):
        yield "the layout does not hold every row once"
        return
    cells = layout.order.reshape(ranks, layout.updates, -1)
    has_loss = np.array([*loss, False])[cells].any(axis=(0, 2))  # the last is any null row, -1
    anchored = ((cells >= 0) & (cells < fresh)).any(axis=(0, 2))
    if not has_loss.all():
        yield f"mini-batches {np.flatnonzero(~has_loss).tolist()} hold no row with loss"
    if fresh >= layout.updates and not anchored.all():
        yield f"mini-batches {np.flatnonzero(~anchored).tolist()} hold no fresh row"
