"""The dry run's arithmetic by hand, what it finds missing, and what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from transformers import Qwen3Config, Qwen3ForCausalLM

from verl_replay.dry_run.duration import duration
from verl_replay.dry_run.inputs import fetch_commands, inputs, missing
from verl_replay.dry_run.memory import memory
from verl_replay.dry_run.plan import GPUS, plan_of
from verl_replay.dry_run.report import gpu_named, report
from verl_replay.dry_run.shapes import SHAPES, Shape, shape_of

ROOT = Path(__file__).resolve().parents[1]
H100 = GPUS["H100-80GB"]


@pytest.fixture(scope="module")
def recipe() -> DictConfig:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DATA_DIR", "OUTPUT_DIR", "GENERATION_CONFIG"):
            patch.setenv(name, f"/{name}")
        patch.setenv("MODEL_PATH", "Qwen/Qwen3-4B-Base")
        with initialize_config_dir(str(ROOT / "recipes/qwen3"), version_base=None):
            config = compose("qwen3", overrides=["scale=4b"])
            OmegaConf.resolve(config)
            return config


def with_overrides(recipe: DictConfig, *overrides: str) -> DictConfig:
    return OmegaConf.merge(recipe, OmegaConf.from_dotlist(list(overrides)))


# ---- shapes


def test_parameters_are_those_of_transformers():
    shape = Shape(3, 64, 4, 2, 32, 160, 1000, tied=True)
    for tied in (True, False):
        config = Qwen3Config(
            num_hidden_layers=3, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            intermediate_size=160, vocab_size=1000, tie_word_embeddings=tied,
        )  # fmt: skip
        counted = sum(p.numel() for p in Qwen3ForCausalLM(config).parameters())
        assert replace(shape, tied=tied).parameters == counted


def test_the_three_models_have_the_parameters_that_their_cards_state():
    assert {name: round(shape.parameters / 1e6) for name, shape in SHAPES.items()} == {
        "Qwen3-0.6B-Base": 596,
        "Qwen3-1.7B-Base": 1721,
        "Qwen3-4B-Base": 4022,
    }


def test_a_shape_comes_from_the_folder_first(tmp_path):
    config = {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 100,
    }  # fmt: skip
    folder = tmp_path / "Qwen3-4B-Base"
    assert shape_of(str(folder)) == SHAPES["Qwen3-4B-Base"]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    assert shape_of(str(folder)) == Shape(2, 64, 4, 4, 16, 128, 100, tied=False)
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    assert shape_of(str(folder)) is None
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is not JSON .* Fetch the model again"):
        shape_of(str(folder))
    assert shape_of("somebody/else") is None


# ---- arithmetic


def test_memory_by_hand(recipe):
    shape = Shape(2, 8, 2, 1, 4, 16, 100, tied=True)
    # a layer: 8*4*2*(2+1) = 192 attention, 3*8*16 = 384, norms 2*8 + 2*4 = 24: 600. 100*8 + 2*600 + 8 = 2008 in all.
    assert (shape.layer_parameters, shape.parameters) == (600, 2008)
    plan = plan_of(with_overrides(recipe, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=10"))
    needs = memory(plan, shape, H100)
    assert needs.state == 16 * 2008 / 8  # fp32: 4 parameter, 4 gradient, 8 Adam; on 8 GPUs
    inside = 2 * (4 * 8 + 2 * 4 * (2 + 1) + 4 * 16)
    assert needs.working == 2 * (800 + 2 * 600) + 10 * (2 * 2 * 8 + 2 * inside) + 10 * 100 * 4
    assert needs.weights == 2 * 2008
    assert needs.cache == 0.55 * 80e9 - 2 * 2008 - 2e9
    assert needs.cache_tokens == needs.cache / (2 * 2 * 1 * 4 * 2)
    # 10 steps of 1,024 rollouts, .45 kept; 1,200 response tokens of 8 bytes, 150 of the prompt of 4
    assert plan.stored == 4608 and needs.buffer == 4608 * (1200 * 8 + 150 * 4)
    assert plan.stored_at_most == 10240


def test_duration_by_hand(recipe):
    shape, plan = SHAPES["Qwen3-4B-Base"], plan_of(recipe)
    takes = duration(plan, shape, H100, memory(plan, shape, H100))
    # 128 rollouts a replica, all at once: 4,096 iterations of the longest answer, 37.5 running on average
    running = 128 * 1200 / 4096
    cache_read = running * 1350 * 2 * 36 * 8 * 128 * 2
    assert takes.generation == pytest.approx(4096 * (5e-3 + (2 * shape.parameters + cache_read) / (3.35e12 * 0.5)))
    flops = 2 * (shape.parameters - 2560) + 36 * 4 * 32 * 128 * 1350 / 2  # the last norm multiplies no matrix
    assert takes.log_probs == pytest.approx(1024 * 1350 * flops / (8 * 989e12 * 0.35))
    assert takes.update == pytest.approx(4 * takes.log_probs * 0.45 * 1.5)  # forward twice, backward twice as much


def test_what_is_trained_on_depends_on_the_arm(recipe):
    def trained(*overrides: str) -> float:
        return plan_of(with_overrides(recipe, *overrides)).trained

    assert trained() == pytest.approx(1024 * 0.45 * 1.5)
    assert trained("replay.ratio=0") == pytest.approx(1024 * 0.45)
    assert trained("replay.filter=none") == pytest.approx(1024 * 1.5)
    assert trained("replay.enabled=false") == 1024
    assert plan_of(with_overrides(recipe, "replay.enabled=false")).stored == 0
    assert plan_of(with_overrides(recipe, "replay.eviction=none")).stored_at_most == 30_000


def test_more_sequences_than_fit_take_more_iterations(recipe):
    shape, plan = SHAPES["Qwen3-4B-Base"], plan_of(recipe)
    few = replace(plan, max_sequences=8)
    needs = memory(plan, shape, H100)
    assert duration(few, shape, H100, needs).generation > 2 * duration(plan, shape, H100, needs).generation


# ---- inputs and text


def test_what_is_there_and_what_is_to_fetch(recipe, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "train.parquet").touch()
    config = with_overrides(
        recipe,
        f"actor_rollout_ref.model.path={tmp_path}/model",
        f"data.train_files={tmp_path}/train.parquet",
        f"data.val_files=[{tmp_path}/math500.parquet,{tmp_path}/aime_2025.parquet,hdfs://there/x.parquet]",
        "reward.custom_reward_function.path=pkg://data_prep.no_such_module",
    )
    found = inputs(config)
    assert [each.present for each in found] == [False, True, False, False, None, False]
    assert fetch_commands(found) == [
        f"{tmp_path}/model lacks config.json or *.safetensors: fetch it again",
        f"python -m data_prep.maths --dataset math500 aime_2025 --output {tmp_path}",
        "pip install --no-deps -e . in this checkout",
    ]
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "model/model.safetensors").touch()
    for name in ("math500", "aime_2025"):
        (tmp_path / f"{name}.parquet").touch()
    config.reward.custom_reward_function.path = str(ROOT / "data_prep/reward.py")
    assert missing(inputs(config)) == []


@pytest.mark.parametrize(
    ("path", "present"), [("Qwen/Qwen3-4B-Base", False), ("./nowhere/model", False), ("hdfs://there/model", None)]
)
def test_a_model_that_is_not_a_folder(path, present, recipe, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert inputs(with_overrides(recipe, f"actor_rollout_ref.model.path={path}"))[0].present is present


def test_the_text_says_what_it_costs_and_what_looks_wrong(recipe):
    text, _ = report(recipe, "H100-80GB")
    assert "8 x H100-80GB, 4.02 B parameters" in text
    assert "buffer   0.0 GB of host memory for 4,608 rollouts, at most 0.1 GB for 10,240" in text
    assert "1,024 rollouts of 1,200 tokens, 45% of groups kept, 691 trained on" in text
    assert "note:" not in text
    text, _ = report(with_overrides(recipe, "replay.warmup_steps=300", "replay.capacity=4000"), "H100-80GB")
    assert "replay.warmup_steps=300 of 300 steps: nothing is ever replayed" in text
    assert "replay.capacity=4,000 holds fewer rollouts than 10 steps may store" in text
    text, _ = report(with_overrides(recipe, "trainer.n_gpus_per_node=1"), "H100-80GB")
    assert "note: the rollout needs" in text and "note: the update needs" in text
    text, _ = report(with_overrides(recipe, "actor_rollout_ref.model.path=somebody/else"), "H100-80GB")
    assert "no estimate: the model's shape is not known" in text
    text, _ = report(with_overrides(recipe, "trainer.device=cpu"), "H100-80GB")
    assert "no estimate" in text and "on the CPU" in text
    text, _ = report(with_overrides(recipe, "replay.enabled=false"), "H100-80GB")
    assert "buffer" not in text and "groups kept" not in text


def test_the_gpu_is_one_of_the_table():
    assert gpu_named({}) == "H100-80GB" and gpu_named({"GPU": "H200-141GB"}) == "H200-141GB"
    with pytest.raises(ValueError, match="GPU must be one of A100-80GB, .* got 'T4'"):
        gpu_named({"GPU": "T4"})
