"""verl_replay.importance: the truncated ratio of each token and the weights of rows, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import repeatable
from verl_replay.importance import ones_like, scaled, truncated_ratio
from verl_replay.ragged import Ragged


def rows(*values: list[float]) -> Ragged:
    return Ragged.from_rows(values, np.float32)


def test_truncated_ratio_by_hand():
    """pi_start / pi_birth of .6 / .3 = 2, .3 / .6 = .5, .9 / .1 = 9 and 1, with C = 3: 2, .5, 3 and 1."""
    now, birth = rows(np.log([0.6, 0.3]), [], np.log([0.9, 0.5])), rows(np.log([0.3, 0.6]), [], np.log([0.1, 0.5]))
    got = truncated_ratio(now, birth, cap=3.0)
    np.testing.assert_allclose(got.values, [2, 0.5, 3, 1], rtol=1e-6)
    assert got.values.dtype == np.float32
    assert got.offsets.tolist() == [0, 2, 2, 4]


@pytest.mark.parametrize("cap", [0.5, 1.0, 2.0])
def test_a_ratio_that_overflows_is_the_cap_and_one_that_underflows_is_0(cap):
    with np.errstate(all="raise", under="ignore"):
        got = truncated_ratio(rows([0.0, -1000.0, -0.1]), rows([-1000.0, 0.0, -0.1]), cap=cap)
    assert got.values.tolist() == pytest.approx([cap, 0, min(cap, 1)])


def test_the_same_log_probs_weigh_1_exactly():
    """Not .99999994: a step without drift must not change the loss."""
    birth = rows(np.linspace(-30, 0, 1000))
    assert (truncated_ratio(birth, birth, cap=2.0).values == 1).all()


@repeatable
@given(st.lists(st.tuples(st.floats(-40, 0, width=32), st.floats(-40, 0, width=32)), max_size=20), st.floats(0.1, 20))
def test_truncated_ratio_is_the_ratio_and_at_most_the_cap(tokens, cap):
    now, birth = rows([n for n, _ in tokens]), rows([b for _, b in tokens])
    got = truncated_ratio(now, birth, cap=cap).values
    np.testing.assert_allclose(got, [min(np.exp(n - b), cap) for n, b in tokens], rtol=1e-6)
    assert (got <= np.float32(cap) * (1 + 1e-6)).all()


def test_truncated_ratio_leaves_the_log_probs():
    now, birth = rows([-1.0, -2.0]), rows([-3.0, -0.5])
    truncated_ratio(now, birth, cap=2.0)
    assert (now.values.tolist(), birth.values.tolist()) == ([-1, -2], [-3, -0.5])


def test_scaled_by_row():
    """Rows of 2, 0 and 3 tokens times 2, 7 and .5."""
    column = rows([1.0, 0.5], [], [4.0, 1.0, 2.0])
    got = scaled(column, np.array([2.0, 7.0, 0.5]))
    assert [got.row(i).tolist() for i in range(3)] == [[2, 1], [], [2, 0.5, 1]]
    assert got.values.dtype == np.float32
    assert column.values.tolist() == [1, 0.5, 4, 1, 2]


def test_scaled_by_1_is_the_same_bits():
    column = rows([1 / 3, 1e-30], [np.pi])
    np.testing.assert_array_equal(scaled(column, np.ones(2)).values, column.values)


def test_ones_like():
    got = ones_like(rows([3.0], [], [-1.0, 2.0]))
    assert (got.values.tolist(), got.offsets.tolist(), got.values.dtype) == ([1, 1, 1], [0, 1, 1, 3], np.float32)
