"""verl's V1 rollout queue with a short polling interval, and with rows in an order that does not depend on timing.

Not experience replay: verl's class `ReplayBuffer` is a queue of finished rollouts that are trained on once. Its polling
interval is fixed at 2 s, longer than a whole step of a small model. Override of verl that uses it:

    trainer.v1.sampler.custom_sampler.path=pkg://verl_replay.queues
    trainer.v1.sampler.custom_sampler.name=PromptRolloutQueue
    +trainer.v1.sampler.sampler_kwargs.poll_interval=0.02        # seconds; optional

What a custom queue costs: verl hands `algorithm.filter_groups` and `sampler.sync_refill_failed_groups` to its own
queues only (trainer_base.py, _build_replay_buffer), so with one of these classes both are silently without effect.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

DEFAULT_POLL_INTERVAL = 0.05  # seconds


def _poll_interval(sampler_kwargs: Mapping[str, Any] | None) -> float:
    """Read `sampler_kwargs.poll_interval`, seconds. Raises ValueError for other options and other values."""
    options = dict(sampler_kwargs or {})
    interval = options.pop("poll_interval", DEFAULT_POLL_INTERVAL)
    if options:
        raise ValueError(
            f"trainer.v1.sampler.sampler_kwargs has no option {sorted(options)} for queues of verl_replay.queues; "
            "it accepts ['poll_interval']"
        )
    if not isinstance(interval, numbers.Real) or isinstance(interval, bool) or not 0 < interval < float("inf"):
        raise ValueError(
            f"trainer.v1.sampler.sampler_kwargs.poll_interval must be a number of seconds > 0, got {interval!r}; "
            f"leave it out for {DEFAULT_POLL_INTERVAL}"
        )
    return float(interval)


class PromptRolloutQueue(ReplayBuffer):
    """verl's queue for trainer_mode=sync, polled every 50 ms or every `sampler_kwargs.poll_interval` seconds."""

    def __init__(self, *, trainer_mode: str, sampler_kwargs: Mapping[str, Any] | None = None, **kwargs: Any):
        if trainer_mode != "sync":  # the base class knows nothing of stale rollouts: they would be trained on
            raise ValueError(
                f"{type(self).__name__} is for trainer.v1.trainer_mode=sync, got {trainer_mode!r}; "
                "use custom_sampler.name=AsyncPromptRolloutQueue"
            )
        super().__init__(
            trainer_mode=trainer_mode,
            sampler_kwargs=sampler_kwargs,
            poll_interval=_poll_interval(sampler_kwargs),
            **kwargs,
        )


class AsyncPromptRolloutQueue(ReplayBufferAsync):
    """The same for the other trainer modes: verl's queue that drops or awaits stale rollouts."""

    def __init__(self, *, trainer_mode: str, sampler_kwargs: Mapping[str, Any] | None = None, **kwargs: Any):
        if trainer_mode == "sync":
            raise ValueError(
                f"{type(self).__name__} is not for trainer.v1.trainer_mode=sync; "
                "use custom_sampler.name=PromptRolloutQueue"
            )
        super().__init__(
            trainer_mode=trainer_mode,
            sampler_kwargs=sampler_kwargs,
            poll_interval=_poll_interval(sampler_kwargs),
            **kwargs,
        )


class OrderedPromptRolloutQueue(PromptRolloutQueue):
    """PromptRolloutQueue for repeatable runs: rows sorted by dataset index, session and trajectory index.

    verl's own order is the order in which rollouts finished, and with it mini-batches and the order of sums change
    from run to run. Rows that share all three (the same index in several files; verl sets 0 where a row has no
    extra_info.index) are sorted by prompt.
    """

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        ranks = [
            (*_rank(index), *_session_and_trajectory(key))
            for key, index in zip(batch.keys, _fetch(batch, "index"), strict=True)
        ]
        if len(set(ranks)) < len(ranks):
            ranks = [(*rank, prompt) for rank, prompt in zip(ranks, _fetch(batch, "prompts"), strict=True)]
        batch.reorder(sorted(range(len(ranks)), key=ranks.__getitem__))
        return batch, metrics


def _session_and_trajectory(key: str) -> tuple[int, int]:
    """verl's key of a row is "{uid}_{session}_{trajectory}"."""
    _uid, session, trajectory = key.rsplit("_", 2)
    return int(session), int(trajectory)


def _rank(index: Any) -> tuple[int, str]:
    """Numbers in numerical order, then everything else in the order of its text."""
    return (int(index), "") if isinstance(index, numbers.Integral) else (2**63, str(index))


def _fetch(batch: KVBatchMeta, field: str) -> list[Any]:
    """One column of the batch. Raises ValueError if a row lacks it: TransferQueue then drops the whole column."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[field])
    if field not in data.keys():
        raise ValueError(
            f"OrderedPromptRolloutQueue sorts by the field {field!r}, but not every row has it; "
            "verl's RLHFDataset and single-turn agent loop set it, so must a custom one"
        )
    column = data.get(field)  # a tensor, jagged where rows differ in length, or a NonTensorStack of Python objects
    return [row.tolist() for row in column.unbind()] if isinstance(column, torch.Tensor) else column.tolist()
