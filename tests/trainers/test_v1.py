"""The V1 hook on the real path: a real TransferQueue, verl's own _balance_batch, _compute_advantage and _update_actor,
verl's own dispatch and mini-batch iterator. Only the worker group is a stub, which keeps what it is sent."""

from __future__ import annotations

import copy
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from tests.verl_batch import (
    compose_config,
    make_trainer,
    put_batch,
    put_rows,
    read_rows,
    rollout_rows,
    toy_log_probs,
    train_step,
)
from verl_replay import support
from verl_replay.trainers.v1 import TRAINERS, ReplayTrainerSync

MIXED, FLAT = [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]
UPDATE_COLUMNS = {
    "prompts",
    "responses",
    "input_ids",
    "position_ids",
    "response_mask",
    "loss_mask",
    "old_log_probs",
    "advantages",
}

pytestmark = pytest.mark.usefixtures("clear_partition")


def run(trainer, steps, rng, **options):
    """Train on each step's groups. Returns the metrics of every step."""
    return [
        train_step(trainer, put_batch(groups, step=step, rng=rng, **options), step)
        for step, groups in enumerate(steps, start=1)
    ]


def real_keys(mini_batch_keys):
    return [key for key in mini_batch_keys if not key.startswith("null-")]


# ---- I1, O18: off is off --------------------------------------------------------------------------------------------


def test_i1_o18_off_hands_verl_its_own_batch_and_changes_nothing(rng):
    config = compose_config("replay=off", prompts=3)
    groups = [MIXED, FLAT, MIXED]
    batch = put_batch(groups, step=1, rng=rng)
    ours, stock = make_trainer(config), make_trainer(config, cls=PPOTrainerSync)
    numpy_state, torch_state = copy.deepcopy(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
    metrics = train_step(ours, copy.deepcopy(batch), 1)
    assert repr(np.random.get_state()) == repr(numpy_state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)
    stock_metrics = train_step(stock, copy.deepcopy(batch), 1)
    assert metrics == stock_metrics
    sent, stock_sent = ours.actor_rollout_wg.updates[0], stock.actor_rollout_wg.updates[0]
    assert (sent.keys, sent.extra, sent.batch.fields) == (stock_sent.keys, stock_sent.extra, stock_sent.batch.fields)
    assert sent.batch is ours.returned  # verl's object, not a copy of it
    assert not hasattr(ours, "replay_stage")


def test_i1_nothing_dropped_and_nothing_drawn_is_the_stock_update(rng):
    config = compose_config("replay=filtered", "replay.filter=none", prompts=2)
    batch = put_batch([MIXED, FLAT], step=1, rng=rng)
    ours, stock = make_trainer(config), make_trainer(config, cls=PPOTrainerSync)
    metrics = train_step(ours, copy.deepcopy(batch), 1)
    stock_metrics = train_step(stock, copy.deepcopy(batch), 1)
    assert {k: v for k, v in metrics.items() if not k.startswith("replay/")} == stock_metrics
    sent, stock_sent = ours.actor_rollout_wg.updates[0], stock.actor_rollout_wg.updates[0]
    assert sent.batch is ours.returned
    assert (sent.keys, sent.extra) == (stock_sent.keys, stock_sent.extra)


def test_i1_filter_on_and_nothing_drawn_trains_on_exactly_the_survivors(rng):
    trainer = make_trainer(compose_config("replay=filtered", prompts=2))
    batch = put_batch([FLAT, MIXED], step=1, rng=rng)
    metrics = train_step(trainer, batch, 1)
    (sent,) = trainer.actor_rollout_wg.updates
    assert sorted(real_keys(sent.keys)) == sorted(key for key in batch.keys if key.startswith(batch.keys[4][:8]))
    assert metrics["replay/filter/zero_variance_frac"] == 0.5
    assert metrics["replay/buffer/size"] == 0  # what can never be drawn is not stored


# ---- I3, I5, O13, O5: what was stored is what is trained on ---------------------------------------------------------


def test_i3_i5_drawn_rows_are_byte_equal_to_what_they_were_born_with(rng):
    trainer = make_trainer(compose_config("replay.ratio=1.0", prompts=2))
    born = {}
    columns = ["prompts", "responses", "response_mask", "loss_mask", "old_log_probs", "advantages", "input_ids"]
    for step in range(1, 5):
        batch = put_batch([MIXED, MIXED], step=step, rng=rng)
        train_step(trainer, batch, step)
        rows = read_rows(batch.keys, [*columns, "position_ids"])
        for i in range(len(batch)):  # a rollout is known by its tokens, which are random
            born[rows["input_ids"][i].tobytes()] = {name: rows[name][i] for name in rows}
    drawn = 0
    for update in trainer.actor_rollout_wg.updates:
        chunk = update.chunks[0]
        unbound = {name: chunk[name].unbind() for name in [*columns, "position_ids"]}
        for i, key in enumerate(update.keys):
            if key.startswith("replayed-"):
                drawn += 1
                original = born[unbound["input_ids"][i].numpy().tobytes()]
                for name, value in original.items():
                    back = unbound[name][i].numpy()
                    assert back.dtype == value.dtype and back.tobytes() == value.tobytes(), name
    assert drawn == 8 * 3


def test_o13_ratio_of_a_replayed_token_is_to_its_birth_log_prob(rng):
    trainer = make_trainer(compose_config("replay.ratio=1.0", prompts=1))
    import transfer_queue as tq
    from tensordict import TensorDict

    batch = put_batch([MIXED], step=1, rng=rng)
    ones = torch.nested.as_nested_tensor(
        [torch.full((tag["response_len"],), -1.0) for tag in batch.tags], layout=torch.jagged
    )
    tq.kv_batch_put(
        keys=batch.keys, partition_id="train", fields=TensorDict({"old_log_probs": ones}, batch_size=len(batch))
    )
    train_step(trainer, batch, 1)
    train_step(trainer, put_batch([MIXED], step=2, rng=rng), 2)
    sent = trainer.actor_rollout_wg.updates[1]
    row = next(i for i, key in enumerate(sent.keys) if key.startswith("replayed-"))
    old = sent.chunks[0]["old_log_probs"].unbind()[row]
    current = torch.full_like(old, -2.0)
    assert torch.exp(current - old).numpy() == pytest.approx(np.exp(-1.0))  # .368, not 1


def test_o5_rows_of_other_widths_join(rng):
    trainer = make_trainer(compose_config("replay.ratio=1.0", prompts=1))
    train_step(trainer, put_batch([MIXED], step=1, rng=rng, lengths=[8, 8, 8, 8]), 1)
    train_step(trainer, put_batch([MIXED], step=2, rng=rng, lengths=[6, 12, 1, 3]), 2)
    sent = trainer.actor_rollout_wg.updates[1]
    lengths = {key: len(row) for key, row in zip(sent.keys, sent.chunks[0]["responses"].unbind(), strict=True)}
    assert sorted(n for key, n in lengths.items() if key.startswith("replayed-")) == [8, 8, 8, 8]
    assert sorted(n for key, n in lengths.items() if not key.startswith("replayed-")) == [1, 3, 6, 12]


# ---- O8, O12, O16, I8: groups and metrics ---------------------------------------------------------------------------


def test_o8_exactly_the_rows_of_the_group_that_varies_are_stored(rng):
    trainer = make_trainer(compose_config(prompts=2))
    batch = put_batch([FLAT, MIXED], step=1, rng=rng)
    train_step(trainer, batch, 1)
    buffer = trainer.replay_stage.transform.buffer
    assert buffer.table.reward.tolist() == MIXED
    stored = buffer.draw(np.arange(4)).rows.columns["responses"]
    expected = read_rows(batch.keys[4:], ["responses"])["responses"]
    order = np.argsort([int(key.split("_")[1]) for key in batch.keys[4:]])
    for i, j in enumerate(order.tolist()):
        assert stored.row(i).tolist() == expected[j].tolist()


def test_o12_replayed_rows_of_the_same_uid_do_not_enter_the_fresh_advantage(rng):
    trainer = make_trainer(compose_config("replay.ratio=1.0", group_size=2, prompts=1))
    train_step(trainer, put_batch([[1.0, 0.5]], step=1, rng=rng, uids=["same"]), 1)
    batch = put_batch([[1.0, 0.0]], step=2, rng=rng, uids=["same"])
    train_step(trainer, batch, 2)
    advantages = [float(row[0]) for row in read_rows(batch.keys, ["advantages"])["advantages"]]
    assert sorted(advantages) == pytest.approx([-0.7071, 0.7071], abs=1e-4)


def test_o16_i8_verls_metrics_describe_the_fresh_batch_alone(rng):
    class Measured(ReplayTrainerSync):
        resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)

    class MeasuredStock(PPOTrainerSync):
        resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)

    config = compose_config("replay.ratio=1.0", prompts=1)
    ours, stock = make_trainer(config, cls=Measured), make_trainer(config, cls=MeasuredStock)
    train_step(ours, put_batch([[1.0, 1.0, 1.0, 0.0]], step=1, rng=rng), 1)
    batch = put_batch([MIXED], step=2, rng=rng)
    metrics = train_step(ours, copy.deepcopy(batch), 2)
    stock_metrics = train_step(stock, copy.deepcopy(batch), 2)
    for trainer, seen in ((ours, metrics), (stock, stock_metrics)):
        timing = {"step": 1.0, "gen": 1.0, "update_actor": 1.0, "old_log_prob": 1.0, "adv": 1.0}
        trainer._compute_metrics(trainer.returned, seen, timing, global_steps=2, epoch=0)
    assert metrics["replay/draw/rollouts"] == 4
    assert metrics["critic/score/mean"] == 0.25
    replayed = {k for k in metrics if k.startswith("replay/")}
    assert {k: v for k, v in metrics.items() if k not in replayed} == stock_metrics


@pytest.mark.parametrize("estimator", support.GROUP_RELATIVE)
def test_every_accepted_estimator_gives_one_advantage_a_rollout(rng, estimator):
    trainer = make_trainer(compose_config(f"algorithm.adv_estimator={estimator}", "replay.ratio=1.0", prompts=2))
    seen = run(trainer, [[MIXED, FLAT], [MIXED, FLAT]], rng)
    assert [m["replay/draw/rollouts"] for m in seen] == [0, 4]
    table = trainer.replay_stage.transform.buffer.table
    assert (np.abs(table.advantage) > 0).all() and (np.sign(table.advantage) == np.where(table.reward > 0, 1, -1)).all()
    chunk = trainer.actor_rollout_wg.updates[1].chunks[0]
    for row, mask in zip(chunk["advantages"].unbind(), chunk["loss_mask"].unbind(), strict=True):
        assert (
            len(set(row[mask > 0].tolist())) <= 1
        )  # the number that it is drawn by is the one that it is trained with


# ---- I4, O7, O17, O19, O20, I10: ages, empty buffers, no survivors, NaN ---------------------------------------------


def test_o17_i4_born_at_1_with_max_age_2_is_drawn_at_2_and_3_and_gone_at_4(rng):
    trainer = make_trainer(compose_config("replay.ratio=1.0", "replay.max_age=2", prompts=2))
    flat = [FLAT, FLAT]
    seen = run(trainer, [[MIXED, MIXED], [MIXED, FLAT], [MIXED, FLAT], [MIXED, FLAT]], rng)
    assert [m["replay/draw/rollouts"] for m in seen] == [0, 4, 4, 4]
    assert [m.get("replay/draw/age/max") for m in seen[:2]] == [None, 1]
    assert seen[2]["replay/draw/age/max"] <= 2 and seen[3]["replay/draw/age/max"] <= 2
    assert [m["replay/buffer/evicted_age"] for m in seen] == [0, 0, 0, 8]
    more = train_step(trainer, put_batch(flat, step=5, rng=rng), 5)
    assert more["replay/buffer/evicted_age"] == 4  # those born at 2


@pytest.mark.parametrize("max_age", [0, 3])
def test_o19_everything_evicted_leaves_a_fresh_step_and_no_wait(rng, max_age):
    trainer = make_trainer(compose_config(f"replay.max_age={max_age}", prompts=1))
    train_step(trainer, put_batch([MIXED], step=1, rng=rng), 1)
    metrics = train_step(trainer, put_batch([MIXED], step=6, rng=rng), 6)  # a gap of 5 steps
    assert metrics["replay/draw/rollouts"] == 0 and metrics["replay/updates"] == 1
    assert len(trainer.actor_rollout_wg.updates) == 2


def test_o7_empty_buffer_trains_on_the_fresh_rollouts(rng):
    trainer = make_trainer(compose_config("replay.ratio=2.0", prompts=1))
    (metrics,) = run(trainer, [[MIXED]], rng)
    assert (metrics["replay/draw/rollouts"], metrics["replay/fresh/rollouts"]) == (0, 4)
    assert len(trainer.actor_rollout_wg.updates) == 1


def test_o20_i10_no_survivors_no_update_and_the_next_step_runs(rng):
    trainer = make_trainer(compose_config(prompts=1))
    seen = run(trainer, [[FLAT], [MIXED], [FLAT], [MIXED]], rng)
    assert [m["replay/updates"] for m in seen] == [0, 1, 0, 1]
    assert [m["replay/filter/zero_variance_frac"] for m in seen] == [1, 0, 1, 0]
    assert len(trainer.actor_rollout_wg.updates) == 2  # a batch is never made of stored rollouts alone
    assert seen[3]["replay/draw/rollouts"] == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_i10_o9_a_group_with_nan_is_neither_stored_nor_trained_on(rng, bad):
    trainer = make_trainer(compose_config("replay.filter=none", prompts=2))
    batch = put_batch([[1.0, 0.0, bad, 0.0], MIXED], step=1, rng=rng)
    metrics = train_step(trainer, batch, 1)
    assert metrics["replay/filter/nonfinite_groups"] == 1
    (sent,) = trainer.actor_rollout_wg.updates
    assert len(real_keys(sent.keys)) == 4
    assert np.isfinite(sent.chunks[0]["advantages"].values().numpy()).all()
    assert trainer.replay_stage.transform.buffer.table.reward.tolist() == MIXED


# ---- O10, O11, O15: capacity, reuse, memory --------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 2])
def test_o10_rollouts_of_equal_advantage_at_a_tiny_capacity(rng, capacity):
    trainer = make_trainer(compose_config(f"replay.capacity={capacity}", "replay.ratio=1.0", prompts=2))
    half = [1.0, 1.0, 0.0, 0.0]  # |A| is the same for all eight
    seen = run(trainer, [[half, half]] * 3, rng)
    assert [m["replay/buffer/size"] for m in seen] == [capacity] * 3
    assert [m["replay/draw/rollouts"] for m in seen] == [0, capacity, capacity]
    assert [m["replay/buffer/evicted_capacity"] for m in seen] == [8 - capacity, 8, 8]
    assert trainer.replay_stage.transform.buffer.table.born.tolist() == [3] * capacity


def test_o11_reuse_is_counted_and_logged(rng):
    """4 rollouts are stored at step 1 and 4 drawn a step; flat groups add nothing, so the same ones come again."""
    trainer = make_trainer(compose_config("replay.ratio=1.0", "replay.max_age=100", "replay.capacity=4", prompts=1))
    train_step(trainer, put_batch([MIXED], step=1, rng=rng), 1)
    transform = trainer.replay_stage.transform
    transform.store = lambda survivors, rows, step: 0  # without inserts
    for step in range(2, 52):
        metrics = train_step(trainer, put_batch([MIXED], step=step, rng=rng), step)
        assert metrics["replay/draw/rollouts"] == 4
        assert metrics["replay/draw/reuse/mean"] == metrics["replay/draw/reuse/max"] == step - 1
    assert transform.buffer.table.uses.tolist() == [50] * 4


def test_o15_a_stored_rollout_holds_no_more_memory_than_its_own(rng):
    """One group of 4 in 16 survives, of 1,000 response tokens each: 8 steps store 32 rollouts, not 512."""
    trainer = make_trainer(compose_config("replay.max_age=100", prompts=16))
    groups = [MIXED] + [FLAT] * 15
    run(trainer, [groups] * 8, rng, lengths=[1000] * 64)
    buffer = trainer.replay_stage.transform.buffer
    assert len(buffer) == 32
    assert buffer.nbytes < 32 * 1000 * (4 + 4) * 1.15 + 32 * 500  # ids and log-probs of int32 and float32, and a table
    segments = buffer._store._segments
    arrays = [column.values for segment in segments for column in segment.columns.values()]
    assert all(array.base is None for array in arrays)  # owned: a view would keep a batch of verl's alive


# ---- I7, O3: columns ------------------------------------------------------------------------------------------------


def test_i7_rows_carry_the_columns_of_the_update_and_no_others(rng):
    trainer = make_trainer(compose_config("replay.ratio=1.0", prompts=1))
    run(trainer, [[MIXED], [MIXED]], rng)
    sent = trainer.actor_rollout_wg.updates[1]
    assert set(sent.batch.fields) == UPDATE_COLUMNS
    tensors = {name for name, value in sent.chunks[0].items() if isinstance(value, torch.Tensor)}
    assert tensors == UPDATE_COLUMNS


@pytest.mark.parametrize(
    ("option", "column"),
    [
        ("algorithm.rollout_correction.rollout_is=token", "rollout_is_weights"),
        ("actor_rollout_ref.actor.use_kl_loss=true", "ref_log_prob"),
    ],
)
def test_i7_columns_that_only_some_configurations_read_are_stored_and_replayed(rng, option, column):
    import transfer_queue as tq
    from tensordict import TensorDict

    trainer = make_trainer(compose_config("replay.ratio=1.0", option, prompts=1))
    born = {}
    for step in (1, 2):
        batch = put_batch([MIXED], step=step, rng=rng)
        ref = torch.nested.as_nested_tensor(
            [-torch.rand(tag["response_len"]) for tag in batch.tags], layout=torch.jagged
        )
        tq.kv_batch_put(
            keys=batch.keys, partition_id="train", fields=TensorDict({"ref_log_prob": ref}, batch_size=len(batch))
        )
        train_step(trainer, batch, step)
        rows = read_rows(batch.keys, ["input_ids", column])
        born |= {t.tobytes(): c.tobytes() for t, c in zip(rows["input_ids"], rows[column], strict=True)}
    sent = trainer.actor_rollout_wg.updates[1]
    chunk = sent.chunks[0]
    assert set(sent.batch.fields) == UPDATE_COLUMNS | {column}
    pairs = zip(chunk["input_ids"].unbind(), chunk[column].unbind(), strict=True)
    assert [born[t.numpy().tobytes()] for t, _ in pairs] == [c.numpy().tobytes() for c in chunk[column].unbind()]
    assert sum(key.startswith("replayed-") for key in sent.keys) == 4


def test_o3_i7_a_column_missing_on_one_row_is_refused_at_the_border(rng):
    from tensordict import TensorDict

    trainer = make_trainer(compose_config("actor_rollout_ref.actor.use_kl_loss=true", prompts=1))
    import transfer_queue as tq

    batch = put_batch([MIXED], step=1, rng=rng)
    some = batch.keys[:3]  # verl's TransferQueue would drop ref_log_prob for all four rows without a word
    ref = torch.nested.as_nested_tensor(
        [torch.zeros(tag["response_len"]) for tag in batch.tags[:3]], layout=torch.jagged
    )
    tq.kv_batch_put(keys=some, partition_id="train", fields=TensorDict({"ref_log_prob": ref}, batch_size=3))
    with pytest.raises(ValueError, match=r"lacks the columns \['ref_log_prob'\].*it has \["):
        train_step(trainer, batch, 1)
    assert not trainer.actor_rollout_wg.updates and not len(trainer.replay_stage.transform.buffer)


def test_o3_stored_rollouts_without_a_column_that_fresh_ones_have_are_refused(rng):
    trainer = make_trainer(compose_config(prompts=1))
    train_step(trainer, put_batch([MIXED], step=1, rng=rng), 1)
    trainer.replay_stage.stored_columns = tuple(
        name for name in trainer.replay_stage.stored_columns if name != "loss_mask"
    )
    with pytest.raises(ValueError, match="columns differ: stored rollouts have .*loss_mask.*, these have "):
        train_step(trainer, put_batch([MIXED], step=2, rng=rng), 2)


# ---- I11: order of completion ---------------------------------------------------------------------------------------


def test_i11_the_order_in_which_rollouts_finish_changes_neither_draws_nor_storage():
    def everything_drawn(shuffle):
        trainer = make_trainer(compose_config("replay.max_age=3", prompts=2))
        finished = np.random.default_rng(7)
        rows = np.random.default_rng(1)
        for step in range(1, 6):
            order = finished.permutation(8) if shuffle else None
            batch = put_batch([MIXED, [0.0, 1.0, 1.0, 0.0]], step=step, rng=rows, order=order)
            train_step(trainer, batch, step)
        sent = trainer.actor_rollout_wg.updates
        replayed = [
            [
                row.tolist()
                for key, row in zip(u.keys, u.chunks[0]["input_ids"].unbind(), strict=True)
                if key.startswith("replayed-")
            ]
            for u in sent
        ]
        everything = trainer.replay_stage.transform.buffer.draw(np.arange(len(trainer.replay_stage.transform.buffer)))
        return replayed, everything.rows.columns["responses"].values.tolist()

    in_order, shuffled = everything_drawn(False), everything_drawn(True)
    assert in_order == shuffled
    assert sum(map(len, in_order[0])) == 4 * 4


# ---- I2, O1, O2: layout, through verl's dispatch and iterator -------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mini_batch", [1, 2, 4])
def test_i2_every_mini_batch_of_every_rank_has_its_share_of_fresh_and_replayed(rng, ranks, mini_batch):
    config = compose_config(prompts=4, mini_batch=mini_batch)
    trainer = make_trainer(config, ranks=ranks)
    groups = [MIXED, MIXED, FLAT, MIXED]
    seen = run(trainer, [groups, groups, groups], rng)
    assert seen[1]["replay/updates"] == 4 // mini_batch
    for update in trainer.actor_rollout_wg.updates[1:]:
        replayed = {key for key in update.keys if key.startswith("replayed-")}
        null = {key for key in update.keys if key.startswith("null-")}
        assert len(update.keys) == len(set(update.keys)) and len(replayed) == 6
        assert len(update.keys) - len(null) == 12 + 6
        by_tokens = {
            row.numpy().tobytes(): key
            for chunk, keys in zip(update.chunks, np.array_split(np.array(update.keys), ranks), strict=True)
            for key, row in zip(keys.tolist(), chunk["input_ids"].unbind(), strict=True)
            if key not in null
        }
        cells = [
            [
                by_tokens[row.numpy().tobytes()]
                for row in cell["input_ids"].unbind()
                if row.numpy().tobytes() in by_tokens
            ]
            for rank in update.mini_batches
            for cell in rank
        ]
        assert [len(rank) for rank in update.mini_batches] == [4 // mini_batch] * ranks
        fresh_counts = [sum(key not in replayed for key in cell) for cell in cells]
        replayed_counts = [sum(key in replayed for key in cell) for cell in cells]
        assert sum(fresh_counts) == 12 and sum(replayed_counts) == 6
        assert max(fresh_counts) - min(fresh_counts) <= 1 and min(fresh_counts) >= 1
        assert max(replayed_counts) - min(replayed_counts) <= 1
        assert update.extra["global_batch_size"] == 18 / (4 // mini_batch)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_o2_i2_fewer_survivors_than_optimizer_steps_or_ranks(rng, ranks):
    """3 rows survive, 8 optimizer steps are due: 3 updates, each with a fresh row, never one without."""
    config = compose_config(group_size=2, prompts=8, mini_batch=1)
    trainer = make_trainer(config, ranks=1 if ranks == 1 else ranks)
    if ranks > 2:
        config.actor_rollout_ref.actor.ppo_mini_batch_size = 2
    groups = [[1.0, 1.0]] * 8
    groups[3] = [1.0, 0.0]
    (metrics,) = run(trainer, [groups], rng)
    (update,) = trainer.actor_rollout_wg.updates
    assert metrics["replay/updates"] == 2
    for u in range(2):
        masks = [rank[u]["loss_mask"].values().sum() for rank in update.mini_batches]
        assert sum(masks) > 0


def test_o1_rows_that_do_not_divide_are_padded_neutrally(rng):
    """10 survivors in 2 mini-batches on 2 ranks with micro-batches of 2: 12 rows in 4 cells of 4, 2 + 4 null."""
    config = compose_config(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2", group_size=5, prompts=4, mini_batch=2
    )
    trainer = make_trainer(config, ranks=2)
    (metrics,) = run(trainer, [[[1, 0, 0, 0, 0], [0] * 5, [1, 1, 0, 0, 0], [1] * 5]], rng)
    (update,) = trainer.actor_rollout_wg.updates
    null = [i for i, key in enumerate(update.keys) if key.startswith("null-")]
    assert len(update.keys) == 16 and len(null) == 6 == metrics["replay/null_rows"]
    masks = [row for chunk in update.chunks for row in chunk["loss_mask"].unbind()]
    assert all(masks[i].sum() == 0 for i in null)
    assert sum(int(m.sum()) for m in masks) == metrics["replay/trained_tokens"]


@pytest.mark.parametrize("kept", ["zero_variance", "none"])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_i5_i2_verls_padding_rows_are_never_stored_drawn_counted_or_sent(rng, kept, ratio):
    """3 groups of 4 in mini-batches of 2 groups: verl itself pads 12 rows to 16. Where it put them all into one
    mini-batch, that one would have no token to average over."""
    options = [f"replay.filter={kept}", f"replay.ratio={ratio}", "replay.composition=fresh_anchored"]
    trainer = make_trainer(compose_config(*options, prompts=3, mini_batch=2))
    seen = run(trainer, [[MIXED, FLAT, MIXED], [MIXED, MIXED, MIXED]], rng)
    assert len(trainer.returned) == 16
    survivors = [8, 12] if kept == "zero_variance" else [12, 12]
    assert [m["replay/fresh/generated"] for m in seen] == [12, 12]
    assert [m["replay/fresh/rollouts"] for m in seen] == survivors
    assert [m["replay/buffer/stored"] for m in seen] == (survivors if ratio else [0, 0])
    assert seen[0]["replay/filter/zero_variance_frac"] == (pytest.approx(1 / 3) if kept == "zero_variance" else 0)
    assert seen[1]["replay/draw/rollouts"] == ratio * min(survivors)
    for update in trainer.actor_rollout_wg.updates:
        assert not any(key.startswith("pad") for key in update.keys)
        for rank in update.mini_batches:
            assert all(cell["loss_mask"].values().sum() > 0 for cell in rank)


# ---- the seam leaves nothing behind ---------------------------------------------------------------------------------


def test_keys_of_ours_are_cleared_and_verls_batch_is_as_it_was(rng, transfer_queue):
    trainer = make_trainer(compose_config("replay.ratio=1.0", prompts=2))
    train_step(trainer, put_batch([MIXED, MIXED], step=1, rng=rng), 1)
    batch = put_batch([MIXED, FLAT], step=2, rng=rng)
    before = read_rows(batch.keys, ["responses", "old_log_probs", "response_mask"])
    train_step(trainer, batch, 2)
    after = read_rows(batch.keys, ["responses", "old_log_probs", "response_mask"])
    assert all(a.tobytes() == b.tobytes() for name in before for a, b in zip(before[name], after[name], strict=True))
    assert sorted(trainer.returned.keys) == sorted(batch.keys)
    left = transfer_queue.kv_list("train")["train"]
    assert not [key for key in left if key.startswith(("replayed-", "null-"))]


def test_a_failing_update_restores_the_worker_group_and_clears_the_keys(rng, transfer_queue):
    trainer = make_trainer(compose_config("replay.ratio=1.0", prompts=1))
    train_step(trainer, put_batch([MIXED], step=1, rng=rng), 1)
    workers = trainer.actor_rollout_wg

    def fails(batch):
        raise RuntimeError("worker died")

    workers.update_actor = fails
    with pytest.raises(RuntimeError, match="worker died"):
        train_step(trainer, put_batch([MIXED], step=2, rng=rng), 2)
    assert workers.update_actor is fails
    left = transfer_queue.kv_list("train")["train"]
    assert not [key for key in left if key.startswith(("replayed-", "null-"))]


def test_a_model_with_a_processor_is_refused(monkeypatch):
    def init_tokenizer(self):
        self.tokenizer, self.processor = object(), object()

    monkeypatch.setattr(PPOTrainerSync, "_init_tokenizer", init_tokenizer)
    with pytest.raises(ValueError, match="text model.*replay=off"):
        make_trainer(compose_config())._init_tokenizer()
    make_trainer(compose_config("replay=off"))._init_tokenizer()


# ---- importance modes and weights, through verl's own stages ---------------------------------------------------------


def by_key(update, column):
    return dict(zip(update.keys, (row.numpy() for row in update.chunks[0][column].unbind()), strict=True))


@pytest.mark.parametrize("mode", ["behavior", "proximal", "decoupled"])
def test_o13_importance_modes_compare_with_what_they_say(rng, mode):
    """One drawn token at a time: behavior -> its log-prob at birth; proximal, decoupled -> that of the policy now."""
    trainer = make_trainer(compose_config(f"replay.importance={mode}", "replay.ratio=1.0", prompts=1))
    run(trainer, [[MIXED], [MIXED]], rng)
    sent = trainer.actor_rollout_wg.updates[1]
    now = [toy_log_probs(row, version=1).numpy() for row in sent.chunks[0]["input_ids"].unbind()]
    lengths = {key: len(row) for key, row in by_key(sent, "responses").items()}
    drawn = [i for i, key in enumerate(sent.keys) if key.startswith("replayed-")]
    assert len(drawn) == 4
    stored = trainer.replay_stage.transform.buffer.draw(np.arange(4)).rows.columns
    births = {stored["responses"].row(i).tobytes(): i for i in range(4)}
    for i in drawn:
        key = sent.keys[i]
        row = births[by_key(sent, "responses")[key].tobytes()]
        current = now[i][-lengths[key] - 1 : -1]
        if mode == "behavior":
            assert by_key(sent, "old_log_probs")[key].tobytes() == stored["old_log_probs"].row(row).tobytes()
            assert "rollout_is_weights" not in sent.batch.fields
        else:
            np.testing.assert_array_equal(by_key(sent, "old_log_probs")[key], current)
        if mode == "decoupled":
            sampled = stored["rollout_log_probs"].row(row)
            weight = np.minimum(np.exp(current - sampled), 2.0)
            np.testing.assert_allclose(by_key(sent, "rollout_is_weights")[key], weight, rtol=1e-6)
    if mode == "decoupled":  # fresh rows have weight 1, under keys of our own: verl's batch is not written to
        fresh = [key for key in sent.keys if key.startswith("fresh-")]
        assert len(fresh) == 4
        assert all((by_key(sent, "rollout_is_weights")[key] == 1).all() for key in fresh)


def test_bypass_mode_compares_with_the_engine_that_sampled_the_tokens(rng):
    """verl's own _compute_old_log_prob puts the engine's log-probs in place of the actor's; they are what is stored."""
    options = ["algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.rollout_is=token"]
    trainer = make_trainer(compose_config(*options, "replay.ratio=1.0", prompts=1))
    engine = {}
    for step in (1, 2):
        batch = put_batch([MIXED], step=step, rng=rng, drop=["old_log_probs"])
        trainer._compute_old_log_prob(batch, {})
        train_step(trainer, batch, step)
        rows = read_rows(batch.keys, ["responses", "rollout_log_probs"])
        engine |= {t.tobytes(): p for t, p in zip(rows["responses"], rows["rollout_log_probs"], strict=True)}
    sent = trainer.actor_rollout_wg.updates[1]
    assert sum(key.startswith("replayed-") for key in sent.keys) == 4
    old = by_key(sent, "old_log_probs")
    for key, tokens in by_key(sent, "responses").items():
        assert old[key].tobytes() == engine[tokens.tobytes()].tobytes()
    assert "rollout_is_weights" not in sent.batch.fields  # verl computes none in this mode


def test_a_draw_with_replacement_sends_each_copy(rng):
    """Pooled, with replacement: a rollout may stand in the update twice, under keys of its own."""
    options = ["replay=per", "replay.composition=pooled", "replay.priority_exponent=4", "replay.ratio=1.0"]
    trainer = make_trainer(compose_config(*options, "replay.warmup_steps=0", prompts=2))
    repeats = 0
    for step in range(1, 5):
        metrics = train_step(trainer, put_batch([MIXED, MIXED], step=step, rng=rng), step)
        sent = trainer.actor_rollout_wg.updates[-1]
        assert len(set(sent.keys)) == len(sent.keys)
        real = [key for key in sent.keys if not key.startswith("null-")]
        assert len(real) == metrics["replay/fresh/rollouts"] + metrics["replay/draw/rollouts"]
        counts = Counter(by_key(sent, "input_ids")[key].tobytes() for key in real)
        repeats += max(counts.values()) - 1
        assert sum(counts.values()) == len(real)
    assert repeats > 0


# ---- what rows can be ------------------------------------------------------------------------------------------------


def test_trajectories_of_a_session_are_filtered_stored_and_drawn_together(rng):
    """Every second session has a second row (verl's agent loops may return several); both have its advantage."""
    trainer = make_trainer(compose_config("replay.ratio=1.0", prompts=1))
    for step in (1, 2):
        keys, rows = rollout_rows([MIXED], step=step, rng=rng, lengths=[3, 4, 5, 6])
        _, more = rollout_rows([MIXED], step=step, rng=rng, lengths=[2, 2, 2, 2])
        for s in (1, 3):
            row = {**more[s], "uid": rows[s]["uid"], "session_id": s}
            at = keys.index(f"{rows[s]['uid']}_{s}_0")
            keys.insert(at, f"{rows[s]['uid']}_{s}_1")  # before the first trajectory: order of completion
            rows.insert(at, row)
        metrics = train_step(trainer, put_rows(keys, rows, step=step), step)
        assert metrics["replay/fresh/rollouts"] == 4 and metrics["replay/buffer/size"] == 4 * step
    sent = trainer.actor_rollout_wg.updates[1]
    replayed = [key for key in sent.keys if key.startswith("replayed-")]
    assert metrics["replay/draw/rollouts"] == 4 and len(replayed) == 6  # sessions, rows
    advantages = by_key(sent, "advantages")
    assert sorted(len(row) for key, row in advantages.items() if key in replayed) == [2, 2, 3, 4, 5, 6]
    stored = trainer.replay_stage.transform.buffer.draw(np.arange(4)).rows
    assert np.diff(stored.rollouts).tolist() == [1, 2, 1, 2]
    for first, last in zip(stored.rollouts[:-1], stored.rollouts[1:], strict=True):
        values = {stored.columns["advantages"].row(i)[0] for i in range(first, last)}
        assert len(values) == 1


def test_tool_tokens_stay_masked(rng):
    trainer = make_trainer(compose_config("replay.ratio=1.0", prompts=1))
    masks = {}
    for step in (1, 2):
        batch = put_batch([MIXED], step=step, rng=rng, turns=True, lengths=[9, 9, 9, 9])
        train_step(trainer, batch, step)
        rows = read_rows(batch.keys, ["input_ids", "loss_mask"])
        masks |= {t.tobytes(): m for t, m in zip(rows["input_ids"], rows["loss_mask"], strict=True)}
    assert any(0 < mask.sum() < 9 for mask in masks.values())
    sent = trainer.actor_rollout_wg.updates[1]
    ids, sent_masks = by_key(sent, "input_ids"), by_key(sent, "loss_mask")
    assert all(sent_masks[key].tobytes() == masks[ids[key].tobytes()].tobytes() for key in sent.keys)
    assert sum(key.startswith("replayed-") for key in sent.keys) == 4


# ---- the asynchronous modes ------------------------------------------------------------------------------------------


def async_config(mode, *options, prompts, mini_batch):
    more = []
    if mode == "separate_async":
        more = [
            f"trainer.v1.separate_async.parameter_sync_step={prompts // mini_batch}",
            "actor_rollout_ref.rollout.nnodes=1",
            "actor_rollout_ref.rollout.n_gpus_per_node=1",
            "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
            "trainer.v1.separate_async.hybrid_rollout.enable_switch=false",
        ]
    return compose_config(f"trainer.v1.trainer_mode={mode}", *more, *options, prompts=prompts, mini_batch=mini_batch)


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_i4_where_rollouts_run_ahead_they_are_born_into_the_update_after_their_weights(rng, mode):
    """Begun with the weights of step 1, trained on at step 4: born at 2, of age 2 while fresh; max_age=3 draws it at 5
    (age 3) and evicts it at 6. Weights of version 0 are those of step 1."""
    config = async_config(mode, "replay.max_age=3", "replay.ratio=1.0", prompts=1, mini_batch=1)
    trainer = make_trainer(config, cls=TRAINERS[mode])
    seen = {}
    for step, weights in ((1, 0), (4, 1), (5, 4), (6, 4)):
        seen[step] = train_step(trainer, put_batch([MIXED], step=step, rng=rng, weights_of=weights), step)
        if step == 1:
            assert trainer.replay_stage.transform.buffer.table.born.tolist() == [1] * 4
        if step == 4:
            assert trainer.replay_stage.transform.buffer.table.born.tolist() == [1] * 4 + [2] * 4
    assert seen[4]["replay/draw/age/mean"] == 3  # those of step 1, not those stored in step 4
    assert seen[5]["replay/draw/age/mean"] == 3 and seen[5]["replay/buffer/evicted_age"] == 4
    assert seen[6]["replay/draw/age/mean"] == 1 and seen[6]["replay/buffer/evicted_age"] == 4


def test_separate_async_several_updates_a_step_through_verls_own_step(rng):
    """verl's PPOTrainer.step: two updates between weight transfers. What the first stores, the second does not draw
    (I4); counts add up, shares and ages do not (MetricsAggregator)."""
    config = async_config("separate_async", "replay.ratio=0.5", prompts=4, mini_batch=2)
    trainer = make_trainer(config, cls=TRAINERS["separate_async"])
    trainer.current_mode = HybridEngineMode.TRAINER
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[object()])
    trainer.use_reference_policy = trainer.use_critic = False
    for name in (
        "save_model_to_cpu",
        "restore_model_from_cpu",
        "clear_cpu_model",
    ):  # verl keeps the old policy by these
        setattr(trainer.actor_rollout_wg, name, lambda version: None)

    def sample(global_steps, partition_id, batch_size):
        assert batch_size == 2
        return put_batch([MIXED, FLAT], step=global_steps, rng=rng), {}

    trainer.replay_buffer = SimpleNamespace(sample=sample)
    trainer._add_batch_to_generate = lambda: None  # prompts for the next rollouts
    trainer.curr_step_profile = trainer.prev_step_profile = False
    trainer._step_sample_wait_seconds = 0.0  # set by on_step_begin, which fit() calls
    logs = []
    for step in (1, 2, 3):
        trainer.global_steps, trainer.timing_raw = step, {}
        metrics: dict = {}
        trainer.step(metrics, trainer.timing_raw)
        logs.append(metrics)
    updates = trainer.actor_rollout_wg.updates
    assert len(updates) == 6
    replayed = [sum(key.startswith("replayed-") for key in update.keys) for update in updates]
    assert replayed == [0, 0, 2, 2, 2, 2]  # of 4 survivors each; the second update of step 1 draws nothing
    assert [log["replay/draw/rollouts/sum"] for log in logs] == [0, 4, 4]
    assert [log["replay/fresh/rollouts/sum"] for log in logs] == [8, 8, 8]
    assert [log["replay/updates/sum"] for log in logs] == [2, 2, 2]
    assert logs[1]["replay/draw/age/mean"] == 1
    assert logs[2]["replay/draw/age/max"] <= 2
    assert logs[0]["replay/filter/zero_variance_frac"] == 0.5
    assert logs[2]["replay/buffer/size"] == pytest.approx((20 + 24) / 2)  # a level, not a count: averaged
    assert "replay/draw/rollouts" not in logs[1]


def test_every_mode_of_verl_has_a_trainer():
    import verl.trainer.ppo.v1  # noqa: F401  registers verl's own
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    assert set(TRAINERS) == set(TRAINER_REGISTRY) == set(support.MODES)
    assert all(issubclass(TRAINERS[mode], cls) for mode, cls in TRAINER_REGISTRY.items())
