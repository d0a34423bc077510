"""verl_replay.queues: the interval, the refusals, and an order that does not depend on which rollout finished first."""

from __future__ import annotations

import random

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import replay_buffer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.import_utils import load_extern_type
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from verl_replay import queues
from verl_replay.queues import AsyncPromptRolloutQueue, OrderedPromptRolloutQueue, PromptRolloutQueue


def queue_of(cls: type, trainer_mode: str = "sync", **sampler_kwargs):
    """A queue made with the arguments that verl gives a custom one."""
    return cls(
        trainer_mode=trainer_mode,
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create(sampler_kwargs),
        refill_fn=lambda n: n,
    )


# ---- what verl does with a custom sampler ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["PromptRolloutQueue", "AsyncPromptRolloutQueue", "OrderedPromptRolloutQueue"])
def test_verl_loads_it_by_package_path(name):
    assert load_extern_type("pkg://verl_replay.queues", name) is getattr(queues, name)


def built_by_verl(**sampler):
    """What verl's own _build_replay_buffer makes of a configuration, without a trainer around it."""
    trainer = object.__new__(PPOTrainerSync)
    trainer.trainer_mode = "sync"
    trainer.config = OmegaConf.create(
        {
            "trainer": {
                "v1": {
                    "sync": {},
                    "sampler": {
                        "max_off_policy_threshold": 8,
                        "max_off_policy_strategy": "drop",
                        "sync_refill_failed_groups": True,
                        "sampler_kwargs": {},
                        **sampler,
                    },
                }
            },
            "algorithm": {"filter_groups": {"enable": True, "metric": "reward", "max_inflight_gen_batches": 1}},
            "data": {"train_batch_size": 4},
            "reward": {"reward_model": {"enable": False}},
            "actor_rollout_ref": {"rollout": {"n": 4}},
        }
    )
    return trainer._build_replay_buffer()


def test_verl_passes_a_custom_queue_no_filter_of_groups():
    custom = built_by_verl(custom_sampler={"path": "pkg://verl_replay.queues", "name": "PromptRolloutQueue"})
    assert type(custom) is PromptRolloutQueue
    assert custom.filter_groups_metric is None and custom.sync_refill_failed_groups is False
    stock = built_by_verl(custom_sampler={"path": None, "name": None})
    assert stock.filter_groups_metric == "reward" and stock.sync_refill_failed_groups is True


# ---- the interval ----------------------------------------------------------------------------------------------------


def test_the_interval_is_short_and_adjustable(monkeypatch):
    slept = []
    monkeypatch.setattr(replay_buffer.time, "sleep", slept.append)
    queue_of(replay_buffer.ReplayBuffer)._wait_for_next_poll("train", 0.0)
    queue_of(PromptRolloutQueue)._wait_for_next_poll("train", 0.0)
    queue_of(OrderedPromptRolloutQueue, poll_interval=0.02)._wait_for_next_poll("train", 0.0)
    queue_of(AsyncPromptRolloutQueue, "colocate_async", poll_interval=1)._wait_for_next_poll("train", 0.0)
    assert slept == [2.0, 0.05, 0.02, 1.0]


@pytest.mark.parametrize("value", [0, -1.0, "0.1", True, None, float("nan"), float("inf")])
def test_an_interval_that_is_no_time_is_refused(value):
    with pytest.raises(ValueError, match="poll_interval must be a number of seconds > 0, got"):
        queue_of(PromptRolloutQueue, poll_interval=value)


def test_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match=r"no option \['pol_interval'\].*accepts \['poll_interval'\]"):
        queue_of(PromptRolloutQueue, pol_interval=0.1)


def test_each_queue_names_the_one_for_the_other_trainers():
    with pytest.raises(ValueError, match="got 'colocate_async'.*AsyncPromptRolloutQueue"):
        queue_of(PromptRolloutQueue, "colocate_async")
    with pytest.raises(ValueError, match="name=PromptRolloutQueue"):
        queue_of(AsyncPromptRolloutQueue, "sync")
    assert queue_of(AsyncPromptRolloutQueue, "colocate_async").wait_for_sampleable  # separate_async asks for it


# ---- the order -------------------------------------------------------------------------------------------------------


class FakeTransferQueue:
    """TransferQueue's key-value part over one dict, with its way to drop a column that a row lacks."""

    def __init__(self, rows: dict[str, dict], order: list[str]):
        uids = {key.split("_")[0] for key in rows}
        self.tags = {uid: {"is_prompt": True, "status": "finished", "global_steps": 3} for uid in uids}
        self.tags |= {key: {"status": "success", "seq_len": rows[key].get("seq_len", 0)} for key in order}
        self.rows = rows
        self.fetched: list[list[str]] = []

    def kv_list(self, partition_id=None):
        return {"train": self.tags}

    def kv_clear(self, keys, partition_id):
        pass

    def kv_batch_get(self, keys, partition_id, select_fields):
        assert partition_id == "train"
        self.fetched.append(select_fields)
        present = [name for name in select_fields if all(name in self.rows[key] for key in keys)]
        if not present:
            return TensorDict({}, batch_size=[len(keys)])
        return list_of_dict_to_tensordict([{name: self.rows[key][name] for name in present} for key in keys])


def sampled(monkeypatch, rows: dict[str, dict], seed: int) -> tuple[KVBatchMeta, FakeTransferQueue]:
    """One `sample` of all rows, which finished in an order drawn with `seed`."""
    order = list(rows)
    random.Random(seed).shuffle(order)
    fake = FakeTransferQueue(rows, order)
    for name in ("kv_list", "kv_clear", "kv_batch_get"):
        monkeypatch.setattr(replay_buffer.tq, name, getattr(fake, name))
    n_prompts = len({key.split("_")[0] for key in rows})
    batch, metrics = queue_of(OrderedPromptRolloutQueue).sample(
        global_steps=3, partition_id="train", batch_size=n_prompts
    )
    assert metrics == {}
    return batch, fake


def row(index, prompt=(1, 2), seq_len=0) -> dict:
    return {"index": index, "prompts": torch.tensor(prompt), "seq_len": seq_len}


@pytest.mark.parametrize("seed", range(5))
def test_rows_come_by_index_then_session_then_trajectory(monkeypatch, seed):
    rows = {
        "uidb_0_0": row(2),
        "uidb_0_1": row(2),
        "uidb_2_0": row(2),
        "uidb_10_0": row(2),  # session 10 after session 2: numbers, not text
        "uida_0_0": row(11),  # index 11 after index 2
        "uida_1_0": row(11, seq_len=7),
    }
    batch, fake = sampled(monkeypatch, rows, seed)
    assert batch.keys == list(rows)
    assert batch.tags[-1]["seq_len"] == 7  # tags moved with their keys
    assert fake.fetched == [["index"]]


@pytest.mark.parametrize("seed", range(5))
def test_rows_with_one_index_come_by_prompt(monkeypatch, seed):
    rows = {
        "uidz_0_0": row(0, (1, 2)),
        "uidy_0_0": row(0, (1, 2, 3)),
        "uidx_0_0": row(0, (4,)),
        "uidz_1_0": row(0, (1, 2)),
        "uidy_1_0": row(0, (1, 2, 3)),
        "uidx_1_0": row(0, (4,)),
    }
    batch, fake = sampled(monkeypatch, rows, seed)
    assert batch.keys == list(rows)
    assert fake.fetched == [["index"], ["prompts"]]


@pytest.mark.parametrize("indices", [("a-1", "a-2", "b"), (3, 20, "3"), torch.tensor([3, 20, 100])])
@pytest.mark.parametrize("seed", range(3))
def test_an_index_may_be_text_or_a_tensor(monkeypatch, indices, seed):
    rows = {key: row(index) for key, index in zip(["u_0_0", "v_0_0", "w_0_0"], indices, strict=True)}
    batch, _ = sampled(monkeypatch, rows, seed)
    assert batch.keys == ["u_0_0", "v_0_0", "w_0_0"]


def test_without_an_index_the_reason_is_given(monkeypatch):
    rows = {"u_0_0": row(1), "v_0_0": {"prompts": torch.tensor([1])}}
    with pytest.raises(ValueError, match="sorts by the field 'index'"):
        sampled(monkeypatch, rows, 0)
