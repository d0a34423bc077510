"""Scores by a verl reward function, in processes of their own, while vLLM generates."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from scripts.evaluating.problems import Benchmark

Reward = Callable[..., Any]
AT_ONCE = 64  # answers that travel to a worker together, at most
AT_LATEST = 0.2  # seconds between two smaller batches: each costs a millisecond
MOST_WORKERS = 8


class Answer(NamedTuple):
    """What a reward function sees, and whose it is (`key`)."""

    key: tuple[str, str, int]
    data_source: str
    text: str
    ground_truth: str
    extra_info: Mapping[str, Any]


def load_reward(spec: str) -> Reward:
    """The function that `path_or_module:name` names, loaded as verl loads custom_reward_function.

    Raises:
        ValueError: there is none.
    """
    where, colon, name = spec.rpartition(":")
    if not (colon and where and name):
        raise ValueError(f"--reward must be path_or_module:name, got {spec!r}. E.g. data_prep/reward.py:compute_score.")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        function = getattr(module, name)
    except (ImportError, OSError, AttributeError) as error:
        raise ValueError(
            f"--reward {spec}: cannot be loaded ({error}). Give a Python file or an importable module."
        ) from error
    if not callable(function):
        raise ValueError(f"--reward {spec}: {name} is no function. Name one with verl's compute_score signature.")
    return function


def _from_file(path: Path) -> Any:
    module_spec = importlib.util.spec_from_file_location("evaluated_reward", path)
    if module_spec is None or module_spec.loader is None or not path.is_file():
        raise OSError(f"no file {path}")
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def score_of(result: Any) -> float:
    """The accuracy in what a reward function returned: "acc" as verl's validation takes it, else "score".

    Raises:
        ValueError: no finite number in it.
    """
    value = result.get("acc", result.get("score")) if isinstance(result, Mapping) else result
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the reward returned {result!r}: a number, or a dict with acc or score, is needed") from error
    if not -float("inf") < number < float("inf"):
        raise ValueError(f"the reward returned {result!r}: scores must be finite")
    return number


def grade(reward: Reward, answers: Sequence[Answer]) -> list[float]:
    """Scores, in order.

    Raises:
        ValueError: the reward function failed on an answer: which.
    """
    scores = []
    for answer in answers:
        try:
            result = reward(
                data_source=answer.data_source,
                solution_str=answer.text,
                ground_truth=answer.ground_truth,
                extra_info=dict(answer.extra_info),
            )
            scores.append(score_of(result))
        except Exception as error:
            raise ValueError(f"grading failed on {answer.key}: {type(error).__name__}: {error}") from error
    return scores


def check_reward(reward: Reward, benchmarks: Sequence[Benchmark]) -> None:
    """Grade an empty answer of every kind of problem, before hours go into answers that cannot be graded.

    Raises:
        ValueError: the reward function fails.
    """
    first = {problem.data_source: (b.name, problem) for b in benchmarks for problem in b.problems[::-1]}
    for name, problem in first.values():
        answer = Answer((name, problem.id, 0), problem.data_source, "", problem.ground_truth, problem.extra_info)
        try:
            grade(reward, [answer])
        except ValueError as error:
            raise ValueError(f"{error}. An empty answer was tried; give another --reward, or other --data.") from error


_reward: Reward | None = None  # of a worker process


def _start(spec: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the main process, which ends its workers
    global _reward
    _reward = load_reward(spec)


def _grade(answers: Sequence[Answer]) -> tuple[list[float], float]:
    assert _reward is not None
    start = time.perf_counter()
    return grade(_reward, answers), time.perf_counter() - start


class Grader:
    """Grades answers in the background. `seconds` is what its workers were busy for."""

    def __init__(self, spec: str, workers: int) -> None:
        """Start the workers, which load the reward function while the caller goes on."""
        spawn = multiprocessing.get_context("spawn")  # forking a process that has started vLLM is not safe
        self._pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start, initargs=(spec,))
        self._workers, self._sent = workers, 0.0
        self._waiting: list[Answer] = []
        self._running: dict[Future, list[Answer]] = {}
        self.seconds = 0.0
        for _ in range(workers):
            self._running[self._pool.submit(_grade, [])] = []

    def submit(self, answers: Sequence[Answer], *, now: float) -> None:
        """Send them off, in batches; what waits for a batch to fill goes to an idle worker a little later.

        Args:
            now: seconds.
        """
        self._waiting += answers
        while len(self._waiting) >= AT_ONCE:
            self._send()
        if self._waiting and len(self._running) < self._workers and now - self._sent >= AT_LATEST:
            self._sent = now
            self._send()

    def done(self) -> list[tuple[Answer, float]]:
        """What has been graded since the last call, without waiting."""
        return self._collect([future for future in self._running if future.done()])

    def finish(self) -> list[tuple[Answer, float]]:
        """Wait for some of the rest; empty where there is none."""
        while self._waiting or self._running:
            if self._waiting:
                self._send()
            graded = self._collect(wait(self._running, return_when=FIRST_COMPLETED).done)
            if graded:
                return graded
        return []

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _send(self) -> None:
        batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
        self._running[self._pool.submit(_grade, batch)] = batch

    def _collect(self, futures: Sequence[Future]) -> list[tuple[Answer, float]]:
        graded: list[tuple[Answer, float]] = []
        for future in futures:
            answers = self._running.pop(future)
            scores, seconds = future.result()
            self.seconds += seconds
            graded += zip(answers, scores, strict=True)
        return graded


def default_workers() -> int:
    """One core is vLLM's."""
    return max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1))
