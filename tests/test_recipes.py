"""Scripts parse, recipes compose, and every setting of a recipe is one that verl or replay knows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from verl.utils.config import validate_config

from verl_replay.feasible import faults
from verl_replay.support import check_config

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted([*ROOT.glob("scripts/*.sh"), *ROOT.glob("recipes/**/*.sh"), ROOT / ".ci/run"])
RECIPES = {  # of one run: the config and what its run.sh adds to it
    "tiny_cpu": (ROOT / "recipes/tiny_cpu/tiny_cpu.yaml", []),
    **{f"qwen3_{s}": (ROOT / "recipes/qwen3/qwen3.yaml", [f"scale={s}"]) for s in ("0.6b", "1.7b", "4b")},
}
FILES = sorted([*ROOT.glob("recipes/**/*.yaml"), *ROOT.glob("verl_replay/config/machine/*.yaml")])
PRESETS = sorted(path.stem for path in ROOT.glob("verl_replay/config/replay/*.yaml") if path.stem != "base")
ADDED = {"hydra", "defaults", "replay"}  # of a recipe's own
OPEN = {  # keys that verl takes without listing them
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "actor_rollout_ref.rollout.engine_kwargs.vllm",
    "ray_kwargs.ray_init",
}


@pytest.fixture
def environment(monkeypatch):
    for name in (
        "DATA_DIR",
        "MODEL_PATH",
        "OUTPUT_DIR",
        "REWARD_FUNCTION",
        "REPEATABLE_AGENT_LOOP",
        "GENERATION_CONFIG",
    ):
        monkeypatch.setenv(name, f"/{name}")


def keys(node: DictConfig, prefix: str = "") -> list[str]:
    found = []
    for name in node:
        path = f"{prefix}{name}"
        value = node._get_node(name)
        if isinstance(value, DictConfig) and path not in OPEN:
            found += keys(value, f"{path}.")
        else:
            found.append(path)
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_scripts_parse_and_can_be_run(path):
    subprocess.run(["bash", "-n", path], check=True)
    assert os.access(path, os.X_OK)


@pytest.fixture(scope="module")
def composed() -> Callable[..., DictConfig]:
    """Composed once each: Hydra takes seconds."""

    @cache
    def compose_once(recipe: str, *overrides: str) -> DictConfig:
        path, added = RECIPES[recipe]
        with initialize_config_dir(str(path.parent), version_base=None):
            return compose(path.stem, overrides=[*added, *overrides])

    return compose_once


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("preset", PRESETS)
def test_recipes_compose_with_every_preset_and_are_accepted(recipe, preset, environment, composed):
    config = composed(recipe, f"replay={preset}")
    assert check_config(config).enabled == (preset != "off")
    assert faults(config, baseline=True) == []
    OmegaConf.to_container(config, resolve=True)
    validate_config(config, use_reference_policy=False, use_critic=False)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_setting_of_a_recipe_is_one_that_verl_knows(path, environment):
    """Hydra merges a recipe into verl's config without asking whether verl has such a key: a typo would do nothing."""
    with initialize_config_module("verl_replay.config", version_base=None):
        known = set(keys(compose("replay_trainer", overrides=["algorithm.adv_estimator=grpo"])))
    recipe = OmegaConf.load(path)
    mine = [key for key in keys(recipe) if key.split(".")[0] not in ADDED and key not in OPEN]
    unknown = [key for key in mine if key not in known and not any(k.startswith(f"{key}.") for k in known)]
    assert not unknown, f"{path.name} sets what verl does not have: {unknown}"


def test_the_three_scales_differ_only_in_what_scale_needs():
    scales = {path.stem: OmegaConf.load(path) for path in sorted((ROOT / "recipes/qwen3/scale").glob("*.yaml"))}
    assert list(scales) == ["0.6b", "1.7b", "4b"]
    for name, scale in scales.items():
        assert set(keys(scale)) == {
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
            "actor_rollout_ref.actor.fsdp_config.param_offload",
            "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
            "actor_rollout_ref.rollout.gpu_memory_utilization",
            "trainer.n_gpus_per_node",
            "trainer.experiment_name",
        }
        assert scale.trainer.experiment_name == f"qwen3_{name}"
    texts = {(ROOT / f"recipes/qwen3_{name}/run.sh").read_text().replace(name[:-1], "N") for name in scales}
    assert len(texts) == 1


PAPER = {  # METHOD.md's table, under verl's and our names
    "replay.ratio": 0.5,
    "replay.max_age": 10,
    "replay.priority_exponent": 0.5,
    "replay.priority_eps": 1e-6,
    "replay.warmup_steps": 20,
    "replay.capacity": 30_000,
    "replay.replacement": False,
    "actor_rollout_ref.actor.clip_ratio_low": 0.2,
    "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    "actor_rollout_ref.actor.clip_ratio_c": 10.0,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.use_kl_loss": False,
    "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.lr_warmup_steps": 0,
    "actor_rollout_ref.actor.optim.weight_decay": 0.01,
    "actor_rollout_ref.actor.grad_clip": 1.0,
    "actor_rollout_ref.actor.optim.clip_grad": 1.0,
    "actor_rollout_ref.actor.ppo_epochs": 1,
}


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "tiny_cpu"])
def test_the_papers_settings(recipe, environment, composed):
    config = composed(recipe)
    assert {key: OmegaConf.select(config, key) for key in PAPER} == PAPER
    assert config.data.train_batch_size == config.actor_rollout_ref.actor.ppo_mini_batch_size  # one step a step


DRY = ("verl_replay: the configuration is valid", "memory a GPU, estimated", "a step, estimated", "command, without")


def dry_run(recipe: str, *overrides: str, **variables: str) -> subprocess.CompletedProcess:
    env = {name: value for name, value in os.environ.items() if name not in ("MODEL_PATH", "DATA_DIR", "OUTPUT_DIR")}
    return subprocess.run(
        ["bash", str(ROOT / f"recipes/{recipe}/run.sh"), *overrides],
        env={**env, "PYTHON": sys.executable, "DRY_RUN": "1", **variables},
        capture_output=True,
        text=True,
        timeout=1500,  # all presets at once, on a busy machine
    )


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "tiny_cpu"])
def test_a_dry_run_passes_with_every_preset(recipe):
    """All presets in one command (Hydra's --multirun): most of a dry run's seconds go into importing verl."""
    done = dry_run(recipe, f"replay={','.join(PRESETS)}", "--multirun")
    assert done.returncode == 0, done.stderr[-2000:]
    for part in (*DRY[:-1], "All configuration checks passed"):
        assert done.stdout.count(part) == len(PRESETS), part
    assert DRY[-1] in done.stdout


def test_a_dry_run_passes():
    done = dry_run("qwen3_1.7b")
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(part in done.stdout for part in DRY)


def test_a_dry_run_lists_what_is_missing_and_strict_fails_on_it(tmp_path):
    known = {"DATA_DIR": str(tmp_path), "MODEL_PATH": "Qwen/Qwen3-0.6B-Base", "HF_HUB_CACHE": str(tmp_path)}
    done = dry_run("qwen3_0.6b", "trainer.nnodes=2", DRY_RUN="strict", **known)
    names = "dapo_math_17k math500 aime_2025 aime_2026 hmmt_feb_2025 hmmt_feb_2026"
    assert done.returncode == 1 and f"--dataset {names} --output {tmp_path}" in done.stdout
    assert "verl_replay: model is missing: Qwen/Qwen3-0.6B-Base" in done.stderr
    assert done.stderr.count("is missing") == 7
    assert "4 x H100-80GB" in done.stdout  # overrides pass through


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.trian_batch_size=64", "trian_batch_size"),
        ("replay.max_ages=3", "max_ages"),
        ("replay=fresh", "fresh"),
        ("data.train_batch_size=127", "data.train_batch_size must be a multiple of"),
    ],
)
def test_a_dry_run_refuses_wrong_keys_and_impossible_sizes(override, said):
    done = dry_run("qwen3_4b", override)
    assert done.returncode != 0 and said in done.stderr
    assert "command, without" not in done.stdout


def test_the_command_that_a_dry_run_prints_is_the_one_that_runs(tmp_path):
    """With a Python that writes down how it was called."""
    called = tmp_path / "called"
    stub = tmp_path / "python"
    stub.write_text(f'#!/bin/bash\nprintf "%s\\n" "$MODEL_PATH" "$OUTPUT_DIR" "$@" > {called}\n')
    stub.chmod(0o755)
    variables = {"PYTHON": str(stub), "MODEL_PATH": "/a model", "OUTPUT_DIR": str(tmp_path / "out"), "TIMEOUT": "60"}
    printed = dry_run("qwen3_4b", "replay=pooled", "trainer.logger=[console, file]", **variables).stdout.splitlines()
    assert (
        dry_run("qwen3_4b", "replay=pooled", "trainer.logger=[console, file]", DRY_RUN="0", **variables).returncode == 0
    )
    ran = called.read_text()
    called.unlink()
    subprocess.run(["bash", "-c", printed[-1]], check=True)
    assert called.read_text() == ran
    assert ran.splitlines()[:6] == ["/a model", str(tmp_path / "out"), "-m", "verl_replay.guard", "--timeout", "60"]
