"""Task countdown with written-out steps ("cc4" with its default of four digits): 7571>43= -> 7*7=49-1=48-5=43.

The digits before ">" are used once each, in any order, left to right with + - *. After each operation stands the value
so far in two digits; the last value is the target. A base policy writes right arithmetic and seldom hits the target.
"""

import re
from collections.abc import Iterator
from operator import add, mul, sub

import numpy as np

from data_prep.problems import Problem

DATA_SOURCE = "verl_replay/countdown"
ABILITY = "math"
SUPERVISED_STEPS = 700
EVAL_K = 16

OPERATIONS = {"+": add, "-": sub, "*": mul}
MAX_VALUE = 99  # two digits
DIGITS = 4
MIN_DIGITS, MAX_DIGITS = 2, 6  # at six, all_keys takes 4 seconds
MAX_REJECTIONS = 100_000

_GROUND_TRUTH = re.compile(r"([1-9]{2,6})>([0-9]{2})")
_STEP = re.compile(r"([+*-])([1-9])=([0-9]{2})")


def make_problem(rng: np.random.Generator, *, digits: int = DIGITS) -> Problem:
    """A problem with at least one solution: the chain that it was made from, uniform over all valid chains.

    Args:
        digits: how many digits the prompt shows, 2 to 6.

    Raises:
        ValueError: digits out of range.
    """
    _check_digits(digits)
    symbols = list(OPERATIONS)
    for _ in range(MAX_REJECTIONS):
        numbers = [int(number) for number in rng.integers(1, 10, size=digits)]
        chain = [symbols[choice] for choice in rng.integers(0, len(symbols), size=digits - 1)]
        values = chain_values(numbers, chain)
        if values is None or values[-1] < 1:
            continue
        shown = "".join(str(number) for number in rng.permutation(numbers))
        target = f"{values[-1]:02d}"
        return Problem(
            prompt=f"{shown}>{target}=",
            answer=write_chain(numbers, chain, values),
            ground_truth=f"{shown}>{target}",
            key=f"{''.join(sorted(shown))}>{target}",
        )
    raise AssertionError(f"no valid chain of {digits} digits in {MAX_REJECTIONS} draws")


def chain_values(numbers: list[int], chain: list[str]) -> list[int] | None:
    """The value after each operation, left to right; None as soon as one leaves [0, 99]. 7 7 1 5, * - - -> 49 48 43."""
    value, values = numbers[0], []
    for number, symbol in zip(numbers[1:], chain, strict=True):
        value = OPERATIONS[symbol](value, number)
        if not 0 <= value <= MAX_VALUE:
            return None
        values.append(value)
    return values


def write_chain(numbers: list[int], chain: list[str], values: list[int]) -> str:
    """The response: first digit, then operation, digit, "=" and two-digit value for each step."""
    steps = zip(chain, numbers[1:], values, strict=True)
    return str(numbers[0]) + "".join(f"{symbol}{number}={value:02d}" for symbol, number, value in steps)


def demonstrate(problem: Problem, rng: np.random.Generator) -> str:
    """The chain that the problem was made from. The task is hard enough without noise."""
    del rng  # Unused: the interface is that of the noisy tasks.
    return problem.answer


def grade(ground_truth: str, response: object) -> int:
    """1 if every stated value is right, the digits are used once each and the last value is the target, else 0.

    Args:
        ground_truth: the shown digits and the target, "7571>43".
        response: anything; whatever is not such a chain gets 0.

    Raises:
        ValueError: ground_truth is not of that form. It comes from our own parquet files.
    """
    truth = _GROUND_TRUTH.fullmatch(ground_truth)
    if truth is None:
        raise ValueError(
            f'data_prep: a countdown ground_truth must look like "7571>43", got {ground_truth!r}; '
            "make the parquet files again with data_prep.make_tiny"
        )
    shown, target = truth.groups()
    if not isinstance(response, str) or len(response) != 1 + 5 * (len(shown) - 1) or response[0] not in "123456789":
        return 0
    value, used = int(response[0]), [response[0]]
    for start in range(1, len(response), 5):
        step = _STEP.fullmatch(response, start, start + 5)
        if step is None:
            return 0
        symbol, digit, stated = step.groups()
        value = OPERATIONS[symbol](value, int(digit))
        if value != int(stated):
            return 0
        used.append(digit)
    return int(sorted(used) == sorted(shown) and value == int(target))


def all_keys(*, digits: int = DIGITS) -> Iterator[str]:
    """Every key that make_problem can return, once each."""
    _check_digits(digits)
    reached = {(str(number), number) for number in range(1, 10)}  # (digits used, sorted; value)
    for _ in range(digits - 1):
        reached = {
            ("".join(sorted(used + str(number))), result)
            for used, value in reached
            for number in range(1, 10)
            for result in (operation(value, number) for operation in OPERATIONS.values())
            if 0 <= result <= MAX_VALUE
        }
    return (f"{used}>{value:02d}" for used, value in sorted(reached) if value >= 1)


def _check_digits(digits: int) -> None:
    if not MIN_DIGITS <= digits <= MAX_DIGITS:
        raise ValueError(f"data_prep: countdown takes {MIN_DIGITS} to {MAX_DIGITS} digits, got {digits}")
