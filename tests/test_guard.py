"""The guard: whatever a command starts is ended with it, and its shared memory goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verl_replay.guard import TIMED_OUT, memory_of, run_guarded

# A child that leaves its session, ignores requests to end, and maps shared memory that nobody unlinks: as vLLM's do.
STUBBORN = """
import os, signal, sys, time
from multiprocessing import resource_tracker, shared_memory
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    segment = shared_memory.SharedMemory(create=True, size=4096)
    resource_tracker.unregister(segment._name, "shared_memory")
    open(sys.argv[1], "w").write(f"{os.getpid()} {segment.name}")
    time.sleep(600)
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.05)
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left_by(note: Path) -> tuple[int, Path]:
    pid, name = note.read_text().split()
    return int(pid), Path("/dev/shm") / name


@pytest.mark.parametrize("status", [0, 3])
def test_what_a_command_leaves_running_is_ended_and_its_memory_removed(tmp_path, status):
    note = tmp_path / "note"
    command = [sys.executable, "-c", STUBBORN, str(note), "1.5", str(status)]
    assert run_guarded(command, interval=0.1) == status
    pid, segment = left_by(note)
    assert not alive(pid) and not segment.exists()


def test_a_command_that_runs_past_its_time_is_ended(tmp_path):
    note = tmp_path / "note"
    command = [sys.executable, "-c", STUBBORN, str(note), "600", "0"]
    assert run_guarded(command, timeout=2.0, interval=0.1) == TIMED_OUT
    pid, segment = left_by(note)
    assert not alive(pid) and not segment.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_of_a_guard_within_a_guard_leaves_nothing(tmp_path, number):
    note = tmp_path / "note"
    guard = [sys.executable, "-m", "verl_replay.guard", "--"]
    outer = subprocess.Popen([*guard, *guard, sys.executable, "-c", STUBBORN, str(note), "600", "0"])
    end = time.monotonic() + 30
    while time.monotonic() < end and not (note.exists() and note.read_text()):
        time.sleep(0.1)
    time.sleep(2.5)  # the guards look once a second
    outer.send_signal(number)
    assert outer.wait(60) == 128 + number
    pid, segment = left_by(note)
    assert not alive(pid) and not segment.exists()


def test_segments_of_others_stay():
    from multiprocessing import shared_memory

    segment = shared_memory.SharedMemory(create=True, size=16)
    try:
        assert run_guarded([sys.executable, "-c", "pass"]) == 0
        assert (Path("/dev/shm") / segment.name).exists()
    finally:
        segment.close()
        segment.unlink()


def test_output_and_processes_are_shown_while_it_runs(tmp_path):
    seen: list[list[int]] = []
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-c", "import time; print('hello'); time.sleep(1)"]
        assert run_guarded(command, output=log, tick=seen.append, interval=0.1) == 0
    assert (tmp_path / "log").read_text() == "hello\n"
    assert any(len(pids) == 1 for pids in seen)
    assert memory_of([os.getpid()]) > 10_000_000


def test_wrong_arguments_say_the_usage():
    done = subprocess.run([sys.executable, "-m", "verl_replay.guard", "true"], capture_output=True, text=True)
    assert done.returncode == 2 and "usage: python -m verl_replay.guard" in done.stderr
