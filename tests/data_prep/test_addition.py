"""Noisy addition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import addition
from data_prep.problems import Problem

HOSTILE = np.array(["9750", "9750"])  # compares elementwise: its truth value raises
TERMS = st.integers(100, 999)
PROBLEM = Problem(prompt="123+456=", answer="9750", ground_truth="9750", key="123+456")


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        (123, 456, "9750"),  # 579 -> 0579 reversed
        (100, 100, "0020"),  # 200 -> 0200 reversed
        (999, 999, "8991"),  # 1998 reversed
        (505, 495, "0001"),  # 1000 reversed
    ],
)
def test_hand_cases(a, b, answer):
    assert addition.correct_answer(a, b) == answer


@given(TERMS, TERMS)
def test_the_answer_read_backwards_is_the_sum(a, b):
    answer = addition.correct_answer(a, b)
    assert len(answer) == 4 and int(answer[::-1]) == a + b


@given(TERMS, TERMS)
def test_exchanged_terms_share_a_key(a, b):
    assert addition.problem_key(a, b) == addition.problem_key(b, a)


@given(st.integers(0, 2**32 - 1))
def test_the_prompt_states_the_sum(seed):
    problem = addition.make_problem(np.random.default_rng(seed))
    a, b = problem.prompt.removesuffix("=").split("+")
    assert 100 <= int(a) <= 999 and 100 <= int(b) <= 999
    assert problem.answer == problem.ground_truth == addition.correct_answer(int(a), int(b))
    assert problem.key == addition.problem_key(int(a), int(b))


def test_terms_cover_the_whole_range():
    rng = np.random.default_rng(0)
    terms = [int(t) for _ in range(20_000) for t in addition.make_problem(rng).prompt[:-1].split("+")]
    assert (min(terms), max(terms)) == (100, 999)


def test_noise_hits_each_digit_at_its_rate():
    """Expected share of right digits 1 - .9 * .15 = .865; 80,000 digits, five sigma = .006."""
    rng = np.random.default_rng(0)
    shown = np.array([list(addition.demonstrate(PROBLEM, rng)) for _ in range(20_000)])
    right = shown == np.array(list(PROBLEM.answer))
    assert abs(right.mean() - 0.865) < 0.006
    assert abs(right.all(1).mean() - 0.865**4) < 0.018  # independent digits: .56
    assert set(shown[:, 0]) == set("0123456789")


@pytest.mark.parametrize(("noise", "right"), [(0.0, 1.0), (1.0, 0.1)])
def test_noise_at_its_ends(noise, right):
    rng = np.random.default_rng(0)
    shown = [addition.demonstrate(PROBLEM, rng, noise=noise)[0] == "9" for _ in range(4000)]
    assert abs(np.mean(shown) - right) < 0.025  # five sigma at .1


@given(st.text(max_size=8))
def test_only_the_answer_itself_is_right(response):
    assert addition.grade("9750", response) == (response == "9750")


@pytest.mark.parametrize(
    "response", ["9750 ", " 9750", "9750\n", "09750", "975", "579", "", "9750" * 1000, None, 9750, HOSTILE]
)
def test_near_misses_are_wrong(response):
    assert addition.grade("9750", response) == 0
