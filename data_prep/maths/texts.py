"""When two problems are the same: by their writing, or by their words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import NamedTuple

SHINGLE = 3  # words in a row
_LAYOUT = re.compile(r"\\(?:(?:left|right|displaystyle)(?![A-Za-z])|[,;:!()\[\]])")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")
_DROPPED = re.compile(r"[\s$~]+")
_PICTURE = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)|\\begin\{tikzpicture\}.*?(?:\\end\{tikzpicture\}|\Z)", re.DOTALL)
_COMMANDS = re.compile(
    r"\\(?:left|right|displaystyle|text(?:bf|it|rm)?|mathrm|operatorname|begin|end|q?quad|[cld]?dots|[dtc]?frac|"
    r"overline|cdot|times)(?![A-Za-z])"
)
_WORD = re.compile(r"\d+|[^\W\d_]+")


def fingerprint(problem: str) -> str:
    r"""What is equal for two writings of one problem: letters in one case and compatibility form (NFKC), without white
    space, dollars, \( \), \[ \], \left, \right and spacing commands; \dfrac is \frac."""
    text = unicodedata.normalize("NFKC", problem).casefold()
    return _DROPPED.sub("", _FRACTION.sub(r"\\frac", _LAYOUT.sub("", text)))


def has_picture(problem: str) -> bool:
    """Whether a picture's code (Asymptote, TikZ) is part of it."""
    return _PICTURE.search(problem) is not None


class Words(NamedTuple):
    """A problem's words.

    Attributes:
        shingles: three words in a row, without the code of pictures, LaTeX's layout and case.
        marks: what tells a problem from another of its kind: its numbers, and its words in capitals.
        count: words outside pictures.
    """

    shingles: frozenset[tuple[str, ...]]
    marks: Counter[str]
    count: int


def words_of(problem: str) -> Words:
    """The words of a problem."""
    text = unicodedata.normalize("NFKC", _PICTURE.sub(" ", problem))
    found = _WORD.findall(_COMMANDS.sub(" ", text))
    small = [word.casefold() for word in found]
    return Words(
        frozenset(tuple(small[i : i + SHINGLE]) for i in range(max(1, len(small) - SHINGLE + 1))),
        Counter(word for word in found if word.isdigit() or (len(word) > 1 and word.isupper())),
        len(found),
    )
