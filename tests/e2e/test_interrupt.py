"""Ctrl-C of a run that is under way leaves no process and no shared memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from verl_replay.guard import MARK

pytestmark = pytest.mark.e2e


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


def test_ctrl_c_leaves_nothing(task, tmp_path):
    before = set(os.listdir("/dev/shm"))
    mark = f"interrupt{os.getpid()}"
    env = {
        **os.environ,
        MARK: ",".join(filter(None, (os.environ.get(MARK), mark))),
        "PYTHON": sys.executable,
        "DATA_DIR": str(task),
        "OUTPUT_DIR": str(tmp_path),
        "VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl"),
    }
    command = ["bash", str(ROOT / "recipes/tiny_cpu/run.sh"), "trainer.test_freq=-1", "trainer.val_before_train=false"]
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 400
            while time.monotonic() < end and run.poll() is None:
                metrics = tmp_path / "metrics.jsonl"
                if metrics.exists() and metrics.read_bytes().count(b"\n") >= 2:
                    break
                time.sleep(1)
            assert run.poll() is None, (tmp_path / "log").read_text(errors="replace")[-3000:]
            assert len(processes_with(mark)) > 10  # Ray, vLLM and the workers are running
            run.send_signal(signal.SIGINT)
            assert run.wait(90) == 128 + signal.SIGINT
        finally:
            if run.poll() is None:
                run.kill()
    assert processes_with(mark) == []
    assert set(os.listdir("/dev/shm")) - before == set()
