"""The loop: generate, grade meanwhile, keep."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scripts.evaluating.engine import Engine, Sampled
from scripts.evaluating.grading import Answer, Grader
from scripts.evaluating.prompts import Request
from scripts.evaluating.store import Generation, Store


@dataclass
class Timing:
    """Seconds of one run of the loop.

    Attributes:
        generation: in vLLM.
        grading: of the workers, most of it meanwhile.
        waiting: for the last grades, after vLLM was done.
        other: decoding, handing over, writing.
        answers, tokens: generated.
    """

    generation: float = 0.0
    grading: float = 0.0
    waiting: float = 0.0
    other: float = 0.0
    answers: int = 0
    tokens: int = 0

    @property
    def overhead(self) -> float | None:
        """What was not generation, as a share of it; None where nothing was generated."""
        return (self.waiting + self.other) / self.generation if self.generation else None

    def record(self) -> dict[str, Any]:
        return {**{k: round(v, 3) for k, v in asdict(self).items()}, "overhead": self.overhead}


def run(
    engine: Engine,
    missing: Sequence[Request],
    store: Store,
    grader: Grader,
    decode: Callable[[Sequence[int]], str],
    *,
    tick: Callable[[int], None] = lambda done: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Sample, grade and keep all that is missing.

    Args:
        decode: token ids to the text that is graded.
        tick: called now and then with the number of answers that are done.
        clock: seconds.

    Raises:
        ValueError: grading failed.
    """
    timing, started = Timing(), clock()
    todo, sampled_of = deque(missing), {}  # by key, from sampled to graded

    def keep(graded: Sequence[tuple[Answer, float]]) -> None:
        if graded:
            store.append([_generation(sampled_of.pop(a.key), a.text, score) for a, score in graded], now=clock())
        tick(timing.answers - len(sampled_of))

    in_flight = 0
    while todo or in_flight:
        before = clock()
        while todo and in_flight < engine.window:
            engine.add(todo.popleft())
            in_flight += 1
        finished = engine.step()
        timing.generation += clock() - before
        in_flight -= len(finished)
        timing.answers += len(finished)
        timing.tokens += sum(len(sampled.ids) for sampled in finished)
        sampled_of |= {sampled.request.key: sampled for sampled in finished}
        grader.submit([_answer(sampled, decode) for sampled in finished], now=clock())
        keep(grader.done())
    generated = clock()
    while graded := grader.finish():
        keep(graded)
    store.flush()
    timing.waiting = clock() - generated
    timing.other = generated - started - timing.generation
    timing.grading = grader.seconds
    return timing


def _answer(sampled: Sampled, decode: Callable[[Sequence[int]], str]) -> Answer:
    problem = sampled.request.problem
    return Answer(
        key=sampled.request.key,
        data_source=problem.data_source,
        text=decode(sampled.ids),
        ground_truth=problem.ground_truth,
        extra_info=problem.extra_info,
    )


def _generation(sampled: Sampled, text: str, score: float) -> Generation:
    benchmark, problem, sample = sampled.request.key
    return Generation(benchmark, problem, sample, len(sampled.ids), sampled.finish_reason, text, score)
