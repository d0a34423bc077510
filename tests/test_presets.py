"""The YAML files: each preset composes, has the base schema's keys, and says what it differs in."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import verl_replay.config
from tests.factories import DEFAULTS, id_rows, make_table
from verl_replay.options import ReplayOptions
from verl_replay.transform import ReplayTransform

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
    "unit": "rollout",
    "sampler": "proportional",
    "replacement": False,
    "importance_sampling_exponent": 0.0,
    "composition": "fresh_anchored",
    "importance": "behavior",
}
BESIDES = {  # what the paper does not have, or does not say
    "enabled": True,
    "seed": 0,
    "max_uses": 4,
    "priority_decay_steps": 5.0,
    "importance_cap": 2.0,
    "resume": "auto",
    "diagnostics_every": 0,
}
DIFFERENCES = {  # preset -> all that it changes
    "off": {"enabled": False},
    "filtered": {"ratio": 0.0},
    "unfiltered": {"filter": "none"},
    "uniform": {"priority": "uniform"},
    "sigma_g": {"priority": "sigma_g"},
    "reward_rarity": {"priority": "reward_rarity"},
    "recency_decayed": {"priority": "recency_decayed"},
    "rank_based": {"sampler": "rank_based"},
    "per": {"priority_exponent": 0.6, "replacement": True, "importance_sampling_exponent": 0.4},
    "capped_uses": {"eviction": "age_or_uses"},
    "no_age_limit": {"eviction": "none"},
    "grouped": {"unit": "group", "priority": "sigma_g"},
    "proximal": {"importance": "proximal"},
    "decoupled": {"importance": "decoupled"},
    "pooled": {"composition": "pooled"},
    "pooled_uniform": {"composition": "pooled", "priority": "uniform"},
    "pooled_sigma_g": {"composition": "pooled", "priority": "sigma_g"},
    "pooled_grouped": {"composition": "pooled", "unit": "group", "priority": "sigma_g"},
}


@pytest.fixture(scope="module")
def presets() -> dict[str, dict]:
    with initialize_config_module("verl_replay.config", version_base=None):
        made = {name: compose("replay_trainer", overrides=[f"replay={name}"]).replay for name in PRESETS}
        made["by default"] = compose("replay_trainer").replay
    return {name: OmegaConf.to_container(node, resolve=True, throw_on_missing=True) for name, node in made.items()}


def test_the_presets_there_are():
    assert PRESETS == sorted(["base", "fresh_anchored", *DIFFERENCES])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_exactly_the_options_and_is_accepted(presets, name):
    assert list(presets[name]) == list(ReplayOptions.__dataclass_fields__)
    ReplayOptions.from_config(presets[name])


def test_the_defaults_are_the_papers_settings(presets):
    node = presets["by default"]
    assert node == presets["fresh_anchored"] == presets["base"]
    assert node == {**METHODS_SETTINGS, **BESIDES}
    assert node == {**DEFAULTS, "warmup_steps": 20}  # what the other tests start from


def test_presets_differ_from_each_other(presets):
    """But for base and fresh_anchored, which are one by design."""
    for first, second in combinations(PRESETS, 2):
        assert (presets[first] == presets[second]) == ({first, second} == {"base", "fresh_anchored"})


@pytest.mark.parametrize("name", list(DIFFERENCES))
def test_a_preset_differs_from_base_in_what_it_is_named_for(presets, name):
    difference = {key: value for key, value in presets[name].items() if value != presets["base"][key]}
    assert difference == DIFFERENCES[name]


@pytest.mark.parametrize("path", sorted((CONFIG / "replay").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_preset_says_what_it_is_and_sets_nothing_that_base_sets_alike(presets, path):
    text = path.read_text()
    assert text.startswith("# ") and len(text.splitlines()[0]) > 20
    set_here = {key: value for key, value in yaml.safe_load(text).items() if key != "defaults"}
    assert path.stem == "base" or set_here == DIFFERENCES.get(path.stem, {})


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("off", "filtered")])
def test_a_preset_replays(presets, name):
    """Five steps without warm-up: something is drawn, and what is stored holds together. `filtered` draws nothing."""
    draws = {}
    for preset in (name, "filtered"):
        transform, draws[preset] = ReplayTransform(ReplayOptions.from_config({**presets[preset], "warmup_steps": 0})), 0
        for t in range(1, 6):
            table = make_table([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]], born=t, first_group=3 * t)
            chosen = transform.select(table, step=t)
            transform.store(table.take(chosen.survivors), id_rows(chosen.survivors), step=t)
            draws[preset] += len(chosen.replayed.table)
        assert transform.buffer.check_valid() == (True, "")
    assert draws[name] > 10 and draws["filtered"] == 0


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
