"""Countdown with written-out steps."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import countdown

TRUTH = "7571>43"
RIGHT = "7*7=49-1=48-5=43"  # 7 * 7 = 49; 49 - 1 = 48; 48 - 5 = 43; uses 7 7 1 5


def solutions(truth: str) -> set[str]:
    """A slow twin of grade: every right response, by trying all orders and operations."""
    shown, target = truth.split(">")
    found = set()
    for order in set(permutations(shown)):
        for symbols in product("+-*", repeat=len(shown) - 1):
            text, value, inside = order[0], int(order[0]), True
            for symbol, digit in zip(symbols, order[1:], strict=True):
                value = eval(f"({value}){symbol}{digit}")
                inside = inside and 0 <= value <= 99
                text += f"{symbol}{digit}={value:02d}"
            if inside and value == int(target):
                found.add(text)
    return found


@pytest.mark.parametrize(
    "response",
    [
        RIGHT,
        "7*7=49-5=44-1=43",  # another order: 49 - 5 = 44; 44 - 1 = 43
        "7*5=35+7=42+1=43",  # 35 + 7 = 42; 42 + 1 = 43
    ],
)
def test_right_responses(response):
    assert countdown.grade(TRUTH, response) == 1


@pytest.mark.parametrize(
    ("response", "fault"),
    [
        ("7*7=49-1=47-5=43", "49 - 1 is 48"),
        ("7*7=49-1=48-5=42", "48 - 5 is 43"),
        ("7*7=49-5=44+1=45", "ends at 45"),
        ("7*7=49-7=42+1=43", "uses 7 three times and no 5"),
        ("7*7=49-6=43", "three digits"),
        ("7*7=49-1=48-5=43-0=43", "five digits"),
        ("7*7=49-1=48-5=43\n", "a line break after it"),
        (" 7*7=49-1=48-5=43", "a blank before it"),
        ("7*7-1-5=43", "steps not written out"),
        ("1-7=-6+7=01*5=05", "a negative value"),
        ("7*7=4９-1=48-5=43", "a full-width digit"),
        ("7×7=49-1=48-5=43", "a multiplication sign"),
        ("٧*7=49-1=48-5=43", "an Arabic digit"),
        ("²*7=49-1=48-5=43", "a superscript, for which str.isdigit is true and int raises"),
        ("", "nothing"),
        ("=" * 16, "signs only"),
        ("9" * 10_000, "long"),
        (None, "not text"),
        (b"7*7=49-1=48-5=43", "bytes"),
    ],
)
def test_wrong_responses(response, fault):
    assert countdown.grade(TRUTH, response) == 0, fault


def test_a_one_digit_value_is_written_with_a_zero():
    assert countdown.grade("3214>06", "3-2=01+1=02+4=06") == 1
    assert countdown.grade("3214>06", "3-2=1+1=2+4=6") == 0


SYMBOLS = "0123456789+-*/=>"


@given(
    seed=st.integers(0, 2**32 - 1),
    digits=st.integers(2, 4),
    edits=st.lists(st.tuples(st.integers(0, 100), st.sampled_from(SYMBOLS)), max_size=3),
)
def test_grade_agrees_with_trying_everything(seed, digits, edits):
    problem = countdown.make_problem(np.random.default_rng(seed), digits=digits)
    response = list(problem.answer)
    for place, symbol in edits:
        response[place % len(response)] = symbol
    response = "".join(response)
    assert countdown.grade(problem.ground_truth, response) == (response in solutions(problem.ground_truth))


@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_all_solutions_are_right(seed, data):
    truth = countdown.make_problem(np.random.default_rng(seed), digits=3).ground_truth
    assert all(countdown.grade(truth, response) for response in solutions(truth))


@given(seed=st.integers(0, 2**32 - 1), digits=st.integers(2, 6))
def test_a_problem_hangs_together(seed, digits):
    problem = countdown.make_problem(np.random.default_rng(seed), digits=digits)
    shown, target = problem.ground_truth.split(">")
    assert problem.prompt == f"{shown}>{target}="
    assert problem.key == f"{''.join(sorted(shown))}>{target}"
    assert len(shown) == digits and "0" not in shown and 1 <= int(target) <= 99
    assert countdown.grade(problem.ground_truth, problem.answer) == 1
    assert countdown.demonstrate(problem, np.random.default_rng(0)) == problem.answer


def test_chain_values_by_hand():
    assert countdown.chain_values([7, 7, 1, 5], ["*", "-", "-"]) == [49, 48, 43]
    assert countdown.chain_values([1, 7, 7], ["-", "+"]) is None  # -6
    assert countdown.chain_values([9, 9, 2], ["*", "*"]) is None  # 162
    assert countdown.chain_values([9, 9, 9, 9], ["*", "+", "+"]) == [81, 90, 99]
    assert countdown.chain_values([4, 4], ["-"]) == [0]


def test_the_shown_order_says_nothing_about_the_chain():
    """Of four different digits, the one that starts the chain is shown first in one problem of four."""
    rng = np.random.default_rng(0)
    problems = [countdown.make_problem(rng) for _ in range(6000)]
    first = [p.answer[0] == p.prompt[0] for p in problems if len(set(p.prompt[:4])) == 4]
    assert abs(np.mean(first) - 0.25) < 5 * (0.25 * 0.75 / len(first)) ** 0.5


@pytest.mark.parametrize("digits", [2, 3])
def test_all_keys_are_those_that_trying_everything_finds(digits):
    expected = set()
    for numbers in product(range(1, 10), repeat=digits):
        for symbols in product("+-*", repeat=digits - 1):
            value, inside = numbers[0], True
            for symbol, number in zip(symbols, numbers[1:], strict=True):
                value = eval(f"({value}){symbol}{number}")
                inside = inside and 0 <= value <= 99
            if inside and value >= 1:
                expected.add(f"{''.join(map(str, sorted(numbers)))}>{value:02d}")
    assert set(countdown.all_keys(digits=digits)) == expected


@pytest.mark.parametrize("digits", [1, 7])
def test_digits_out_of_range(digits):
    with pytest.raises(ValueError, match=f"2 to 6 digits, got {digits}"):
        countdown.make_problem(np.random.default_rng(0), digits=digits)
    with pytest.raises(ValueError, match=f"2 to 6 digits, got {digits}"):
        list(countdown.all_keys(digits=digits))


@pytest.mark.parametrize("truth", ["", "43", "7571", "7571>4", "7071>43", "7571>43="])
def test_a_malformed_ground_truth_is_refused(truth):
    with pytest.raises(ValueError, match="must look like"):
        countdown.grade(truth, RIGHT)
