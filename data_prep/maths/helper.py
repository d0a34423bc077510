"""Asks a process of its own, which may be slow, swell or die, and is replaced then.

verl calls a reward in threads, where math-verify's time limits (SIGALRM) do not work; and some answers cannot be
interrupted at all in Python: 9^{9^{9}} is one operation. So the question goes to a process that can be killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from data_prep.maths.limits import Limits, Verdict

ROOT = Path(__file__).resolve().parent.parent.parent  # of the package data_prep
START_SECONDS = 120.0  # of the clock, for imports that take 2 s on an idle core


class Helper:
    """One grading process and the lines to it. One question at a time: Helpers sees to that."""

    def __init__(self, limits: Limits) -> None:
        """Start the process.

        Raises:
            RuntimeError: it does not start: math-verify is not installed, or the machine has no room.
        """
        self.limits, self.owner, self.asked = limits, os.getpid(), 0
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        # In a session of its own, so that Ctrl-C in a terminal does not end it in the middle of an answer.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "data_prep.maths.worker", json.dumps(asdict(limits))],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._next_line(START_SECONDS) != "ready":
            self.close(grace=10.0)  # it closed its pipe: it is ending by itself
            raise RuntimeError(
                f"data_prep.maths: the grading process does not start (exit status {self.process.returncode}); "
                f"see why with `PYTHONPATH={ROOT} {sys.executable} -c 'import data_prep.maths.compare'`; "
                "math-verify comes with `pip install verl_replay[eval]`"
            )

    def ask(self, question: str, texts: Sequence[str]) -> Verdict:
        """The verdict on one question; "timeout" or "crash" where the process had to be ended, or ended itself."""
        # In ASCII: lone surrogates and NUL bytes go through as escapes.
        line = json.dumps({"ask": question, "texts": list(texts)}) + "\n"
        self.asked += 1
        try:
            self.process.stdin.write(line.encode("ascii"))
            self.process.stdin.flush()
            answer = self._next_line(self.limits.wall_seconds)
        except OSError:
            answer = ""
        if answer:
            verdict, *last = answer.split(" ")
            if last or verdict == "memory":
                self.close()
            return verdict
        self.close(grace=0.0 if answer is None else 5.0)  # it closed its pipe, so it is ending: how, says its status
        out_of_time = answer is None or self.process.returncode == -signal.SIGXCPU
        return "timeout" if out_of_time else "crash"

    def _next_line(self, seconds: float) -> str | None:
        """The next line without its end; "" where the process is gone, None where none came in time."""
        end, read, out = time.monotonic() + seconds, b"", self.process.stdout.fileno()
        while not read.endswith(b"\n"):
            if not select.select([out], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            part = os.read(out, 4096)
            if not part:
                return ""
            read += part
        return read.decode("ascii").rstrip("\n")

    @property
    def alive(self) -> bool:
        """Whether it can be asked again, by this process: a fork of its owner must not use the same pipe."""
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self, grace: float = 0.0) -> None:
        """End the process, after `grace` seconds to do so itself, and wait for it, so that no zombie is left."""
        if self.owner == os.getpid():
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass  # an unfinished question in its buffer


class Helpers:
    """Up to `most` grading processes for any number of threads, started when first needed.

    Two by default, so that one hard answer does not hold up the easy ones of other threads. Each takes about 0.1 GB.
    They end with their parent, however it ends.
    """

    def __init__(self, most: int = 2, limits: Limits | None = None) -> None:
        self.limits, self.most = limits or Limits(), most
        self.counts: Counter[str] = Counter()  # verdicts, and "started" processes
        self._reset()
        reset = weakref.WeakMethod(self._reset)
        os.register_at_fork(after_in_child=lambda: (method := reset()) and method())

    def _reset(self) -> None:
        """Nothing of the parent's is used in a fork: neither its processes nor a lock that a thread of it may hold."""
        self._idle: list[Helper] = []
        self._lock, self._free = threading.Lock(), threading.BoundedSemaphore(self.most)

    def ask(self, question: str, *texts: str) -> Verdict:
        """The verdict of a grading process; waits for one to be free.

        Args:
            question: "equal" with a gold answer and an answer, or "parses" with a gold answer; all cleaned.

        Raises:
            RuntimeError: no process can be started.
        """
        with self._free:
            helper = self._take()
            verdict = self._ask(helper, question, texts)
            if verdict in ("memory", "crash") and helper.asked > 1:
                # Perhaps what earlier answers left behind: only a fresh process can say that it is this one's.
                verdict = self._ask(self._take(fresh=True), question, texts)
            with self._lock:
                self.counts[verdict] += 1
            return verdict

    def _ask(self, helper: Helper, question: str, texts: Sequence[str]) -> Verdict:
        try:
            verdict = helper.ask(question, texts)
        except BaseException:
            helper.close()  # interrupted: its verdict would be taken for that on the next question
            raise
        with self._lock:
            if helper.alive:
                self._idle.append(helper)
        return verdict

    def _take(self, *, fresh: bool = False) -> Helper:
        """The process used last, which has the gold answers of now; else a fresh one."""
        while not fresh:
            with self._lock:
                if not self._idle:
                    break
                helper = self._idle.pop()
            if helper.alive:
                return helper
            helper.close()
        with self._lock:
            self.counts["started"] += 1
        return Helper(self.limits)

    def close(self) -> None:
        """End the processes that wait; a later question starts one again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for helper in idle:
            helper.close()
