"""Asks math-verify whether two answers are equal. Main thread only, and it may take any time: see helper.py."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, MatrixBase

# Units are left to writing.py: math-verify takes the letters c, d, g, h, l, m, o, s and t at the end of an answer for
# units, so that 5t would be 5, and `a + b + c` does not parse.
READ_BOX = LatexExtractionConfig(
    try_extract_without_anchor=False,
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last", equations=False
    ),
)
# Digits to which a difference must vanish. At math-verify's own 15, 50(1 - \frac{1}{2^{102} - 1}) would be right for
# 50(1 - \frac{1}{2^{101} - 1}), an answer of HMMT 2026.
PRECISION = 60
SECONDS = 20  # math-verify's own limit for parsing, and again for comparing: of the clock, in whole seconds


@lru_cache(maxsize=1024)
def parse_gold(gold: str) -> list[Any]:
    """As parse_answer; kept, because a gold answer comes once a rollout."""
    return parse_answer(gold)


def parse_answer(answer: str) -> list[Any]:
    """What math-verify reads in a cleaned answer: [expression, text], or [text] where it cannot be parsed."""
    return parse(f"\\boxed{{{answer}}}", [READ_BOX], parsing_timeout=SECONDS)


def parses(gold: str) -> bool:
    """Whether math-verify reads mathematics in a cleaned gold answer, and finds it equal to itself."""
    parsed = parse_gold(gold)
    return bool(parsed) and isinstance(parsed[0], Basic | MatrixBase) and equal(gold, gold)


def equal(gold: str, answer: str) -> bool:
    """math-verify's verdict on two cleaned answers. Not symmetric: the gold one says what form is asked for."""
    return verify(parse_gold(gold), parse_answer(answer), numeric_precision=PRECISION, timeout_seconds=SECONDS)
