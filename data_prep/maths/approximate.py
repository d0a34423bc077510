r"""A cheap look at two numbers: far apart, they need no symbolic comparison. It only ever says "different".

Asking math-verify takes 20 to 50 ms, and most wrong answers are numbers of another size. What this does not read for
certain, letters or mixed numbers, it leaves to math-verify.
"""

from __future__ import annotations

import math
import re

_TOKEN = re.compile(r"\s*(\d+\.?\d*|\.\d+|\\(?:frac|sqrt|pi|cdot|times)(?![A-Za-z])|[-+*/^(){}\[\]!])", re.ASCII)
MAX_TOKENS, MAX_DEPTH = 200, 20


class _Unread(Exception):
    """Not of this grammar."""


def far_apart(one: str, other: str) -> bool:
    """Whether both are numbers and differ by more than rounding to six decimal places can.

    Args:
        one, other: cleaned answers (writing.clean).
    """
    a = value(one)
    b = None if a is None else value(other)
    return b is not None and abs(a - b) > 1e-5 + 1e-9 * max(abs(a), abs(b))


def value(text: str) -> float | None:
    r"""About what a sum of products of numbers, \frac, \sqrt, \pi, powers and factorials is worth; None if unsure."""
    tokens, position = [], 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None or len(tokens) == MAX_TOKENS:
            return None
        tokens.append(token[1])
        position = token.end()
    reader = _Reader(tokens)
    try:
        number = float(reader.sum(0))
        return number if reader.at == len(tokens) and math.isfinite(number) else None
    except (_Unread, ArithmeticError, ValueError, TypeError):  # a complex power has no float
        return None


class _Reader:
    """Recursive descent over tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at = tokens, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if self.next() != token:
            raise _Unread

    def sum(self, depth: int) -> float:
        if depth > MAX_DEPTH:
            raise _Unread
        total, sign = 0.0, 1
        if self.peek() in ("+", "-"):
            sign = -1 if self.next() == "-" else 1
        while True:
            total += sign * self.product(depth)
            if self.peek() not in ("+", "-"):
                return total
            sign = -1 if self.next() == "-" else 1

    def product(self, depth: int) -> float:
        result, divided = self.power(depth), False
        while (token := self.peek()) and token not in ("+", "-", ")", "}", "]"):
            if token in ("*", r"\cdot", r"\times", "/"):
                self.next()
                divided = divided or token == "/"
                factor = self.power(depth)
                result = result / factor if token == "/" else result * factor
                continue
            # Nothing between two factors: 1\frac{4}{5} is a mixed number, 1/2\pi is read in two ways.
            before = self.tokens[self.at - 1]
            if divided or before[-1].isdigit() and (token == r"\frac" or token[-1].isdigit()):
                raise _Unread
            result *= self.power(depth)
        return result

    def power(self, depth: int) -> float:
        base = self.atom(depth)
        if self.peek() == "!":
            self.next()
            if not 0 <= base <= 170 or base != int(base) or self.peek() == "!":
                raise _Unread
            base = float(math.factorial(int(base)))
        if self.peek() != "^":
            return base
        self.next()
        exponent = self.group(depth) if self.peek() == "{" else self.digit()
        if self.peek() in ("^", "!"):
            raise _Unread
        return base**exponent

    def atom(self, depth: int) -> float:
        token = self.next()
        if token == r"\pi":
            return math.pi
        if token == r"\frac":
            return self.group(depth) / self.group(depth)
        if token == r"\sqrt":
            degree = 2.0
            if self.peek() == "[":
                self.next()
                degree = self.sum(depth + 1)
                self.expect("]")
            under = self.group(depth) if self.peek() == "{" else self.digit()
            if under < 0:
                raise _Unread
            return under ** (1 / degree)
        if token in ("(", "{"):
            inner = self.sum(depth + 1)
            self.expect(")" if token == "(" else "}")
            return inner
        if token[:1].isdigit() or token[:1] == ".":
            return float(token)
        raise _Unread

    def group(self, depth: int) -> float:
        self.expect("{")
        inner = self.sum(depth + 1)
        self.expect("}")
        return inner

    def digit(self) -> float:
        r"""One digit without braces: of \sqrt13 and 2^13 LaTeX takes one, people mean two."""
        token = self.next()
        if len(token) != 1 or not token.isdigit():
            raise _Unread
        return float(token)
