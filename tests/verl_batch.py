"""Batches in verl's own form, in a real TransferQueue, for tests that go through verl's real methods."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import BatchData
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.utils.transferqueue_utils import _meta_to_realdata

EOS = 2


def compose_config(*overrides: str, group_size: int = 4, prompts: int = 2, mini_batch: int | None = None) -> DictConfig:
    """verl's real config with the replay node, as main_ppo would compose it."""
    base = [
        "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.rollout.n={group_size}",
        f"data.train_batch_size={prompts}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch or prompts}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
        "replay.warmup_steps=0",
        "data.dataloader_num_workers=0",
    ]
    with initialize_config_module("verl_replay.config", version_base=None):
        return compose("replay_trainer", overrides=[*base, *overrides])


def rollout_rows(
    rewards: Sequence[Sequence[float]],
    *,
    step: int,
    rng: np.random.Generator,
    uids: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    drop: Sequence[str] = (),
    turns: bool = False,
) -> tuple[list[str], list[dict[str, Any]]]:
    """Keys and rows of groups of rollouts as verl's agent loop and old-log-prob pass leave them, in order of sessions.

    Args:
        rewards: (groups, G). One reward a rollout.
        uids: one a group; made up where not given.
        lengths: (rows,) response tokens; drawn from 1..9 where not given.
        drop: columns to leave out.
        turns: some response tokens come from tools and carry no loss.
    """
    uids = uids or [f"uid{step}x{g}x{rng.integers(1 << 30)}" for g in range(len(rewards))]
    keys, rows = [], []
    for g, group in enumerate(rewards):
        prompt = torch.from_numpy(rng.integers(3, 50, size=int(rng.integers(2, 6))))
        for s, reward in enumerate(group):
            length = int(lengths[len(rows)]) if lengths is not None else int(rng.integers(1, 10))
            response = torch.from_numpy(rng.integers(3, 50, size=length))
            mask = torch.ones(length, dtype=torch.int64)
            if turns:
                mask[1:] = torch.from_numpy(rng.integers(0, 2, size=length - 1))
            score = torch.zeros(length)
            score[-1] = reward
            sequence = torch.cat([prompt, response])
            keys.append(f"{uids[g]}_{s}_0")
            row = {
                "prompts": prompt,
                "responses": response,
                "response_mask": mask,
                "loss_mask": mask,
                "input_ids": sequence,
                "position_ids": torch.arange(len(sequence)),
                "rm_scores": score,
                "rollout_log_probs": -torch.from_numpy(rng.random(length, dtype=np.float32)),
                "old_log_probs": -torch.from_numpy(rng.random(length, dtype=np.float32)),
                "uid": uids[g],
                "index": g,
                "session_id": s,
                "num_turns": 2,
            }
            rows.append({name: value for name, value in row.items() if name not in drop})
    return keys, rows


def put_batch(
    rewards: Sequence[Sequence[float]],
    *,
    step: int,
    rng: np.random.Generator,
    order: Sequence[int] | None = None,
    weights_of: int | None = None,
    **options: Any,
) -> KVBatchMeta:
    """Put groups of rollouts into partition "train".

    Args:
        rewards, step, rng, options: of rollout_rows.
        order: permutation of the rows: in which the rollouts finished.
        weights_of: version of the weights that the rollouts began with; step - 1 where not given.
    """
    keys, rows = rollout_rows(rewards, step=step, rng=rng, **options)
    return put_rows(keys, rows, step=step, order=order, weights_of=weights_of)


def put_rows(
    keys: Sequence[str],
    rows: Sequence[dict[str, Any]],
    *,
    step: int,
    order: Sequence[int] | None = None,
    weights_of: int | None = None,
) -> KVBatchMeta:
    order = list(order) if order is not None else list(range(len(rows)))
    keys, rows = [keys[i] for i in order], [rows[i] for i in order]
    tags = [_tag(row, step, step - 1 if weights_of is None else weights_of) for row in rows]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train")


def _tag(row: dict[str, Any], step: int, weights_of: int) -> dict[str, Any]:
    prompt, response = len(row["prompts"]), len(row["responses"])
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": step,
        "min_global_steps": weights_of,
        "max_global_steps": weights_of,
    }


def toy_log_probs(input_ids: torch.Tensor, version: int) -> torch.Tensor:
    """Log-probs of a made-up policy: at place j that of token j + 1, as verl's workers return them."""
    after = torch.roll(input_ids, -1).float()
    return -(0.1 + (after % 7) / 10 + 0.05 * version)


class StubWorkers:
    """Stands for the worker group: cuts what it is given with verl's own dispatch and iterator, and keeps it.

    Takes what both trainer generations send: a KVBatchMeta (V1) or a TensorDict (V0).
    """

    def __init__(self, ranks: int = 1) -> None:
        self.ranks = ranks
        self._dispatch_info = {"actor": list(range(ranks))}
        self.updates: list[SimpleNamespace] = []
        self.version = 0  # of the policy that compute_log_prob uses

    def _chunks(self, batch: Any) -> list[Any]:
        chunks = BatchData(batch).chunk(self.ranks)
        return [_meta_to_realdata(chunk) for chunk in chunks] if isinstance(batch, KVBatchMeta) else list(chunks)

    def update_actor(self, batch: Any) -> dict[str, Any]:
        chunks = self._chunks(batch)
        if isinstance(batch, KVBatchMeta):
            keys, extra = list(batch.keys), dict(batch.extra_info)
        else:
            names = ("mini_batch_size", "global_batch_size", "epochs", "temperature")
            keys, extra = None, {name: tu.get(batch, name) for name in names}
        size = extra["mini_batch_size"]
        assert size % self.ranks == 0
        cut = [
            list(
                tu.make_iterator(
                    chunk, size // self.ranks, epochs=extra["epochs"], seed=1, dataloader_kwargs={"shuffle": False}
                )
            )
            for chunk in chunks
        ]
        self.updates.append(SimpleNamespace(batch=batch, keys=keys, extra=extra, chunks=chunks, mini_batches=cut))
        self.version += 1
        metrics = {"mfu": [0.0], "pg_loss": [1.0]}
        return {"metrics": metrics} if keys is not None else tu.get_tensordict({}, {"metrics": metrics})

    def compute_log_prob(self, batch: Any) -> Any:
        rows = [row for chunk in self._chunks(batch) for row in chunk["input_ids"].unbind()]
        log_probs = torch.nested.as_nested_tensor(
            [toy_log_probs(row, self.version) for row in rows], layout=torch.jagged
        )
        fields = {"log_probs": log_probs, "entropy": torch.zeros_like(log_probs)}
        if isinstance(batch, KVBatchMeta):
            td = TensorDict(fields, batch_size=len(batch))
            return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=td)
        return tu.get_tensordict(fields, {"metrics": {"mfu": 0.0}})


def train_step(trainer: Any, batch: KVBatchMeta, step: int) -> dict[str, Any]:
    """verl's own _balance_batch, _compute_advantage and _update_actor of one step. Returns the metrics."""
    trainer.global_steps, trainer.timing_raw = step, {}
    metrics: dict[str, Any] = {}
    batch = trainer._balance_batch(batch, metrics)
    batch = trainer._compute_advantage(batch, metrics)
    trainer.returned = trainer._update_actor(batch, metrics=metrics)
    return metrics


def make_trainer(config: DictConfig, *, ranks: int = 1, cls: type | None = None) -> Any:
    """The real trainer class on its real __init__, with stub workers behind it."""
    from verl_replay.trainers.v1 import ReplayTrainerSync

    trainer = (cls or ReplayTrainerSync)(config)
    trainer.actor_rollout_wg = StubWorkers(ranks)
    trainer.tokenizer = SimpleNamespace(eos_token_id=EOS, pad_token_id=0)
    return trainer


def read_rows(keys: Sequence[str], columns: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """Each row's columns from TransferQueue, as numpy arrays."""
    data = tq.kv_batch_get(keys=list(keys), partition_id="train", select_fields=list(columns))
    return {name: [row.numpy().copy() for row in data[name].unbind()] for name in columns}
