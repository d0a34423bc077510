"""Processes of a run that is stopped from outside, known by the mark in their environment (verl_replay/guard.py)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def processes_with(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def kill_all_with(mark: str) -> None:
    """SIGKILL to every process with the mark; those that start meanwhile are killed in the next round."""
    for _ in range(20):
        for pid in processes_with(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.2)
