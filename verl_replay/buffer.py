"""RolloutBuffer: the only mutable state of replay, its random generator included."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from verl_replay.checkpoint import State
from verl_replay.eviction import newest
from verl_replay.store import RolloutStore, Rows
from verl_replay.table import RolloutTable


class Drawn(NamedTuple):
    """Rollouts drawn from the buffer: their numbers and their tokens, copies both."""

    table: RolloutTable  # (K,), `uses` counting this draw
    rows: Rows


class RolloutBuffer:
    """Stored rollouts: a table to decide on and a store of their columns, in order of storing.

    Args:
        capacity: most rollouts kept; the backstop behind age eviction, first in first out.
        seed: of the generator that every draw uses. Nothing else uses it, so arms that share everything else part only
            at their first replayed step.
        whole_groups: the capacity evicts groups whole, and never keeps one in part.
    """

    def __init__(self, *, capacity: int, seed: int, whole_groups: bool = False) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1 rollout, got {capacity}")
        self.capacity = capacity
        self.whole_groups = whole_groups
        self.rng = np.random.default_rng(seed)
        self.table = RolloutTable.empty()
        self._store = RolloutStore()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        """Bytes held: the columns and the table."""
        return self._store.nbytes + sum(column.nbytes for column in vars(self.table).values())

    def keep(self, mask: np.ndarray) -> int:
        """Evict the rollouts where `mask` ((N,) bool) is False. Returns how many left."""
        if mask.all():
            return 0
        self._store.keep(mask)
        self.table = self.table.take(mask)
        return int(np.count_nonzero(~mask))

    def draw(self, positions: np.ndarray) -> Drawn:
        """Copies of the rollouts at `positions` ((K,) int64, repeats allowed), and count the uses of each.

        A draw does not consume: the rollouts stay stored.
        """
        rows = self._store.gather(positions)
        np.add.at(self.table.uses, positions, 1)
        return Drawn(self.table.take(positions), rows)

    def add(self, table: RolloutTable, rows: Rows) -> int:
        """Store copies of the rollouts behind those already stored; past the capacity the first stored leave.

        Args:
            table: (N,) their numbers.
            rows: their columns, N rollouts.

        Returns:
            How many rollouts the capacity evicted, of these or of those stored before.

        Raises:
            ValueError: table and rows differ in length, or the columns are not those stored. Nothing is changed.
        """
        if len(table) != len(rows.rollouts) - 1:
            held = len(rows.rollouts) - 1
            raise ValueError(f"table and rows must hold the same rollouts, got {len(table)} and {held}")
        self._store.check(rows)
        both = RolloutTable.concat([self.table, table])
        stays = newest(both, capacity=self.capacity, whole_groups=self.whole_groups)
        was_stored, is_new = stays[: len(self)], stays[len(self) :]
        self.keep(was_stored)  # first make room
        if not is_new.all():
            rows = rows.take(np.flatnonzero(is_new))
        self._store.append(rows)
        self.table = both if stays.all() else both.take(stays)
        return int(np.count_nonzero(~stays))

    def state(self) -> State:
        """Everything that later draws depend on, the random state included. References, to be written at once."""
        arrays, segments = self._store.to_arrays()
        table = {f"table/{name}": column for name, column in vars(self.table).items()}
        meta = {"rollouts": len(self), "segments": segments, "random_state": self.rng.bit_generator.state}
        return State({**arrays, **table}, meta)

    def load(self, state: State) -> int:
        """Take over a state in place of what is held. Its later draws are those of the buffer that it was taken from.

        Returns:
            How many rollouts the capacity evicted, where it is smaller than that buffer's was.

        Raises:
            ValueError: the state does not hold together. Nothing is changed.
        """
        loaded = RolloutBuffer(capacity=sys.maxsize, seed=0, whole_groups=self.whole_groups)
        try:
            prefix = "table/"
            loaded.table = RolloutTable(
                **{n.removeprefix(prefix): array for n, array in state.arrays.items() if n.startswith(prefix)}
            )
            loaded._store = RolloutStore.from_arrays(state.arrays, state.meta["segments"])
            loaded.rng.bit_generator.state = state.meta["random_state"]
            valid, wrong = loaded.check_valid()
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise ValueError(f"the stored buffer does not hold together: {error}") from error
        if not valid:
            raise ValueError(f"the stored buffer does not hold together: {wrong}")
        evicted = loaded.keep(newest(loaded.table, capacity=self.capacity, whole_groups=self.whole_groups))
        self.table, self._store, self.rng = loaded.table, loaded._store, loaded.rng
        return evicted

    def check_valid(self) -> tuple[bool, str]:
        """Whether the state holds together, and if not, what is wrong. For tests and after loading."""
        if len(self.table) != len(self._store):
            return False, f"table has {len(self.table)} rollouts, store {len(self._store)}"
        if len(self) > self.capacity:
            return False, f"{len(self)} rollouts exceed the capacity {self.capacity}"
        if (self.table.uses < 0).any():
            return False, "a use count is negative"
        if not self.table.finite.all():
            return False, "a rollout with NaN or infinity is stored"
        if (np.diff(self.table.stored_at) < 0).any():
            return False, "the rollouts are not in order of storing"
        return self._store.check_valid()
