"""RolloutStore: where the stored rollouts' columns live. Ragged, narrow, without padding, owning its memory.

Rollouts are appended a step at a time and mostly leave a step at a time (age eviction), so they are kept in segments,
one per append: eviction of a whole step frees its arrays and copies nothing. What a draw needs is gathered by position.
The interface (append, keep, gather) knows no tokens and no verl, so a store that keeps its rows elsewhere, in
TransferQueue's storage units say, can take its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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

    def take(self, rows: np.ndarray) -> Ragged:
        if not self.repeated:
            taken = Ragged(self.values, self.offsets).take(rows)
            return Ragged(taken.values.astype(self.dtype, copy=False), taken.offsets)
        lengths = np.diff(self.offsets)[rows]
        return Ragged(np.repeat(self.values[rows].astype(self.dtype, copy=False), lengths), offsets_of(lengths))


def _encode(column: Ragged, shared: dict[bytes, np.ndarray]) -> _Column:
    """A copy of the column that shares nothing with it; equal offsets are kept once a segment (`shared`)."""
    values, offsets = column.values, column.offsets
    offsets = shared.setdefault(offsets.tobytes(), offsets.copy())
    lengths = np.diff(offsets)
    first = np.zeros(len(lengths), values.dtype)
    first[lengths > 0] = values[offsets[:-1][lengths > 0]]
    bits = f"u{values.dtype.itemsize}"  # compared as bits: 0.0 and -0.0 differ, NaN equals itself
    repeated = np.array_equal(np.repeat(first, lengths).view(bits), values.view(bits))
    kept = first if repeated else values
    if kept.dtype.kind == "i" and len(kept):
        low, high = int(kept.min()), int(kept.max())
        fits = (t for t in _NARROW if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
        kept = kept.astype(next(fits, kept.dtype))
    return _Column(np.array(kept), offsets, repeated, values.dtype)


@dataclass
class _Segment:
    columns: dict[str, _Column]
    rollouts: np.ndarray  # (N + 1,) row offsets of all rollouts appended
    live: np.ndarray  # (K,) int64, ascending: which of them are still stored

    def gather(self, local: np.ndarray) -> Rows:
        chosen = self.live[local]
        rows = expand(self.rollouts, chosen)
        return Rows(
            {name: column.take(rows) for name, column in self.columns.items()},
            offsets_of(np.diff(self.rollouts)[chosen]),
        )

    @property
    def nbytes(self) -> int:
        arrays = {id(a): a for c in self.columns.values() for a in (c.values, c.offsets)}
        return sum(a.nbytes for a in arrays.values()) + self.rollouts.nbytes + self.live.nbytes


def _segment(rows: Rows) -> _Segment:
    shared: dict[bytes, np.ndarray] = {}
    columns = {name: _encode(column, shared) for name, column in rows.columns.items()}
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
            ValueError: the columns are not those already stored, or do not have one entry a row. Nothing is changed.
        """
        self.check(rows)
        if len(rows.rollouts) > 1:
            self._segments.append(_segment(rows))

    def check(self, rows: Rows) -> None:
        """Raise ValueError where `append` would."""
        check_rows(rows)
        if self.names is not None and len(rows.rollouts) > 1 and self.names != frozenset(rows.columns):
            raise ValueError(
                f"columns differ: stored rollouts have {sorted(self.names)}, these have {sorted(rows.columns)}. "
                "A row that lacks a column would silently switch that column off for its whole batch. Keep the columns "
                "of a run the same (rollout correction, KL loss), or start with an empty buffer."
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
            segment.live = segment.live[part]
            total = len(segment.rollouts) - 1
            if total - len(segment.live) > MAX_DEAD * total:
                segment = _segment(segment.gather(np.arange(len(segment.live))))
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
        order = np.argsort(owner, kind="stable")  # segment by segment, then back into the order asked for
        parts = [self._segments[s].gather(positions[owner == s] - starts[s]) for s in np.unique(owner).tolist()]
        return parts[0] if len(parts) == 1 else Rows.concat(parts).take(np.argsort(order, kind="stable"))


def check_rows(rows: Rows) -> None:
    """Every column has one entry a row of the rollouts. Raises ValueError naming the column."""
    for name, column in rows.columns.items():
        if len(column) != rows.rollouts[-1]:
            raise ValueError(f"column {name} must have one entry a row, {rows.rollouts[-1]}, got {len(column)}")
