"""The YAML files: each preset composes, has the base schema's keys, and says what it differs in."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import verl_replay.config
from verl_replay.options import ReplayOptions

CONFIG = Path(verl_replay.config.__file__).parent
PRESETS = sorted(path.stem for path in (CONFIG / "replay").glob("*.yaml"))

METHODS_SETTINGS = {  # the table of arXiv:2606.04560's settings
    "ratio": 0.5,
    "max_age": 10,
    "priority_exponent": 0.5,
    "priority_eps": 1e-6,
    "warmup_steps": 20,
    "capacity": 30_000,
    "filter": "zero_variance",
    "eviction": "age",
    "priority": "abs_advantage",
    "sampler": "proportional",  # without replacement
    "composition": "fresh_anchored",
    "importance": "behavior",
}


@pytest.fixture(scope="module")
def presets() -> dict[str, dict]:
    with initialize_config_module("verl_replay.config", version_base=None):
        made = {name: compose("replay_trainer", overrides=[f"replay={name}"]).replay for name in PRESETS}
        made["by default"] = compose("replay_trainer").replay
    return {name: OmegaConf.to_container(node, resolve=True, throw_on_missing=True) for name, node in made.items()}


def test_the_presets_there_are():
    pooled, anchored = ["pooled", "pooled_sigma_g", "pooled_uniform"], ["fresh_anchored", "sigma_g", "uniform"]
    assert PRESETS == sorted(["base", "off", "filtered", *anchored, *pooled])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_exactly_the_options_and_is_accepted(presets, name):
    assert list(presets[name]) == list(ReplayOptions.__dataclass_fields__)
    ReplayOptions.from_config(presets[name])


def test_the_defaults_are_the_papers_settings(presets):
    node = presets["by default"]
    assert node == presets["fresh_anchored"] == presets["base"]
    assert node == {**METHODS_SETTINGS, "enabled": True, "seed": 0, "diagnostics_every": 0}


def test_presets_differ_from_each_other(presets):
    """But for base and fresh_anchored, which are one by design."""
    for first, second in combinations(PRESETS, 2):
        assert (presets[first] == presets[second]) == ({first, second} == {"base", "fresh_anchored"})


@pytest.mark.parametrize(
    ("name", "difference"),
    [
        ("off", {"enabled": False}),
        ("filtered", {"ratio": 0.0}),
        ("pooled", {"composition": "pooled"}),
        ("uniform", {"priority": "uniform"}),
        ("sigma_g", {"priority": "sigma_g"}),
        ("pooled_uniform", {"composition": "pooled", "priority": "uniform"}),
        ("pooled_sigma_g", {"composition": "pooled", "priority": "sigma_g"}),
    ],
)
def test_a_preset_differs_from_base_in_what_it_is_named_for(presets, name, difference):
    assert presets[name] == {**presets["base"], **difference}


def plain_scalars(node: yaml.Node) -> list[str]:
    """Every scalar written without quotes, keys included."""
    if isinstance(node, yaml.ScalarNode):
        return [node.value] if node.style is None else []
    children = [n for pair in node.value for n in pair] if isinstance(node, yaml.MappingNode) else node.value
    return [value for child in children for value in plain_scalars(child)]


@pytest.mark.parametrize("path", sorted(CONFIG.rglob("*.yaml")), ids=lambda path: path.stem)
def test_no_yaml_has_a_bare_on_off_yes_or_no(path):
    """YAML 1.1 reads them as booleans: `off` is false, not the preset."""
    scalars = plain_scalars(yaml.compose(path.read_text()))
    assert scalars
    assert not {s for s in scalars if s.lower() in {"on", "off", "yes", "no", "y", "n"}}


def test_the_scan_finds_a_bare_off():
    assert "off" in plain_scalars(yaml.compose("a: [{b: off}]")) and "off" not in plain_scalars(
        yaml.compose("a: 'off'")
    )


def test_options_are_explained_where_they_are_set():
    """Each line of base.yaml that sets an option has a comment."""
    lines = [line for line in (CONFIG / "replay" / "base.yaml").read_text().splitlines() if line[:1].isalpha()]
    assert len(lines) == len(ReplayOptions.__dataclass_fields__)
    assert all("#" in line for line in lines)
