"""I6: null rows carry no loss. Gradients of verl's own ppo_loss with and without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from verl_replay.ragged import Ragged
from verl_replay.store import Rows
from verl_replay.support import RATIO_LOSSES
from verl_replay.trainers import columns

NAMES = ("prompts", "responses", "response_mask", "loss_mask", "old_log_probs", "advantages")


def real_rows(rng: np.random.Generator, lengths: list[int]) -> Rows:
    made = {
        "prompts": Ragged.from_rows([rng.integers(3, 9, 2 + i % 3) for i in range(len(lengths))], np.int64),
        "responses": Ragged.from_rows([rng.integers(3, 9, n) for n in lengths], np.int64),
        "response_mask": Ragged.from_rows([np.ones(n) for n in lengths], np.int64),
        "loss_mask": Ragged.from_rows([np.ones(n) for n in lengths], np.int64),
        "old_log_probs": Ragged.from_rows([-rng.random(n) for n in lengths], np.float32),
        "advantages": Ragged.from_rows([np.full(n, rng.normal()) for n in lengths], np.float32),
    }
    return Rows(made, np.arange(len(lengths) + 1))


AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def gradient(
    rows: Rows, log_probs: list[torch.Tensor], real: int, mode: str, loss: str = "vanilla"
) -> tuple[float, list[torch.Tensor]]:
    """Loss and its gradient to each real row's log-probs, through verl's own loss."""
    data = columns.to_fields(rows)
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode=mode,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=10.0,
        loss_scale_factor=16,
        policy_loss=PolicyLossConfig(loss_mode=loss, dro_beta=1.0),
    )
    for name, value in {
        "dp_size": 1,
        "batch_num_tokens": int(data["loss_mask"].values().sum()),
        "global_batch_size": real,
    }.items():
        tu.assign_non_tensor(data, **{name: value})
    leaves = [row.clone().requires_grad_() for row in log_probs]
    nulls = [torch.full((2,), -3.0) for _ in range(rows.count - real)]
    output = {"log_probs": torch.nested.as_nested_tensor([*leaves, *nulls], layout=torch.jagged)}
    loss, _ = ppo_loss(config, output, data)
    loss.backward()
    return float(loss.detach()), [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("loss_mode", RATIO_LOSSES)
@pytest.mark.parametrize("nulls", [1, 5])
def test_i6_null_rows_change_neither_loss_nor_gradient(mode, loss_mode, nulls):
    rng = np.random.default_rng(3)
    rows = real_rows(rng, [4, 1, 7])
    with_nulls = Rows.concat([rows, columns.null_rows(nulls, NAMES, token=2)])
    log_probs = [torch.from_numpy(-rng.random(n)).float() for n in columns.sequence_lengths(rows).tolist()]
    loss, expected = gradient(rows, log_probs, 3, mode, loss_mode)
    padded_loss, padded = gradient(with_nulls, log_probs, 3, mode, loss_mode)
    assert padded_loss == pytest.approx(loss, rel=1e-6)
    assert any(g.abs().sum() > 0 for g in expected)
    for a, b in zip(expected, padded, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_i6_a_null_row_that_carried_loss_would_be_seen(mode):
    rng = np.random.default_rng(3)
    rows = real_rows(rng, [4, 1, 7])
    nulls = columns.null_rows(2, NAMES, token=2)
    spoilt = {
        name: Ragged(np.ones_like(c.values), c.offsets) if "mask" in name or name == "advantages" else c
        for name, c in nulls.columns.items()
    }
    log_probs = [torch.from_numpy(-rng.random(n)).float() for n in columns.sequence_lengths(rows).tolist()]
    loss, _ = gradient(rows, log_probs, 3, mode)
    spoilt_loss, _ = gradient(Rows.concat([rows, Rows(spoilt, nulls.rollouts)]), log_probs, 3, mode)
    assert spoilt_loss != pytest.approx(loss, rel=1e-3)
