"""Thousands of made-up training steps through the stage, equal at every one to a naive twin, in memory that stays flat.

    python -m scripts.soak                                  # 20,000 steps with the paper's settings
    python -m scripts.soak --preset per --steps 2000
    python -m scripts.soak --preset no_age_limit --steps 3000 replay.capacity=500

Exit code 1 where the two differ, or memory grows by 1 % or more once the buffer is full. One thread is used.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from scripts.progress import progress_bar
from scripts.soaking.compare import Difference
from scripts.soaking.report import faults, markdown
from scripts.soaking.running import Measured, make_twin, soak
from scripts.soaking.settings import PRESETS, compose_config, make_stage
from scripts.soaking.steps import make_steps

SAY_EVERY = 0.1  # of the steps, where there is no terminal to draw on


def run(given: argparse.Namespace, console: Console) -> Measured:
    """Raises Difference where the stage and its twin differ."""
    config = compose_config(given.preset, [f"replay.seed={given.seed}", *given.overrides])
    stage = make_stage(config)
    names = tuple(dict.fromkeys((*stage.decision_columns, *stage.stored_columns)))
    steps = make_steps(np.random.default_rng(given.seed), given.steps, names)
    started = time.perf_counter()
    bar = progress_bar(console, f"soak, {given.preset}")
    task = bar.add_task("", total=given.steps)

    def report(done: int, of: int) -> None:
        bar.update(task, completed=done)
        if not console.is_terminal and done % max(int(SAY_EVERY * of), 1) == 0:
            console.print(f"  {time.perf_counter() - started:4.0f} s  step {done}/{of}")

    with bar, tempfile.TemporaryDirectory() as folder:
        return soak(
            partial(make_stage, config),
            make_twin(stage, stage.options),
            steps,
            checkpoint_every=given.checkpoint_every,
            folder=Path(folder) / "checkpoints",
            report=report,
            count=given.steps,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--preset", choices=PRESETS, default="fresh_anchored")
    parser.add_argument("--seed", type=int, default=0, help="of the made-up steps and of the draws")
    parser.add_argument("--checkpoint-every", type=int, default=1_000, help="save, load, go on from there; 0: never")
    parser.add_argument("--output", type=Path, help="file for the table (Markdown)")
    parser.add_argument("overrides", nargs="*", help="of the configuration: replay.capacity=500")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console, started = Console(stderr=True), time.perf_counter()
    command = shlex.join(["python", "-m", "scripts.soak", *(sys.argv[1:] if arguments is None else arguments)])
    try:
        measured = run(given, console)
    except Difference as difference:
        told = f"soak: the stage and its naive twin differ, seed {given.seed}, preset {given.preset}: {difference}"
        console.print(f"{told}\nThe same again: {command}", markup=False, highlight=False, soft_wrap=True)
        return 1
    text = markdown(measured, command=command, seconds=time.perf_counter() - started)
    print(text)
    if given.output:
        given.output.write_text(text)
    for fault in faults(measured):
        console.print(f"soak: {fault} (seed {given.seed}, preset {given.preset})", markup=False, soft_wrap=True)
    return 1 if faults(measured) else 0


if __name__ == "__main__":
    sys.exit(main())
