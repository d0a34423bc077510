"""I2, O1, O2: what the hook sends, pushed through verl's own dispatch and mini-batch iterator, for any numbers of rows.

Random groups, ratios, data-parallel sizes, mini-batches, micro-batches, epochs and lengths. The whole path is real: the
DataProto, compute_advantage, the hook, RayPPOTrainer._update_actor, BatchData.chunk, make_iterator.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.factories import repeatable
from tests.verl_batch import compose_config
from tests.verl_batch_v0 import make_batch, make_trainer_v0, train_step_v0

config_once = compose_config("replay.ratio=1.0", group_size=2, prompts=8)


def tokens(cell) -> list[tuple[int, ...]]:
    """The real rows of one mini-batch of one rank, known by their tokens."""
    return [
        tuple(row.tolist())
        for row, mask in zip(cell["input_ids"].unbind(), cell["response_mask"], strict=True)
        if mask.sum() > 0
    ]


@pytest.mark.slow
@settings(repeatable, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(
    group_size=st.sampled_from([2, 4]),
    size=st.integers(1, 2),
    mini_batches=st.integers(1, 4),
    ranks=st.sampled_from([1, 2, 4, 8]),
    micro_batch=st.integers(0, 3),  # 0: dynamic batch sizes
    epochs=st.integers(1, 2),
    ratio=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    composition=st.sampled_from(["fresh_anchored", "pooled"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_i2_every_row_once_an_epoch_dealt_evenly_over_cells(
    group_size, size, mini_batches, ranks, micro_batch, epochs, ratio, composition, seed
):
    config = config_once.copy()
    actor = config.actor_rollout_ref.actor
    config.actor_rollout_ref.rollout.n = group_size
    # what verl itself asks of its own batch: mini-batches divide by the ranks, their parts by the micro-batch
    actor.ppo_mini_batch_size = size * math.lcm(ranks * max(micro_batch, 1), group_size) // group_size
    prompts = mini_batches * actor.ppo_mini_batch_size
    actor.ppo_epochs = epochs
    actor.use_dynamic_bsz = micro_batch == 0
    actor.ppo_micro_batch_size_per_gpu = max(micro_batch, 1)
    config.replay.ratio, config.replay.composition = ratio, composition
    rng = np.random.default_rng(seed)
    trainer = make_trainer_v0(config, ranks=ranks)
    stored: set[tuple[int, ...]] = set()
    for step in (1, 2, 3):
        rewards = (rng.random((prompts, group_size)) < rng.random((prompts, 1))).astype(float).tolist()
        # lengths unlike each other, so that every row is known by its tokens
        batch = make_batch(
            rewards, step=step, rng=rng, widths=(6, 40), lengths=rng.integers(12, 40, prompts * group_size)
        )
        trainer.actor_rollout_wg.updates.clear()
        log = train_step_v0(trainer, batch, step)
        ids, attention = batch.batch["input_ids"], batch.batch["attention_mask"].bool()
        born = [tuple(row[keep].tolist()) for row, keep in zip(ids, attention, strict=True)]
        survivors = {
            row
            for row, uid in zip(born, batch.non_tensor_batch["uid"], strict=True)
            if np.ptp(batch.batch["rm_scores"].sum(-1).numpy()[batch.non_tensor_batch["uid"] == uid]) > 0
        }
        if not survivors:
            assert not trainer.actor_rollout_wg.updates and log["replay/updates"] == 0
            continue
        (update,) = trainer.actor_rollout_wg.updates
        check(update, log, survivors, stored, config, ranks, epochs, stock=len(batch))
        stored |= survivors


def check(update, log, survivors, stored, config, ranks, epochs, *, stock) -> None:
    actor = config.actor_rollout_ref.actor
    drawn = int(log["replay/draw/rollouts"])
    fresh = int(log["replay/fresh/rollouts"])
    anchored = config.replay.composition == "fresh_anchored"
    rows_of_mini_batch = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    updates = min(stock // rows_of_mini_batch, len(survivors), fresh + drawn)

    assert log["replay/updates"] == updates
    assert [len(rank) for rank in update.mini_batches] == [updates * epochs] * ranks  # optimizer steps
    cells = [[tokens(cell) for cell in rank] for rank in update.mini_batches]
    for epoch in range(epochs):
        of_epoch = [cell for rank in cells for cell in rank[epoch * updates : (epoch + 1) * updates]]
        counted = Counter(row for cell in of_epoch for row in cell)
        assert set(counted.values()) <= {1}  # every real row exactly once
        assert sum(counted.values()) == fresh + drawn
        assert set(counted) <= survivors | stored
        if anchored:
            assert survivors <= set(counted)
        for kind, total in ((survivors, fresh), (stored, drawn), (survivors | stored, fresh + drawn)):
            shares = [sum(row in kind for row in cell) for cell in of_epoch]
            assert sum(shares) == total and max(shares) - min(shares) <= 1
        for u in range(updates):
            mini_batch = [row for rank in cells for row in rank[epoch * updates + u]]
            assert any(row in survivors for row in mini_batch) or not anchored
            assert mini_batch  # never one without a real row: token-mean would be NaN
    per_cell = update.extra["mini_batch_size"] // ranks
    assert actor.use_dynamic_bsz or per_cell % actor.ppo_micro_batch_size_per_gpu == 0
    assert update.extra["global_batch_size"] == pytest.approx((fresh + drawn) / updates)
    # no more null rows than evening out and the micro-batch need
    assert per_cell < -(-(fresh + drawn) // (updates * ranks)) + actor.ppo_micro_batch_size_per_gpu
