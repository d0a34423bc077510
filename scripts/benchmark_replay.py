"""Measure the replay stage at the size of a run of the paper, and at ten times the stored rollouts, against its peers.

    python -m scripts.benchmark_replay                    # about 4 minutes; 8 GB of memory, 5 GB without torchrl
    python -m scripts.benchmark_replay --quick            # 1/50 of the size, under a minute: does it run?

Each part runs in a process of its own, one after another, with one thread. torchrl is optional: install it with
`bash scripts/setup_torchrl.sh`. The table goes to the terminal and to --output, all numbers to --json.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scripts.benchmark.report import make_table, markdown, notes
from scripts.benchmark.rollouts import QUICK, Size
from scripts.benchmark.timing import machine_memory
from verl_replay.guard import TIMED_OUT, run_guarded

VERSIONS = ("verl", "torch", "numpy", "tensordict", "TransferQueue", "ray", "torchrl")
MILLION, QUICK_MILLION = 1_000_000, 20_000
BYTES_A_ROLLOUT = 12_000  # of information
TELL_EVERY = 0.5  # seconds
INSTALL_TORCHRL = "install it with `bash scripts/setup_torchrl.sh`"


class Part(NamedTuple):
    """One process of the benchmark.

    Attributes:
        seconds: about how long it takes.
        timeout: seconds after which it is ended.
    """

    seconds: float
    timeout: float


PARTS = {
    "stage": Part(25, 600),
    "ten_times": Part(70, 1200),
    "peers": Part(35, 600),
    "torchrl": Part(50, 900),
    "transfer_queue": Part(70, 600),
}


def sizes(quick: bool) -> tuple[Size, Size, list[Size], int]:
    """The size, ten times the stored rollouts, the sizes with TransferQueue, and a million."""
    size = QUICK if quick else Size()
    ten_times = dataclasses.replace(size, stored=10 * size.stored)
    queue = [dataclasses.replace(s, measured=min(size.measured, 7)) for s in (size.with_groups(size.groups // 4), size)]
    return size, ten_times, queue[1:] if quick else queue, QUICK_MILLION if quick else MILLION


def measure(part: str, *, quick: bool, seed: int, report: Callable[[int, int], None]) -> dict[str, Any]:
    """What one part's process does. Imports late: each loads only what it measures."""
    size, ten_times, queue, million = sizes(quick)
    if part == "stage":
        from scripts.benchmark.stage import measure_stage, measure_tool_calls

        return {**measure_stage(size, seed=seed, report=report), "tool_calls": measure_tool_calls(size, seed=seed)}
    if part == "ten_times":
        from scripts.benchmark.stage import measure_stage

        return measure_stage(ten_times, seed=seed, report=report)
    if part == "peers":
        from scripts.benchmark.draws import measure_draws
        from scripts.benchmark.peers import measure_dataproto_list

        return {
            "draws": measure_draws(size, million=million, seed=seed, report=report),
            "dataproto_list": measure_dataproto_list(size, seed=seed, report=report),
        }
    if part == "torchrl":
        from scripts.benchmark.peers import measure_torchrl

        return measure_torchrl(size, million=million, seed=seed, report=report)
    from scripts.benchmark.transfer_queue import measure_transfer_queue

    return measure_transfer_queue(queue, units=1 if quick else None, seed=seed, report=report)


def run_part(part: str, arguments: argparse.Namespace) -> None:
    """In the part's own process: write its numbers, and meanwhile how far it is."""
    progress, told = arguments.result.with_suffix(".progress"), 0.0

    def report(done: int, of: int) -> None:
        nonlocal told
        if time.monotonic() - told > TELL_EVERY:
            told = time.monotonic()
            progress.write_text(f"{done / of}")

    numbers = measure(part, quick=arguments.quick, seed=arguments.seed, report=report)
    arguments.result.write_text(json.dumps(numbers))


def skipped(part: str, arguments: argparse.Namespace) -> str | None:
    """Why a part cannot be measured here, or None."""
    if part == "torchrl" and importlib.util.find_spec("torchrl") is None:
        return f"torchrl is not installed; {INSTALL_TORCHRL}"
    if part == "ten_times":
        needed = 2 * BYTES_A_ROLLOUT * sizes(arguments.quick)[1].stored + 2e9
        if machine_memory()[1] < needed:
            return f"needs {needed / 1e9:.0f} GB of free memory"
    if part == "transfer_queue":
        if not arguments.transfer_queue:
            return "--no-transfer-queue"
        if absent := [name for name in ("ray", "transfer_queue") if importlib.util.find_spec(name) is None]:
            return f"{' and '.join(absent)} not installed"
    return None


def start_part(part: str, arguments: argparse.Namespace, folder: Path, tick: Callable[[float], None]) -> dict[str, Any]:
    """Run the part in a process of its own, guarded, and return its numbers."""
    result, log = folder / f"{part}.json", folder / f"{part}.log"
    command = [sys.executable, "-m", "scripts.benchmark_replay", "--part", part, "--result", str(result)]
    command += ["--seed", str(arguments.seed), *(["--quick"] if arguments.quick else [])]
    progress = result.with_suffix(".progress")

    def look(pids: list[int]) -> None:
        try:
            tick(float(progress.read_text()))
        except (OSError, ValueError):
            pass  # not written yet, or just being written

    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with log.open("wb") as output:
        status = run_guarded(command, env=env, output=output, timeout=PARTS[part].timeout, tick=look, interval=0.5)
    if status == TIMED_OUT and part == "transfer_queue":
        return {"missing": f"ended after {PARTS[part].timeout:.0f} s"}
    if status >= 128:
        sys.exit(status)
    if status:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        sys.exit(
            f"{end}\nbenchmark_replay: the part {part} ended with status {status}; the end of its output is above."
        )
    return json.loads(result.read_text())


def machine() -> dict[str, Any]:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    installed = {d.name for d in importlib.metadata.distributions()}
    return {
        "cores": os.cpu_count(),
        "cpu": model[0].partition(":")[2].strip() if model else "unknown",
        "memory_gb": machine_memory()[0] / 1e9,
        "load": os.getloadavg()[0],
        "python": sys.version.split()[0],
        "versions": {name: importlib.metadata.version(name) for name in VERSIONS if name in installed},
    }


def run_all(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    size, ten_times, _, million = sizes(arguments.quick)
    numbers: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "scripts.benchmark_replay", *sys.argv[1:]]),
        "seed": arguments.seed,
        "machine": machine(),
        "size": dataclasses.asdict(size),
        "size_ten_times": dataclasses.asdict(ten_times),
        "million": million,
    }
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar, tempfile.TemporaryDirectory() as folder:
        task = bar.add_task("", total=sum(part.seconds for part in PARTS.values()))
        before = 0.0
        for name, part in PARTS.items():
            bar.update(task, description=name, completed=before)
            started = time.monotonic()
            if why := skipped(name, arguments):
                numbers[name] = {"missing": why}
            else:

                def tick(share: float, before: float = before, seconds: float = part.seconds) -> None:
                    bar.update(task, completed=before + share * seconds)

                numbers[name] = start_part(name, arguments, Path(folder), tick)
            before += part.seconds
            if not console.is_terminal:
                console.print(f"  {name}: {numbers[name].get('missing') or f'{time.monotonic() - started:.0f} s'}")
        bar.update(task, completed=before)
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1/50 of the size; the times mean nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="file for the table (Markdown)")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument("--transfer-queue", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        run_part(arguments.part, arguments)
        return
    numbers = run_all(arguments, Console(stderr=True))
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
