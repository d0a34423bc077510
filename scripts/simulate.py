"""Recorded rollouts through replay, before anything is trained: what would be dropped, drawn, stored, at what size.

    python -m scripts.simulate rollouts.jsonl.gz
    python -m scripts.simulate dumps/ --replay fresh_anchored pooled --set max_age=5,10,20 ratio=0.5,1.0
    python -m scripts.simulate samples.jsonl --groups-a-step 16 --column reward=correct --response-tokens 900

PATH is a file of JSON lines (plain or .gz) or parquet, or a folder of them, as verl's trainer.rollout_data_dir. A line
is a rollout, or a group where its reward is a list. Which column means what is found by its name, or given by
--column ROLE=NAME; a PATH is a run where no column names runs. The rewards go through verl's own GRPO advantage and
through the transform that training uses, with every preset and every combination of the options set. Written: a
picture, a table (Markdown, CSV) and results.json. Exit code 2 where that cannot be done.

What was recorded stays as it was: had replay changed the policy, its rewards would differ.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from scripts.progress import progress_bar
from scripts.simulating import advice, show
from scripts.simulating.detecting import MEANING, parse
from scripts.simulating.footprint import measure
from scripts.simulating.reading import Line, read_lines
from scripts.simulating.recording import Recording, gather
from scripts.simulating.running import simulate
from scripts.simulating.settings import PRESETS, Setting, grid
from scripts.simulating.summary import describe
from scripts.simulating.tables import tabulate
from scripts.simulating.writing import Result, advice_lines, write

WIDTH = 120  # of what is printed into a file


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m scripts.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("paths", metavar="PATH", type=Path, nargs="+")
    made.add_argument(
        "--replay", nargs="+", default=["fresh_anchored"], metavar="PRESET", help=f"one or more of {', '.join(PRESETS)}"
    )
    made.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="OPTION=VALUE,...",
        help="options of replay on top of every preset, all combinations of their values",
    )
    made.add_argument(
        "--column",
        nargs="+",
        action="extend",
        default=[],
        metavar="ROLE=NAME",
        help=f"which column is what; without NAME, none. Roles: {'; '.join(f'{k}: {v}' for k, v in MEANING.items())}",
    )
    made.add_argument("--groups-a-step", type=int, metavar="N", help="cut a recording without steps, in order")
    made.add_argument("--response-tokens", type=int, metavar="N", help="mean length, where the recording has none")
    made.add_argument("--prompt-tokens", type=int, metavar="N", help="mean length, where the recording has none")
    made.add_argument(
        "--mini-batches", type=int, default=1, metavar="N", help="train_batch_size / ppo_mini_batch_size; for advice"
    )
    made.add_argument("--seed", type=int, default=0, help="of the draws")
    made.add_argument("--output", type=Path, default=Path("simulation"), help="folder for the results (simulation)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    command = shlex.join(["python", "-m", "scripts.simulate", *(sys.argv[1:] if arguments is None else arguments)])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character must not end this
    try:
        _check(given)
        settings = grid(given.replay, given.set, seed=given.seed)
        result = run(given, settings, Console(stderr=True))
        written = write(result, given.output, command=command)
    except (ValueError, OSError) as error:
        told = show.printable(" ".join(str(error).split()))
        Console(stderr=True, soft_wrap=True).print(Text(f"simulate: {told}"))
        return 2
    _print(result, written)
    return 0


def _check(given: argparse.Namespace) -> None:
    least = {"groups_a_step": 1, "response_tokens": 1, "prompt_tokens": 1, "mini_batches": 1}
    for name, minimum in least.items():
        value = getattr(given, name)
        if value is not None and value < minimum:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {minimum}, got {value}. Set it higher.")
    there = next(path for path in (given.output.absolute(), *given.output.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(
            f"--output must be a folder that can be written, got {given.output}; {there} is "
            f"{'not writable' if there.is_dir() else 'a file'}. Name another."
        )


def _check_lengths(given: argparse.Namespace, known: dict[str, str]) -> None:
    for role, option, value in (
        ("tokens", "--response-tokens", given.response_tokens),
        ("prompt_tokens", "--prompt-tokens", given.prompt_tokens),
    ):
        if role in known and value is not None:
            raise ValueError(
                f"{option} is for recordings without lengths, this one has them (column {known[role]}). Leave it out, "
                f"or leave the column out: --column {role}="
            )


def run(given: argparse.Namespace, settings: Sequence[Setting], console: Console) -> Result:
    """Read, tabulate, and simulate every run with every setting.

    Raises:
        ValueError: the recording cannot be used.
        OSError: it cannot be read.
    """
    bar = progress_bar(console)
    with bar:
        recording = _read(given, bar)
        known = recording.columns
        _check_lengths(given, known)
        steps = sum(len(held) for held in recording.runs.values())
        done = _ticker(bar, "advantages, by verl", steps)
        lengths = {"tokens": given.response_tokens or 0, "prompt_tokens": given.prompt_tokens or 0}
        runs = {name: tabulate(held, **lengths, done=done) for name, held in recording.runs.items()}
        done = _ticker(bar, f"{len(settings)} settings", steps * len(settings))
        traces = {}
        for setting in settings:
            footprint = measure(setting.options)
            traces[setting.name] = {
                name: simulate(held, setting.options, footprint, done=done) for name, held in runs.items()
            }
    described = {name: describe(held) for name, held in runs.items()}
    has_tokens = "tokens" in known or given.response_tokens is not None
    has_prompts = "prompt_tokens" in known or given.prompt_tokens is not None
    said = {"recording": advice.of_recording(described, has_tokens=has_tokens, has_prompts=has_prompts)}
    for setting in settings:
        of_runs = list(traces[setting.name].values())
        said[setting.name] = advice.of_setting(of_runs, setting.options, mini_batches=given.mini_batches)
    read = {"names": [path.name for path in given.paths], "columns": recording.columns, **lengths, "seed": given.seed}
    return Result(read, runs, described, list(settings), traces, said, has_tokens)


def _read(given: argparse.Namespace, bar: Progress) -> Recording:
    task = bar.add_task("lines read", total=None)

    def counted(line: Line) -> Line:
        bar.advance(task)
        return line

    lines = (counted(line) for line in read_lines(given.paths))
    recording = gather(lines, parse(given.column), groups_a_step=given.groups_a_step)
    bar.update(task, total=bar.tasks[task].completed)
    return recording


def _ticker(bar: Progress, text: str, total: int) -> Callable[[], None]:
    task = bar.add_task(text, total=total)
    return lambda: bar.advance(task)


def _print(result: Result, written: Sequence[Path]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    named = ", ".join(f"{role}: {name}" for role, name in result.recording["columns"].items())
    console.print(Text(show.printable(f"Columns: {named}")))
    console.print(show.screen("Recorded", "run", show.RUNS, result.described))
    rows = {setting.name: result.summary(setting) for setting in result.settings}
    console.print(show.screen("With replay", "setting", show.setting_columns(result.has_tokens), rows))
    console.print(Text(show.LEGEND, style="dim"))
    for line in advice_lines(result.advice):
        console.print(Text.assemble(("! ", "bold"), line))
    console.print(Text(f"Written: {', '.join(map(str, written))}"), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
