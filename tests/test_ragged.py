"""verl_replay.ragged, against lists of arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import repeatable
from verl_replay.ragged import Ragged, expand, offsets_of

lists_of_rows = st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=6)


def rows_of(ragged: Ragged) -> list[list[int]]:
    return [ragged.row(i).tolist() for i in range(len(ragged))]


def test_by_hand():
    ragged = Ragged(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
    assert rows_of(ragged) == [[1, 2], [], [3]]
    assert ragged.lengths.tolist() == [2, 0, 1]
    assert len(ragged) == 3
    assert ragged.nbytes == 3 * 8 + 4 * 8


@repeatable
@given(lists_of_rows)
def test_from_rows_and_back(rows):
    ragged = Ragged.from_rows(rows, np.int32)
    assert rows_of(ragged) == rows
    assert ragged.values.dtype == np.int32
    assert ragged.offsets.dtype == np.int64


@repeatable
@given(lists_of_rows.filter(bool), st.data())
def test_take_is_indexing_and_copies(rows, data):
    """Any rows, in any order, any number of times. I5: nothing shared."""
    ragged = Ragged.from_rows(rows, np.int64)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    taken = ragged.take(np.array(chosen, dtype=np.int64))
    assert rows_of(taken) == [rows[i] for i in chosen]
    assert taken.values.dtype == np.int64
    taken.values[...] = 99
    taken.offsets[...] = 99
    assert rows_of(ragged) == rows


@repeatable
@given(st.lists(lists_of_rows, min_size=1, max_size=4))
def test_concat_is_addition(parts):
    joined = Ragged.concat([Ragged.from_rows(rows, np.float32) for rows in parts])
    assert rows_of(joined) == [row for rows in parts for row in rows]
    assert joined.values.dtype == np.float32


def test_concat_does_not_promote_dtypes():
    with pytest.raises(ValueError, match=r"one dtype, got \['float32', 'int64'\]"):
        Ragged.concat([Ragged.from_rows([[1]], np.int64), Ragged.from_rows([[1]], np.float32)])
    with pytest.raises(ValueError, match="one dtype"):
        Ragged.concat([])


@pytest.mark.parametrize(
    ("values", "offsets"),
    [
        ([1, 2, 3], [0, 2]),  # does not end at the last value
        ([1, 2, 3], [1, 3]),  # does not begin at the first
        ([1, 2, 3], [0, 2, 1, 3]),  # descends
        ([1, 2, 3], []),
        ([], [1]),
    ],
)
def test_offsets_that_do_not_cut_the_values_are_refused(values, offsets):
    with pytest.raises(ValueError, match="Ragged"):
        Ragged(np.array(values, dtype=np.int64), np.array(offsets, dtype=np.int64))


def test_padded_values_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        Ragged(np.zeros((2, 3)), np.array([0, 3, 6]))


def test_offsets_of_by_hand():
    assert offsets_of(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert offsets_of(np.empty(0, np.int64)).tolist() == [0]


def test_expand_by_hand():
    """Ranges 0..1, 2, 3..4: of the third and the first, rows 3, 4, 0, 1."""
    assert expand(np.array([0, 2, 3, 5]), np.array([2, 0])).tolist() == [3, 4, 0, 1]
    assert expand(np.array([0, 2, 3, 5]), np.empty(0, np.int64)).tolist() == []
    assert expand(np.array([0]), np.empty(0, np.int64)).tolist() == []


@repeatable
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_expand_lists_the_rows_of_each_range(counts, data):
    ranges = offsets_of(np.array(counts))
    chosen = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=8))
    expected = [row for i in chosen for row in range(ranges[i], ranges[i + 1])]
    assert expand(ranges, np.array(chosen, dtype=np.int64)).tolist() == expected
