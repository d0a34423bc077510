"""Measure saving and loading a full buffer against a bare sequential write and read of the same bytes.

    python -m scripts.benchmark_checkpoint                # 30,000 rollouts, under a minute; 1 GB of disk and of memory
    python -m scripts.benchmark_checkpoint --quick        # 600 rollouts, seconds: does it run?

Writes to --folder, which should lie on the file system that checkpoints go to. Save and bare write, load and bare read
take turns. Both writes end with fsync. What was just written is read from the page cache; a second pair of rows is
read after the kernel was asked to drop the file from it, which says nothing of caches below, in a disk or a host.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from scripts.benchmark.report import Row, markdown, ms
from scripts.benchmark.rollouts import QUICK, Size, make_batch, survivors
from scripts.benchmark.timing import Stopwatch, peak_resident, resident
from scripts.benchmark_replay import machine
from verl_replay import checkpoint
from verl_replay.buffer import RolloutBuffer
from verl_replay.checkpoint import State
from verl_replay.store import Rows
from verl_replay.trainers import columns

DISTINCT = 4  # batches that are made; the buffer holds them over and over
ROUNDS, QUICK_ROUNDS = 9, 3
HALF, TENTH = 0.5, 0.1  # least speed of the bare one; most memory more, of the buffer's
FINGERPRINT = {"columns": []}


def make_buffer(size: Size, rng: np.random.Generator) -> RolloutBuffer:
    """Full, one segment a step, as training fills it."""
    buffer = RolloutBuffer(capacity=size.stored, seed=0)
    made = [make_batch(size, rng, name=f"step{i}") for i in range(DISTINCT)]
    born = [batch.take(np.sort(survivors(batch))) for batch in made]
    for step in range(1, size.max_age + 1):
        batch = born[step % DISTINCT]
        ranges = np.arange(len(batch.keys) + 1)
        table = columns.tabulate(
            batch.keys, ranges, batch.columns, born=np.full(len(batch.keys), step), first_group=step * size.groups
        )
        stored = {name: column for name, column in batch.columns.items() if name != columns.SCORE}
        buffer.add(table.stored(step), Rows(stored, ranges))
    return buffer


def load_buffer(folder: Path, step: int, capacity: int) -> None:
    RolloutBuffer(capacity=capacity, seed=1).load(checkpoint.load(folder, step=step, fingerprint=FINGERPRINT))


def write_bare(path: Path, state: State) -> None:
    """The same bytes one after another, and fsync."""
    with path.open("wb", buffering=0) as file:
        for array in state.arrays.values():
            file.write(array.view(np.uint8))
        os.fsync(file.fileno())


def read_into_one_array(path: Path) -> None:
    """A stricter peer than `read_bytes`: a megabyte at a time, into numpy's large pages."""
    content, start = memoryview(np.empty(path.stat().st_size, np.uint8)), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(content[start : start + 2**20]):
            start += count


def drop_from_cache(folder: Path) -> None:
    """Ask the kernel to read these files from the disk next time."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(buffer: RolloutBuffer, folder: Path, rounds: int, each: Callable[[range], Any]) -> dict[str, Any]:
    """Medians of `rounds`, after one that is not counted.

    Args:
        each: gives the rounds, and shows how far they are.
    """
    watch, state, grown = Stopwatch(), buffer.state(), []
    for round_ in each(range(rounds + 1)):
        saved, bare = folder / f"global_step_{round_}" / "replay", folder / "bare"
        before = resident()
        with peak_resident() as peak, watch("save"):
            written = checkpoint.save(saved, state, step=round_, fingerprint=FINGERPRINT)
        grown.append(peak[0] - before)
        with watch("bare write"):
            write_bare(bare, state)
        for suffix in ("", ", cache dropped"):
            reads = {
                "load": lambda saved=saved, step=round_: load_buffer(saved, step, len(buffer)),
                "bare read": bare.read_bytes,
                "bare read into one array": lambda bare=bare: read_into_one_array(bare),
            }
            for name, read in reads.items():
                if suffix:
                    drop_from_cache(folder)
                with watch(name + suffix):
                    read()
        bare_bytes = bare.stat().st_size
        shutil.rmtree(saved.parent)
        bare.unlink()
    return {
        "rollouts": len(buffer),
        "buffer_bytes": buffer.nbytes,
        "written_bytes": written,
        "bare_bytes": bare_bytes,
        "rounds": rounds,
        "median_ms": watch.medians(rounds),
        "ms": {name: times[-rounds:] for name, times in watch.times.items()},
        "grown_bytes": max(grown),
    }


def make_table(numbers: dict[str, Any]) -> list[Row]:
    """Every row, in order."""
    median, size = numbers["median_ms"], numbers["written_bytes"] / 1e6

    def speed(name: str) -> Row:
        return Row(f"{name}, {size:,.1f} MB", f"{ms(median[name])}, {size / median[name]:.2f} GB/s")

    def compared(ours: str, bare: str) -> tuple[str, float]:
        return f"- speed of {ours} / speed of {bare}", median[bare] / median[ours]

    rows = []
    for ours, bare, suffix in (
        ("save", "bare write", ""),
        ("load", "bare read", ""),
        ("load", "bare read", ", cache dropped"),
    ):
        ours, bare = ours + suffix, bare + suffix
        what, share = compared(ours, bare)
        rows += [speed(ours), speed(bare), Row(what, f"{share:.2f}", f">= {HALF}", share >= HALF)]
        if ours.startswith("load"):
            what, share = compared(ours, f"bare read into one array{suffix}")
            rows.append(Row(what, f"{share:.2f}"))
    grown = numbers["grown_bytes"] / numbers["buffer_bytes"]
    return [*rows, Row("memory more while saving / buffer", f"{grown:.1%}", f"<= {TENTH:.0%}", grown <= TENTH)]


def notes(numbers: dict[str, Any]) -> list[str]:
    """What a reader needs beside the table."""
    on = numbers["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in on["versions"].items())
    said = [
        f"Machine: {on['cores']} cores of {on['cpu']}, {on['memory_gb']:.0f} GB; load average {on['load']:.2f} at the "
        f"start. {versions}.",
        f"Command: `{numbers['command']}`; seed {numbers['seed']}. {numbers['rollouts']:,} rollouts; medians of "
        f"{numbers['rounds']} rounds. Writes end with fsync. Reads come from the page cache, or after the kernel was "
        "asked to drop the files from it; caches below it, of a disk or a host, may still hold them. A bare read is "
        "Python's read_bytes, or, stricter, a megabyte at a time into one numpy array.",
    ]
    if numbers["rollouts"] < Size().stored:
        said.append("A --quick run: its times mean nothing.")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1/50 of the size; the times mean nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write; all of it is removed")
    parser.add_argument("--output", type=Path, help="file for the table (Markdown)")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    arguments = parser.parse_args()
    size, rounds = (QUICK, QUICK_ROUNDS) if arguments.quick else (Size(), ROUNDS)
    console = Console(stderr=True)
    numbers: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "scripts.benchmark_checkpoint", *sys.argv[1:]]),
        "seed": arguments.seed,
        "machine": machine(),
        "size": dataclasses.asdict(size),
    }
    buffer = make_buffer(size, np.random.default_rng(arguments.seed))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        numbers |= measure(
            buffer,
            Path(folder),
            rounds,
            lambda rounds: track(rounds, "rounds", console=console, disable=not console.is_terminal),
        )
    rows = make_table(numbers)
    numbers["table"] = [row._asdict() for row in rows]
    text = markdown(rows, notes(numbers))
    print(text)
    if arguments.output:
        arguments.output.write_text(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
