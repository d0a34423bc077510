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


def _deal(lengths: np.ndarray, cells: np.ndarray, load: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Deal rows, longest first, a lap of one row a cell at a time: the longest of a lap to the lightest cell.

    Args:
        lengths: (count,) int, tokens of each row.
        cells: (cells,) in the order in which a rest, less than a lap, is given out.
        load: (cells,) tokens that each cell holds already; counted on in place.

    Returns:
        Two (count,) int64: the rows, longest first, and the cell of each.
    """
    rows = np.argsort(-lengths, kind="stable")
    cell = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), len(cells)):
        lap = rows[start : start + len(cells)]
        given = cells[: len(lap)]
        lightest_first = given[np.argsort(load[given], kind="stable")]
        cell[start : start + len(lap)] = lightest_first
        load[lightest_first] += lengths[lap]
    return rows, cell


def deal(
    fresh_lengths: np.ndarray, replayed_lengths: np.ndarray, *, updates: int, ranks: int, multiple_of: int = 1
) -> Layout:
    """Deal rows over (mini-batch, rank) cells: fresh, replayed and all rows evenly, each to within one row a cell.

    Rows are dealt from long to short, each lap's longest to the cell with fewest tokens, fresh and replayed on one
    account: two cells differ by at most the longest row, or twice that where a last lap does not go all the way round.
    The replayed rows begin where the fresh ones stopped, and mini-batches change faster than ranks, so every mini-batch
    has a fresh row whenever there are at least `updates` of them.

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
    load = np.zeros(len(cells), dtype=np.int64)
    longest_first, cell = _deal(np.asarray(fresh_lengths, dtype=np.int64), cells, load)
    onwards = np.roll(cells, -(fresh % len(cells)))
    longest_first_replayed, cell_replayed = _deal(np.asarray(replayed_lengths, dtype=np.int64), onwards, load)
    row = np.concatenate([longest_first, fresh + longest_first_replayed])
    cell = np.concatenate([cell, cell_replayed])

    rows_per_cell = int(np.bincount(cell, minlength=len(cells)).max())
    rows_per_cell = -(-rows_per_cell // multiple_of) * multiple_of
    grid = np.full((ranks, updates, rows_per_cell), NULL)
    by_cell = np.argsort(cell, kind="stable")
    slot = np.arange(len(row)) - np.searchsorted(cell[by_cell], cell[by_cell])
    grid[cell[by_cell] // updates, cell[by_cell] % updates, slot] = row[by_cell]
    return Layout(grid.ravel(), updates, rows_per_cell * ranks, (fresh + replayed) / updates)
