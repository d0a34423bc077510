"""The Ray actors that verl's run_ppo starts: verl's own task runners, with our trainers under verl's names."""

from __future__ import annotations

import inspect

import ray
from omegaconf import DictConfig
from verl.trainer import main_ppo_v0
from verl.trainer.main_ppo import TaskRunnerV1

# the plain classes behind verl's ray.remote decorator
_VerlTaskRunner = TaskRunnerV1.__ray_metadata__.modified_class
_VerlTaskRunnerV0 = main_ppo_v0.TaskRunner.__ray_metadata__.modified_class


class TaskRunner(_VerlTaskRunner):
    """verl's V1 task runner. Subclass it and override `trainer_class` to run a trainer of your own."""

    def trainer_class(self, mode: str) -> type:
        """The trainer to run for trainer.v1.trainer_mode. Imported here, in the process that trains."""
        from verl_replay.trainers.v1 import TRAINERS

        return TRAINERS[mode]

    def run(self, config: DictConfig) -> None:
        """Train. In this process alone, verl's name for the mode now names the trainer with replay: under any other
        name verl would treat it as asynchronous (another queue, other checkpoints)."""
        from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

        mode = config.trainer.v1.trainer_mode
        TRAINER_REGISTRY[mode] = self.trainer_class(mode)
        super().run(config)


class TaskRunnerV0(_VerlTaskRunnerV0):
    """verl's V0 task runner (trainer.use_v1=false), likewise."""

    def trainer_class(self) -> type:
        """The trainer to run. Imported here, in the process that trains."""
        from verl_replay.trainers.v0 import ReplayRayPPOTrainer

        return ReplayRayPPOTrainer

    def run(self, config: DictConfig) -> None:
        """Train. verl names its trainer inline: in this process alone that name is the trainer with replay."""
        # Ray may send verl's method by value, with globals of its own: so the name is changed where the method looks
        inspect.unwrap(_VerlTaskRunnerV0.run).__globals__["RayPPOTrainer"] = self.trainer_class()
        super().run(config)


ReplayTaskRunner = ray.remote(TaskRunner)
ReplayTaskRunnerV0 = ray.remote(TaskRunnerV0)
