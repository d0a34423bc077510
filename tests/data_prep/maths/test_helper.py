"""The grading process: hostile answers, threads, forks, and that it never outlives its use."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import psutil
import pytest

from data_prep.maths.grading import Grader
from data_prep.maths.helper import ROOT, Helpers
from data_prep.maths.limits import Limits

QUICK = Limits(cpu_seconds=0.5, cpu_kill_seconds=1, wall_seconds=60)
HOSTILE = {
    "tower": "9^{9^{9^9}}",
    "tower of tens": "10^{10^{10}}",
    "small tower": "10^{-10^{10}}",
    "factorials": "((100000!)!)!",
    "double factorials": "1000000!!!",
    "binomial": r"\binom{10^9}{5\cdot10^8}",
    "power": "2^{100000000}",
    "gcd": r"\gcd(10^{1000000},7)",
    "expansion": "(x+y+z)^{200} - (x+y)^{100}",
    "integral": r"\int_0^1 e^{-x^2}\sin(x^x) dx",
    "sum": r"\sum_{i=1}^{10^{9}} i^i",
    "brackets": "(" * 200 + "1" + ")" * 200,
    "braces": "{" * 240 + "1" + "}" * 240,
    "nested functions": r"\sin(" * 60 + "1" + ")" * 60,
    "long sum": "1" + "+x" * 250,
    "digits": "1" * 512,
    "digits and a letter": "1" * 500 + "x",
    "exponent": "1e999999999",
    "NUL": "5\x00",
    "surrogate": "\ud800 5",
    "carets": "^" * 300,
    "backslashes": "\\\\" * 200,
    "commas": "1," * 250,
    "text": r"\text" * 100,
    "newlines": "1\n" * 200,
}


@pytest.fixture(scope="module")
def quick():
    grader = Grader(Helpers(most=1, limits=QUICK))
    yield grader
    grader.helpers.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_wrong_and_the_next_one_is_graded(quick, name):
    assert quick.grade(rf"\boxed{{{HOSTILE[name]}}}", "x^2+1") is False
    assert quick.grade(rf"\boxed{{1+{len(name)}x-x}}", rf"{len(name) - 1}x + 1") is True


@pytest.mark.parametrize(
    "response",
    ["7" * 10_000_000, "\\boxed{" * 100_000, "\\boxed" * 100_000, "\\boxed{5}" * 1_000_000, "{" * 10_000_000,
     "\\boxed{" + "{}" * 5_000_000, "\\boxed{" + " " * 5_000_000 + "}", "\\" * 5_000_000, "\x00" * 1_000_000,
     "\\boxed{" + "1" * 10_000_000 + "}", "\ud800" * 1000, "\\boxed{" + "$" * 510 + "}", "\\fbox" + " " * 10_000_000],
    ids=range(13),
)  # fmt: skip
def test_a_huge_response_is_wrong_without_asking(quick, response):
    before = quick.counts
    assert quick.grade(response, "7") is False
    assert set(quick.counts - before) <= {"none", "writing", "number"}


def test_memory_is_bounded():
    """10 MB more than the libraries take is not enough for 2^(10^9), whose digits need 125 MB."""
    helpers = Helpers(most=1, limits=Limits(cpu_seconds=30, cpu_kill_seconds=60, memory_bytes=700 * 1024**2))
    verdict = helpers.ask("equal", "x+1", r"\sum_{i=1}^{3} (2^{4000000000} + i)")
    assert verdict in ("memory", "wrong", "crash", "timeout") and verdict != "right"
    assert helpers.ask("equal", "x+1", "1+x") == "right"
    helpers.close()


def child_of(helpers: Helpers) -> psutil.Process:
    (helper,) = helpers._idle
    return psutil.Process(helper.process.pid)


def test_a_process_that_ends_is_replaced_and_leaves_no_zombie():
    helpers = Helpers(most=1)
    assert helpers.ask("equal", "x+1", "1+x") == "right"
    first = child_of(helpers)
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    assert helpers.ask("equal", "x+1", "1+x") == "right"  # noticed before it was asked
    assert not psutil.pid_exists(first.pid)
    assert helpers.counts == {"right": 2, "started": 2}
    second = child_of(helpers)
    helpers.close()
    assert not psutil.pid_exists(second.pid)


def test_a_process_that_ends_in_the_middle_is_a_crash_after_one_more_try():
    others = {child.pid for child in psutil.Process().children()}  # of the other tests here
    helpers = Helpers(most=1, limits=Limits(cpu_seconds=60, cpu_kill_seconds=60))
    assert helpers.ask("equal", "x+1", "1+x") == "right"
    killed: list[int] = []

    def kill_what_works(stop: threading.Event) -> None:
        while not stop.wait(0.2):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if child.cpu_times().user > 3 and child.pid not in others:
                        child.kill()
                        killed.append(child.pid)
                        others.add(child.pid)

    stop = threading.Event()
    thread = threading.Thread(target=kill_what_works, args=(stop,))
    thread.start()
    try:
        assert helpers.ask("equal", "x+1", "9^{9^{9}} + 1") == "crash"
    finally:
        stop.set()
        thread.join()
    assert len(killed) == 2  # what the first one was asked before might have been the reason
    assert helpers.ask("equal", "x+1", "1+x") == "right"
    helpers.close()


def test_one_that_the_kernel_ends_for_its_cpu_time_is_a_timeout():
    """An operation in C that no signal handler interrupts: here with the handler's time beyond the kernel's."""
    helpers = Helpers(most=1, limits=Limits(cpu_seconds=100, cpu_kill_seconds=1))
    assert helpers.ask("equal", "x+1", "9^{9^{9^{9}}} + x") == "timeout"
    assert helpers.counts == {"timeout": 1, "started": 1}
    assert helpers.ask("equal", "x+1", "1+x") == "right"
    helpers.close()


def test_one_that_sleeps_is_killed():
    helpers = Helpers(most=1, limits=Limits(wall_seconds=1.0))
    assert helpers.ask("equal", "x+1", "1+x") == "right"
    child = child_of(helpers)
    child.suspend()
    assert helpers.ask("equal", "x+1", "1+x") == "timeout"
    assert not psutil.pid_exists(child.pid)
    helpers.close()


def test_several_threads_share_two_processes():
    grader = Grader(Helpers(most=2))
    grid = product(range(4), range(2, 6), range(4))
    cases = [(rf"\boxed{{{a}+x^{{{b}}}}}", f"x^{{{b}}}+{c}", a == c) for a, b, c in grid]
    with ThreadPoolExecutor(8) as threads:
        graded = list(threads.map(lambda case: grader.grade(case[0], case[1]), cases))
    assert graded == [right for _, _, right in cases]
    assert grader.counts["started"] <= 2
    grader.helpers.close()
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def test_a_fork_starts_its_own_process():
    helpers = Helpers(most=1)
    assert helpers.ask("equal", "x+1", "1+x") == "right"
    parents = child_of(helpers).pid
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        try:
            verdict = helpers.ask("equal", "x+2", "2+x")
            own = child_of(helpers).pid
            helpers.close()
            os.write(writing, f"{verdict} {own != parents}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    assert os.read(reading, 100) == b"right True"
    os.close(reading)
    assert helpers.ask("equal", "x+3", "3+x") == "right" and child_of(helpers).pid == parents
    helpers.close()


@pytest.mark.parametrize("how", ["return", "kill", "held open"])
def test_it_ends_with_its_parent(how, tmp_path):
    """`held open`: another process holds the pipe's end, as a fork of the parent would."""
    code = f"""
import os, sys, subprocess, time
from data_prep.maths.helper import Helpers
helpers = Helpers(most=1)
helpers.ask("equal", "x+1", "1+x")
if {how == "held open"}:
    os.set_inheritable(helpers._idle[0].process.stdin.fileno(), True)
    holder = subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
    print(holder.pid, end=" ")
print(helpers._idle[0].process.pid, flush=True)
if {how != "return"}:
    os.kill(os.getpid(), 9)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=200)
    *holder, worker = map(int, run.stdout.split())
    try:
        end = time.monotonic() + 60
        while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end, "the grading process outlived its parent"
            time.sleep(0.1)
    finally:
        for pid in holder:
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_cannot_start_is_an_error_with_the_way_to_the_reason(monkeypatch, tmp_path):
    """Not a zero: it is the installation's fault, and every response would get one."""
    (tmp_path / "math_verify.py").write_text("raise ImportError('broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"the grading process does not start \(exit status 1\)"):
        Helpers().ask("equal", "x+1", "1+x")


def test_root_is_the_checkout():
    assert (ROOT / "data_prep" / "maths" / "worker.py").is_file() and Path(__file__).is_relative_to(ROOT)


LARGE_PARENT = """
import numpy as np
from data_prep.maths.grading import Grader
from data_prep.maths.helper import Helpers
held = np.ones(3 * 2**27)  # 3 GB, more than the limit of a grading process
grader = Grader(Helpers(most=1))
print([grader.grade(rf"\\\\boxed{{x+{number}}}", f"{number}+x") for number in range(4)], grader.counts["started"])
grader.helpers.close()
"""


def test_a_parent_with_gigabytes_does_not_make_its_process_look_large():
    """Linux hands the largest size of a process on to what it starts (ru_maxrss): each answer would start a new one."""
    if psutil.virtual_memory().available < 6e9:
        pytest.skip("needs 6 GB of free memory")
    done = subprocess.run([sys.executable, "-c", LARGE_PARENT], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == "[True, True, True, True] 1".split(), done.stderr
