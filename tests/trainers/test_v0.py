"""The V0 hook on the real path: RayPPOTrainer's own __init__, _balance_batch, compute_advantage and _update_actor,
verl's own dispatch and iterator. Only the worker group is a stub, which keeps what it is sent."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from tests.verl_batch import compose_config, make_trainer, put_rows, rollout_rows, train_step
from tests.verl_batch_v0 import make_batch, make_trainer_v0, to_dataproto, train_step_v0
from verl_replay.trainers.v0 import ReplayMixinV0

MIXED, FLAT = [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]


def sent_rows(update) -> list[dict[str, np.ndarray]]:
    """Every row that was sent, rank by rank, null rows included, without padding; known columns as arrays."""
    rows = []
    for chunk in update.chunks:
        prompts, responses = chunk["prompts"], chunk["responses"]
        ids, masks = chunk["input_ids"].unbind(), chunk["response_mask"].unbind()
        for i, sequence in enumerate(ids):
            row = {"input_ids": sequence.numpy()}
            prompt = int((prompts[i] != 0).sum()) if not prompts.is_nested else len(prompts.unbind()[i])
            length = len(sequence) - prompt
            for name in ("old_log_probs", "advantages", "rollout_is_weights", "ref_log_prob"):
                if name in chunk.keys():
                    row[name] = chunk[name].unbind()[i].numpy()[:length]
            row["response_mask"] = masks[i].numpy()[:length]
            rows.append(row)
        del responses
    return rows


def as_bytes(row: dict[str, np.ndarray]) -> tuple:
    return tuple((name, str(value.dtype), value.tobytes()) for name, value in sorted(row.items()))


# ---- I1: off ---------------------------------------------------------------------------------------------------------


def test_i1_off_hands_verl_its_own_batch_and_changes_nothing(rng):
    config = compose_config("replay=off", prompts=3)
    batch = make_batch([MIXED, FLAT, MIXED], step=1, rng=rng)
    ours, stock = make_trainer_v0(config), make_trainer_v0(config, cls=RayPPOTrainer)
    metrics = train_step_v0(ours, copy.deepcopy(batch), 1)
    assert metrics == train_step_v0(stock, copy.deepcopy(batch), 1)
    first, second = (sent_rows(t.actor_rollout_wg.updates[0]) for t in (ours, stock))
    assert [as_bytes(row) for row in first] == [as_bytes(row) for row in second]
    assert ours.actor_rollout_wg.updates[0].extra == stock.actor_rollout_wg.updates[0].extra
    assert not hasattr(ours, "replay_stage")


def test_i1_nothing_dropped_and_nothing_drawn_is_the_stock_update(rng):
    config = compose_config("replay=filtered", "replay.filter=none", prompts=2)
    batch = make_batch([MIXED, FLAT], step=1, rng=rng)
    ours, stock = make_trainer_v0(config), make_trainer_v0(config, cls=RayPPOTrainer)
    metrics = train_step_v0(ours, copy.deepcopy(batch), 1)
    stock_metrics = train_step_v0(stock, copy.deepcopy(batch), 1)
    assert {k: v for k, v in metrics.items() if "replay" not in k} == stock_metrics
    first, second = (sent_rows(t.actor_rollout_wg.updates[0]) for t in (ours, stock))
    assert [as_bytes(row) for row in first] == [as_bytes(row) for row in second]


# ---- the same method as V1 -------------------------------------------------------------------------------------------

ARMS = {
    "fresh_anchored": [],
    "pooled": ["replay=pooled"],
    "per": ["replay=per", "replay.priority_exponent=2"],
    "pooled_per": ["replay=per", "replay.composition=pooled"],  # fresh rows carry weights and may repeat
    "grouped": ["replay=grouped", "replay.ratio=1"],
    "unfiltered": ["replay=unfiltered"],
    "proximal": ["replay=proximal"],
    "decoupled": ["replay=decoupled"],
    "decoupled_corrected": ["replay=decoupled", "algorithm.rollout_correction.rollout_is=token"],
    "corrected": ["algorithm.rollout_correction.rollout_is=token"],
    "per_corrected": ["replay=per", "algorithm.rollout_correction.rollout_is=token"],
    "kl_loss": ["actor_rollout_ref.actor.use_kl_loss=true"],
    "kl_in_reward": ["algorithm.use_kl_in_reward=true"],
    "rloo": ["algorithm.adv_estimator=rloo"],
}


@pytest.mark.usefixtures("clear_partition")
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_both_generations_draw_and_train_on_the_same(arm, ranks):
    """Same recorded rollouts, same flips: the same rows in the same order, birth log-probs, advantages and weights, the
    same sizes, the same metrics."""
    options = ["replay.diagnostics_every=1", *ARMS[arm]]
    config = compose_config(*options, "replay.warmup_steps=0", group_size=4, prompts=4, mini_batch=2)
    v1, v0 = make_trainer(config, ranks=ranks), make_trainer_v0(config, ranks=ranks)
    rng = np.random.default_rng(5)
    tolerance = 1e-3 if arm == "kl_in_reward" else 1e-6  # verl sums the penalty in another order
    drawn = 0
    for step in range(1, 6):
        rewards = [MIXED, FLAT, [0.0, 1.0, 1.0, 0.0], [0.25, 1.0, 0.0, 0.5]]
        keys, rows = rollout_rows(rewards, step=step, rng=rng)
        for row in rows:
            row["ref_log_prob"] = -torch.from_numpy(rng.random(len(row["responses"]), dtype=np.float32))
        log_v0 = train_step_v0(v0, to_dataproto(keys, rows), step)
        log_v1 = train_step(v1, put_rows(keys, rows, step=step, order=rng.permutation(16).tolist()), step)
        ours_v0, ours_v1 = ({k: v for k, v in log.items() if k.startswith("replay/")} for log in (log_v0, log_v1))
        assert set(ours_v0) == set(ours_v1)
        for name, value in ours_v0.items():
            assert value == pytest.approx(ours_v1[name], rel=tolerance), name
        sent_v0, sent_v1 = v0.actor_rollout_wg.updates[-1], v1.actor_rollout_wg.updates[-1]
        for name in ("mini_batch_size", "global_batch_size", "epochs"):
            assert sent_v0.extra[name] == sent_v1.extra[name]
        pairs = list(zip(sent_rows(sent_v0), sent_rows(sent_v1), strict=True))
        if log_v0["replay/draw/rollouts"] == 0 and log_v0["replay/fresh/rollouts"] == 16:
            # nothing dropped, nothing drawn: verl's own batch, in verl's own order
            first, second = (sorted(rows, key=lambda r: r["input_ids"].tobytes()) for rows in zip(*pairs, strict=True))
            pairs = list(zip(first, second, strict=True))
        assert len(pairs) == len(sent_v1.keys)
        for first, second in pairs:
            assert first["response_mask"].sum() == second["response_mask"].sum()
            if first["response_mask"].sum() == 0:
                continue  # a null row
            assert set(first) == set(second)
            for name in first:
                assert first[name].dtype == second[name].dtype
                np.testing.assert_allclose(first[name], second[name], rtol=tolerance, err_msg=name)
        drawn += log_v0["replay/draw/rollouts"]
    assert drawn >= 4 * 4


# ---- I5: copies ------------------------------------------------------------------------------------------------------


def test_i5_verls_batch_is_as_it_was(rng):
    trainer = make_trainer_v0(compose_config("replay.ratio=1.0", prompts=2))
    for step in (1, 2):
        batch = make_batch([MIXED, [0.0, 0.0, 1.0, 1.0]], step=step, rng=rng)
        seen = {}

        def update(data, seen=seen, trainer=trainer):
            seen["before"] = (data.batch.clone(), copy.deepcopy(data.non_tensor_batch), copy.deepcopy(data.meta_info))
            return ReplayMixinV0._update_actor(trainer, data)

        trainer._update_actor = update
        log = train_step_v0(trainer, batch, step)
        del trainer._update_actor
        tensors, objects, meta = seen["before"]
        after = trainer.trained_on
        assert set(tensors.keys()) == set(after.batch.keys())
        assert all(torch.equal(tensors[name], after.batch[name]) for name in tensors.keys())
        assert {name: list(column) for name, column in objects.items()} == {
            name: list(column) for name, column in after.non_tensor_batch.items()
        }
        if step == 2:
            assert log["replay/draw/rollouts"] == 8 and meta == after.meta_info


def test_o5_rows_stored_in_other_widths_join(rng):
    """Born at widths (6, 12), drawn into batches of (4, 5) and (9, 20): equal tokens, masks and positions."""
    trainer = make_trainer_v0(compose_config("replay.ratio=1.0", "replay.max_age=1", prompts=1))
    born = make_batch([MIXED], step=1, rng=rng, lengths=[8, 3, 11, 1])
    train_step_v0(trainer, born, 1)
    originals = {tuple(row["input_ids"]): row for row in sent_rows(trainer.actor_rollout_wg.updates[0])}
    for step, widths in ((2, (5, 5)), (3, (9, 20))):
        train_step_v0(trainer, make_batch([MIXED], step=step, rng=rng, widths=widths, lengths=[5, 5, 2, 4]), step)
        sent = sent_rows(trainer.actor_rollout_wg.updates[-1])
        again = [row for row in sent if tuple(row["input_ids"]) in originals]
        assert len(sent) == 8 and len(again) == 4
        for row in again:
            assert as_bytes(row) == as_bytes(originals[tuple(row["input_ids"])])
        seen = set(originals)
        originals = {tuple(row["input_ids"]): row for row in sent if tuple(row["input_ids"]) not in seen}
        positions = [
            row for chunk in trainer.actor_rollout_wg.updates[-1].chunks for row in chunk["position_ids"].unbind()
        ]
        assert all(row.tolist() == list(range(len(row))) for row in positions)


def test_o4_meta_info_that_differs_between_steps_does_not_matter(rng):
    trainer = make_trainer_v0(compose_config("replay.ratio=1.0", prompts=1))
    for step in (1, 2):
        batch = make_batch([MIXED], step=step, rng=rng)
        batch.meta_info |= {"timing": 1.0 + step * 1e-6, "images_seqlens": []}
        train_step_v0(trainer, batch, step)
    sent = trainer.actor_rollout_wg.updates[1]
    assert sent.extra["temperature"] == trainer.config.actor_rollout_ref.rollout.temperature
    assert len(sent_rows(sent)) == 8


def test_o6_object_columns_are_neither_stored_nor_sent(rng):
    """A column whose values all have length 2 in one batch and are ragged in the next."""
    trainer = make_trainer_v0(compose_config("replay.ratio=1.0", prompts=1))
    for step, lengths in ((1, [2, 2, 2, 2]), (2, [1, 2, 3, 4])):
        batch = make_batch([MIXED], step=step, rng=rng)
        turns = np.empty(4, dtype=object)
        turns[:] = [list(range(n)) for n in lengths]
        batch.non_tensor_batch["turns"] = turns
        train_step_v0(trainer, batch, step)
    assert len(sent_rows(trainer.actor_rollout_wg.updates[1])) == 8
    assert "turns" not in trainer.replay_stage.stored_columns


# ---- I10, O3, O20 ----------------------------------------------------------------------------------------------------


def test_o20_i10_no_survivors_no_update_and_the_next_step_runs(rng):
    trainer = make_trainer_v0(compose_config(prompts=1))
    logs = [
        train_step_v0(trainer, make_batch([group], step=step, rng=rng), step)
        for step, group in enumerate([FLAT, MIXED, FLAT, MIXED], start=1)
    ]
    assert [log["replay/updates"] for log in logs] == [0, 1, 0, 1]
    assert len(trainer.actor_rollout_wg.updates) == 2 and logs[3]["replay/draw/rollouts"] == 2


def test_o3_a_missing_column_is_refused_at_the_border(rng):
    trainer = make_trainer_v0(compose_config("actor_rollout_ref.actor.use_kl_loss=true", prompts=1))
    with pytest.raises(ValueError, match=r"lacks the columns \['ref_log_prob'\].*it has \["):
        train_step_v0(trainer, make_batch([MIXED], step=1, rng=rng), 1)
    assert not trainer.actor_rollout_wg.updates and not len(trainer.replay_stage.transform.buffer)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("old_log_probs", lambda t: t.double(), "old_log_probs must be float32.*got float64"),
        ("advantages", lambda t: t.half(), "advantages must be float32.*got float16"),
        ("responses", lambda t: t.int(), "responses must be int64.*got int32"),
        ("old_log_probs", lambda t: t.unsqueeze(-1), r"old_log_probs must be \(rows, tokens\)"),
    ],
)
def test_a_column_of_another_shape_or_dtype_is_refused(rng, name, spoil, message):
    trainer = make_trainer_v0(compose_config(prompts=1))
    batch = make_batch([MIXED], step=1, rng=rng)
    update = trainer._update_actor

    def spoilt(data):
        data.batch[name] = spoil(data.batch[name])
        return update(data)

    trainer._update_actor = spoilt
    with pytest.raises(ValueError, match=message):
        train_step_v0(trainer, batch, 1)
    assert not trainer.actor_rollout_wg.updates and not len(trainer.replay_stage.transform.buffer)


def test_order_does_not_depend_on_balancing(rng):
    """With trainer.balance_batch off rows stay as generated; draws and storage are the same."""

    def stored(balance):
        own = np.random.default_rng(3)
        config = compose_config(f"trainer.balance_batch={balance}", prompts=3)
        trainer = make_trainer_v0(config)
        for step in range(1, 4):
            train_step_v0(trainer, make_batch([MIXED, FLAT, MIXED], step=step, rng=own), step)
        buffer = trainer.replay_stage.transform.buffer
        rows = buffer.draw(np.arange(len(buffer))).rows
        return rows.columns["responses"].values.tolist(), buffer.table.uses.tolist()

    assert stored(True) == stored(False)


def test_a_model_with_a_processor_is_refused():
    class WithImages(RayPPOTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs, processor=SimpleNamespace())

    cls = type("Replaying", (ReplayMixinV0, WithImages), {})
    with pytest.raises(ValueError, match="text model.*replay=off"):
        make_trainer_v0(compose_config(), cls=cls)
    make_trainer_v0(compose_config("replay=off"), cls=cls)


def test_a_failing_update_restores_the_worker_group(rng):
    trainer = make_trainer_v0(compose_config("replay.ratio=1.0", prompts=1))
    train_step_v0(trainer, make_batch([MIXED], step=1, rng=rng), 1)

    def fails(batch):
        raise RuntimeError("worker died")

    trainer.actor_rollout_wg.update_actor = fails
    with pytest.raises(RuntimeError, match="worker died"):
        train_step_v0(trainer, make_batch([MIXED], step=2, rng=rng), 2)
    assert trainer.actor_rollout_wg.update_actor is fails
