"""What one question to math-verify may cost, and what came of the questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["right", "wrong", "timeout", "memory", "crash"]


@dataclass(frozen=True)
class Limits:
    """Limits of the grading process. CPU time decides, so that a busy machine grades as an idle one does.

    Attributes:
        cpu_seconds: after which the question is given up from within; real answers take 0.02 s, the slowest about 1 s.
        cpu_kill_seconds: after which the kernel ends the process, where one long operation lets nothing in.
        wall_seconds: after which it is killed in any case.
        memory_bytes: address space of the process, about 0.3 GB of which the libraries take.
    """

    cpu_seconds: float = 3.0
    cpu_kill_seconds: int = 5
    wall_seconds: float = 60.0
    memory_bytes: int = 2 * 1024**3
