"""The grading process: reads one JSON question a line from stdin, and writes one verdict a line.

A verdict followed by "last" says that the process has grown: its caches hold what later answers would lack.

`python -m data_prep.maths.worker LIMITS`, started by helper.py. Here math-verify has a main thread to itself, as its
time limits need, and it may be killed at any moment.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from typing import Any, TextIO

from data_prep.maths.limits import Limits, Verdict

LOOK_AFTER_PARENT_SECONDS = 5.0


class OutOfTime(BaseException):
    """Not an Exception: sympy and math-verify catch those."""


def main() -> None:
    """Answer questions until the parent closes the pipe, or is gone."""
    parent = os.getppid()
    limits = Limits(**json.loads(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(2, 1)  # what a library prints must not be taken for a verdict
    from data_prep.maths import compare

    # After the imports, which need less than what a limit leaves them.
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, give_up)
    answers.write("ready\n")
    while (line := next_line(parent)) is not None:
        question = json.loads(line)
        ask = {"equal": compare.equal, "parses": compare.parses}[question["ask"]]
        answer = verdict(ask, question["texts"], limits)
        last = resident_bytes() > limits.memory_bytes / 2
        answers.write(f"{answer} last\n" if last else f"{answer}\n")


def next_line(parent: int, source: TextIO = sys.stdin) -> str | None:
    """The next question; None at the end of the pipe, or when the parent is gone but another process holds its end."""
    while not select.select([source], [], [], LOOK_AFTER_PARENT_SECONDS)[0]:
        if os.getppid() != parent:
            return None
    return source.readline() or None


def resident_bytes() -> int:
    """Memory held now. Not ru_maxrss: a process starts with that of the one that started it, a trainer's gigabytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def give_up(number: int, frame: Any) -> None:
    """The handler of SIGPROF."""
    raise OutOfTime


def verdict(ask: Any, texts: list[str], limits: Limits) -> Verdict:
    """One question within the limits of CPU time; whatever it raises is a verdict too."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = int(used) + 1 + limits.cpu_kill_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    try:
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
        try:
            return "right" if ask(*texts) else "wrong"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except OutOfTime:
        return "timeout"
    except MemoryError:
        return "memory"
    except Exception:  # a response can bring up any error in a parser; none is a right answer
        return "wrong"


if __name__ == "__main__":
    main()
