"""verl_replay.buffer: the only state of replay, against a naive twin."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.factories import id_rows, make_rows, make_table, numbers, rollouts_of, scramble
from verl_replay.buffer import RolloutBuffer
from verl_replay.checkpoint import State
from verl_replay.drawing import without_replacement
from verl_replay.eviction import age, uses
from verl_replay.priorities import abs_advantage
from verl_replay.ragged import Ragged
from verl_replay.samplers import proportional
from verl_replay.store import Rows
from verl_replay.table import RolloutTable


def rollouts(count: int, born: int = 1, first_group: int = 0) -> RolloutTable:
    if not count:
        return RolloutTable.empty()
    return make_table([[float(i == 0) for i in range(count)]], born=born, first_group=first_group)


def holding(count: int, capacity: int = 100, whole_groups: bool = False) -> RolloutBuffer:
    """Rollouts 0, 1, ..., known by their id."""
    buffer = RolloutBuffer(capacity=capacity, seed=0, whole_groups=whole_groups)
    buffer.add(rollouts(count), id_rows(range(count)))
    return buffer


def by_advantage(buffer: RolloutBuffer, k: int) -> np.ndarray:
    log_weight = proportional(abs_advantage(buffer.table), priority_exponent=0.5, priority_eps=1e-6)
    return without_replacement(log_weight, k, buffer.rng)


def ids(buffer: RolloutBuffer) -> list[int]:
    assert buffer.check_valid() == (True, "")
    if not len(buffer):
        return []
    return buffer._store.gather(np.arange(len(buffer))).columns["id"].values.tolist()


# ---- add -------------------------------------------------------------------------------------------------------------


def test_capacity_is_first_in_first_out():
    """Capacity 5: 0 1 2, then 3 4 5 pushes out 0, then 6..12 pushes out the rest and its own first two."""
    buffer = RolloutBuffer(capacity=5, seed=0)
    assert buffer.add(rollouts(3), id_rows([0, 1, 2])) == 0
    assert buffer.add(rollouts(3), id_rows([3, 4, 5])) == 1
    assert ids(buffer) == [1, 2, 3, 4, 5]
    assert buffer.add(rollouts(7), id_rows(range(6, 13))) == 7
    assert ids(buffer) == [8, 9, 10, 11, 12]


def test_the_capacity_evicts_whole_groups():
    """Capacity 5, groups of 3, 2 and 3. 8 stored: the last 5 are the groups of 2 and 3, and 3 leave. Then one of 2 in
    place of one of 2; then one of 4 in place of both; then one of 6, which is too large, and nothing is left."""
    buffer = RolloutBuffer(capacity=5, seed=0, whole_groups=True)
    assert buffer.add(make_table([[1, 0, 0], [1, 0], [1, 0, 0]]), id_rows(range(8))) == 3
    assert ids(buffer) == [3, 4, 5, 6, 7]
    assert buffer.add(rollouts(2, first_group=3), id_rows([8, 9])) == 2
    assert ids(buffer) == [5, 6, 7, 8, 9]
    assert buffer.add(rollouts(4, first_group=4), id_rows(range(10, 14))) == 5
    assert ids(buffer) == [10, 11, 12, 13]
    assert buffer.add(rollouts(6, first_group=5), id_rows(range(14, 20))) == 10
    assert ids(buffer) == []
    assert buffer.add(rollouts(2, first_group=6), id_rows([20, 21])) == 0
    assert ids(buffer) == [20, 21]


@pytest.mark.parametrize("capacity", [1, 2])
def test_many_rollouts_of_equal_advantage_at_a_small_capacity(capacity):
    """O10: nothing compares payloads, whatever ties. verl's advantages of (1, 1, 0, 0): four of equal size."""
    table = make_table([[1, 1, 0, 0]])
    assert len(set(np.abs(table.advantage).tolist())) == 1
    buffer = RolloutBuffer(capacity=capacity, seed=0)
    for step in range(5):
        buffer.add(table, id_rows([10 * step + i for i in range(4)]))
        assert ids(buffer) == [10 * step + i for i in range(4 - capacity, 4)]
        drawn = buffer.draw(by_advantage(buffer, 4))
        assert sorted(drawn.rows.columns["id"].values.tolist()) == ids(buffer)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_1_is_refused(capacity):
    with pytest.raises(ValueError, match=f"capacity must be at least 1 rollout, got {capacity}"):
        RolloutBuffer(capacity=capacity, seed=0)


@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize("capacity", [2, 100])
@pytest.mark.parametrize("fault", ["columns", "length", "entries too many", "entries too few"])
def test_what_does_not_fit_is_refused_and_nothing_changes(fault, capacity, whole_groups):
    """O3, I7. Also past the capacity, where some of what is added leaves at once."""
    buffer = holding(2, capacity, whole_groups)
    before = numbers(buffer.table), buffer.nbytes, buffer.rng.bit_generator.state
    table, rows = rollouts(3), id_rows([7, 8, 9])
    if fault == "columns":
        rows = Rows({**rows.columns, "rollout_is_weights": rows.columns["id"]}, rows.rollouts)
    elif fault == "length":
        table = rollouts(4)
    else:
        entries = 4 if fault == "entries too many" else 2
        rows = Rows({"id": Ragged.from_rows([[1]] * entries, np.int64)}, rows.rollouts)
    with pytest.raises(ValueError, match="columns differ|same rollouts|one entry a row"):
        buffer.add(table, rows)
    assert (numbers(buffer.table), buffer.nbytes, buffer.rng.bit_generator.state) == before
    assert ids(buffer) == [0, 1]


def test_add_copies_table_and_rows():
    """I5."""
    buffer, table, rows = RolloutBuffer(capacity=10, seed=0), rollouts(3), make_rows(np.random.default_rng(0), 3)
    expected = numbers(table), rollouts_of(rows)
    buffer.add(table, rows)
    scramble(rows.columns)
    for column in vars(table).values():
        column[...] = 0
    drawn = buffer.draw(np.arange(3))
    assert ([{**n, "uses": 0} for n in numbers(drawn.table)], rollouts_of(drawn.rows)) == expected


# ---- draw ------------------------------------------------------------------------------------------------------------


def test_a_draw_does_not_consume_and_is_a_copy():
    """METHOD step 6, I5."""
    buffer = holding(4)
    for _ in range(3):
        drawn = buffer.draw(np.array([2, 0]))
        assert drawn.rows.columns["id"].values.tolist() == [2, 0]
        scramble(drawn.rows.columns)
        for column in vars(drawn.table).values():
            column[...] = 0
    assert ids(buffer) == [0, 1, 2, 3]
    assert buffer.table.uses.tolist() == [3, 0, 3, 0]
    assert buffer.table.born.tolist() == [1, 1, 1, 1]


def test_repeats_in_a_draw_are_counted_and_copied():
    """With replacement: 2, 0, 2, 2 is three uses of 2; every copy says so, and no copy is another's."""
    buffer = holding(4)
    drawn = buffer.draw(np.array([2, 0, 2, 2]))
    assert drawn.rows.columns["id"].values.tolist() == [2, 0, 2, 2]
    assert drawn.table.uses.tolist() == [3, 1, 3, 3]
    assert buffer.table.uses.tolist() == [1, 0, 3, 0]
    drawn.rows.columns["id"].values[0] = drawn.table.uses[0] = 77
    assert drawn.rows.columns["id"].values.tolist() == [77, 0, 2, 2]
    assert buffer.draw(np.array([2])).table.uses.tolist() == [4]


def test_50_draws_without_inserts_are_counted():
    """O11: capacity 4, two a draw: 100 uses, and each draw says how often its rollouts have been used, itself in."""
    buffer, uses = holding(4, capacity=4), np.zeros(4, dtype=int)
    for _ in range(50):
        positions = by_advantage(buffer, 2)
        uses[positions] += 1
        assert buffer.draw(positions).table.uses.tolist() == uses[positions].tolist()
    assert buffer.table.uses.tolist() == uses.tolist()
    assert uses.sum() == 100


def test_uses_stay_with_their_rollout_when_others_leave():
    buffer = holding(4)
    buffer.draw(np.array([1, 3]))
    buffer.draw(np.array([3]))
    assert buffer.keep(np.array([False, True, False, True])) == 2
    assert (ids(buffer), buffer.table.uses.tolist()) == ([1, 3], [1, 2])


def test_a_draw_of_nothing():
    """O7."""
    for buffer in (holding(0), holding(2)):
        drawn = buffer.draw(np.empty(0, dtype=np.int64))
        assert (len(drawn.table), drawn.rows.count) == (0, 0)
        assert buffer.table.uses.sum() == 0


def test_a_position_outside_is_refused_and_counts_no_use():
    buffer = holding(2)
    with pytest.raises(ValueError, match="positions"):
        buffer.draw(np.array([0, 2]))
    assert buffer.table.uses.tolist() == [0, 0]


def test_rollouts_of_several_rows_are_drawn_whole():
    """Unit: a session. Capacity and draws count rollouts, not rows."""
    buffer = RolloutBuffer(capacity=2, seed=0)
    rows = Rows({"id": Ragged.from_rows([[10], [11], [20], [30], [31], [32]], np.int64)}, np.array([0, 2, 3, 6]))
    assert buffer.add(rollouts(3), rows) == 1
    drawn = buffer.draw(np.array([1, 0]))
    assert drawn.rows.columns["id"].values.tolist() == [30, 31, 32, 20]
    assert drawn.rows.rollouts.tolist() == [0, 3, 4]


# ---- state -----------------------------------------------------------------------------------------------------------


def test_the_generator_is_the_seeds_own():
    """I11."""
    first, second, other = (RolloutBuffer(capacity=1, seed=seed).rng.random(3).tolist() for seed in (5, 5, 6))
    assert first == second != other


def test_nbytes_is_of_the_columns_and_the_table_and_falls_with_eviction():
    """A table's entry: nine numbers of 8 bytes and a flag."""
    buffer = holding(100)
    assert buffer.nbytes == buffer._store.nbytes + 100 * (9 * 8 + 1)
    full = buffer.nbytes
    buffer.keep(np.arange(100) >= 90)
    assert buffer.nbytes < 0.15 * full
    buffer.keep(np.zeros(10, dtype=bool))
    assert (len(buffer), buffer.nbytes) == (0, 0)


def test_keep_of_all_changes_nothing():
    buffer = holding(3)
    table = buffer.table
    assert buffer.keep(np.ones(3, dtype=bool)) == 0
    assert buffer.table is table


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda b: setattr(b, "table", b.table.take(np.array([0]))), "table has 1 rollouts, store 3"),
        (lambda b: setattr(b, "capacity", 2), "3 rollouts exceed the capacity 2"),
        (lambda b: b.table.uses.__setitem__(1, -1), "a use count is negative"),
        (lambda b: b.table.finite.__setitem__(2, False), "NaN or infinity"),
        (lambda b: b.table.stored_at.__setitem__(1, 5), "not in order of storing"),
        (
            lambda b: b._store._segments[0].live.__setitem__(2, 3),
            "segment 0: a live rollout is not among those appended",
        ),
    ],
)
def test_check_valid_says_what_is_wrong(fault, message):
    buffer = holding(3)
    assert buffer.check_valid() == (True, "")
    fault(buffer)
    valid, said = buffer.check_valid()
    assert not valid and message in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, meta: arrays.pop("table/uses"), "'uses'"),
        (lambda arrays, meta: arrays.update({"table/more": np.zeros(3)}), "'more'"),
        (lambda arrays, meta: arrays.update({"table/uses": np.zeros(2)}), r"RolloutTable.uses must be \(N,\) = \(3,\)"),
        (lambda arrays, meta: arrays.update({"table/uses": np.array([0, -1, 0])}), "a use count is negative"),
        (lambda arrays, meta: arrays.pop("segment/0/id/values"), "segment/0/id/values"),
        (lambda arrays, meta: meta["segments"].pop(), "table has 3 rollouts, store 0"),
        (lambda arrays, meta: meta["segments"][0]["columns"]["id"].update(dtype="int9"), "int9"),
        (lambda arrays, meta: meta["segments"].append(1), "not subscriptable"),
        (lambda arrays, meta: meta.pop("random_state"), "random_state"),
        (lambda arrays, meta: meta.update(random_state={"bit_generator": "MT19937"}), "PCG64"),
    ],
)
def test_a_state_that_does_not_hold_together_is_refused_and_nothing_changes(change, message):
    """I9: never half-loaded."""
    arrays, meta = holding(3).state()
    change(arrays, meta)
    buffer = holding(2)
    table, store, rng = buffer.table, buffer._store, buffer.rng
    with pytest.raises(ValueError, match=f"does not hold together.*{message}"):
        buffer.load(State(arrays, meta))
    assert (buffer.table, buffer._store, buffer.rng) == (table, store, rng)
    assert ids(buffer) == [0, 1]


def test_a_loaded_state_takes_the_place_of_what_was_held():
    """Its rollouts, uses and random state; not its capacity, which is the run's."""
    taken = holding(3)
    taken.draw(np.array([1, 1]))
    taken.rng.random(2)
    buffer = holding(2, capacity=7)
    assert buffer.load(taken.state()) == 0
    assert (ids(buffer), buffer.table.uses.tolist(), buffer.capacity) == ([0, 1, 2], [0, 2, 0], 7)
    assert buffer.rng.bit_generator.state == taken.rng.bit_generator.state


# ---- the naive twin --------------------------------------------------------------------------------------------------


class NaiveBuffer:
    """The same, as a list of dicts."""

    def __init__(self, capacity: int, whole_groups: bool) -> None:
        self.capacity, self.whole_groups, self.rollouts = capacity, whole_groups, []

    def keep(self, mask) -> int:
        before = len(self.rollouts)
        self.rollouts = [rollout for rollout, keep in zip(self.rollouts, mask, strict=True) if keep]
        return before - len(self.rollouts)

    def draw(self, positions):
        for i in positions:
            self.rollouts[i]["numbers"]["uses"] += 1
        return [self.rollouts[i] for i in positions]

    def add(self, table, rows) -> int:
        pairs = zip(numbers(table), rollouts_of(rows), strict=True)
        self.rollouts += [{"numbers": n, "rows": r} for n, r in pairs]
        evicted = 0
        while len(self.rollouts) > self.capacity:
            first = self.rollouts.pop(0)["numbers"]["group"]
            evicted += 1
            while self.whole_groups and self.rollouts and self.rollouts[0]["numbers"]["group"] == first:
                self.rollouts.pop(0)
                evicted += 1
        return evicted


@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_random_operations_equal_a_list_of_dicts(seed, whole_groups):
    """Adding whole steps of several groups, eviction by age, by uses and at random, draws that repeat, refusals."""
    rng = np.random.default_rng(seed)
    capacity = int(rng.choice([1, 7, 40, 1000]))
    buffer = RolloutBuffer(capacity=capacity, seed=seed, whole_groups=whole_groups)
    twin, step, groups = NaiveBuffer(capacity, whole_groups), 1, 0
    for _ in range(60):
        operation = rng.choice(["add", "add", "age", "uses", "keep", "draw", "draw", "refused"])
        if operation == "add":
            sizes = rng.integers(1, 6, size=rng.choice([0, 1, 2, 9])).tolist()
            table = make_table([[1.0] * size for size in sizes], born=step, first_group=groups).stored(step)
            groups += len(sizes)
            rows = make_rows(rng, len(table), max_tokens=3)
            assert buffer.add(table, rows) == twin.add(table, rows)
            scramble(rows.columns)
        elif operation == "age":
            step += int(rng.integers(1, 4))
            mask = age(buffer.table, step=step, max_age=5)
            assert mask.tolist() == [step - r["numbers"]["born"] <= 5 for r in twin.rollouts]
            assert buffer.keep(mask) == twin.keep(mask)
        elif operation == "uses":
            mask = uses(buffer.table, max_uses=3)
            assert mask.tolist() == [r["numbers"]["uses"] < 3 for r in twin.rollouts]
            assert buffer.keep(mask) == twin.keep(mask)
        elif operation == "keep":
            mask = rng.random(len(buffer)) < 0.98
            assert buffer.keep(mask) == twin.keep(mask)
        elif operation == "draw" and len(buffer):
            positions = rng.integers(0, len(buffer), size=rng.integers(0, 9))
            drawn, expected = buffer.draw(positions), twin.draw(positions)
            assert numbers(drawn.table) == [r["numbers"] for r in expected]
            assert rollouts_of(drawn.rows) == [r["rows"] for r in expected]
            scramble(drawn.rows.columns)
        elif operation == "refused" and len(buffer):
            with pytest.raises(ValueError, match="columns differ"):
                buffer.add(rollouts(2), id_rows([1, 2]))
        assert buffer.check_valid() == (True, "")
        assert numbers(buffer.table) == [r["numbers"] for r in twin.rollouts]
    everything = buffer.draw(np.arange(len(buffer)))
    assert rollouts_of(everything.rows) == [r["rows"] for r in twin.rollouts]


def test_a_stored_rollout_that_is_not_finite_is_noticed():
    """I10: `select` never stores one; check_valid is the second look."""
    table = dataclasses.replace(rollouts(2), finite=np.array([True, False]))
    buffer = RolloutBuffer(capacity=5, seed=0)
    buffer.add(table, id_rows([0, 1]))
    assert buffer.check_valid() == (False, "a rollout with NaN or infinity is stored")
