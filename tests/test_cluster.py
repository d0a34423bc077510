"""Variables for the workers of a cluster that runs already."""

from __future__ import annotations

import pytest
from omegaconf import DictConfig, OmegaConf

from verl_replay.cluster import hand_over_environment

ENVIRON = {
    "VERL_FILE_LOGGER_PATH": "/out/metrics.jsonl",
    "TENSORBOARD_DIR": "/out/tb",
    "WANDB_MODE": "offline",
    "HOME": "/h",
}
HANDED = {name: value for name, value in ENVIRON.items() if name != "HOME"}


def config(**ray_init) -> DictConfig:
    made = OmegaConf.create({"ray_kwargs": {"ray_init": {"num_cpus": None, "runtime_env": {"py_executable": None}}}})
    made.ray_kwargs.ray_init.update(ray_init)
    OmegaConf.set_struct(made, True)  # as Hydra hands it out
    return made


@pytest.mark.parametrize(("ray_init", "environ"), [({}, {"RAY_ADDRESS": "auto"}), ({"address": "10.0.0.1:6379"}, {})])
def test_a_cluster_that_runs_already_is_told(ray_init, environ):
    made = config(**ray_init)
    hand_over_environment(made, ENVIRON | environ)
    assert made.ray_kwargs.ray_init.runtime_env == {"py_executable": None, "env_vars": HANDED}


def test_what_the_config_names_stays():
    made = config(runtime_env={"env_vars": {"WANDB_MODE": "online", "MINE": "1"}})
    hand_over_environment(made, ENVIRON | {"RAY_ADDRESS": "auto"})
    assert made.ray_kwargs.ray_init.runtime_env.env_vars == {**HANDED, "WANDB_MODE": "online", "MINE": "1"}


@pytest.mark.parametrize("environ", [{}, {"RAY_ADDRESS": ""}])
def test_a_cluster_of_ones_own_inherits_and_the_config_is_left_alone(environ):
    made = config()
    hand_over_environment(made, ENVIRON | environ)
    assert made == config()
