"""verl's main_ppo with replay: `python -m verl_replay.main_ppo <the overrides of your verl command> replay=pooled`.

The configuration is checked before Ray starts: a wrong option costs seconds. DRY_RUN=1 checks more, says what the run
needs and costs, and stops there; DRY_RUN=strict also fails where an input is missing.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from verl_replay.cluster import hand_over_environment
from verl_replay.feasible import faults
from verl_replay.options import ReplayConfigError
from verl_replay.platforms.cpu_environment import fill_environment
from verl_replay.support import check_config


def train(config: DictConfig, task_runner_class: Any = None) -> None:
    """Check the configuration, then run verl's own run_ppo.

    Args:
        config: verl's composed config with the `replay` node.
        task_runner_class: Ray actor class to run in; by default ReplayTaskRunner, or ReplayTaskRunnerV0 with
            trainer.use_v1=false.
    """
    OmegaConf.resolve(config)  # here, where the environment is that of the command: a worker's on a cluster is not
    hand_over_environment(config, os.environ)
    dry = os.environ.get("DRY_RUN", "0")
    dry_run = dry not in ("", "0")
    try:
        options = check_config(config)
        if found := faults(config, baseline=dry_run) if options.enabled or dry_run else []:
            raise ReplayConfigError(found)
    except ReplayConfigError as error:
        sys.exit("\n".join(f"verl_replay: {fault}" for fault in error.faults))

    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    from verl_replay.task_runner import ReplayTaskRunner, ReplayTaskRunnerV0

    auto_set_device(config)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    if dry_run:
        print_dry_run(config, strict=dry == "strict")
        return
    run_ppo(config, task_runner_class or (ReplayTaskRunner if config.trainer.use_v1 else ReplayTaskRunnerV0))


def print_dry_run(config: DictConfig, *, strict: bool) -> None:
    """Say what the run needs and costs; exit where `strict` and an input is missing."""
    from verl_replay.dry_run.inputs import missing
    from verl_replay.dry_run.report import gpu_named, report

    try:
        text, found = report(config, gpu_named(os.environ))
    except ValueError as error:
        sys.exit(f"verl_replay: {error}")
    print(text)
    print("verl_replay: the configuration is valid (DRY_RUN: nothing was started)")
    if strict and (absent := missing(found)):
        sys.exit("\n".join(f"verl_replay: {each.what} is missing: {each.where}" for each in absent))


@hydra.main(config_path="config", config_name="replay_trainer", version_base=None)
def main(config: DictConfig) -> None:
    """Entry point with Hydra's command line."""
    train(config)


if __name__ == "__main__":
    # Before Hydra composes: that imports verl, for its own config, and verl reads the environment as it is imported.
    if os.environ.get("VERL_PLATFORM") == "cpu":
        fill_environment(os.environ)
    main()
