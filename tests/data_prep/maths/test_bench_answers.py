"""Every gold answer of the five benchmarks: equal to itself in ten writings and more, and told from near misses."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from data_prep.maths.writing import clean, exact, key
from tests.data_prep.maths.forms import misses, same

# What passes for right and is not, with the reason. A fault that goes must leave this list: the test compares exactly.
KNOWN_FALSE_RIGHT = {
    # Units are not compared, so that an answer without one is right: neither are their powers.
    (r"864 \mbox{ inches}^2", "digit at 19"),
    (r"15\mbox{ cm}^2", "digit at 13"),
}
EVERY_ANSWER_HAS = 14


def test_every_answer_equals_itself_in_every_writing(bench_answers, grader):
    graded = 0
    for answer in bench_answers:
        forms = same(answer)
        assert len(forms) >= EVERY_ANSWER_HAS
        wrong = {name: response for name, response in forms.items() if not grader.grade(response, answer)}
        assert wrong == {}, answer
        graded += len(forms)
    assert graded > 14 * 390


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_no_near_miss_is_right(bench_answers, grader, step):
    right, graded = set(), 0
    answers = bench_answers[::step]
    for answer in answers:
        for name, near in misses(answer).items():
            if re.fullmatch("0+", answer) and name == "tenfold":
                continue  # 00 is 0
            graded += 1
            if near != answer and grader.grade(rf"\boxed{{{near}}}", answer):
                right.add((answer, name))
    assert right == {miss for miss in KNOWN_FALSE_RIGHT if miss[0] in answers}
    assert graded > 2000 / step


def number(answer: str) -> Fraction | None:
    """Of an answer without its unit and base."""
    return exact(key(clean(re.sub(r"_\{?\d\}?$", "", answer))))


@pytest.mark.parametrize("neighbours", [pytest.param(12, marks=pytest.mark.slow), 2])
def test_no_other_answer_is_right_unless_it_is_the_same_number(bench_answers, grader, neighbours):
    """A sample of all pairs: each answer against its neighbours in the order of their writing."""
    answers = sorted(bench_answers)
    equal = 0
    for place, gold in enumerate(answers):
        for answer in answers[place + 1 : place + 1 + neighbours]:
            right = grader.grade(rf"\boxed{{{answer}}}", gold)
            assert right == (number(gold) is not None and number(gold) == number(answer)), (gold, answer)
            equal += right
    assert equal > 5  # 36 and 36^\circ, 10080 and 10,\!080


@pytest.mark.parametrize("times", [1, 1000])
def test_a_wrong_box_before_and_text_around_change_nothing(bench_answers, grader, times):
    for answer in bench_answers[::10]:
        text = r"We try \boxed{12345}, and {see}. " * times
        assert grader.grade(f"{text}\\boxed{{{answer}}} {'is it. ' * times}", answer)
        assert not grader.grade(f"\\boxed{{{answer}}} {text}", answer)
