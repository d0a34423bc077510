"""Finds problems of a benchmark among the problems that are trained on.

Exact: the same fingerprint (texts.fingerprint). Near: at least NEAR of the benchmark problem's word triples occur in
the training problem, and all of its numbers and words in capitals. So a problem is found with a sentence added ("give
the value of k + m"), in other LaTeX, or without its picture; the same kind of problem with other numbers is not.

Settled on the real data (DAPO-Math-17k and MATH's training set against the five benchmarks): from .79 up nearly all
pairs are one problem, such as DAPO 16906 and MATH-500 geometry/229 (.79), 5886 and intermediate_algebra/1063 (.83),
17728 and geometry/561 (.94). Below .75 they are two problems of one kind, but for few, such as DAPO 17521 and
intermediate_algebra/1566 (.68, rewritten). Without the rule on numbers MATH's siblings would be taken: eleven words are
asked for like ELLIPSE in counting_and_probability/1060 (.91 each). A paraphrase or a translation is not found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from data_prep.maths.texts import Words, fingerprint, has_picture, words_of

NEAR = 0.75
# Shorter problems are compared exactly only; with a picture what tells them apart may stand in the picture alone, as in
# "What is the area of this trapezoid?".
FEWEST_WORDS, FEWEST_BESIDE_A_PICTURE = 12, 25


class BenchProblem(NamedTuple):
    """One problem that must not be trained on."""

    benchmark: str
    id: str
    problem: str


class Match(NamedTuple):
    """One benchmark problem found.

    Attributes:
        kind: "exact" or "near".
        similarity: the share of the benchmark problem's word triples that were found; 1 for exact.
    """

    benchmark: str
    id: str
    kind: str
    similarity: float


class BenchIndex:
    """Benchmark problems by fingerprint and by word triple."""

    def __init__(self, problems: Iterable[BenchProblem]) -> None:
        self.problems = list(problems)
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._with: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self._words: list[Words] = []
        for number, problem in enumerate(self.problems):
            self._exact[fingerprint(problem.problem)].append(number)
            self._words.append(words_of(problem.problem))
            fewest = FEWEST_BESIDE_A_PICTURE if has_picture(problem.problem) else FEWEST_WORDS
            if self._words[-1].count >= fewest:
                for shingle in self._words[-1].shingles:
                    self._with[shingle].append(number)

    def find(self, problem: str) -> list[Match]:
        """The benchmark problems that a training problem is, exact ones first."""
        exact = self._exact.get(fingerprint(problem), [])
        words = words_of(problem)
        shared = Counter(number for shingle in words.shingles for number in self._with.get(shingle, ()))
        near = {
            number: count / len(self._words[number].shingles)
            for number, count in shared.items()
            if number not in exact
            and count >= NEAR * len(self._words[number].shingles)
            and self._words[number].marks <= words.marks
        }
        found = [self._match(number, "exact", 1.0) for number in exact]
        return found + [
            self._match(number, "near", round(near[number], 4)) for number in sorted(near, key=lambda n: (-near[n], n))
        ]

    def _match(self, number: int, kind: str, similarity: float) -> Match:
        return Match(self.problems[number].benchmark, self.problems[number].id, kind, similarity)
