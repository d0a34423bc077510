"""How far an evaluation is, on a terminal as a bar, elsewhere as a line now and then."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SAY_EVERY = 15.0  # seconds, where there is no terminal to draw on


class Watch:
    """Shows answers that are done of those to come. To be used in a `with`."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._started = self._said = time.monotonic()
        self._progress = Progress(
            TextColumn("generating"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def tick(self, done: int) -> None:
        self._progress.update(self._task, completed=done)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said >= SAY_EVERY:
            self._said, passed = now, now - self._started
            left = f"{passed / done * (self._total - done):.0f} s left" if done else "no answer yet"
            self._console.print(f"  {passed:.0f} s  {done}/{self._total} answers  {left}")
