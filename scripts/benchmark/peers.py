"""The same work by others: torchrl's prioritized buffer, and a list of one-row DataProtos as forks of verl keep it.

Both are spared what is not the buffer's own work: they get the survivors and their priorities ready, in the form that
suits them, and hand over what was drawn in that form. Ours starts from all fresh rows and ends with what is sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto

from scripts.benchmark.draws import EXPONENT, advantages
from scripts.benchmark.rollouts import Batch, Size, make_batch, survivors
from scripts.benchmark.timing import Report, Stopwatch, milliseconds
from verl_replay.store import Rows
from verl_replay.trainers import columns
from verl_replay.trainers.padded import to_dataproto

STORED = (columns.PROMPT, columns.RESPONSE, columns.MASK, columns.LOG_PROB, columns.ADVANTAGE)
DISTINCT = 4  # batches that are made; steps go round them
LIST_STEPS = 4  # steps whose survivors the list of DataProtos holds: 215 kB a row would be 6.4 GB at 30,000


def survivors_of(size: Size, rng: np.random.Generator) -> list[Batch]:
    batches = [make_batch(size, rng, name=f"step{i}") for i in range(DISTINCT)]
    return [batch.take(survivors(batch)) for batch in batches]


def padded(batch: Batch, size: Size) -> DataProto:
    """The rows as verl's padded columns, those derived from others included."""
    rows = Rows({name: batch.columns[name] for name in STORED}, np.arange(len(batch.keys) + 1))
    made = to_dataproto(rows, prompt_width=size.prompt[1], response_width=size.response[1], pad_token=0, meta_info={})
    made.meta_info = {}  # DataProto.concat refuses rows that differ here
    return made


def priorities(batch: Batch) -> np.ndarray:
    """(rows,) float32: |A|."""
    column = batch.columns[columns.ADVANTAGE]
    return np.abs(column.values[column.offsets[:-1]])


# ---- a list of DataProtos --------------------------------------------------------------------------------------------


def measure_dataproto_list(size: Size, *, seed: int, report: Report) -> dict[str, Any]:
    """Add the survivors row by row, draw by weight, concat. Rows of a few steps are held; weights are of all stored."""
    rng = np.random.default_rng(seed)
    born = [padded(batch, size) for batch in survivors_of(size, rng)]
    weight = np.abs(advantages(size, size.stored, rng)) ** EXPONENT
    held: list[DataProto] = []
    watch = Stopwatch()
    steps = LIST_STEPS + size.measured
    for step in range(steps):
        batch = born[step % DISTINCT]
        with watch("add"):
            held.extend(batch.select_idxs([i]) for i in range(len(batch)))
        del held[: -LIST_STEPS * len(batch)]
        with watch("draw"):
            chosen = rng.choice(len(weight), size.drawn, replace=False, p=weight / weight.sum())
            drawn = DataProto.concat([held[i % len(held)] for i in chosen.tolist()])
        report(step + 1, steps)
    assert len(drawn) == size.drawn
    row_bytes = sum(tensor.nbytes for tensor in born[0].batch.values()) // len(born[0])
    return {
        "median_ms": watch.medians(size.measured),
        "rows_held": len(held),
        "row_bytes": row_bytes,
        "bytes_at_stored": row_bytes * size.stored,
    }


# ---- torchrl ---------------------------------------------------------------------------------------------------------


def measure_torchrl(size: Size, *, million: int, seed: int, report: Report) -> dict[str, Any]:
    """Its prioritized buffer, which only draws with replacement. {"missing": why} where torchrl cannot be loaded."""
    try:
        from torchrl.data import PrioritizedSampler

        PrioritizedSampler(2, alpha=EXPONENT, beta=0.0)
    except (ImportError, RuntimeError) as error:
        return {"missing": f"{type(error).__name__}: {error}"}
    born = survivors_of(size, np.random.default_rng(seed))
    steps = size.max_age + 1 + size.measured
    total = 2 * steps + 2
    results = {}
    for i, (name, buffer, ready) in enumerate(_torchrl_buffers(size, born, seed)):
        results[name] = _torchrl_steps(
            size, born, buffer, ready, steps, lambda done, i=i: report(i * steps + done, total)
        )
        del buffer, ready
    results["draws"] = {
        "stored": _torchrl_draw(size, size.stored, size.drawn, seed),
        "million": _torchrl_draw(size, million, 2 * size.drawn, seed),
    }
    report(total, total)
    return results


def _torchrl_buffers(size: Size, born: list[Batch], seed: int) -> Any:
    """(name, buffer, the survivors of each batch as it takes them): padded in one tensor, and ragged in a list."""
    from torchrl.data import LazyTensorStorage, ListStorage, PrioritizedSampler, ReplayBuffer

    capacity = (size.max_age + 1) * size.survivors

    def buffer(storage: Any, **options: Any) -> Any:
        return ReplayBuffer(
            storage=storage,
            sampler=PrioritizedSampler(capacity, alpha=EXPONENT, beta=0.0),
            batch_size=size.drawn,
            generator=torch.Generator().manual_seed(seed),
            **options,
        )

    yield "padded", buffer(LazyTensorStorage(capacity)), [padded(b, size).batch.select(*STORED) for b in born]
    yield "ragged", buffer(ListStorage(capacity), collate_fn=_flat), [_one_by_one(batch) for batch in born]


def _one_by_one(batch: Batch) -> list[TensorDict]:
    """One TensorDict a row, without padding."""
    return [
        TensorDict({name: torch.from_numpy(batch.columns[name].row(i)) for name in STORED}, batch_size=[])
        for i in range(len(batch.keys))
    ]


def _flat(rows: list[TensorDict]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([row[name] for row in rows]) for name in STORED}


def _torchrl_steps(
    size: Size, born: list[Batch], buffer: Any, ready: list[Any], steps: int, done: Any
) -> dict[str, Any]:
    watch = Stopwatch()
    weights = [torch.from_numpy(priorities(batch)) for batch in born]
    for step in range(steps):
        rows = ready[step % DISTINCT]
        with watch("add"):
            # a list keeps references: rows of their own, or each would pin the whole batch
            where = buffer.extend(rows if isinstance(rows, TensorDict) else [row.clone() for row in rows])
        with watch("priorities"):
            buffer.update_priority(where, weights[step % DISTINCT])
        with watch("draw"):
            buffer.sample()
        done(step + 1)
    median_ms = watch.medians(size.measured)
    return {
        "median_ms": median_ms,
        "step_ms": sum(median_ms.values()),
        "stored": len(buffer),
        "buffer_bytes": sum(_bytes(ready[step % DISTINCT]) for step in range(steps - size.max_age - 1, steps)),
    }


def _bytes(rows: TensorDict | list[TensorDict]) -> int:
    one_by_one = [rows] if isinstance(rows, TensorDict) else rows
    return sum(tensor.nbytes for row in one_by_one for tensor in row.values())


def _torchrl_draw(size: Size, count: int, k: int, seed: int) -> dict[str, Any]:
    """Its sampler alone, on `count` priorities."""
    from torchrl.data import LazyTensorStorage, PrioritizedSampler

    advantage = advantages(size, count, np.random.default_rng(seed))
    storage = LazyTensorStorage(count)
    storage.set(torch.arange(count), TensorDict({"row": torch.arange(count)}, batch_size=[count]))
    sampler = PrioritizedSampler(count, alpha=EXPONENT, beta=0.0)
    sampler._rng = torch.Generator().manual_seed(seed)  # else it draws from numpy's global state
    sampler.update_priority(torch.arange(count), torch.from_numpy(np.abs(advantage)).float())
    index, _ = sampler.sample(storage, k)
    return {
        "of": count,
        "drawn": k,
        "distinct": len(torch.unique(index)),
        "ms": milliseconds(lambda: sampler.sample(storage, k), 15),
    }
