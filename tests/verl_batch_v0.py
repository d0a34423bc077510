"""The same rollouts as tests/verl_batch.py as a DataProto, and verl's V0 trainer around stub workers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, apply_kl_penalty, compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.utils import Role
from verl.utils.model import compute_position_id_with_mask

from tests.verl_batch import EOS, StubWorkers, rollout_rows
from verl_replay.trainers.v0 import ReplayRayPPOTrainer

PAD = 0


def to_dataproto(
    keys: Sequence[str], rows: Sequence[dict[str, Any]], *, prompt_width: int = 6, response_width: int = 12
) -> DataProto:
    """Rows of rollout_rows, padded as verl's V0 agent loop pads them: prompts left, responses right."""

    def left(values: torch.Tensor, fill: int) -> torch.Tensor:
        return torch.cat([torch.full((prompt_width - len(values),), fill, dtype=values.dtype), values])

    def right(values: torch.Tensor, fill: int) -> torch.Tensor:
        return torch.cat([values, torch.full((response_width - len(values),), fill, dtype=values.dtype)])

    tensors = {
        "prompts": torch.stack([left(row["prompts"], PAD) for row in rows]),
        "responses": torch.stack([right(row["responses"], PAD) for row in rows]),
    }
    masks = [(torch.ones_like(row["prompts"]), torch.ones_like(row["responses"])) for row in rows]
    tensors["attention_mask"] = torch.stack([torch.cat([left(p, 0), right(r, 0)]) for p, r in masks])
    tensors["input_ids"] = torch.cat([tensors["prompts"], tensors["responses"]], dim=1)
    tensors["position_ids"] = compute_position_id_with_mask(tensors["attention_mask"])
    for name in ("response_mask", "rm_scores", "rollout_log_probs", "old_log_probs", "ref_log_prob"):
        if name in rows[0]:
            tensors[name] = torch.stack([right(row[name], 0) for row in rows])
    objects = {
        "uid": np.array([row["uid"] for row in rows], dtype=object),
        "index": np.array([row["index"] for row in rows], dtype=object),
        "raw_prompt": np.array([[{"role": "user", "content": key}] for key in keys] + [None], dtype=object)[:-1],
    }
    data = DataProto.from_dict(tensors=tensors, non_tensors=objects, meta_info={"temperature": 1.0})
    data.meta_info["global_token_num"] = tensors["attention_mask"].sum(-1).tolist()
    return data


def make_batch(rewards: Sequence[Sequence[float]], *, widths: tuple[int, int] = (6, 12), **options: Any) -> DataProto:
    return to_dataproto(*rollout_rows(rewards, **options), prompt_width=widths[0], response_width=widths[1])


def make_trainer_v0(
    config: DictConfig, *, ranks: int = 1, cls: type[RayPPOTrainer] = ReplayRayPPOTrainer, workers: Any = None
) -> Any:
    """The real trainer class on its real __init__, with stub workers behind it."""
    dataset = [{"index": i} for i in range(64)]
    trainer = cls(
        config=config,
        tokenizer=SimpleNamespace(eos_token_id=EOS, pad_token_id=PAD),
        role_worker_mapping={Role.ActorRollout: object},
        resource_pool_manager=None,
        train_dataset=dataset,
        val_dataset=dataset,
        collate_fn=list,
        train_sampler=range(64),
    )
    trainer.actor_rollout_wg = workers or StubWorkers(ranks)
    return trainer


def train_step_v0(trainer: Any, batch: DataProto, step: int, *, old_log_probs: bool = False) -> dict[str, Any]:
    """verl's own calls of one step, as its fit() makes them: balance, log-probs, advantage, update."""
    trainer.global_steps = step
    metrics: dict[str, Any] = {}
    config = trainer.config.algorithm
    if trainer.config.trainer.balance_batch and len(batch) % trainer.actor_rollout_wg.ranks == 0:
        trainer._balance_batch(batch, metrics=metrics)
    if old_log_probs:
        computed, _ = trainer._compute_old_log_prob(batch)
        batch.batch["old_log_probs"] = computed.batch["old_log_probs"]
    batch.batch["token_level_scores"] = batch.batch["rm_scores"]
    if config.use_kl_in_reward:
        batch, _ = apply_kl_penalty(batch, kl_ctrl=trainer.kl_ctrl_in_reward, kl_penalty=config.kl_penalty)
    else:
        batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
    if config.rollout_correction is not None and not config.rollout_correction.get("bypass_mode", False):
        batch, _ = compute_rollout_correction_and_add_to_batch(batch, config.rollout_correction)
    batch = compute_advantage(
        batch,
        adv_estimator=config.adv_estimator,
        gamma=config.gamma,
        lam=config.lam,
        num_repeat=trainer.config.actor_rollout_ref.rollout.n,
        norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo,
        config=config,
    )
    trainer.trained_on = batch
    metrics.update(trainer._update_actor(batch).meta_info["metrics"])
    return metrics
