"""What we rely on in verl 0.9.1. Where one of these fails, verl has changed: read what it names before going on."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import textwrap

import pytest
from verl.trainer import main_ppo_v0
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.utils import MetricsAggregator
from verl.utils import tensordict_utils
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding


def digest(function) -> str:
    return hashlib.sha256(textwrap.dedent(inspect.getsource(function)).encode()).hexdigest()[:12]


# function -> (digest of its source, what we rely on in it)
RELIED_ON = {
    "PPOTrainer._step_once": (
        PPOTrainer._step_once,
        "b82ae0c246dd",
        "_update_actor follows _compute_advantage and gets its batch",
    ),
    "PPOTrainer.fit": (
        PPOTrainer.fit,
        "f1c6fc155674",
        "metrics are of the batch that step() returns; its keys are cleared",
    ),
    "PPOTrainer._update_actor": (
        PPOTrainer._update_actor,
        "604dd6989c33",
        "sets batch sizes in extra_info, then calls the workers",
    ),
    "PPOTrainer._balance_batch": (
        PPOTrainer._balance_batch,
        "358620695a10",
        "fills _dispatch_info['actor']; pads the batch",
    ),
    "PPOTrainer._compute_advantage": (
        PPOTrainer._compute_advantage,
        "ce9f40b2d0ce",
        "writes advantages; rejection changes masks",
    ),
    "PPOTrainer._compute_old_log_prob": (
        PPOTrainer._compute_old_log_prob,
        "e9ee1fc72ac5",
        "old_log_probs are of the response",
    ),
    "upsample_batch_to_divisible_size": (
        upsample_batch_to_divisible_size,
        "65c6774fbd9d",
        "padding rows are tagged is_padding",
    ),
    "TrainingWorker.train_mini_batch": (
        TrainingWorker.train_mini_batch,
        "bca9f3584d16",
        "prefers mini_batch_size, cuts in order",
    ),
    "ppo_loss": (ppo_loss, "d7c0f8772b44", "the columns that the update reads; what the losses divide by"),
    "PPOTrainer.step": (
        PPOTrainer.step,
        "c583b34f7e91",
        "several updates a step, aggregated by name, with parameter_sync_step > 1",
    ),
    "MetricsAggregator": (MetricsAggregator, "04aa1dff2d28", "sums names that hold sum"),
    "RayPPOTrainer.fit": (
        RayPPOTrainer.fit,
        "b5678ef1a7c0",
        "_balance_batch after generation; _update_actor's output is logged",
    ),
    "RayPPOTrainer._update_actor": (
        RayPPOTrainer._update_actor,
        "736c50c68808",
        "assigns batch sizes, then calls the workers; loss_mask is the response_mask",
    ),
    "RayPPOTrainer._balance_batch": (
        RayPPOTrainer._balance_batch,
        "b7c960a9913b",
        "reorders object columns with the rest",
    ),
    "RayPPOTrainer._compute_old_log_prob": (
        RayPPOTrainer._compute_old_log_prob,
        "37936dd4c6de",
        "returns old_log_probs as wide as the responses",
    ),
    "left_right_2_no_padding": (left_right_2_no_padding, "8b09e2ef9bb5", "takes padding off by attention_mask"),
    "main_ppo_v0.TaskRunner.run": (
        main_ppo_v0.TaskRunner.__ray_metadata__.modified_class.run,
        "d944634cb429",
        "names RayPPOTrainer as a global",
    ),
    "make_iterator": (tensordict_utils.make_iterator, "3140cf658b8f", "mini-batches are contiguous without shuffle"),
}


@pytest.mark.parametrize("name", RELIED_ON)
def test_source_of_what_we_rely_on_is_unchanged(name):
    function, known, relied_on = RELIED_ON[name]
    assert digest(function) == known, (
        f"verl's {name} is not the one of 0.9.1. We rely on: {relied_on}. Read the change, run the end-to-end tests, "
        f"then set its digest to {digest(function)!r} here."
    )


def test_version_is_the_one_these_tests_were_written_for():
    assert importlib.metadata.version("verl") == "0.9.1"


def test_sync_can_only_be_replaced_in_the_registry_itself():
    assert trainer_base.TRAINER_REGISTRY["sync"].__name__ == "PPOTrainerSync"
    with pytest.raises(ValueError, match="already registered"):
        trainer_base.register_trainer("sync")(type("Other", (PPOTrainer,), {}))


def test_the_task_runner_is_a_plain_class_behind_ray():
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    from verl_replay.task_runner import ReplayTaskRunner

    plain = TaskRunnerV1.__ray_metadata__.modified_class
    assert issubclass(ReplayTaskRunner.__ray_metadata__.modified_class, plain)
    assert list(inspect.signature(plain.run).parameters)[:2] == ["self", "config"]  # ray adds one of its own
    assert list(inspect.signature(run_ppo).parameters) == ["config", "task_runner_class"]


def test_transfer_queue_still_drops_a_column_that_one_row_lacks(transfer_queue):
    import torch
    from tensordict import TensorDict

    column = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    both, one = TensorDict({"a": column, "b": column}, batch_size=2), TensorDict({"b": column}, batch_size=2)
    transfer_queue.kv_batch_put(keys=["x", "y"], partition_id="contract", fields=both)
    transfer_queue.kv_batch_put(keys=["z", "w"], partition_id="contract", fields=one)
    data = transfer_queue.kv_batch_get(keys=["x", "z"], partition_id="contract", select_fields=["a", "b"])
    assert set(data.keys()) == {"b"}  # no error: this is why every column is asserted present
    transfer_queue.kv_clear(keys=["x", "y", "z", "w"], partition_id="contract")
