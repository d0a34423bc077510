r"""Whether a response's final answer is right: 1 or 0, on math-verify 0.9.0, safe in threads and against any text.

What is read: the last \boxed{...} of the response's last 100,000 characters, at most 512 characters long, and nothing
else. No box, an empty one, or one that is not closed (a response cut off) is wrong.

What is right, in this order:
 1. the same writing as the gold answer, spaces, layout and units aside (writing.clean and writing.key);
 2. for a gold answer in words, \text{Evelyn} or \text{(C)}: the same words, without regard to case, and nothing else;
 3. between whole numbers, fractions and decimals: the same number; a decimal may stand for what it is rounded from to
    six places or more, as math-verify has it (0.333333 for \frac{1}{3}), if four of its digits are right;
 4. a number with a base, 52_8: the same digits, with the same base or none;
 5. numbers that are far apart are different (approximate.far_apart);
 6. anything else: what math-verify says, in a process of its own. Out of time or memory is wrong.
Units, degree signs, percent signs and currency are not compared: 90 is right for 90^\circ, 44 for 44\% (0.44 is not).
A list 1,-2 may come in any order, a tuple (1,-2) in its own, with or without its parentheses.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from data_prep.maths.approximate import far_apart
from data_prep.maths.boxed import last_boxed
from data_prep.maths.helper import Helpers
from data_prep.maths.writing import as_words, both_signs, clean, exact, key, plain

ROUNDING = Fraction(1, 2 * 10**6)  # half of the sixth decimal place
ROUNDING_SHARE = Fraction(1, 10**4)  # of the gold answer; without it .0000673 would do for .0000672, as in math-verify
CACHED = 8192  # verdicts of math-verify that are kept; each at most 1 kB
_BASED = re.compile(r"(?P<digits>[0-9A-Fa-f]+)_\{?(?P<base>\d+)\}?")


class Gold(NamedTuple):
    """A gold answer, read once."""

    cleaned: str
    key: str
    words: str | None
    number: Fraction | None


def read_gold(gold: str) -> Gold:
    """The gold answer as the rules want it.

    Raises:
        ValueError: it is not text, or empty.
    """
    read = _read_gold(gold) if isinstance(gold, str) else None
    if read is None:
        raise ValueError(
            f"data_prep.maths: a gold answer must be text and not empty, got {gold!r}; "
            "make the parquet files with `python -m data_prep.maths`, which leaves such rows out"
        )
    return read


@lru_cache(maxsize=CACHED)
def _read_gold(gold: str) -> Gold | None:
    cleaned = clean(gold)
    return Gold(cleaned, key(cleaned), as_words(cleaned), exact(key(cleaned))) if cleaned else None


class Grader:
    """Grades responses; one for all threads of a process.

    `counts` are answers by what decided: "none" (no box), "writing", "words", "number", "base", "far", "cached", and of
    math-verify's "right", "wrong", "timeout", "memory" and "crash"; "started" is its processes.
    """

    def __init__(self, helpers: Helpers | None = None) -> None:
        self.helpers = helpers or Helpers()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._math_verify = lru_cache(maxsize=CACHED)(self._ask)

    def grade(self, response: object, gold: str) -> bool:
        """Whether the response's final answer is right. Never raises for a response, whatever it is.

        Raises:
            ValueError: the gold answer is not text, or empty.
            RuntimeError: math-verify cannot be started.
        """
        reference, answer = read_gold(gold), last_boxed(response)
        return self.is_right(reference, answer) if answer and not answer.isspace() else self._count("none", False)

    def is_right(self, gold: Gold, answer: str) -> bool:
        """The rules above, on the text in the box."""
        cleaned = clean(answer)
        written = key(cleaned)
        if not cleaned or written == gold.key:
            return self._count("writing", bool(cleaned))
        if gold.words is not None:
            return self._count("words", plain(cleaned) == gold.words)
        number = exact(written)
        if number is not None and gold.number is not None:
            far = abs(number - gold.number)
            rounded = "." in written or "." in gold.key
            return self._count(
                "number", far == 0 or rounded and far <= min(ROUNDING, ROUNDING_SHARE * abs(gold.number))
            )
        based, reference = _BASED.fullmatch(written), _BASED.fullmatch(gold.key)
        if based and reference:
            same = (based["digits"].upper(), int(based["base"])) == (
                reference["digits"].upper(),
                int(reference["base"]),
            )
            return self._count("base", same)
        if far_apart(gold.cleaned, cleaned):
            return self._count("far", False)
        return self._math_verify(both_signs(gold.cleaned), both_signs(cleaned))

    def _ask(self, gold: str, answer: str) -> bool:
        return self.helpers.ask("equal", gold, answer) == "right"

    @property
    def counts(self) -> Counter[str]:
        """A copy of the counts until now."""
        with self._lock:
            return self._counts + self.helpers.counts + Counter(cached=self._math_verify.cache_info().hits)

    def _count(self, what: str, right: bool) -> bool:
        with self._lock:
            self._counts[what] += 1
        return right
