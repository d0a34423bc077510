"""Workers with a policy that learns: a bigram table, trained by verl's own loss, dispatch, mini- and micro-batches.

What verl's engine does in between (forward_backward_batch: tokens of a mini-batch over all ranks, micro-batches, one
backward each, gradients averaged over ranks) is done here in the same words on one process.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.utils.losses import ppo_loss

from tests.verl_batch import StubWorkers

VOCABULARY = 50


def log_probs(table: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """At place j that of token j + 1, as verl's engines return them; 0 at the last place."""
    after = torch.log_softmax(table[input_ids[:-1]], dim=-1).gather(1, input_ids[1:, None])[:, 0]
    return torch.cat([after, after.new_zeros(1)])


class PolicyWorkers(StubWorkers):
    def __init__(self, config: DictConfig, ranks: int = 1, *, learning_rate: float = 0.5) -> None:
        super().__init__(ranks)
        self.actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self.learning_rate = learning_rate
        self.table = torch.randn(
            VOCABULARY, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        self.steps: list[SimpleNamespace] = []  # one an optimizer step: the policy before it, its rows, its gradient

    def compute_log_prob(self, batch: Any) -> Any:
        rows = [row for chunk in self._chunks(batch) for row in chunk["input_ids"].unbind()]
        made = torch.nested.as_nested_tensor([log_probs(self.table, row).float() for row in rows], layout=torch.jagged)
        return self._as_output(batch, made)

    def update_actor(self, batch: Any) -> Any:
        output = super().update_actor(batch)
        update = self.updates[-1]
        for cells in zip(*update.mini_batches, strict=True):
            self._optimizer_step(cells, update.extra["global_batch_size"])
        return output

    def _optimizer_step(self, cells: tuple[TensorDict, ...], global_batch_size: float) -> None:
        policy = self.table.clone()
        gradient = torch.zeros_like(policy)
        tokens = sum(int(_sum(cell["loss_mask"])) for cell in cells)
        for cell in cells:
            tu.assign_non_tensor(
                cell,
                batch_num_tokens=tokens,
                dp_size=self.ranks,
                global_batch_size=global_batch_size,
                use_dynamic_bsz=self.actor.use_dynamic_bsz,
                max_token_len_per_gpu=64,
                micro_batch_size_per_gpu=self.actor.ppo_micro_batch_size_per_gpu,
                sp_size=1,
            )
            for micro_batch in prepare_micro_batches(cell)[0]:
                leaf = policy.clone().requires_grad_()
                made = [log_probs(leaf, row) for row in micro_batch["input_ids"].unbind()]
                output = {"log_probs": torch.nested.as_nested_tensor(made, layout=torch.jagged)}
                loss, _ = ppo_loss(self.actor, output, micro_batch)
                loss.backward()
                gradient += leaf.grad / self.ranks  # FSDP averages over the ranks
        self.steps.append(SimpleNamespace(policy=policy, cells=cells, gradient=gradient))
        self.table -= self.learning_rate * gradient

    @staticmethod
    def _as_output(batch: Any, made: torch.Tensor) -> Any:
        import transfer_queue as tq

        fields = {"log_probs": made, "entropy": torch.zeros_like(made)}
        if isinstance(batch, KVBatchMeta):
            td = TensorDict(fields, batch_size=len(batch))
            return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=td)
        return tu.get_tensordict(fields, {"metrics": {"mfu": 0.0}})


def _sum(mask: torch.Tensor) -> torch.Tensor:
    return mask.values().sum() if mask.is_nested else mask.sum()
