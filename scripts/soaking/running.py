"""Updates through the stage and its twin, with what they cost."""

from __future__ import annotations

import shutil
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, MutableSequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean, median

import numpy as np

from scripts.benchmark.rollouts import Batch
from scripts.benchmark.stage import compose, sort_fresh
from scripts.benchmark.timing import Report, resident
from scripts.soaking.compare import Difference, differences, rows_differ
from scripts.soaking.settings import RANKS
from scripts.soaking.steps import ROWS_OF_MINI_BATCH, Step
from scripts.soaking.twin import Twin
from verl_replay import checkpoint
from verl_replay.buffer import RolloutBuffer
from verl_replay.options import ReplayOptions
from verl_replay.trainers.resuming import FOLDER
from verl_replay.trainers.stage import Plan, ReplayStage

WINDOWS = 20
MEASURE_MEMORY_EVERY = 10  # updates


@dataclass
class Measured:
    """What the updates cost, one entry an update; in arrays, which grow by 8 bytes where lists grow by 40.

    Attributes:
        seconds: of processor time, of the stage: sort, decide, gather, store, lay out, compose.
        held, needed: bytes of the buffer, and those that its rollouts cannot do without.
        resident: of the process; measured every ten updates.
        full_from: the first update by which something had been evicted, and a checkpoint made if any are: the first
            loads code. None before.
        counts: rollouts generated, stored, drawn and evicted, checkpoints, and how often each rare thing happened.
        size: rollouts in the buffer at the end.
    """

    seconds: MutableSequence[float] = field(default_factory=partial(array, "d"))
    held: MutableSequence[int] = field(default_factory=partial(array, "q"))
    needed: MutableSequence[int] = field(default_factory=partial(array, "q"))
    resident: MutableSequence[int] = field(default_factory=partial(array, "q"))
    full_from: int | None = None
    counts: Counter[str] = field(default_factory=Counter)
    size: int = 0


def make_twin(stage: ReplayStage, options: ReplayOptions) -> Twin:
    return Twin(options, stage.stored_columns, rows_of_mini_batch=ROWS_OF_MINI_BATCH, ranks=RANKS)


def soak(
    make: Callable[[], ReplayStage],
    twin: Twin,
    steps: Iterable[Step],
    *,
    checkpoint_every: int,
    folder: Path,
    report: Report = lambda done, of: None,
    count: int = 0,
) -> Measured:
    """Run every step through the stage and its twin, and compare them after each.

    Args:
        make: makes a stage with an empty buffer.
        checkpoint_every: updates between checkpoints, each of which the run goes on from. 0: none.
        folder: for the checkpoints, of which one stays.
        report: is told how many updates of `count` are done.

    Raises:
        Difference: the stage and its twin differ.
    """
    stage, measured = make(), Measured()
    for number, made in enumerate(steps, start=1):
        plan, log = _update(stage, made, measured)
        expected = twin.advance(made)
        wrong = list(islice(differences(expected, twin, stage.transform.buffer, log, plan, made.step), 3))
        if wrong:
            raise Difference(
                f"update {number}, step {made.step} ({', '.join(sorted(made.happened)) or 'an ordinary one'}):\n"
                + "\n".join(wrong)
            )
        _count(measured, made, log, twin, number, checkpoints=checkpoint_every > 0)
        del plan
        if checkpoint_every and number % checkpoint_every == 0:
            stage = _resumed(stage, make, twin, folder, made.step)
            measured.counts["checkpoints"] += 1
        report(number, count)
    measured.size = len(stage.transform.buffer)
    return measured


def _update(stage: ReplayStage, made: Step, measured: Measured) -> tuple[Plan | None, dict[str, float]]:
    arrived: Batch = made.batch.take(made.done)
    log: dict[str, float] = {}
    started = time.process_time()
    fresh = sort_fresh(stage, arrived, made.step)._replace(born=made.born)
    plan = stage.plan(fresh, log, step=made.step, batch_rows=made.batch_rows, ranks=RANKS)
    if plan is not None:
        compose(stage, plan)
    measured.seconds.append(time.process_time() - started)
    return plan, log


def _count(
    measured: Measured, made: Step, log: dict[str, float], twin: Twin, number: int, *, checkpoints: bool
) -> None:
    measured.held.append(int(log["replay/buffer/bytes"]))
    measured.needed.append(twin.needed_bytes)
    if number % MEASURE_MEMORY_EVERY == 0:
        measured.resident.append(resident())
    names = {
        "generated": "fresh/generated",
        "stored": "buffer/stored",
        "drawn": "draw/rollouts",
        "evicted": "buffer/evicted_age",
        "evicted by capacity": "buffer/evicted_capacity",
    }
    measured.counts.update({name: int(log[f"replay/{metric}"]) for name, metric in names.items()})
    evicted = measured.counts["evicted"] + measured.counts["evicted by capacity"]
    if measured.full_from is None and evicted and (measured.counts["checkpoints"] or not checkpoints):
        measured.full_from = number
    measured.counts["updates"] += log["replay/updates"] > 0
    measured.counts.update(made.happened)


def _resumed(stage: ReplayStage, make: Callable[[], ReplayStage], twin: Twin, folder: Path, step: int) -> ReplayStage:
    """A new stage with what a checkpoint of the old one holds, all of it compared with the twin's."""
    shutil.rmtree(folder, ignore_errors=True)
    where = folder / f"global_step_{step}" / FOLDER
    checkpoint.save(where, stage.state(), step=step, fingerprint=stage.fingerprint())
    resumed, looked_at = make(), RolloutBuffer(capacity=sys.maxsize, seed=0)
    for load in (resumed.load, looked_at.load):  # each with arrays of its own
        load(checkpoint.load(where, step=step, fingerprint=resumed.fingerprint()))
    rows = looked_at.draw(np.arange(len(looked_at))).rows
    if wrong := list(rows_differ("saved and loaded", rows, twin.held)):
        raise Difference(f"the checkpoint of step {step}:\n" + "\n".join(wrong))
    return resumed


@dataclass(frozen=True)
class Growth:
    """From the first window in which the buffer was full to the last, as shares of the first.

    Attributes:
        window: updates of a window.
        first, last: (bytes held / bytes needed, bytes of the process) in the mean of these windows.
    """

    window: int
    first: tuple[float, float]
    last: tuple[float, float]

    @property
    def shares(self) -> tuple[float, float]:
        """Of the buffer's bytes a byte needed, and of the process."""
        return tuple(last / first - 1 for first, last in zip(self.first, self.last, strict=True))


def growth(measured: Measured) -> Growth | None:
    """None where there are not two windows with a full buffer."""
    window = max(len(measured.held) // WINDOWS, MEASURE_MEMORY_EVERY)
    if measured.full_from is None:
        return None
    begin = -(-measured.full_from // window) * window
    end = len(measured.held) // window * window - window
    if end <= begin:
        return None

    def means(start: int) -> tuple[float, float]:
        updates = slice(start, start + window)
        samples = slice(start // MEASURE_MEMORY_EVERY, (start + window) // MEASURE_MEMORY_EVERY)
        return sum(measured.held[updates]) / sum(measured.needed[updates]), fmean(measured.resident[samples])

    return Growth(window, means(begin), means(end))


def cost(measured: Measured) -> tuple[float, float]:
    """Median processor seconds of an update in the second tenth and in the last."""
    tenth = max(len(measured.seconds) // 10, 1)
    return median(measured.seconds[tenth : 2 * tenth] or measured.seconds), median(measured.seconds[-tenth:])
