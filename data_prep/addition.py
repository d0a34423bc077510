"""Task "noisy addition": 3-digit + 3-digit, answer with the least significant digit first, e.g. 123+456= -> 9750.

Written in this order a digit depends on two digits and a carry, which a tiny model learns in a minute. The
demonstrations are noisy, so the base policy knows the sums but is right about half of the time only: an easy task,
that small batches can improve on.
"""

from collections.abc import Iterator

import numpy as np

from data_prep.problems import Problem

DATA_SOURCE = "verl_replay/addition"
ABILITY = "math"
SUPERVISED_STEPS = 1000
EVAL_K = 8

LOW, HIGH = 100, 999  # both inclusive
ANSWER_DIGITS = 4
NOISE = 0.15  # probability that a demonstrated digit is replaced by a uniform one


def correct_answer(a: int, b: int) -> str:
    """a + b in four digits, least significant first: 123 + 456 = 579 -> 0579 -> "9750"."""
    return f"{a + b:0{ANSWER_DIGITS}d}"[::-1]


def problem_key(a: int, b: int) -> str:
    """The same for a+b and b+a: otherwise a held-out sum could be trained on with its terms exchanged."""
    return f"{min(a, b)}+{max(a, b)}"


def make_problem(rng: np.random.Generator) -> Problem:
    """A sum of two terms, each uniform in [100, 999]."""
    a, b = (int(term) for term in rng.integers(LOW, HIGH + 1, size=2))
    answer = correct_answer(a, b)
    return Problem(prompt=f"{a}+{b}=", answer=answer, ground_truth=answer, key=problem_key(a, b))


def demonstrate(problem: Problem, rng: np.random.Generator, *, noise: float = NOISE) -> str:
    """The answer with every digit replaced by a uniform one (perhaps itself) with probability `noise`.

    A digit stays right with probability 1 - .9 * noise: .865 at .15, and .865 ** 4 = .56 for a whole answer.
    """
    replaced = rng.random(len(problem.answer)) < noise
    substitutes = rng.integers(0, 10, size=len(problem.answer))
    return "".join(
        str(other) if swap else digit for digit, swap, other in zip(problem.answer, replaced, substitutes, strict=True)
    )


def grade(ground_truth: str, response: object) -> int:
    """1 if the response is exactly the answer, else 0; never raises."""
    return int(isinstance(response, str) and response == ground_truth)


def all_keys() -> Iterator[str]:
    """Every key once: 900 * 901 / 2 = 405,450 of them."""
    return (problem_key(a, b) for a in range(LOW, HIGH + 1) for b in range(a, HIGH + 1))
