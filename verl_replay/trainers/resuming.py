"""The buffer as part of verl's checkpoints: saved before verl marks a step as the latest, loaded when verl resumes.

For both trainer generations, whose _save_checkpoint and _load_checkpoint read the same options.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import time
import weakref
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_replay import checkpoint
from verl_replay.checkpoint import CheckpointError

logger = logging.getLogger(__name__)

FOLDER = "replay"
TRACKER = "latest_checkpointed_iteration.txt"
LOCK = ".verl_replay.lock"
_STEP = re.compile(r"global_step_(\d+)")
_TRACKED = re.compile(rb"\s*([0-9]{1,18})\s*")  # verl reads it with int(): white space around is fine


class ResumingMixin:
    """Adds the buffer to a trainer's checkpoints. Of the trainer it uses config, global_steps and replay_stage."""

    def _save_checkpoint(self) -> Any:
        """Write the buffer, then verl's own checkpoint, which marks the step as latest at its end."""
        if not self._replays():
            return super()._save_checkpoint()
        folder = _checkpoints(self.config)
        self._lock(folder)
        started = time.perf_counter()
        size = checkpoint.save(
            folder / f"global_step_{self.global_steps}" / FOLDER,
            self.replay_stage.state(),
            step=self.global_steps,
            fingerprint=self.replay_stage.fingerprint(),
        )
        logger.info(
            "verl_replay: step %d, saved %d rollouts, %.1f MB in %.2f s",
            self.global_steps,
            len(self.replay_stage.transform.buffer),
            size / 1e6,
            time.perf_counter() - started,
        )
        saved = super()._save_checkpoint()
        prune(folder, keep=_most_to_keep(self.config), current=self.global_steps)
        return saved

    def _load_checkpoint(self) -> Any:
        """Resume as verl does, and the buffer with it."""
        if not self._replays():
            return super()._load_checkpoint()
        if self.config.trainer.save_freq > 0:
            self._lock(_checkpoints(self.config))
        if self.config.trainer.resume_mode == "auto":
            check_tracker(_checkpoints(self.config))
        loaded = super()._load_checkpoint()
        if self.global_steps:
            self._load_buffer(_resumed_from(self.config, self.global_steps) / FOLDER)
        return loaded

    def _load_buffer(self, folder: Path) -> None:
        step = self.global_steps
        if self._replay_options.resume == "fresh":
            logger.warning("verl_replay: resumed at step %d with an empty buffer, as replay.resume=fresh says", step)
            return
        started = time.perf_counter()
        state = checkpoint.load(folder, step=step, fingerprint=self.replay_stage.fingerprint())
        if state is None:
            logger.warning(
                "verl_replay: resumed at step %d with an EMPTY buffer: the checkpoint was made without replay (%s "
                "holds no buffer). Nothing is replayed until it has filled again.",
                step,
                folder,
            )
            return
        try:
            evicted = self.replay_stage.load(state)
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{folder}: {error}. Start with an empty buffer: replay.resume=fresh.") from error
        logger.info(
            "verl_replay: resumed at step %d with %d rollouts in %.2f s; %d more did not fit replay.capacity=%d",
            step,
            len(self.replay_stage.transform.buffer),
            time.perf_counter() - started,
            evicted,
            self._replay_options.capacity,
        )

    def _replays(self) -> bool:
        return self._replay_options.enabled and self._replay_options.replays

    def _lock(self, folder: Path) -> None:
        """Hold the checkpoint folder until this process ends: two runs that write into one would mix their steps."""
        if getattr(self, "_replay_lock", None) is None:
            self._replay_lock = lock(folder)


def lock(folder: Path) -> Any:
    """An open file whose lock lasts as long as the process, however that ends.

    Raises:
        CheckpointError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise CheckpointError(
            f"another run (process {holder}) saves its checkpoints to {folder}. "
            "Give each run its own trainer.default_local_dir."
        ) from error
    except OSError:  # a file system without locks: nothing to hold, nothing to tell
        logger.warning("verl_replay: %s cannot be locked; see to it that no other run saves there", folder)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    held = weakref.ref(file)
    os.register_at_fork(after_in_child=lambda: held() and held().close())  # a worker may outlive the run
    return file


def prune(folder: Path, *, keep: int | None, current: int) -> list[Path]:
    """Remove the buffers of the oldest steps, so that as many stay as verl keeps actors.

    Never that of the step that verl's tracker names, nor that of `current`.

    Args:
        folder: of the checkpoints.
        keep: how many stay; None for all.
        current: the step just saved.

    Returns:
        What was removed.
    """
    if not keep or keep < 1:
        return []
    steps = sorted(steps_with(folder, FOLDER), reverse=True)
    stays = {*steps[:keep], current, _tracked(folder)}
    removed = [folder / f"global_step_{step}" / FOLDER for step in steps if step not in stays]
    for path in removed:
        shutil.rmtree(path)
    return removed


def steps_with(folder: Path, part: str) -> list[int]:
    """The steps N whose folder global_step_N has the part."""
    found = (_STEP.fullmatch(path.parent.name) for path in folder.glob(f"global_step_*/{part}"))
    return [int(match[1]) for match in found if match]


def check_tracker(folder: Path) -> None:
    """Refuse an empty or garbled tracker file: verl would fail on it without saying what to do.

    Raises:
        CheckpointError: naming the newest folder that is complete.
    """
    path = folder / TRACKER
    if not path.exists():
        return
    step = _tracked(folder)
    if step is not None and (folder / f"global_step_{step}").is_dir():
        return
    whole = set(steps_with(folder, "actor")) & set(steps_with(folder, "data.pt"))
    newest = folder / f"global_step_{max(whole)}" if whole else None
    remedy = (
        f"The newest complete checkpoint is {newest}: resume from it with trainer.resume_mode=resume_path "
        f"trainer.resume_from_path={newest}."
        if newest
        else "No checkpoint there is complete: start anew with trainer.resume_mode=disable."
    )
    raise CheckpointError(
        f"{path} must hold the number of a step that is saved there, got {path.read_bytes()[:40]!r}. {remedy}"
    )


def _tracked(folder: Path) -> int | None:
    path = folder / TRACKER
    number = _TRACKED.fullmatch(path.read_bytes()) if path.exists() else None
    return int(number[1]) if number else None


def _checkpoints(config: DictConfig) -> Path:
    return Path(config.trainer.default_local_dir).absolute()


def _resumed_from(config: DictConfig, step: int) -> Path:
    if config.trainer.resume_mode == "resume_path":
        return Path(config.trainer.resume_from_path).absolute()
    return _checkpoints(config) / f"global_step_{step}"


def _most_to_keep(config: DictConfig) -> int | None:
    if config.trainer.get("remove_previous_ckpt_in_save", False):
        return 1
    return config.trainer.get("max_actor_ckpt_to_keep", None)
