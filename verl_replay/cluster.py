"""A Ray cluster that runs already: its workers have the environment of its nodes, not that of the command."""

from __future__ import annotations

from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf

# What verl, its loggers, the hub's library and this package read in the workers.
PREFIXES = ("VERL_", "WANDB_", "HF_")
NAMES = ("TENSORBOARD_DIR", "WEIGHT_DIGESTS")
_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"


def hand_over_environment(config: DictConfig, environ: Mapping[str, str]) -> None:
    """Put the variables that workers read into Ray's runtime environment, where the run joins a cluster.

    Without it a metrics file, say, would be written to verl's default place on some node. A cluster that the command
    starts itself inherits them. What the config names already stays.

    Args:
        config: verl's composed config; changed in place.
    """
    if not (environ.get("RAY_ADDRESS") or OmegaConf.select(config, "ray_kwargs.ray_init.address")):
        return
    found = {name: value for name, value in environ.items() if name.startswith(PREFIXES) or name in NAMES}
    named = OmegaConf.select(config, _VARIABLES) or {}
    OmegaConf.update(config, _VARIABLES, {**found, **named}, force_add=True)
