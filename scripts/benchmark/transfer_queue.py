"""The whole stage with TransferQueue's transfers, beside verl's own advantage stage of the same step.

The real V1 trainer class on a real TransferQueue and Ray, with its own _balance_batch, _compute_advantage and
_update_actor; only the workers are a stub, which trains nothing.
"""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from scripts.benchmark.rollouts import Batch, Size, make_batch
from scripts.benchmark.stage import EOS, RANKS, run_step
from scripts.benchmark.timing import Report, Stopwatch
from scripts.benchmark.verl_config import compose_config
from verl_replay.trainers import columns

PARTITION = "train"
WARM_UP = 2  # steps that are not counted


def rows_of(batch: Batch) -> list[dict[str, Any]]:
    """The rows as verl's agent loop and old-log-prob pass leave them, before the advantage."""
    rows = []
    for i, (key, index) in enumerate(zip(batch.keys, batch.index, strict=True)):
        uid, session, _ = key.rsplit("_", 2)
        row = {name: torch.from_numpy(column.row(i)) for name, column in batch.columns.items()}
        del row[columns.ADVANTAGE]
        sequence = torch.cat([row[columns.PROMPT], row[columns.RESPONSE]])
        row |= {
            "input_ids": sequence,
            "position_ids": torch.arange(len(sequence)),
            columns.ROLLOUT_LOG_PROB: row[columns.LOG_PROB].clone(),
            "uid": uid,
            "index": index,
            "session_id": int(session),
            "num_turns": 2,
        }
        rows.append(row)
    return rows


def put(batch: Batch, step: int) -> Any:
    """Into TransferQueue; a KVBatchMeta comes back."""
    import transfer_queue as tq
    from transfer_queue import KVBatchMeta
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    lengths = (batch.columns[columns.PROMPT].lengths, batch.columns[columns.RESPONSE].lengths)
    tags = [
        {
            "status": "success",
            "prompt_len": prompt,
            "response_len": response,
            "seq_len": prompt + response,
            "global_steps": step,
            "min_global_steps": step - 1,
            "max_global_steps": step - 1,
        }
        for prompt, response in zip(*(length.tolist() for length in lengths), strict=True)
    ]
    fields = list_of_dict_to_tensordict(rows_of(batch))
    tq.kv_batch_put(keys=batch.keys, partition_id=PARTITION, fields=fields, tags=tags)
    return KVBatchMeta(keys=list(batch.keys), tags=tags, partition_id=PARTITION)


class StubWorkers:
    """Stands for the worker group: takes the batch and trains nothing."""

    def __init__(self) -> None:
        self._dispatch_info = {"actor": list(range(RANKS))}
        self.rows: list[int] = []

    def update_actor(self, batch: Any) -> dict[str, Any]:
        self.rows.append(len(batch.keys))
        return {"metrics": {"mfu": [0.0], "pg_loss": [1.0]}}


def make_trainer(size: Size) -> Any:
    """The real class on its real __init__, with stub workers behind it."""
    from verl_replay.trainers.v1 import ReplayTrainerSync

    trainer = ReplayTrainerSync(compose_config(size))
    trainer.actor_rollout_wg = StubWorkers()
    trainer.tokenizer = SimpleNamespace(eos_token_id=EOS)
    return trainer


def train_step(trainer: Any, batch: Any, step: int) -> dict[str, Any]:
    """verl's own methods of one step, timed as verl does. Returns its metrics with timing_raw."""
    from verl.utils.debug import marked_timer

    metrics: dict[str, Any] = {}
    trainer.global_steps, trainer.timing_raw = step, {}
    batch = trainer._balance_batch(batch, metrics)
    with marked_timer("adv", trainer.timing_raw):
        batch = trainer._compute_advantage(batch, metrics)
    trainer._update_actor(batch, metrics=metrics)
    return metrics | {"timing_raw": dict(trainer.timing_raw)}


def measure_rows(size: Size, *, seed: int, report: Report) -> dict[str, Any]:
    """Fill the buffer from memory, then train steps through TransferQueue."""
    import transfer_queue as tq

    rng = np.random.default_rng(seed)
    trainer = make_trainer(size)
    fill = [make_batch(size, rng, name=f"fill{i}") for i in range(4)]
    steps = size.max_age + WARM_UP + size.measured
    for step in range(1, size.max_age + 1):
        run_step(trainer.replay_stage, fill[step % len(fill)], step, Stopwatch())
        report(step, steps)
    timed = []
    for step in range(size.max_age + 1, steps + 1):
        batch = put(make_batch(size, rng, name=f"step{step}"), step)
        keys = list(batch.keys)
        timed.append(train_step(trainer, batch, step))
        tq.kv_clear(keys=keys, partition_id=PARTITION)
        report(step, steps)
    left = (tq.kv_list(PARTITION) or {}).get(PARTITION, {})
    if left:
        raise RuntimeError(f"{len(left)} keys are left in TransferQueue, which the stage should have cleared")
    times = {name: [1000 * step["timing_raw"][name] for step in timed[WARM_UP:]] for name in ("replay", "adv")}
    return {
        "rows": size.rows,
        "drawn": int(timed[-1]["replay/draw/rollouts"]),
        "stored": int(timed[-1]["replay/buffer/size"]),
        "rows_sent_to_the_workers": trainer.actor_rollout_wg.rows[-1],
        "median_ms": {name: median(values) for name, values in times.items()},
        "ms": times,
        "ratio": median(r / a for r, a in zip(times["replay"], times["adv"], strict=True)),
    }


def measure_transfer_queue(sizes: list[Size], *, units: int | None, seed: int, report: Report) -> dict[str, Any]:
    """{rows: numbers}, on a Ray and a TransferQueue of its own, with verl's own settings of it.

    Args:
        units: storage units, each a process; verl's own number where not given.
    """
    import ray
    import transfer_queue as tq

    settings = compose_config(sizes[0]).transfer_queue
    if units:
        settings.backend.SimpleStorage.num_data_storage_units = units
    ray.init(
        address="local", num_cpus=16, include_dashboard=False, log_to_driver=False, object_store_memory=400_000_000
    )
    try:
        tq.init(settings)
        try:
            return {
                str(size.rows): measure_rows(
                    size, seed=seed, report=lambda done, of, i=i: report(i * of + done, len(sizes) * of)
                )
                for i, size in enumerate(sizes)
            }
        finally:
            tq.close()
    finally:
        ray.shutdown()
