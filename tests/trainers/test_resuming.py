"""I9, O14: the buffer in verl's checkpoints, through verl's own _save_checkpoint and _load_checkpoint, V1 and V0."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from tests.verl_batch import StubWorkers, compose_config, make_trainer, put_rows, rollout_rows, train_step
from tests.verl_batch_v0 import make_trainer_v0, to_dataproto, train_step_v0
from verl_replay.checkpoint import MANIFEST, CheckpointError
from verl_replay.trainers.resuming import TRACKER

GROUPS = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]]


class SavingWorkers(StubWorkers):
    """Writes and reads an actor folder, and notes what stood in the checkpoint when it was asked to."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__(ranks)
        self.saw: list[tuple[list[str], bool]] = []

    def save_checkpoint(self, path, remote_path, step, max_ckpt_to_keep=None):
        folder = Path(path)
        folder.mkdir(parents=True)
        (folder / "version").write_text(str(self.version))
        there = sorted(p.relative_to(folder.parent).as_posix() for p in folder.parent.glob("replay/*"))
        self.saw.append((there, (folder.parent.parent / TRACKER).exists()))

    def load_checkpoint(self, local_path, del_local_after_load=False):
        self.version = int((Path(local_path) / "version").read_text())


class Loader:
    """A stateful data loader's place in the data, and nothing else."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def __len__(self):
        return 100


class V1:
    def make(self, config, cls=None):
        trainer = make_trainer(config, cls=cls)
        trainer.actor_rollout_wg = SavingWorkers()
        trainer.use_critic = False
        trainer.train_dataloader = Loader()
        trainer.checkpoint_callback = SimpleNamespace(on_save=lambda **kwargs: None)
        trainer._load_checkpoint()
        return trainer

    def train(self, trainer, keys, rows, step):
        return train_step(trainer, put_rows(keys, rows, step=step), step)


class V0:
    def make(self, config, cls=None):
        trainer = make_trainer_v0(config, workers=SavingWorkers(), **({"cls": cls} if cls else {}))
        trainer.train_dataloader = Loader()
        trainer.global_steps = 0
        trainer._load_checkpoint()
        return trainer

    def train(self, trainer, keys, rows, step):
        return train_step_v0(trainer, to_dataproto(keys, rows), step)


@pytest.fixture(params=[V1, V0], ids=["v1", "v0"])
def generation(request):
    if request.param is V1:
        request.getfixturevalue("clear_partition")
    return request.param()


def config_of(folder: Path, *options: str):
    return compose_config(
        f"trainer.default_local_dir={folder}",
        "trainer.save_freq=3",
        "trainer.resume_mode=auto",
        "replay.max_age=4",
        "replay.diagnostics_every=1",
        *options,
        prompts=3,
    )


def recorded(steps: int):
    """The rollouts of each step: (keys, rows)."""
    rng = np.random.default_rng(9)
    return [rollout_rows(GROUPS, step=step, rng=rng) for step in range(1, steps + 1)]


def sent(trainer) -> list[list[bytes]]:
    """Of every update the rows sent, in order, by their tokens and birth log-probs."""
    return [
        [
            ids.numpy().tobytes() + old.numpy().tobytes()
            for chunk in update.chunks
            for ids, old in zip(chunk["input_ids"].unbind(), chunk["old_log_probs"].unbind(), strict=True)
        ]
        for update in trainer.actor_rollout_wg.updates
    ]


def of_replay(metrics: dict) -> dict:
    return {name: value for name, value in metrics.items() if name.startswith("replay/")}


def save(trainer, step: int) -> Path:
    trainer.global_steps = step
    trainer._save_checkpoint()
    return Path(trainer.config.trainer.default_local_dir) / f"global_step_{step}"


def release(trainer) -> None:
    """What the end of the process does."""
    trainer._replay_lock.close()


def train_and_save(generation, folder, *options, steps=3):
    trainer = generation.make(config_of(folder, *options))
    for step, (keys, rows) in enumerate(recorded(steps), start=1):
        generation.train(trainer, keys, rows, step)
    saved = save(trainer, steps)
    release(trainer)
    return trainer, saved


# ---- the resumed run is the uninterrupted one ------------------------------------------------------------------------


@pytest.mark.parametrize("arm", [[], ["replay=pooled"], ["replay=per"], ["replay=capped_uses"], ["replay=decoupled"]])
def test_o14_i9_the_next_draws_ages_uses_and_metrics_are_those_of_the_uninterrupted_run(generation, tmp_path, arm):
    options = [*arm, "replay.warmup_steps=0", "replay.max_age=4"]
    steps = recorded(7)
    whole = generation.make(config_of(tmp_path / "whole", *options))
    expected = [of_replay(generation.train(whole, *copy.deepcopy(s), i)) for i, s in enumerate(steps, start=1)]

    first = generation.make(config_of(tmp_path / "cut", *options))
    for i in range(1, 4):
        generation.train(first, *copy.deepcopy(steps[i - 1]), i)
    save(first, 3)
    release(first)
    second = generation.make(config_of(tmp_path / "cut", *options))
    assert second.global_steps == 3 and second.actor_rollout_wg.version == 3
    resumed = [of_replay(generation.train(second, *copy.deepcopy(steps[i - 1]), i)) for i in range(4, 8)]

    assert resumed == expected[3:]
    assert sum(metrics["replay/draw/rollouts"] for metrics in resumed) > 0
    assert sent(second) == sent(whole)[3:]
    ours, theirs = (t.replay_stage.transform.buffer for t in (second, whole))
    assert ours.rng.bit_generator.state == theirs.rng.bit_generator.state
    for name in vars(theirs.table):
        assert getattr(ours.table, name).tolist() == getattr(theirs.table, name).tolist(), name
    assert second.replay_stage.groups_seen == whole.replay_stage.groups_seen == 21


def test_i9_the_buffer_is_complete_before_verl_saves_and_marks_the_step(generation, tmp_path):
    trainer, saved = train_and_save(generation, tmp_path)
    ((there, marked),) = trainer.actor_rollout_wg.saw
    assert [name for name in there if name.endswith(MANIFEST)] and len(there) == 2 and not marked
    assert (tmp_path / TRACKER).read_text() == "3"
    assert json.loads((saved / "replay" / MANIFEST).read_text())["payload"]["step"] == 3


def test_i9_as_many_buffers_stay_as_actors_and_never_fewer_than_the_tracked(generation, tmp_path):
    trainer = generation.make(config_of(tmp_path, "trainer.max_actor_ckpt_to_keep=2"))
    for step, (keys, rows) in enumerate(recorded(4), start=1):
        generation.train(trainer, keys, rows, step)
        save(trainer, step)
    assert sorted(p.parent.name for p in tmp_path.glob("*/replay")) == ["global_step_3", "global_step_4"]


# ---- another configuration -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    ["replay.max_age=2", "replay.ratio=1.5", "replay.priority_exponent=0", "replay=pooled_uniform", "replay.seed=5"],
)
def test_what_is_compatible_loads(generation, tmp_path, change):
    train_and_save(generation, tmp_path)
    trainer = generation.make(config_of(tmp_path, change, "replay.warmup_steps=0"))
    assert len(trainer.replay_stage.transform.buffer) == 24
    metrics = generation.train(trainer, *recorded(4)[3], 4)
    assert metrics["replay/draw/rollouts"] > 0


def test_a_smaller_capacity_keeps_the_newest(generation, tmp_path):
    train_and_save(generation, tmp_path)
    trainer = generation.make(config_of(tmp_path, "replay.capacity=10"))
    assert trainer.replay_stage.transform.buffer.table.born.tolist() == [2] * 2 + [3] * 8


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("actor_rollout_ref.rollout.temperature=0.7", "temperature: stored 1.0, now 0.7"),
        ("actor_rollout_ref.actor.use_kl_loss=true", "columns: stored .* now .*ref_log_prob"),
        ("replay=decoupled", "columns: stored .* now .*rollout_log_probs"),
        ("algorithm.adv_estimator=rloo", "advantage: stored 'grpo', now 'rloo'"),
        ("algorithm.norm_adv_by_std_in_grpo=false", "advantage_by_std: stored True, now False"),
    ],
)
def test_what_is_not_compatible_is_refused_with_the_remedy(generation, tmp_path, change, told):
    train_and_save(generation, tmp_path)
    with pytest.raises(CheckpointError, match=f"{told}.*replay.resume=fresh"):
        generation.make(config_of(tmp_path, change))


def test_resume_fresh_starts_empty_and_says_so(generation, tmp_path, caplog):
    train_and_save(generation, tmp_path)
    with caplog.at_level(logging.WARNING, "verl_replay"):
        trainer = generation.make(
            config_of(tmp_path, "replay.resume=fresh", "actor_rollout_ref.rollout.temperature=0.7")
        )
    assert len(trainer.replay_stage.transform.buffer) == 0 and trainer.global_steps == 3
    assert "empty buffer, as replay.resume=fresh says" in caplog.text


def test_a_checkpoint_made_without_replay_resumes_with_an_empty_buffer(generation, tmp_path, caplog):
    trainer = generation.make(config_of(tmp_path, "replay=off"))
    save(trainer, 3)
    assert not list(tmp_path.glob("*/replay"))
    with caplog.at_level(logging.WARNING, "verl_replay"):
        resumed = generation.make(config_of(tmp_path))
    assert len(resumed.replay_stage.transform.buffer) == 0 and resumed.global_steps == 3
    assert "made without replay" in caplog.text


def test_a_checkpoint_made_with_replay_resumes_under_stock_verl(clear_partition, tmp_path):
    train_and_save(V1(), tmp_path)
    config = config_of(tmp_path)
    stock = OmegaConf.create({key: value for key, value in config.items() if key != "replay"})
    trainer = V1().make(stock, cls=PPOTrainerSync)
    assert trainer.global_steps == 3 and trainer.actor_rollout_wg.version == 3


def test_what_never_replays_saves_no_buffer(generation, tmp_path):
    trainer = generation.make(config_of(tmp_path, "replay=filtered"))
    save(trainer, 3)
    assert (tmp_path / TRACKER).exists() and not list(tmp_path.glob("*/replay"))


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [MANIFEST, "rollouts-*.safetensors"])
def test_a_damaged_buffer_stops_the_run_and_an_earlier_one_resumes(generation, tmp_path, name):
    trainer = generation.make(config_of(tmp_path))
    for step, (keys, rows) in enumerate(recorded(2), start=1):
        generation.train(trainer, keys, rows, step)
        saved = save(trainer, step)
    release(trainer)
    (path,) = (saved / "replay").glob(name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged.*resume_from_path.*replay.resume=fresh"):
        generation.make(config_of(tmp_path))
    earlier = tmp_path / "global_step_1"
    resumed = generation.make(
        config_of(tmp_path, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={earlier}")
    )
    assert resumed.global_steps == 1 and len(resumed.replay_stage.transform.buffer) == 8


def test_a_buffer_of_another_step_is_refused(generation, tmp_path):
    _, saved = train_and_save(generation, tmp_path)
    saved.rename(tmp_path / "global_step_5")
    (tmp_path / TRACKER).write_text("5")
    with pytest.raises(CheckpointError, match="is of step 3, its folder of step 5"):
        generation.make(config_of(tmp_path))


@pytest.mark.parametrize("content", ["", "garbage", "3\x00", "7"])
def test_i9_an_empty_or_garbled_tracker_is_refused_naming_the_newest_complete_folder(generation, tmp_path, content):
    train_and_save(generation, tmp_path)
    (tmp_path / TRACKER).write_text(content)
    with pytest.raises(CheckpointError, match=r"resume_from_path=\S*global_step_3"):
        generation.make(config_of(tmp_path))


def test_two_runs_on_one_folder_are_refused(generation, tmp_path):
    first = generation.make(config_of(tmp_path))
    with pytest.raises(CheckpointError, match="another run.*trainer.default_local_dir"):
        generation.make(config_of(tmp_path))
    release(first)
    generation.make(config_of(tmp_path))


def test_a_failed_save_leaves_verls_tracker_where_it_was(generation, tmp_path):
    trainer = generation.make(config_of(tmp_path))
    generation.train(trainer, *recorded(1)[0], 1)
    save(trainer, 1)
    (tmp_path / "global_step_2").mkdir()
    (tmp_path / "global_step_2" / "replay").write_text("a file where the folder must be")
    with pytest.raises(CheckpointError, match="could not be written.*Checkpoints already complete are as they were"):
        save(trainer, 2)
    assert (tmp_path / TRACKER).read_text() == "1"
    release(trainer)
    assert generation.make(config_of(tmp_path)).global_steps == 1
