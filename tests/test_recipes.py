"""Scripts parse, recipes compose, and every setting of a recipe is one that verl or replay knows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from verl_replay.support import check_config

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted([*ROOT.glob("scripts/*.sh"), *ROOT.glob("recipes/*/*.sh"), ROOT / ".ci/run"])
RECIPES = sorted(ROOT.glob("recipes/*/*.yaml"))
PRESETS = sorted(path.stem for path in ROOT.glob("verl_replay/config/replay/*.yaml") if path.stem != "base")
ADDED = {"hydra", "defaults", "replay"}  # of a recipe's own
OPEN = {  # keys that verl takes without listing them
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "ray_kwargs.ray_init",
}


@pytest.fixture
def environment(monkeypatch):
    for name in ("DATA_DIR", "MODEL_PATH", "OUTPUT_DIR", "REWARD_FUNCTION", "REPEATABLE_AGENT_LOOP"):
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


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
@pytest.mark.parametrize("preset", PRESETS)
def test_recipes_compose_with_every_preset_and_are_accepted(path, preset, environment):
    with initialize_config_dir(str(path.parent), version_base=None):
        config = compose(path.stem, overrides=[f"replay={preset}"])
    assert check_config(config).enabled == (preset != "off")
    OmegaConf.to_container(config, resolve=True)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_setting_of_a_recipe_is_one_that_verl_knows(path, environment):
    """Hydra merges a recipe into verl's config without asking whether verl has such a key: a typo would do nothing."""
    with initialize_config_module("verl_replay.config", version_base=None):
        known = set(keys(compose("replay_trainer", overrides=["algorithm.adv_estimator=grpo"])))
    recipe = OmegaConf.load(path)
    mine = [key for key in keys(recipe) if key.split(".")[0] not in ADDED and key not in OPEN]
    unknown = [key for key in mine if key not in known and not any(k.startswith(f"{key}.") for k in known)]
    assert not unknown, f"{path.name} sets what verl does not have: {unknown}"
