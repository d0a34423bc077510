"""What a run reads: the model, the data, the reward function. Present, or to fetch, and how."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig, ListConfig, OmegaConf

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
REMOTE = re.compile(r"\w+://")
DATA = "<names>"  # in a command: the data sets to fetch


class Input(NamedTuple):
    """One thing that the run reads."""

    what: str
    where: str
    present: bool | None  # None: on another machine, not looked for
    fetch: str  # how to get it


def inputs(config: DictConfig) -> list[Input]:
    """Everything that the run would read."""
    return [_model(str(config.actor_rollout_ref.model.path)), *_data(config), *_reward(config)]


def missing(found: Sequence[Input]) -> list[Input]:
    """What is still to fetch."""
    return [each for each in found if each.present is False]


def fetch_commands(found: Sequence[Input]) -> list[str]:
    """What fetches all that is missing: one command for the data of a folder, one for each other thing."""
    commands: dict[str, list[str]] = {}
    for each in missing(found):
        commands.setdefault(each.fetch, []).extend([Path(each.where).stem] if DATA in each.fetch else [])
    return [command.replace(DATA, " ".join(names)) for command, names in commands.items()]


def _model(path: str) -> Input:
    if Path(path).expanduser().is_dir():
        folder = Path(path).expanduser()
        present = (folder / "config.json").exists() and any(folder.glob("*.safetensors"))
        return Input("model", path, present, f"{path} lacks config.json or *.safetensors: fetch it again")
    if not HUB_NAME.fullmatch(path):
        return Input("model", path, None if REMOTE.match(path) else False, "set MODEL_PATH to a folder or a hub name")
    from huggingface_hub import try_to_load_from_cache

    cached = isinstance(try_to_load_from_cache(path, "config.json"), str)
    return Input("model", path, cached, f"hf download {path}")


def _data(config: DictConfig) -> Iterator[Input]:
    for what, key in (("training data", "data.train_files"), ("evaluation data", "data.val_files")):
        files = OmegaConf.select(config, key)
        for file in files if isinstance(files, ListConfig) else [files]:
            if file is None:
                continue
            path = Path(str(file)).expanduser()
            present = None if REMOTE.match(str(file)) else path.exists()
            yield Input(what, str(file), present, f"python -m data_prep.maths --dataset {DATA} --output {path.parent}")


def _reward(config: DictConfig) -> Iterator[Input]:
    path = OmegaConf.select(config, "reward.custom_reward_function.path")
    if path is None:
        return
    if path.startswith("pkg://"):
        name = path.removeprefix("pkg://")
        yield Input("reward function", path, _importable(name), "pip install --no-deps -e . in this checkout")
    else:
        yield Input(
            "reward function", path, Path(path).expanduser().exists(), "check reward.custom_reward_function.path"
        )


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False  # of a parent package
