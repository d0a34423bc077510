"""The Ray actor that verl's run_ppo starts: verl's own task runner, with our trainer under verl's name for its mode."""

from __future__ import annotations

import ray
from omegaconf import DictConfig
from verl.trainer.main_ppo import TaskRunnerV1

_VerlTaskRunner = TaskRunnerV1.__ray_metadata__.modified_class  # the plain class behind verl's ray.remote decorator


class TaskRunner(_VerlTaskRunner):
    """verl's V1 task runner. Subclass it and override `trainer_class` to run a trainer of your own."""

    def trainer_class(self) -> type:
        """The trainer to run. Imported here, in the process that trains."""
        from verl_replay.trainers.v1 import ReplayTrainerSync

        return ReplayTrainerSync

    def run(self, config: DictConfig) -> None:
        """Train. In this process alone, "sync" now names the trainer with replay: under any other name verl would
        treat it as asynchronous (another queue, other checkpoints)."""
        from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

        TRAINER_REGISTRY["sync"] = self.trainer_class()
        super().run(config)


ReplayTaskRunner = ray.remote(TaskRunner)
