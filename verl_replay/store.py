"""RolloutStore: where the stored rollouts' columns live. Ragged, narrow, without padding, owning its memory.

Rollouts are appended a step at a time and mostly leave a step at a time (age eviction), so they are kept in segments,
one per append: eviction of a whole step frees its arrays and copies nothing. What a draw needs is gathered by position.
The interface (append, keep, gather) knows no tokens and no verl, so a store that keeps its rows elsewhere, in
TransferQueue's storage units say, can take its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from verl_replay.ragged import Ragged, expand, offsets_of

MAX_DEAD = 1 / 32  # share of a segment's rollouts that may lie evicted in it before the rest is copied out
_NARROW = (np.uint8, np.int32)


class Rows(NamedTuple):
    """Rollouts with the rows they are made of, one ragged array a column."""

    columns: dict[str, Ragged]  # each (rows,)
    rollouts: np.ndarray  # (N + 1,) int64: rollout i is rows rollouts[i]..rollouts[i + 1] of every column

    @property
    def count(self) -> int:
        """How many rows."""
        return int(self.rollouts[-1])

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        """All rollouts of the parts, one after another. At least one part; all of the same columns."""
        return Rows(
            {name: Ragged.concat([part.columns[name] for part in parts]) for name in parts[0].columns},
            offsets_of(np.concatenate([np.diff(part.rollouts) for part in parts])),
        )

    def take(self, rollouts: np.ndarray) -> Rows:
        """The rollouts at `rollouts` ((K,) int), copied, their rows in order."""
        rows = expand(self.rollouts, rollouts)
        return Rows(
            {name: column.take(rows) for name, column in self.columns.items()},
            offsets_of(np.diff(self.rollouts)[rollouts]),
        )


@dataclass(frozen=True)
class _Column:
    """One column of a segment, as narrow as loses nothing.

    `values` holds one number a token, or, where every row repeats one number (a mask of ones, an advantage), one a row.
    """

    values: np.ndarray
    offsets: np.ndarray  # (rows + 1,) of the tokens, in either case
    repeated: bool
    dtype: np.dtype  # what comes back


def _collect(columns: Sequence[_Column], rows: Sequence[int], spans: Sequence[tuple[int, int]]) -> Ragged:
    """Row rows[i] of columns[i], one column of some segments, copied into one array in the dtype they came in.

    Args:
        spans: (start, stop) of each row among the tokens of its column.
    """
    dtype = columns[0].dtype
    lengths = np.array([stop - start for start, stop in spans], dtype=np.int64)
    if all([column.repeated for column in columns]):
        numbers = [column.values[row] for column, row in zip(columns, rows, strict=True)]
        values = np.repeat(np.array(numbers, dtype=dtype), lengths)
    else:
        parts = [
            np.repeat(column.values[row], stop - start) if column.repeated else column.values[start:stop]
            for column, row, (start, stop) in zip(columns, rows, spans, strict=True)
        ]
        values = np.concatenate(parts, dtype=dtype, casting="unsafe")  # back to the dtype they were narrowed from
    return Ragged(values, offsets_of(lengths))


def _encode(column: Ragged, earlier: Sequence[_Column]) -> _Column:
    """A copy of the column that shares nothing with it. What equals an array of the `earlier` ones is kept once."""
    values, offsets = column.values, column.offsets
    lengths = np.diff(offsets)
    filled = lengths > 0
    first, last = np.zeros((2, len(lengths)), values.dtype)
    first[filled], last[filled] = values[offsets[:-1][filled]], values[offsets[1:][filled] - 1]
    repeated = _same_bits(first, last) and _same_bits(np.repeat(first, lengths), values)
    kept = first if repeated else values
    if kept.dtype.kind == "i" and len(kept):
        low, high = int(kept.min()), int(kept.max())
        fits = (t for t in _NARROW if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
        kept = kept.astype(next(fits, kept.dtype))
    return _Column(
        _once(kept, [other.values for other in earlier]),
        _once(offsets, [other.offsets for other in earlier]),
        repeated,
        values.dtype,
    )


def _once(array: np.ndarray, held: Sequence[np.ndarray]) -> np.ndarray:
    """The one of `held` that equals it bit for bit, or a copy."""
    for other in held:
        if _same_bits(array, other):
            return other
    return array.copy()


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether they are equal bit for bit: 0.0 and -0.0 differ, NaN equals itself."""
    bits = f"u{a.dtype.itemsize}"
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a.view(bits), b.view(bits))


@dataclass
class _Segment:
    columns: dict[str, _Column]
    rollouts: np.ndarray  # (N + 1,) row offsets of all rollouts appended
    live: np.ndarray  # (K,) int64, ascending: which of them are still stored

    @cached_property
    def _frozen_nbytes(self) -> int:
        arrays = {id(a): a for c in self.columns.values() for a in (c.values, c.offsets)}
        return sum(a.nbytes for a in arrays.values()) + self.rollouts.nbytes

    @property
    def nbytes(self) -> int:
        return self._frozen_nbytes + self.live.nbytes


def _gather(rollouts: Sequence[tuple[_Segment, int]]) -> Rows:
    """The rollouts given as (segment, number among all appended to it), in that order. At least one. Copies.

    What the segments keep once (equal masks, offsets of columns of the response) is worked out once; columns whose
    numbers are the same share an array.
    """
    ranges = [range(segment.rollouts.item(i), segment.rollouts.item(i + 1)) for segment, i in rollouts]
    rows = [row for of_rollout in ranges for row in of_rollout]
    owners = [segment for (segment, _), of_rollout in zip(rollouts, ranges, strict=True) for _ in of_rollout]
    distinct = list({id(segment): segment for segment in owners}.values())
    spans: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    made: dict[tuple[Any, ...], Ragged] = {}
    gathered = {}
    for name in distinct[0].columns:
        kept = [segment.columns[name] for segment in distinct]
        columns = [segment.columns[name] for segment in owners]
        where = tuple(id(column.offsets) for column in kept)
        if where not in spans:
            spans[where] = [
                (column.offsets.item(row), column.offsets.item(row + 1))
                for column, row in zip(columns, rows, strict=True)
            ]
        what = (kept[0].dtype, *where, *(id(column.values) for column in kept))
        if what not in made:
            made[what] = _collect(columns, rows, spans[where])
        gathered[name] = made[what]
    return Rows(gathered, offsets_of(np.array([len(of_rollout) for of_rollout in ranges])))


def _segment(rows: Rows) -> _Segment:
    columns: dict[str, _Column] = {}
    for name, column in rows.columns.items():
        columns[name] = _encode(column, list(columns.values()))
    count = len(rows.rollouts) - 1
    return _Segment(columns, np.array(rows.rollouts, dtype=np.int64), np.arange(count))


class RolloutStore:
    """Columns of the stored rollouts, in order of storing. Positions are 0..len - 1 and shift as rollouts leave."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def __len__(self) -> int:
        return sum(len(segment.live) for segment in self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held, those of evicted rollouts not yet freed included."""
        return sum(segment.nbytes for segment in self._segments)

    @property
    def names(self) -> frozenset[str] | None:
        """The columns stored, or None while nothing is."""
        return frozenset(self._segments[0].columns) if self._segments else None

    def append(self, rows: Rows) -> None:
        """Store copies of the rollouts behind those already stored.

        Raises:
            ValueError: the columns or their dtypes are not those already stored, or one does not have an entry for
                every row. Nothing is changed.
        """
        self.check(rows)
        if len(rows.rollouts) > 1:
            self._segments.append(_segment(rows))

    def check_valid(self) -> tuple[bool, str]:
        """Whether the segments hold together, and if not, what is wrong."""
        for number, segment in enumerate(self._segments):
            if wrong := _wrong_with(segment, like=self._segments[0]):
                return False, f"segment {number}: {wrong}"
        return True, ""

    def to_arrays(self) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """The arrays held, by name, and what JSON needs to make the store of them again. References, not copies."""
        return _to_arrays(self._segments)

    @staticmethod
    def from_arrays(arrays: dict[str, np.ndarray], described: Sequence[dict[str, Any]]) -> RolloutStore:
        """The store that `to_arrays` described. It takes the arrays over."""
        store = RolloutStore()
        store._segments = _from_arrays(arrays, described)
        return store

    def check(self, rows: Rows) -> None:
        """Raise ValueError where `append` would."""
        check_rows(rows)
        if not self._segments or len(rows.rollouts) == 1:
            return
        if self.names != frozenset(rows.columns):
            raise ValueError(
                f"columns differ: stored rollouts have {sorted(self.names)}, these have {sorted(rows.columns)}. "
                "A row that lacks a column would silently switch that column off for its whole batch. Keep the columns "
                "of a run the same (rollout correction, KL loss), or start with an empty buffer."
            )
        for name, column in self._segments[0].columns.items():
            got = rows.columns[name].values.dtype
            if column.dtype != got:
                raise ValueError(
                    f"column {name} is stored as {column.dtype}, these rollouts have {got}. "
                    "Keep the columns of a run the same, or start with an empty buffer."
                )

    def keep(self, mask: np.ndarray) -> None:
        """Drop the rollouts where `mask` ((N,) bool) is False, and free their memory."""
        if mask.shape != (len(self),):
            raise ValueError(f"keep mask must be (N,) = ({len(self)},), got {mask.shape}")
        kept: list[_Segment] = []
        start = 0
        for segment in self._segments:
            part = mask[start : start + len(segment.live)]
            start += len(segment.live)
            if not part.any():
                continue
            if part.all():
                kept.append(segment)
                continue
            segment.live = segment.live[part]
            total = len(segment.rollouts) - 1
            if total - len(segment.live) > MAX_DEAD * total:
                segment = _segment(_gather([(segment, i) for i in segment.live.tolist()]))
            kept.append(segment)
        self._segments = kept

    def gather(self, positions: np.ndarray) -> Rows:
        """The rollouts at `positions` ((K,) int64), in that order, in the dtypes they came in. Copies."""
        positions = np.asarray(positions, dtype=np.int64)
        if not len(positions):
            return Rows({}, np.zeros(1, np.int64))
        if positions.min() < 0 or positions.max() >= len(self):
            raise ValueError(f"positions must be in 0..{len(self) - 1}, got {positions.min()}..{positions.max()}")
        starts = offsets_of(np.array([len(segment.live) for segment in self._segments]))
        owner = np.searchsorted(starts, positions, side="right") - 1
        segments = [self._segments[s] for s in owner.tolist()]
        within = (positions - starts[owner]).tolist()
        return _gather([(segment, segment.live.item(i)) for segment, i in zip(segments, within, strict=True)])


def _ascends(values: np.ndarray, least: int) -> bool:
    return values.ndim == 1 and values.dtype == np.int64 and bool((np.diff(values) >= least).all())


def _wrong_with(segment: _Segment, *, like: _Segment) -> str:
    if segment.columns.keys() != like.columns.keys():
        return f"has the columns {sorted(segment.columns)}, the first has {sorted(like.columns)}"
    if not (_ascends(segment.rollouts, 0) and len(segment.rollouts) and segment.rollouts[0] == 0):
        return "row offsets of the rollouts do not ascend from 0"
    if not (_ascends(segment.live, 1) and len(segment.live)):
        return "the numbers of live rollouts do not ascend"
    if segment.live[0] < 0 or segment.live[-1] >= len(segment.rollouts) - 1:
        return "a live rollout is not among those appended"
    for name, column in segment.columns.items():
        if not (_ascends(column.offsets, 0) and len(column.offsets) == segment.rollouts[-1] + 1):
            return f"column {name} must have one entry a row, {segment.rollouts[-1]}"
        tokens = segment.rollouts[-1] if column.repeated else column.offsets[-1]
        if column.offsets[0] != 0 or column.values.shape != (tokens,):
            return f"column {name} must hold {tokens} numbers, got {column.values.shape}"
        if column.dtype != like.columns[name].dtype:
            return f"column {name} is {column.dtype}, in the first segment {like.columns[name].dtype}"
    return ""


def _to_arrays(segments: Sequence[_Segment]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Every array of the segments once, by name, and how the segments are made of them."""
    arrays: dict[str, np.ndarray] = {}
    names: dict[int, str] = {}

    def named(array: np.ndarray, name: str) -> str:
        if id(array) not in names:
            names[id(array)] = name
            arrays[name] = array
        return names[id(array)]

    described = []
    for i, segment in enumerate(segments):
        columns = {
            name: {
                "values": named(column.values, f"segment/{i}/{name}/values"),
                "offsets": named(column.offsets, f"segment/{i}/{name}/offsets"),
                "repeated": bool(column.repeated),
                "dtype": column.dtype.str,
            }
            for name, column in segment.columns.items()
        }
        rollouts, live = (
            named(array, f"segment/{i}/{name}")
            for name, array in (("rollouts", segment.rollouts), ("live", segment.live))
        )
        described.append({"columns": columns, "rollouts": rollouts, "live": live})
    return arrays, described


def _from_arrays(arrays: dict[str, np.ndarray], described: Sequence[dict[str, Any]]) -> list[_Segment]:
    return [
        _Segment(
            {
                name: _Column(
                    arrays[column["values"]],
                    arrays[column["offsets"]],
                    column["repeated"],
                    np.dtype(column["dtype"]),
                )
                for name, column in segment["columns"].items()
            },
            arrays[segment["rollouts"]],
            arrays[segment["live"]],
        )
        for segment in described
    ]


def check_rows(rows: Rows) -> None:
    """Every column has one entry a row of the rollouts. Raises ValueError naming the column."""
    for name, column in rows.columns.items():
        if len(column) != rows.rollouts[-1]:
            raise ValueError(f"column {name} must have one entry a row, {rows.rollouts[-1]}, got {len(column)}")
