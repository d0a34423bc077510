"""The rules of grading: each case through the real path, and the quick rules against math-verify itself."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from math_verify import parse, verify

from data_prep.maths.grading import Grader, read_gold
from data_prep.maths.helper import Helpers
from data_prep.maths.limits import Limits

RIGHT = [
    # Another writing of a radical, a power, a product
    (r"\frac{9 \sqrt{23}}{23}", r"\frac{9}{\sqrt{23}}"),
    (r"\sqrt{\frac{95}{24}}", r"\frac{\sqrt{570}}{12}"),
    (r"\frac{\sqrt{1740}}{3}", r"\frac{2\sqrt{435}}{3}"),
    (r"2^{25} \cdot 26!", r"26! \times 2^{25}"),
    (r"3^{2025}", r"3\cdot 3^{2024}"),
    (r"(3+\sqrt{6})^{-1/3}", r"\frac{1}{\sqrt[3]{3+\sqrt{6}}}"),
    (r"(3+\sqrt{6})^{-1/3}", r"\sqrt[3]{\frac{3-\sqrt6}{3}}"),
    (r"50(1 - \frac{1}{2^{101} - 1})", r"50 - \frac{50}{2^{101}-1}"),
    ("(a+5)(b+2)", "ab+2a+5b+10"),
    (r"\cot x", r"\frac{\cos x}{\sin x}"),
    ("6+9i", "9i+6"),
    # Lists, sets, tuples, intervals, matrices
    (r"\frac{-1+\sqrt{17}}{2}, \frac{-1-\sqrt{17}}{2}", r"\frac{-1 \pm \sqrt{17}}{2}"),
    (r"\frac{-1 \pm \sqrt{17}}{2}", r"\frac{-1-\sqrt{17}}{2}, \frac{-1+\sqrt{17}}{2}"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"),
    ("1,-2", "-2, 1"),
    ("1,-2", r"\{1,-2\}"),
    ("1,-2", r"x=1 \text{ or } x=-2"),
    ("(8,-2)", "8,-2"),
    (r"(0,9) \cup (9,36)", r"(9,36)\cup(0,9)"),
    (r"x \in [-2,7]", "[-2,7]"),
    (r"\begin{pmatrix} -2 \\ 1 \end{pmatrix}", r"\begin{bmatrix} -\frac{4}{2} \\ 1 \end{bmatrix}"),
    # Equations
    ("x=5", "5"),
    ("5", "x=5"),
    ("y = 2x+3", "y=3+2x"),
    # Numbers
    (r"1\frac{4}{5}", "9/5"),
    (r"137 \frac{1}{2}", "137.5"),
    (r"\frac{1}{3}", "0.333333"),
    (r"\frac{1}{576}", "0.001736"),
    (".0000672", r"6.72 \times 10^{-5}"),
    ("1000000", "10^6"),
    # Units, bases, words
    (r"90^\circ", "90"),
    (r"44\%", "44"),
    ("52_8", "52_{8}"),
    ("52_8", "52"),
    ("5A_{16}", "5a_{16}"),
    (r"\text{(C)}", "C"),
    (r"\text{Evelyn}", "evelyn"),
]
WRONG = [
    # What math-verify itself takes for right
    (r"50(1 - \frac{1}{2^{101} - 1})", "50"),
    (r"50(1 - \frac{1}{2^{101} - 1})", r"50(1 - \frac{1}{2^{102} - 1})"),
    (".0000672", ".0000673"),
    ("52_8", "52_9"),
    ("5t", "5"),
    ("abc", "cab"),
    # Order, elements
    ("(8,-2)", "(-2,8)"),
    ("(8,-2)", "-2,8"),
    ("1,-2", "1"),
    (r"3 \pm 2 \sqrt{2}", r"3+2\sqrt2"),
    ("12", "12, 13"),
    # Rounded, or another scale
    (r"\frac{3000001}{3000000}", "1"),  # closer than half of the sixth place, but neither is a decimal
    (r"\frac{1}{3}", "0.33"),
    (r"\frac{2}{3}", "0.666666"),
    (r"\pi", "3.14159"),
    (r"44\%", "0.44"),
    (r"90^\circ", r"\frac{\pi}{2}"),
    # Words are compared as words
    (r"\text{Evelyn}", "Evelyn wins"),
    (r"\text{even}", "odd"),
    ("12", r"\text{twelve}"),
    ("x=5", "y=5"),
    ("2k", "2n"),
    ("5", ""),
    ("5", "   "),
    ("5", r"\text{}"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_right(grader, gold, answer):
    assert grader.grade(rf"Thus \boxed{{{answer}}}.", gold) is True


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_wrong(grader, gold, answer):
    assert grader.grade(rf"Thus \boxed{{{answer}}}.", gold) is False


@pytest.mark.parametrize("response", ["5", "Answer: 5.", "#### 5", r"\boxed{5", "", None, b"\\boxed{5}", 5, ["5"]])
def test_without_a_closed_box_nothing_is_right(grader, response):
    assert grader.grade(response, "5") is False


@pytest.mark.parametrize("gold", ["", "  ", "$$", None, 5, 5.0, ["5"], b"5", float("nan")])
def test_a_gold_answer_that_is_no_text_is_refused_whatever_the_response(grader, gold):
    for response in (r"\boxed{5}", None):
        with pytest.raises(ValueError, match="a gold answer must be text and not empty"):
            grader.grade(response, gold)


def plain_math_verify(gold: str, answer: str) -> bool:
    return verify(parse(rf"\boxed{{{gold}}}"), parse(rf"\boxed{{{answer}}}"))


numbers = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.integers(0, 9999).map(lambda n: f"0{n}"),
    st.tuples(st.integers(-99, 99), st.integers(1, 99)).map(lambda p: rf"\frac{{{p[0]}}}{{{p[1]}}}"),
    st.tuples(st.integers(-99, 99), st.integers(1, 99)).map(lambda p: f"{p[0]}/{p[1]}"),
    st.decimals(-1000, 1000, places=3).map(lambda n: f"{n:f}"),
)


@settings(max_examples=150, deadline=None)
@given(gold=numbers, answer=numbers, same=st.booleans())
def test_rules_for_numbers_agree_with_math_verify(grader, gold, answer, same):
    answer = gold if same else answer
    one, other = read_gold(gold).number, read_gold(answer).number
    # At three places or fewer, rounding to six makes no difference, save for fractions near a half of the sixth place.
    assume(one == other or abs(one - other) > Fraction(1, 10**5))
    before = grader.counts
    assert grader.grade(rf"\boxed{{{answer}}}", gold) == plain_math_verify(gold, answer)
    assert grader.counts - before in ({"writing": 1}, {"number": 1})  # without asking math-verify


SURDS = st.tuples(st.integers(-20, 20), st.integers(1, 20), st.integers(2, 30)).map(
    lambda p: rf"{p[0]} + \frac{{\sqrt{{{p[2]}}}}}{{{p[1]}}}"
)


@settings(max_examples=60, deadline=None)
@given(gold=st.one_of(SURDS, numbers), answer=SURDS)
def test_far_apart_agrees_with_math_verify(grader, gold, answer):
    assert grader.grade(rf"\boxed{{{answer}}}", gold) == plain_math_verify(gold, answer)


def test_equal_writings_are_equal_for_math_verify(bench_answers):
    """So that the first rule takes nothing for right that math-verify would not; its own faults are named."""
    for answer in bench_answers[::9]:
        assert plain_math_verify(answer, answer), answer


def test_what_decided_is_counted():
    grader = Grader(Helpers(most=1))
    for answer, gold in [("5", "5"), ("5", "6"), (r"\sqrt{2}", "6"), ("x+y", "y+x"), ("x+y", "y+x"), ("x+z", "y+x")]:
        grader.grade(rf"\boxed{{{answer}}}", gold)
    grader.grade("5", "5")
    grader.grade(r"\boxed{C}", r"\text{(C)}")
    grader.grade(r"\boxed{52_7}", "52_8")
    assert grader.counts == {
        "writing": 1, "number": 1, "far": 1, "right": 1, "wrong": 1, "cached": 1, "none": 1, "words": 1, "base": 1,
        "started": 1,
    }  # fmt: skip
    grader.helpers.close()


def test_a_timeout_is_wrong_counted_and_kept():
    grader = Grader(Helpers(most=1, limits=Limits(cpu_seconds=0.3)))
    for _ in range(2):
        assert not grader.grade(r"\boxed{9^{9^{9^9}}}", r"x+1")
    assert grader.counts == {"timeout": 1, "cached": 1, "started": 1}
    assert grader.grade(r"\boxed{1+x}", "x+1")  # the same process goes on
    assert grader.counts["started"] == 1
    grader.helpers.close()
