"""`python -m tests.e2e.recording`: verl_replay.main_ppo with a trainer that writes down what it sends to the workers.

One file a step, records/step_N.json beside verl's file of metrics: every row of verl's own batch as it was born, every
row that was trained on, in order, and how many optimizer steps the workers took. Rows are known by their tokens; arrays
are kept as bytes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import hydra
import ray
import transfer_queue as tq
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

from verl_replay.main_ppo import train
from verl_replay.platforms.cpu_environment import fill_environment
from verl_replay.task_runner import TaskRunner

COLUMNS = ("input_ids", "old_log_probs", "advantages", "response_mask", "loss_mask")
WEIGHT = "rollout_is_weights"
FOLDER = Path(os.environ["VERL_FILE_LOGGER_PATH"]).parent / "records"


def _rows(batch: KVBatchMeta) -> list[dict[str, str]]:
    names = [*COLUMNS, *([WEIGHT] if WEIGHT in (batch.fields or ()) else [])]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
    unbound = {name: data[name].unbind() for name in names}
    return [
        {
            "key": key,
            **{name: f"{unbound[name][i].dtype}:{unbound[name][i].numpy().tobytes().hex()}" for name in names},
        }
        for i, key in enumerate(batch.keys)
    ]


class Recording:
    """In front of a trainer class with replay."""

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        record = {"step": self.global_steps, "fresh": _rows(batch), "trained": [], "optimizer_steps": 0}
        for row, tag in zip(record["fresh"], batch.tags, strict=True):
            row["begun_with"] = tag["min_global_steps"]
        send = self.actor_rollout_wg.update_actor

        def update_actor(sent: KVBatchMeta) -> object:
            record["trained"] = _rows(sent)
            record["ranks"] = self._ranks()
            record["mini_batch_size"] = sent.extra_info["mini_batch_size"]
            record["global_batch_size"] = sent.extra_info["global_batch_size"]
            output = send(sent)
            record["optimizer_steps"] = len(output["metrics"]["grad_norm"])
            return output

        self.actor_rollout_wg.update_actor = update_actor
        try:
            return super()._update_actor(batch, metrics)
        finally:
            self.actor_rollout_wg.update_actor = send
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / f"step_{self.global_steps}.json").write_text(json.dumps(record))


class RecordingTaskRunner(TaskRunner):
    def trainer_class(self, mode: str) -> type:
        return type("RecordingTrainer", (Recording, super().trainer_class(mode)), {})


@hydra.main(config_path=None, config_name=None, version_base=None)
def main(config: DictConfig) -> None:
    train(config, task_runner_class=ray.remote(RecordingTaskRunner))


if __name__ == "__main__":
    fill_environment(os.environ)
    main()
