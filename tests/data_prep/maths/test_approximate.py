r"""The cheap look at two numbers, against sympy's values of the same expressions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.maths.approximate import far_apart, value
from data_prep.maths.compare import parse_answer
from data_prep.maths.writing import clean


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1-2-3", -4),
        ("-2^2", -4),
        ("2 \\cdot 3 / 4", 1.5),
        (r"8\sqrt{10}", 8 * math.sqrt(10)),
        (r"\sqrt[3]{8}", 2),
        (r"\sqrt2", math.sqrt(2)),
        (r"\frac{\sqrt{1740}}{3}", math.sqrt(1740) / 3),
        (r"\frac{7}{3}\sqrt{3}", 7 / 3 * math.sqrt(3)),
        (r"2^{25} \cdot 26!", 2**25 * math.factorial(26)),
        (r"(3+\sqrt{6})^{-1/3}", (3 + math.sqrt(6)) ** (-1 / 3)),
        (r"50(1 - \frac{1}{2^{101} - 1})", 50),
        (r"2 - \frac{\pi}{2}", 2 - math.pi / 2),
        (r"\pi/2", math.pi / 2),
        # Left to math-verify: letters, two readings, no float, no number at all.
        ("2x", None),
        (r"1\frac{4}{5}", None),
        (r"1/2\pi", None),
        (r"\sqrt13", None),
        ("2^13", None),
        ("3 5", None),
        ("2^2^2", None),
        ("3!!", None),
        ("200!", None),
        ("2.5!", None),
        ("1/0", None),
        ("3^{2025}", None),
        (r"\sqrt{-1}", None),
        ("(-1)^{1/2}", None),
        ("(1", None),
        ("1)", None),
        ("1,2", None),
        ("", None),
        ("(" * 50 + "1" + ")" * 50, None),
        ("1" + "+1" * 200, None),
        ("9^{9^{9}}", None),
        ("0^{-1}", None),
    ],
)
def test_value(text, number):
    assert value(text) == (None if number is None else pytest.approx(number, rel=1e-12))


def test_values_of_the_benchmarks_are_sympys(bench_answers):
    read = 0
    for answer in map(clean, bench_answers):
        number = value(answer)
        if number is not None:
            assert number == pytest.approx(float(parse_answer(answer)[0].doit().evalf(30)), rel=1e-12), answer
            read += 1
    assert read > 300  # of 390


def test_only_what_rounding_cannot_explain_is_far_apart():
    assert far_apart("1", "1.001") and far_apart(r"\sqrt{2}", "1.4") and far_apart("10^{9}", "10^{9}+2")
    assert not far_apart("1", "1.000001") and not far_apart(r"\sqrt{2}", "1.414214")
    assert not far_apart("10^{12}", "10^{12}+2")  # floats are not trusted to the last digits
    assert not far_apart("x", "1") and not far_apart("1", "x")


@given(st.text("0123456789+-*/^(){}!. \\frac\\sqrt\\pi", max_size=60))
def test_no_text_raises(text):
    number = value(text)
    assert number is None or math.isfinite(number)
