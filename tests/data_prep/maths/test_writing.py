"""The rules of writing, case by case."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.maths.writing import as_words, both_signs, clean, exact, key, plain


@pytest.mark.parametrize(
    ("answer", "cleaned"),
    [
        ("  5. ", "5"),
        (".5", ".5"),  # the point in front is a decimal one
        ("{{5}}", "5"),
        ("{1}+{2}", "{1}+{2}"),
        ("$5$", "5"),
        (r"\(5\)", "5"),
        (r"\[5\]", "5"),
        (r"\$18.90", "18.90"),
        (r"\left( 1, 2 \right]", "( 1, 2 ]"),
        (r"\leftarrow", r"\leftarrow"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90"),
        (r"90°", "90"),
        (r"44\%", "44"),
        ("44 %", "44"),
        (r"10,\!080", "10080"),
        ("10{,}080", "10080"),
        (r"x\!123", "x123"),
        (r"10\,080", "10080"),
        ("-1,234.5", "-1234.5"),
        ("12,34", "12,34"),
        ("(1,234)", "(1,234)"),  # a pair
        ("1,234,5678", "1,234,5678"),
        (r"\frac{1}{29,\!322,\!216}", r"\frac{1}{29322216}"),
        (r"\frac{1}{2,34}", r"\frac{1}{2,34}"),
        (r"15\mbox{ cm}^2", "15"),
        (r"\frac{270}7\text{ degrees}", r"\frac{270}7"),
        ("5 cm", "5"),
        ("5 square units", "5"),
        ("5 cm^2", "5"),
        ("5t", "5t"),
        ("5 m", "5 m"),  # a letter is a variable
        ("5 cats", "5 cats"),
        (r"\text{east}", r"\text{east}"),
        (r"\textbf{5}", "5"),
        (r"\mathbf{x}", "x"),
        ("−5", "-5"),
        ("2π", r"2\pi"),
        (r"1 \text{ or } 2", "1, 2"),
        ("1 and 2", "1,2"),
        (r"1, 2, \text{ and } 3", "1, 2, 3"),
        ("1, 2, and 3", "1, 2,3"),
        ("x and y", "x and y"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"1 \\, 2", r"1 \\, 2"),  # a line break and a comma, no thin space
        ("", ""),
        ("$.$", ""),
    ],
)
def test_clean(answer, cleaned):
    assert clean(answer) == cleaned
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("1 + 2", "1+2", True),
        ("3 5", "35", False),
        (r"\frac43", r"\frac{4}{3}", True),
        (r"\frac{4}3", r"\frac43", True),
        (r"\frac4{3}", r"\frac43", True),
        (r"\frac 34", r"\frac{3}{4}", True),
        (r"\frac{12}3", r"\frac{1}{23}", False),
        ("x^{2}", "x^2", True),
        ("x^{21}", "x^21", False),  # LaTeX reads x^2 1
        (r"\sqrt2", r"\sqrt{2}", True),
        (r"\sqrt23", r"\sqrt{2}3", False),
        ("52_{8}", "52_8", True),
    ],
)
def test_key(one, other, equal):
    assert (key(clean(one)) == key(clean(other))) == equal


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        ("-012", -12),
        ("+3", 3),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\frac{-3}{4}", Fraction(3, 4)),
        ("0.75", Fraction(3, 4)),
        (".75", Fraction(3, 4)),
        ("3.", 3),
        ("3/0", None),
        (r"\frac{3}{0}", None),
        ("1/2/3", None),
        ("1e5", None),
        ("x", None),
        ("", None),
        ("١٢", None),
        ("1" * 512, int("1" * 512)),
    ],
)
def test_exact(text, number):
    assert exact(text) == number


@given(st.fractions())
def test_exact_reads_what_is_written(number):
    over, under = number.numerator, number.denominator
    assert exact(f"{over}/{under}") == exact(rf"\frac{{{over}}}{{{under}}}") == number


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=6))
def test_exact_reads_decimals(number):
    assert exact(f"{number:f}") == Fraction(number)


def test_words():
    assert as_words(r"\text{Evelyn}") == as_words(r"\text{ evelyn. }") == as_words("Evelyn") == "evelyn"
    assert as_words(r"\text{(C)}") == plain("C") == plain("(C)") == plain(r"\text{C}") == "c"
    assert as_words("xy") is as_words("C") is as_words(r"2\text{x}") is as_words("12") is None


@pytest.mark.parametrize(
    ("answer", "both"),
    [
        (r"1\pm\sqrt{2}", r"1+\sqrt{2},1-\sqrt{2}"),
        (r"\frac{1\pm x}{2}", r"\frac{1+ x}{2},\frac{1- x}{2}"),
        (r"\{1\pm x,-2\}", r"1+ x,1- x,-2"),
        (r"(1\pm x, 2)", r"(1+ x, 2),(1- x, 2)"),
        (r"1\pm x\mp y", r"1+ x- y,1- x+ y"),
        (r"\pm 1", "+ 1,- 1"),
        ("1,2", "1,2"),
        (r"\{1,2\}", r"\{1,2\}"),
    ],
)
def test_both_signs(answer, both):
    assert both_signs(answer) == both


@given(st.text(max_size=512))
def test_no_text_raises(text):
    cleaned = clean(text)
    key(cleaned), exact(key(cleaned)), as_words(cleaned), plain(cleaned), both_signs(cleaned)
