"""Measure how many answers a second the maths reward grades on one core, by kind, against plain math-verify.

    python -m scripts.benchmark_grading                       # about a minute
    python -m scripts.benchmark_grading --rollouts FILE.jsonl.gz   # and real responses: columns output, answer, correct

The mix is what a run grades: 45 % right whole numbers, 30 % wrong ones, 10 % fractions, 10 % expressions in the gold
answer's writing or far from it, 4 % without a box, 1 % expressions that only math-verify can settle. Every answer
differs from every other, so that no cache helps; in training the rollouts of a group share theirs. A response has 2,000
characters before its box. math-verify is measured with the same responses, 1 in --thin, in this process.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from math_verify import parse, verify

from data_prep.maths.grading import Grader

TEXT = "We add the two sides, and see that $x^2 + y^2 = z$ holds. " * 35


class Case(NamedTuple):
    response: str
    gold: str
    right: bool


def boxed(answer: object) -> str:
    return f"{TEXT[:2000]}So the answer is $\\boxed{{{answer}}}$."


def right_integer(n: int, rng: np.random.Generator) -> Case:
    return Case(boxed(n), str(n), True)


def wrong_integer(n: int, rng: np.random.Generator) -> Case:
    return Case(boxed(n + int(rng.integers(1, 50))), str(n), False)


def fraction(n: int, rng: np.random.Generator) -> Case:
    times = int(rng.integers(1, 4))
    return Case(boxed(rf"\dfrac{{{7 * times}}}{{{(7 * n + 1) * times}}}"), rf"\frac{{7}}{{{7 * n + 1}}}", True)


def expression(n: int, rng: np.random.Generator) -> Case:
    right = bool(rng.integers(2))
    return Case(boxed(rf"{n} + 2 \sqrt{{{3 if right else 5}}}"), rf"{n}+2\sqrt{{3}}", right)


def no_box(n: int, rng: np.random.Generator) -> Case:
    return Case(f"{TEXT[:2000]}So the answer is {n}", str(n), False)


def symbolic(n: int, rng: np.random.Generator) -> Case:
    return Case(boxed(rf"2\sqrt{{3}}+{n}"), rf"{n}+\sqrt{{12}}", True)


KINDS: dict[str, Callable[[int, np.random.Generator], Case]] = {
    "right whole numbers": right_integer,
    "wrong whole numbers": wrong_integer,
    "fractions": fraction,
    "expressions, written alike or far apart": expression,
    "no box": no_box,
    "expressions that math-verify settles": symbolic,
}
SHARES = (0.45, 0.30, 0.10, 0.10, 0.04, 0.01)


def cases_of(kind: str, count: int, rng: np.random.Generator) -> list[Case]:
    """`count` different cases of a kind."""
    return [KINDS[kind](int(n), rng) for n in rng.choice(10**6, size=count, replace=False) + 10]


def mixed(count: int, rng: np.random.Generator) -> list[Case]:
    """The mix, shuffled."""
    cases = [
        case for kind, share in zip(KINDS, SHARES, strict=True) for case in cases_of(kind, round(count * share), rng)
    ]
    return [cases[i] for i in rng.permutation(len(cases))]


def plain(case: Case) -> bool:
    """math-verify as its README shows it."""
    return verify(parse(f"${case.gold}$"), parse(case.response))


def measure(cases: Sequence[Case], grade: Callable[[Case], bool]) -> tuple[float, int]:
    """(answers a second, answers graded as they should be)."""
    start = time.perf_counter()
    graded = [grade(case) for case in cases]
    seconds = time.perf_counter() - start
    return len(cases) / seconds, sum(got == case.right for got, case in zip(graded, cases, strict=True))


def real_cases(path: Path) -> list[Case]:
    """Recorded responses, with the verdict recorded beside them."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        Case(text, row["answer"], ok) for row in rows for text, ok in zip(row["output"], row["correct"], strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=10_000, help="of the mix, and 1/10 of it of each kind alone")
    parser.add_argument("--thin", type=int, default=20, help="math-verify alone grades one answer of so many")
    parser.add_argument("--rollouts", type=Path, help="jsonl.gz of real responses")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.answers < 100 or given.thin < 1:
        parser.error(f"--answers must be at least 100 and --thin 1, got {given.answers} and {given.thin}")
    rng = np.random.default_rng(given.seed)
    parts = {kind: cases_of(kind, max(10, given.answers // 10), rng) for kind in KINDS}
    parts["expressions that math-verify settles"] = parts["expressions that math-verify settles"][: given.answers // 50]
    parts["the mix"] = mixed(given.answers, rng)
    if given.rollouts:
        parts["real responses"] = real_cases(given.rollouts)

    print("| answers | graded a second | as expected | math-verify alone | as expected | ratio |")
    print("|---|---|---|---|---|---|")
    for kind, cases in parts.items():
        grader = Grader()
        grader.grade(r"\boxed{x+1}", "1+x")  # its process has started
        rate, right = measure(cases, lambda case, grader=grader: grader.grade(case.response, case.gold))
        grader.helpers.close()
        few = cases[:: given.thin] if len(cases) >= 20 * given.thin else cases[:20]
        alone, alone_right = measure(few, plain)
        print(
            f"| {kind} | {rate:,.0f} | {right:,} of {len(cases):,} | {alone:,.0f} | {alone_right} of {len(few)} "
            f"| {rate / alone:,.1f}x |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
