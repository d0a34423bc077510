"""Measuring: seconds of a call, memory of a process."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

Report = Callable[[int, int], None]  # (done, of how many): a part of the benchmark tells how far it is


class Stopwatch:
    """Milliseconds by name, one entry a measurement."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.times[name].append(1000 * (time.perf_counter() - started))

    def watch(self, owner: Any, method: str) -> None:
        """Measure every call of this method of the object, or function of the module, from now on."""
        original = getattr(owner, method)

        def measured(*arguments: Any, **options: Any) -> Any:
            with self(method):
                return original(*arguments, **options)

        setattr(owner, method, measured)

    def medians(self, last: int) -> dict[str, float]:
        """Median of the last measurements by name."""
        return {name: median(times[-last:]) for name, times in self.times.items()}


def milliseconds(call: Callable[[], Any], repeats: int) -> float:
    """Median of `repeats` calls, after one that is not counted."""
    watch = Stopwatch()
    for _ in range(repeats + 1):
        with watch("call"):
            call()
    return watch.medians(repeats)["call"]


def resident() -> int:
    """Bytes this process has resident now."""
    return _status("VmRSS")


@contextmanager
def peak_resident() -> Iterator[list[int]]:
    """Appends the most bytes this process had resident meanwhile to the list that it gives."""
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts anew
    peak: list[int] = []
    yield peak
    peak.append(_status("VmHWM"))


def machine_memory() -> tuple[int, int]:
    """Bytes of memory that the machine has, and that are available now."""
    return _kilobytes("/proc/meminfo", "MemTotal"), _kilobytes("/proc/meminfo", "MemAvailable")


def _status(name: str) -> int:
    return _kilobytes("/proc/self/status", name)


def _kilobytes(path: str, name: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"{path} has no {name}. Linux is needed.")
