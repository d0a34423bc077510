"""Ragged: rows of different lengths in one flat array, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ragged:
    """Row i is values[offsets[i]:offsets[i + 1]].

    Attributes:
        values: (total,) any dtype.
        offsets: (rows + 1,) int64, from 0, not descending, ending at total.
    """

    values: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", np.asarray(self.offsets, dtype=np.int64))
        if self.values.ndim != 1 or self.offsets.ndim != 1 or not len(self.offsets):
            shapes = f"{self.values.shape} and {self.offsets.shape}"
            raise ValueError(f"Ragged wants values (total,) and offsets (rows + 1,), got {shapes}")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.values) or (np.diff(self.offsets) < 0).any():
            raise ValueError(f"Ragged offsets must ascend from 0 to {len(self.values)}, got {self.offsets}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) int64."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.offsets.nbytes

    def row(self, i: int) -> np.ndarray:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def take(self, rows: np.ndarray) -> Ragged:
        """The rows at `rows` ((K,) int), copied: nothing of the result shares memory with self."""
        rows = np.asarray(rows, dtype=np.int64)
        offsets = offsets_of(self.lengths[rows])
        if not len(rows):
            return Ragged(np.empty(0, self.values.dtype), offsets)
        starts, stops = self.offsets[rows].tolist(), self.offsets[rows + 1].tolist()
        return Ragged(np.concatenate([self.values[a:b] for a, b in zip(starts, stops, strict=True)]), offsets)

    @staticmethod
    def concat(parts: Sequence[Ragged]) -> Ragged:
        """The rows of all parts, one after another. At least one part; all of one dtype."""
        dtypes = {part.values.dtype for part in parts}
        if len(dtypes) != 1:
            raise ValueError(f"Ragged.concat wants parts of one dtype, got {sorted(map(str, dtypes))}")
        lengths = np.concatenate([part.lengths for part in parts])
        return Ragged(np.concatenate([part.values for part in parts]), offsets_of(lengths))

    @staticmethod
    def from_rows(rows: Sequence[np.ndarray], dtype: np.dtype | type) -> Ragged:
        arrays = [np.asarray(row, dtype=dtype) for row in rows]
        values = np.concatenate(arrays) if arrays else np.empty(0, dtype)
        return Ragged(values, offsets_of(np.array([len(a) for a in arrays], dtype=np.int64)))


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """(rows,) lengths -> (rows + 1,) int64 offsets."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def expand(ranges: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Row numbers of the chosen ranges: with offsets (0, 2, 3, 5) and chosen (2, 0): (3, 4, 0, 1).

    Args:
        ranges: (N + 1,) int64 offsets.
        chosen: (K,) int64 positions in 0..N-1.
    """
    counts = np.diff(ranges)[chosen]
    offsets = offsets_of(counts)
    return np.repeat(ranges[:-1][chosen] - offsets[:-1], counts) + np.arange(offsets[-1])
