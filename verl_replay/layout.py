"""Layout: deal the rows of one update over its mini-batches and ranks, so that each holds its share of fresh rows.

verl cuts a batch contiguously by data-parallel rank, then each rank's part into mini-batches in order (shuffle off).
Rows appended at the end would therefore all land in the last mini-batches of the last rank: 512 fresh and 256 appended
rows in mini-batches of 256 on one rank are trained 0 %, 0 % and 100 % replayed. Who joins rows must interleave them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NULL = -1  # a row of padding that carries no loss


class Layout(NamedTuple):
    """Order of the rows of one update.

    Attributes:
        order: (updates * ranks * rows_per_cell,) int64: 0..F-1 fresh, F..F+R-1 replayed, -1 a null row.
        updates: U', optimizer steps of one epoch.
        mini_batch_size: rows of one mini-batch over all ranks, null rows included (what verl divides by the ranks).
        global_batch_size: real rows of a mini-batch, on average: what verl's seq-mean losses divide by.
    """

    order: np.ndarray
    updates: int
    mini_batch_size: int
    global_batch_size: float

    @property
    def null_rows(self) -> int:
        return int(np.count_nonzero(self.order == NULL))

    def with_nulls_from(self, first: int) -> np.ndarray:
        """The order with the null rows numbered first, first + 1, ... instead of -1."""
        null = self.order == NULL
        return np.where(null, first + np.cumsum(null) - 1, self.order)


def _passes(count: int, cells: np.ndarray) -> np.ndarray:
    """(count,) cell of each row, in order of length: to and fro, so that long and short even out; a rest goes first."""
    laps, rest = divmod(count, len(cells))
    to_and_fro = [cells if lap % 2 == 0 else cells[::-1] for lap in range(laps)]
    return np.concatenate([*to_and_fro, cells[:rest]])


def deal(
    fresh_lengths: np.ndarray, replayed_lengths: np.ndarray, *, updates: int, ranks: int, multiple_of: int = 1
) -> Layout:
    """Deal rows over (mini-batch, rank) cells: fresh, replayed and all rows evenly, each to within one row a cell.

    Rows are dealt from long to short, to and fro over the cells, which also evens out the tokens. The replayed rows
    begin where the fresh ones stopped, and mini-batches change faster than ranks, so every mini-batch has a fresh row
    whenever there are at least `updates` of them.

    Args:
        fresh_lengths: (F,) int, tokens of each fresh row.
        replayed_lengths: (R,) int.
        updates: U', mini-batches; at least 1.
        ranks: data-parallel size.
        multiple_of: rows of a cell must divide by this (the micro-batch size, without dynamic batch sizes).

    Returns:
        Layout. Every cell has the same number of rows, filled up with null rows.
    """
    fresh, replayed = len(fresh_lengths), len(replayed_lengths)
    if updates < 1 or ranks < 1 or multiple_of < 1:
        raise ValueError(f"updates, ranks and multiple_of must be at least 1, got {updates}, {ranks} and {multiple_of}")
    if updates > fresh + replayed:
        raise ValueError(f"{updates} mini-batches need at least as many rows, got {fresh} fresh + {replayed} replayed")
    cells = np.arange(updates * ranks)  # cell c: mini-batch c % updates, rank c // updates
    rest = fresh % len(cells)
    longest_first = np.argsort(-np.asarray(fresh_lengths), kind="stable")
    longest_first_replayed = fresh + np.argsort(-np.asarray(replayed_lengths), kind="stable")
    row = np.concatenate([longest_first, longest_first_replayed])
    cell = np.concatenate([_passes(fresh, cells), _passes(replayed, np.roll(cells, -rest))])

    rows_per_cell = int(np.bincount(cell, minlength=len(cells)).max())
    rows_per_cell = -(-rows_per_cell // multiple_of) * multiple_of
    grid = np.full((ranks, updates, rows_per_cell), NULL)
    by_cell = np.argsort(cell, kind="stable")
    slot = np.arange(len(row)) - np.searchsorted(cell[by_cell], cell[by_cell])
    grid[cell[by_cell] // updates, cell[by_cell] % updates, slot] = row[by_cell]
    return Layout(grid.ravel(), updates, rows_per_cell * ranks, (fresh + replayed) / updates)
