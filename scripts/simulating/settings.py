"""The grid of settings: presets as Hydra composes them, with options on top of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import NamedTuple

from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import verl_replay.config
from verl_replay.options import ReplayConfigError, ReplayOptions

PRESETS = sorted(path.stem for path in (Path(verl_replay.config.__file__).parent / "replay").glob("*.yaml"))
OPTIONS = [f.name for f in fields(ReplayOptions)]


class Setting(NamedTuple):
    name: str  # "fresh_anchored max_age=5"
    options: ReplayOptions

    @property
    def command(self) -> str:
        """What one writes behind a verl command to train so."""
        preset, *changes = self.name.split(" ")
        return " ".join([f"replay={preset}", *(f"replay.{change}" for change in changes)])


def grid(presets: Sequence[str], sets: Sequence[str], *, seed: int) -> list[Setting]:
    """Every preset with every combination of options; of `off`, which has none, one.

    Args:
        presets: names of files in verl_replay/config/replay.
        sets: "max_age=5,10" each.
        seed: of the draws, where no set gives one.

    Raises:
        ValueError: no such preset or option, an option twice, or values that ReplayOptions refuses.
    """
    for preset in presets:
        if preset not in PRESETS:
            raise ValueError(f"--replay must name presets, got {preset!r}. They are {', '.join(PRESETS)}.")
    values = parse(sets)
    made: dict[str, Setting] = {}
    with initialize_config_module("verl_replay.config", version_base=None):
        for preset in dict.fromkeys(presets):
            alone = _compose(preset, {}, seed)
            if not alone.options.enabled and "enabled" not in values:
                made[alone.name] = alone
                continue
            for chosen in product(*values.values()):
                setting = _compose(preset, dict(zip(values, chosen, strict=True)), seed)
                made.setdefault(setting.name, setting)
    return list(made.values())


def parse(sets: Sequence[str]) -> dict[str, list[str]]:
    """["max_age=5,10"] -> {"max_age": ["5", "10"]}."""
    values: dict[str, list[str]] = {}
    for text in sets:
        name, equals, listed = text.partition("=")
        name = name.removeprefix("replay.")
        given = listed.split(",")
        if name not in OPTIONS or not equals or not all(given):
            raise ValueError(
                f"--set must be OPTION=VALUE,VALUE,... with an option of {', '.join(OPTIONS)}, got {text!r}. "
                "Write --set max_age=5,10, say."
            )
        if name in values:
            raise ValueError(f"--set {name} must be given once, got it twice. Write --set {name}=A,B for both values.")
        values[name] = given
    return values


def _compose(preset: str, changes: Mapping[str, str], seed: int) -> Setting:
    name = " ".join([preset, *(f"{option}={value}" for option, value in changes.items())])
    overrides = [f"replay.{option}={value}" for option, value in {"seed": seed, **changes}.items()]
    try:
        node = compose(f"replay/{preset}", overrides=overrides).replay
        options = ReplayOptions.from_config(OmegaConf.to_container(node, resolve=True, throw_on_missing=True))
    except ReplayConfigError as error:
        raise ValueError(f"{name}: {' '.join(error.faults)}") from error
    except (HydraException, OmegaConfBaseException) as error:
        told = " ".join(str(error).split())
        raise ValueError(f"{name}: --set must hold values that Hydra can read, got {told}. Mend it.") from error
    return Setting(name, options)
