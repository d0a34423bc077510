"""verl's main_ppo with replay: `python -m verl_replay.main_ppo <the overrides of your verl command> replay=pooled`.

The configuration is checked before Ray starts: a wrong option costs seconds.
"""

from __future__ import annotations

import os
import sys

import hydra
from omegaconf import DictConfig

from verl_replay.options import ReplayConfigError
from verl_replay.platforms.cpu_environment import fill_environment
from verl_replay.support import check_config


@hydra.main(config_path="config", config_name="replay_trainer", version_base=None)
def main(config: DictConfig) -> None:
    """Check the configuration, then run verl's own run_ppo with a task runner that trains with replay."""
    try:
        check_config(config)
    except ReplayConfigError as error:
        sys.exit("\n".join(f"verl_replay: {fault}" for fault in error.faults))

    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    from verl_replay.task_runner import ReplayTaskRunner

    auto_set_device(config)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    run_ppo(config, task_runner_class=ReplayTaskRunner)


if __name__ == "__main__":
    # Before Hydra composes: that imports verl, for its own config, and verl reads the environment as it is imported.
    if os.environ.get("VERL_PLATFORM") == "cpu":
        fill_environment(os.environ)
    main()
