"""The replay stage on arrays alone, without TransferQueue's transfers, and what its bytes cost to copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scripts.benchmark.rollouts import Batch, Size, information, make_batch, survivors
from scripts.benchmark.timing import Report, Stopwatch, peak_resident, resident
from scripts.benchmark.verl_config import compose_config
from verl_replay.options import ReplayOptions
from verl_replay.ragged import Ragged
from verl_replay.store import RolloutStore, Rows
from verl_replay.trainers import columns
from verl_replay.trainers import stage as stage_module
from verl_replay.trainers.stage import Fresh, Plan, ReplayStage

RANKS = 8
DISTINCT = 8  # batches that are made; steps go round them, 400 MB in all, so that none is still in a cache
EOS = 2


def make_stage(size: Size) -> ReplayStage:
    config = compose_config(size)
    return ReplayStage(config, ReplayOptions.from_config(config.replay), reward=columns.SCORE)


def sort_fresh(stage: ReplayStage, batch: Batch, step: int) -> Fresh:
    """What the V1 hook makes of the rows that it has read: in canonical order, with their ranges."""
    order = columns.canonical_order(batch.keys, batch.index)
    keys = [batch.keys[i] for i in order.tolist()]
    ranges = columns.rollout_ranges(keys)
    decided_on = {name: batch.columns[name] for name in stage.decision_columns}
    lengths = batch.columns[columns.PROMPT].lengths + batch.columns[columns.RESPONSE].lengths

    def read(names: Sequence[str], rows: np.ndarray) -> dict[str, Ragged]:
        return {name: batch.columns[name].take(order[rows]) for name in names}

    return Fresh(keys, ranges, lengths[order], np.full(len(ranges) - 1, step), decided_on, order, read)


def compose(stage: ReplayStage, plan: Plan) -> Rows:
    """The flat arrays that go to TransferQueue: drawn rows and null rows, derived columns included."""
    parts = [stage.drawn_rows(plan)] if plan.replayed.count else []
    parts.append(stage.null_rows(plan.layout.null_rows, plan, EOS))
    return columns.with_derived(Rows.concat(parts))


def run_step(stage: ReplayStage, batch: Batch, step: int, watch: Stopwatch) -> tuple[Plan, Rows]:
    with watch("step"):
        with watch("sort"):
            fresh = sort_fresh(stage, batch, step)
        with watch("plan"):
            plan = stage.plan(fresh, {}, step=step, batch_rows=len(batch.keys), ranks=RANKS)
        with watch("compose"):
            sent = compose(stage, plan)
    return plan, sent


def copy_all(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [array.copy() for array in arrays]


def measure_stage(size: Size, *, seed: int, report: Report) -> dict[str, Any]:
    """Steps until age eviction takes away as many rollouts as come, then `size.measured` steps that count.

    After each of them the same bytes are copied bare: the columns of the survivors as verl hands them over, and the
    columns of the drawn rows as they are sent.
    """
    rng = np.random.default_rng(seed)
    batches = [make_batch(size, rng, name=f"step{i}") for i in range(DISTINCT)]
    born = [batch.take(survivors(batch)).columns for batch in batches]
    stage, watch = make_stage(size), Stopwatch()
    watch.watch(stage.transform, "select")
    watch.watch(stage.transform, "store")
    watch.watch(stage_module, "deal")
    handed_over = [[column[name].values for name in stage.stored_columns] for column in born]
    before = resident()
    full = size.max_age + 1
    last = full + size.measured
    for step in range(1, last + 1):
        plan, sent = run_step(stage, batches[step % DISTINCT], step, watch)
        if step > full:
            copied = [*handed_over[step % DISTINCT], *(column.values for column in sent.columns.values())]
            with watch("copies"):
                copy_all(copied)
        del plan, sent
        report(step, last)
    copied_bytes = sum(array.nbytes for array in copied)
    del copied
    with peak_resident() as peak:
        plan, sent = run_step(stage, batches[0], last + 1, Stopwatch())
    by_batch = [information(column) for column in born]
    alive = range(last + 1 - size.max_age, last + 2)  # steps whose survivors are stored, the last one's included
    buffer = stage.transform.buffer
    if not len(buffer) == len(alive) * size.survivors or not len(plan.chosen.replayed.table) == size.drawn:
        raise RuntimeError(f"not the size that was asked for: {len(buffer)} stored, {len(plan.replayed)} drawn")
    return {
        "median_ms": watch.medians(size.measured),
        "step_ms": watch.times["step"][-size.measured :],
        "copies_ms": watch.times["copies"],
        "copied_bytes": copied_bytes,
        "stored": len(buffer),
        "survivors": size.survivors,
        "evicted": plan.chosen.evicted_age,
        "drawn": len(plan.chosen.replayed.table),
        "tokens_a_response": float(np.mean([column[columns.RESPONSE].lengths.mean() for column in born])),
        "buffer_bytes": buffer.nbytes,
        "information_bytes": sum(by_batch[step % DISTINCT] if step <= last else by_batch[0] for step in alive),
        "resident_before_bytes": before,
        "resident_peak_bytes": peak[0],
    }


def measure_tool_calls(size: Size, *, seed: int) -> dict[str, Any]:
    """Memory where masks are not all ones: rollouts that call tools."""
    batch = make_batch(size, np.random.default_rng(seed), name="tools", tool_calls=True)
    born = batch.take(survivors(batch)).columns
    names = make_stage(size).stored_columns
    store = RolloutStore()
    store.append(Rows({name: born[name] for name in names}, np.arange(size.survivors + 1)))
    return {"store_bytes": store.nbytes, "information_bytes": information(born)}
