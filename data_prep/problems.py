"""What all tasks share: the Problem tuple, the train/held-out split, and drawing that cannot hang."""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np

HELDOUT_ONE_IN = 10  # one key in ten is held out
DOUBT_AFTER = 200  # draws in a row without a usable problem before counting how many exist; .9 ** 200 = 7e-10
MAX_MISSES = 20_000  # such draws before giving up, about half a second


class Problem(NamedTuple):
    """One problem of a task."""

    prompt: str  # content of the user's message
    answer: str  # one right response, without end-of-sequence
    ground_truth: str  # what the task's grade needs besides the response
    key: str  # identity for the split: problems that share a key are all trained on or all held out


class Task(Protocol):
    """What a task module provides; add a module of this shape to tasks.TASKS and everything here works on it."""

    DATA_SOURCE: str  # verl's data_source column, by which the reward finds the task
    ABILITY: str  # verl's ability column
    SUPERVISED_STEPS: int  # optimizer steps of the supervised start
    EVAL_K: int  # rollouts a problem when the base policy is measured
    make_problem: Callable[..., Problem]  # (rng, **options)
    demonstrate: Callable[[Problem, np.random.Generator], str]  # a response to imitate, right or not
    grade: Callable[[str, object], int]  # (ground_truth, response) -> 1 if right, else 0; any response is allowed
    all_keys: Callable[..., Iterator[str]]  # (**options): every key that make_problem can return, each once


def is_heldout(key: str) -> bool:
    """Whether problems with this key are held out. The same on every machine and in every process, unlike hash()."""
    digest = blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELDOUT_ONE_IN == 0


def draw_problems(
    task: Task, rng: np.random.Generator, count: int, *, heldout: bool, unique: bool = True, **options: int
) -> list[Problem]:
    """Draw `count` problems from one side of the split.

    Args:
        unique: no key appears twice.
        options: passed on to task.make_problem and task.all_keys.

    Returns:
        `count` problems; the first n of them are what the same rng gives for count=n.

    Raises:
        ValueError: the split does not hold `count` (distinct) problems, or holds so few more that drawing stalls.
    """
    if count < 1:
        raise ValueError(f"data_prep: the number of problems must be at least 1, got {count}")
    drawn: list[Problem] = []
    seen: set[str] = set()
    exist: int | None = None  # counted only in doubt: it enumerates the whole task
    misses = 0
    while len(drawn) < count:
        problem = task.make_problem(rng, **options)
        if is_heldout(problem.key) == heldout and not (unique and problem.key in seen):
            drawn.append(problem)
            seen.add(problem.key)
            misses = 0
            continue
        misses += 1
        if misses == DOUBT_AFTER and exist is None:
            exist = sum(is_heldout(key) == heldout for key in task.all_keys(**options))
        if exist is not None and (exist < (count if unique else 1) or misses == MAX_MISSES):
            side = "held-out" if heldout else "training"
            raise ValueError(
                f"data_prep: {count} {'distinct ' if unique else ''}{side} problems of {task.DATA_SOURCE} asked for; "
                f"{exist} distinct ones exist and drawing got to {len(seen)}; "
                f"ask for at most {min(len(seen), exist * 3 // 4)}"
            )
    return drawn
