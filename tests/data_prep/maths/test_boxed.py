"""Which part of a response is its answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.maths.boxed import MAX_ANSWER, MAX_TAIL, last_boxed


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"so $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2}", "2"),  # the last one alone
        (r"\boxed{1}, \boxed{2}, or not", "2"),
        (r"\boxed{x = \boxed{5}}", "5"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed{7} as asked: in \boxed", "7"),  # without a brace it is no box
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{1, 2\right.}", r"\left\{1, 2\right."),  # an escaped brace closes nothing
        (r"\boxed{a \\{b}}", r"a \\{b}"),  # but that one is not escaped: two backslashes are a line break
        (r"\boxed{}", ""),
        ("\\boxed{1\n2}", "1\n2"),
        (r"\boxed{5", None),  # cut off
        (r"\boxed{1} then \boxed{2", None),
        (r"\boxed{\frac{1}{2}", None),
        ("The answer is 5", None),
        ("#### 5", None),
        ("boxed{5}", None),
        ("", None),
        (None, None),
        (b"\\boxed{5}", None),
        (5, None),
        ([r"\boxed{5}"], None),
    ],
)
def test_cases(response, answer):
    assert last_boxed(response) == answer


def test_limits():
    assert last_boxed(rf"\boxed{{{'1' * MAX_ANSWER}}}") == "1" * MAX_ANSWER
    assert last_boxed(rf"\boxed{{{'1' * (MAX_ANSWER + 1)}}}") is None
    assert last_boxed(r"\boxed{5}" + "x" * (MAX_TAIL - 9)) == "5"
    assert last_boxed(r"\boxed{5}" + "x" * (MAX_TAIL - 8)) is None


@given(answer=st.text(st.characters(blacklist_characters="{}\\"), max_size=50), after=st.text("xyz {}.", max_size=20))
def test_any_answer_comes_back(answer, after):
    assert last_boxed(rf"text \boxed{{{answer}}}{after}") == answer


@given(st.text("{}\\boxedfrac1 ", max_size=300))
def test_what_is_found_stands_in_the_response_with_balanced_braces(response):
    answer = last_boxed(response)
    if answer is not None:
        assert f"{{{answer}}}" in response
        plain = answer.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
        assert plain.count("{") == plain.count("}")
