"""What verl accepts at start and fails on later: each rule refused with its value and remedy, and accepted when met."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from verl_replay import feasible

ROOT = Path(__file__).resolve().parents[1]
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
FIXED = [f"{ACTOR}.use_dynamic_bsz=false", f"{ROLLOUT}.log_prob_use_dynamic_bsz=false"]
# check -> overrides that break its rule, what the fault must say, overrides that meet it
CASES = {
    "whole": (["data.train_batch_size=128.0"], ("data.train_batch_size", "128.0", "=128,"), []),
    "zero": ([f"{ROLLOUT}.n=0"], (f"{ROLLOUT}.n", "got 0", "Set"), [f"{ROLLOUT}.n=4"]),
    "negative": (["trainer.nnodes=-1"], ("trainer.nnodes", "got -1", "Set trainer.nnodes=1"), ["trainer.nnodes=2"]),
    "boolean": (["trainer.total_training_steps=true"], ("total_training_steps", "True"), []),
    "text": (["data.max_response_length=4k"], ("max_response_length", "'4k'"), []),
    "temperature": ([f"{ROLLOUT}.temperature=0"], (f"{ROLLOUT}.temperature", "got 0"), [f"{ROLLOUT}.temperature=0.6"]),
    "dual_clip": ([f"{ACTOR}.clip_ratio_c=1.0"], ("clip_ratio_c", "got 1.0", "=10.0"), [f"{ACTOR}.clip_ratio_c=1.5"]),
    "dynamic": (
        [f"{ROLLOUT}.log_prob_use_dynamic_bsz=false"],
        ("log_prob_use_dynamic_bsz", "True and False", "log_prob_use_dynamic_bsz=true"),
        [],
    ),
    "longest_row": (
        [f"{ACTOR}.ppo_max_token_len_per_gpu=5119", f"{ROLLOUT}.log_prob_max_token_len_per_gpu=5120"],
        ("ppo_max_token_len_per_gpu", "5120 tokens, got 5119", "=5120"),
        [f"{ACTOR}.ppo_max_token_len_per_gpu=5120"],
    ),
    "log_prob_row": (
        [f"{ROLLOUT}.log_prob_max_token_len_per_gpu=5119"],
        ("log_prob_max_token_len_per_gpu", "got 5119"),
        [f"{ROLLOUT}.log_prob_max_token_len_per_gpu=5120"],
    ),
    "engine_length": (
        [f"{ROLLOUT}.max_model_len=1024"],
        ("max_model_len", "got 1024", "=5120"),
        [f"{ROLLOUT}.max_model_len=1025"],
    ),
    "prefill": (
        [f"{ROLLOUT}.enable_chunked_prefill=false", f"{ROLLOUT}.max_num_batched_tokens=5119"],
        ("max_num_batched_tokens", "5119", "enable_chunked_prefill=true"),
        [f"{ROLLOUT}.enable_chunked_prefill=false", f"{ROLLOUT}.max_num_batched_tokens=5120"],
    ),
    "tensor_parallel": (
        [f"{ROLLOUT}.tensor_model_parallel_size=3"],
        ("tensor_model_parallel_size", "= 4", "got 3"),
        [f"{ROLLOUT}.tensor_model_parallel_size=2"],
    ),
    "tensor_parallel_on_nodes_of_its_own": (
        [f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=3", f"{ROLLOUT}.tensor_model_parallel_size=2"],
        ("tensor_model_parallel_size", "rollout.nnodes x n_gpus_per_node = 3", "got 2"),
        [f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=6", f"{ROLLOUT}.tensor_model_parallel_size=6"],
    ),
    "sequence_parallel": (
        [f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=8"],
        ("ulysses_sequence_parallel_size", "got 8"),
        [f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2"],
    ),
}
BASELINE = {
    "mini_batches": (
        ["data.train_batch_size=127", f"{ACTOR}.ppo_mini_batch_size=64"],
        ("data.train_batch_size", "127 and 64", "data.train_batch_size=64"),
        ["data.train_batch_size=192", f"{ACTOR}.ppo_mini_batch_size=64"],
    ),
    "more_than_train": (
        ["data.train_batch_size=64"],
        ("64 and 128", "data.train_batch_size=128"),
        ["data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=64"],
    ),
    "ranks": (
        [f"{ACTOR}.ppo_mini_batch_size=1", f"{ROLLOUT}.n=6"],
        ("1 x 6 = 6", "4 data-parallel ranks"),
        [f"{ACTOR}.ppo_mini_batch_size=2", f"{ROLLOUT}.n=6"],
    ),
    "ranks_in_sequence_groups": (
        [f"{ACTOR}.ppo_mini_batch_size=1", f"{ROLLOUT}.n=5", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2"],
        ("1 x 5 = 5", "2 data-parallel ranks"),
        [f"{ACTOR}.ppo_mini_batch_size=1", f"{ROLLOUT}.n=6", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2"],
    ),
    "micro_batches": (
        [*FIXED, f"{ACTOR}.ppo_micro_batch_size_per_gpu=48"],
        ("256", "got 48", "use_dynamic_bsz=true"),
        [*FIXED, f"{ACTOR}.ppo_micro_batch_size_per_gpu=64"],
    ),
}


@pytest.fixture(scope="module")
def recipe() -> DictConfig:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DATA_DIR", "MODEL_PATH", "OUTPUT_DIR", "GENERATION_CONFIG"):
            patch.setenv(name, f"/{name}")
        with initialize_config_dir(str(ROOT / "recipes/qwen3"), version_base=None):
            return compose("qwen3", overrides=["scale=1.7b"])  # 4 GPUs


def with_overrides(recipe: DictConfig, *overrides: str) -> DictConfig:
    return OmegaConf.merge(recipe, OmegaConf.from_dotlist(list(overrides)))


@pytest.mark.parametrize("case", CASES)
def test_what_fails_in_the_worker_is_refused(case, recipe):
    broken, said, met = CASES[case]
    for baseline in (False, True):
        (fault,) = feasible.faults(with_overrides(recipe, *broken), baseline=baseline)
        assert all(part in fault for part in said), fault
    assert feasible.faults(with_overrides(recipe, *met), baseline=True) == []


@pytest.mark.parametrize("case", BASELINE)
def test_batches_that_fail_without_replay_are_refused_for_the_baseline_alone(case, recipe):
    broken, said, met = BASELINE[case]
    (fault,) = feasible.faults(with_overrides(recipe, *broken), baseline=True)
    assert all(part in fault for part in said), fault
    assert feasible.faults(with_overrides(recipe, *broken), baseline=False) == []
    assert feasible.faults(with_overrides(recipe, *met), baseline=True) == []


def test_every_fault_is_named_at_once(recipe):
    config = with_overrides(
        recipe, f"{ACTOR}.clip_ratio_c=0.5", "data.train_batch_size=127", "trainer.n_gpus_per_node=3"
    )
    assert len(feasible.faults(config, baseline=True)) == 3  # 127 % 128, 128 * 8 % 3, the clip


def test_losses_without_a_dual_clip_take_any_bound(recipe):
    config = with_overrides(recipe, f"{ACTOR}.clip_ratio_c=0.5", f"{ACTOR}.policy_loss.loss_mode=gspo")
    assert feasible.faults(config, baseline=True) == []
