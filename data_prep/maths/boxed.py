"""Finds the final answer of a response: the content of its last \\boxed{}.

Everything here is linear in the text and looks at a bounded part of it, so that no response can hold up a grader.
"""

from __future__ import annotations

import re

MAX_TAIL = 100_000  # characters of a response, from its end, that are looked at: about 25,000 tokens
MAX_ANSWER = 512  # characters of an answer; the longest right answer of MATH, DAPO-17k and the benchmarks has 159

_OPENING = re.compile(r"\\(?:boxed|fbox)\s{0,8}\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is a printed one, and closes nothing


def last_boxed(response: object) -> str | None:
    """The content of the last \\boxed{...} (or \\fbox{...}) of a response.

    Only the last one counts, as in verl's own reward for MATH: of `\\boxed{1} or \\boxed{2}` it is 2. A box within a
    box is the last one. Nothing else of the response is read: no "the answer is", no #### line, no last number.

    Args:
        response: any object; what is not text has no answer.

    Returns:
        The text between the braces; None where there is no box in the last MAX_TAIL characters, where the last one is
        not closed (the response was cut off), or where it is longer than MAX_ANSWER.
    """
    if not isinstance(response, str):
        return None
    tail = response[-MAX_TAIL:]
    last = None
    for opening in _OPENING.finditer(tail):
        last = opening
    return None if last is None else closed_group(tail, last.end())


def closed_group(text: str, start: int, longest: int = MAX_ANSWER) -> str | None:
    """The text from `start`, just behind an opening brace, to the brace that closes it; None if that is too far."""
    depth = 1
    for brace in _BRACE.finditer(text, start, min(len(text), start + longest + 1)):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
            if not depth:
                return text[start : brace.start()]
    return None
