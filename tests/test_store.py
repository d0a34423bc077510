"""verl_replay.store: what goes in comes out byte for byte, owns its memory, and leaves when it is evicted."""

from __future__ import annotations

import gc
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import id_rows, make_columns, make_rows, repeatable, rollouts_of, scramble
from verl_replay.ragged import Ragged, offsets_of
from verl_replay.store import RolloutStore, Rows, check_rows


def one_column(rows, dtype) -> Rows:
    return Rows({"c": Ragged.from_rows(rows, dtype)}, np.arange(len(rows) + 1))


def stored(*parts: Rows) -> RolloutStore:
    store = RolloutStore()
    for part in parts:
        store.append(part)
    return store


def everything(store: RolloutStore) -> Rows:
    return store.gather(np.arange(len(store)))


# ---- bytes -----------------------------------------------------------------------------------------------------------


def test_rows_of_verl_come_back_in_verls_dtypes_and_bytes():
    """I3, I5."""
    keys, columns = make_columns([[1, 0, 0], [0, 1]])
    rows = Rows(columns, np.arange(len(keys) + 1))
    drawn = stored(rows).gather(np.array([4, 0]))
    assert {name: column.values.dtype.name for name, column in drawn.columns.items()} == {
        "prompts": "int64",
        "responses": "int64",
        "response_mask": "int64",
        "loss_mask": "int64",
        "rm_scores": "float32",
        "old_log_probs": "float32",
        "advantages": "float32",
    }
    assert rollouts_of(drawn) == [rollouts_of(rows)[i] for i in (4, 0)]


@repeatable
@given(st.integers(0, 2**32 - 1), st.data())
def test_any_bits_of_any_length_come_back_in_any_order_any_number_of_times(seed, data):
    """I5: -0.0, NaN payloads, denormals; rows of no token; rollouts of several rows; several appends."""
    rng = np.random.default_rng(seed)
    parts = [make_rows(rng, n) for n in data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))]
    expected = [rollout for part in parts for rollout in rollouts_of(part)]
    store = stored(*parts)
    for _ in range(2):
        chosen = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=8))
        assert rollouts_of(store.gather(np.array(chosen, dtype=np.int64))) == [expected[i] for i in chosen]


@pytest.mark.parametrize(
    "values",
    [
        [0.0, -0.0],
        [-0.0, -0.0],
        [np.nan, np.nan],
        np.array([0x7FC00001, 0x7FC00002], dtype=np.uint32).view(np.float32),  # two NaNs of different payload
        np.array([0x7FC00001, 0x7FC00001], dtype=np.uint32).view(np.float32),
        [1.0, np.nextafter(np.float32(1), np.float32(2))],
        [1e-45, 0.0],
        [np.inf, -np.inf],
    ],
)
def test_floats_are_compared_as_bits(values):
    """A column that repeats one number a row is kept as that number: 0.0 == -0.0, yet they are not one number."""
    rows = one_column([values, values[:1]], np.float32)
    assert rollouts_of(everything(stored(rows))) == rollouts_of(rows)


@pytest.mark.parametrize("low", [0, 255, 256, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("high", [0, 1, 255])
def test_narrower_storage_loses_nothing(low, high):
    rows = one_column([[low, high], [high, high, low], [low]], np.int64)
    assert rollouts_of(everything(stored(rows))) == rollouts_of(rows)


@pytest.mark.parametrize(("top", "bytes_a_token"), [(255, 1), (256, 4), (2**31 - 1, 4), (2**31, 8)])
def test_whole_numbers_are_kept_as_narrow_as_loses_nothing(top, bytes_a_token):
    rows = one_column([np.arange(top - 999, top + 1) if top > 999 else np.arange(1000) % (top + 1)], np.int64)
    offsets_and_positions = 2 * 8 + 2 * 8 + 8
    assert stored(rows).nbytes == 1000 * bytes_a_token + offsets_and_positions


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.float64, np.uint8, np.bool_])
def test_any_dtype_comes_back(dtype):
    rows = one_column([[0, 1, 1], [], [1, 1]], dtype)
    assert rollouts_of(everything(stored(rows))) == rollouts_of(rows)


def test_rows_without_a_token_come_back_as_such():
    rows = one_column([[], [], []], np.int64)
    assert rollouts_of(everything(stored(rows))) == rollouts_of(rows)
    assert everything(stored(rows)).columns["c"].lengths.tolist() == [0, 0, 0]


def test_rollouts_of_several_rows_stay_whole_and_in_order():
    """Rollouts of 2, 1 and 3 rows: 10 11 | 20 | 30 31 32."""
    rows = Rows({"id": Ragged.from_rows([[10], [11], [20], [30], [31], [32]], np.int64)}, np.array([0, 2, 3, 6]))
    drawn = stored(rows).gather(np.array([2, 0]))
    assert drawn.rollouts.tolist() == [0, 3, 5]
    assert drawn.columns["id"].values.tolist() == [30, 31, 32, 10, 11]
    assert drawn.count == 5


def test_a_draw_across_appends_keeps_the_order_asked_for():
    store = stored(id_rows([0, 1, 2]), id_rows([3, 4]), id_rows([5]))
    assert store.gather(np.array([5, 0, 4, 1, 3])).columns["id"].values.tolist() == [5, 0, 4, 1, 3]


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_stored_rollouts_own_their_memory():
    """I5: neither the batch they came from nor a draw reaches them."""
    rows = make_rows(np.random.default_rng(0), 6)
    expected = rollouts_of(rows)
    store = stored(rows)
    scramble(rows.columns)
    for column in rows.columns.values():
        column.offsets[...] = 0
    rows.rollouts[...] = 0
    for _ in range(2):
        drawn = everything(store)
        assert rollouts_of(drawn) == expected
        scramble(drawn.columns)
        for column in drawn.columns.values():
            column.offsets[...] = 0
        drawn.rollouts[...] = 0


def slice_of_a_large_batch(i: int, length: int = 1200) -> Rows:
    """Rollout i as views into columns of 1,024 rows of 4,096 tokens, as verl pads them (32 MiB and 16 MiB)."""
    ids, log_probs = np.zeros(1024 * 4096, np.int64), np.zeros(1024 * 4096, np.float32)
    start = i * 4096
    ids[start : start + length] = np.arange(300, 300 + length)
    log_probs[start : start + length] = np.linspace(-3, -1e-3, length)
    offsets = np.array([0, length])
    return Rows(
        {
            "responses": Ragged(ids[start : start + length], offsets),
            "old_log_probs": Ragged(log_probs[start : start + length], offsets),
            "response_mask": Ragged(np.ones(4096, np.int64)[:length], offsets),
            "advantages": Ragged(np.full(4096, 0.5, np.float32)[:length], offsets),
        },
        np.array([0, 1]),
    )


def test_200_inserts_out_of_large_batches_hold_200_rollouts():
    """I5, O15. A rollout is 1,200 * (4 bytes of id + 4 of log-prob), one mask and one advantage: 9,600 bytes and a
    few. 200 are 1.9 MB; the batches would be 10 GB."""
    store, information = RolloutStore(), 200 * 1200 * (4 + 4 + 1 / 8)
    tracemalloc.start()
    try:
        for i in range(200):
            store.append(slice_of_a_large_batch(i))
        gc.collect()
        full = tracemalloc.get_traced_memory()[0]
        store.keep(np.arange(200) >= 150)
        gc.collect()
        evicted = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert store.nbytes < full < 1.15 * information
    assert evicted < 0.3 * full  # a quarter is left
    np.testing.assert_array_equal(store.gather(np.array([0])).columns["responses"].values, np.arange(300, 1500))


def test_memory_is_within_1_15_of_the_information():
    """DESIGN 3: int32 ids, one float32 log-prob a response token, a mask bit. 64 rollouts a step, 10 steps."""
    rng, store, tokens = np.random.default_rng(0), RolloutStore(), 0
    for _ in range(10):
        lengths = rng.integers(50, 400, size=64)
        tokens += int(lengths.sum())
        _, columns = make_columns([rng.integers(0, 2, 8).astype(float) for _ in range(8)], lengths=lengths, rng=rng)
        del columns["rm_scores"]  # decided on, not stored
        store.append(Rows(columns, np.arange(65)))
    assert store.nbytes < 1.15 * tokens * (4 + 4 + 1 / 8)


def test_nbytes_counts_what_is_held():
    """Two columns of equal offsets share them: 3 * 8. Values 1, 2, 300 take 4 bytes each, ones a byte a row."""
    offsets = np.array([0, 1, 3])
    rows = Rows(
        {"a": Ragged(np.array([1, 2, 300]), offsets), "b": Ragged(np.ones(3, np.int64), offsets.copy())},
        np.array([0, 1, 2]),
    )
    rollouts_and_live = 3 * 8 + 2 * 8
    assert stored(rows).nbytes == 3 * 4 + 2 * 1 + 3 * 8 + rollouts_and_live
    assert RolloutStore().nbytes == 0


@pytest.mark.parametrize("evict", ["a whole append", "two of 100", "half of each"])
def test_eviction_frees_memory(evict):
    rng = np.random.default_rng(0)
    parts = [make_rows(rng, 100, max_tokens=50) for _ in range(4)]
    store, held = stored(*parts), sum(stored(part).nbytes for part in parts)
    assert store.nbytes == held
    mask = np.ones(400, dtype=bool)
    if evict == "a whole append":
        mask[100:200] = False
        expected = held - stored(parts[1]).nbytes
    elif evict == "two of 100":  # below 1/32: they may lie dead for now, and are counted
        mask[[7, 50]] = False
        expected = held - 2 * 8
    else:
        mask[::2] = False
        expected = 0.55 * held
    expected_rollouts = [r for r, keep in zip(rollouts_of(everything(store)), mask, strict=True) if keep]
    store.keep(mask)
    assert store.nbytes <= expected
    assert rollouts_of(everything(store)) == expected_rollouts


def test_eviction_of_a_whole_append_copies_nothing():
    """The common case, age: the arrays of the others are those they were."""
    store = stored(*(make_rows(np.random.default_rng(seed), 40) for seed in range(3)))
    before = [column.values for segment in store._segments[1:] for column in segment.columns.values()]
    mask = np.arange(120) >= 40
    mask[50] = False  # and one rollout of 40 may lie dead
    store.keep(mask)
    after = [column.values for segment in store._segments for column in segment.columns.values()]
    assert all(a is b for a, b in zip(after, before, strict=True))


def test_everything_evicted_leaves_nothing():
    """O19."""
    store = stored(id_rows([1, 2]), id_rows([3]))
    store.keep(np.zeros(3, dtype=bool))
    assert (len(store), store.nbytes, store.names) == (0, 0, None)
    store.append(one_column([[1]], np.int64))  # columns of its own: nothing stored contradicts them
    assert store.names == {"c"}


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh_has_more", [True, False])
def test_columns_that_differ_are_refused_with_both_lists_and_nothing_changes(fresh_has_more):
    """I7, O3."""
    small, large = make_rows(np.random.default_rng(0), 2), make_rows(np.random.default_rng(1), 2)
    large.columns["rollout_is_weights"] = large.columns["old_log_probs"]
    held, added = (small, large) if fresh_has_more else (large, small)
    store = stored(held)
    with pytest.raises(ValueError, match="columns differ") as error:
        store.append(added)
    assert str(sorted(held.columns)) in str(error.value)
    assert str(sorted(added.columns)) in str(error.value)
    assert rollouts_of(everything(store)) == rollouts_of(held)


@pytest.mark.parametrize("entries", [2, 4])
def test_a_column_without_one_entry_a_row_is_refused_by_name(entries):
    rows = id_rows([1, 2, 3])
    rows.columns["short"] = Ragged.from_rows([[1]] * entries, np.int64)
    store = stored()
    with pytest.raises(ValueError, match=f"column short must have one entry a row, 3, got {entries}"):
        store.append(rows)
    assert len(store) == 0
    with pytest.raises(ValueError, match="short"):
        check_rows(rows)


@pytest.mark.parametrize("positions", [[3], [0, 3], [-1]])
def test_positions_outside_are_refused(positions):
    with pytest.raises(ValueError, match=r"positions must be in 0\.\.2"):
        stored(id_rows([1, 2, 3])).gather(np.array(positions))


@pytest.mark.parametrize("size", [2, 4])
def test_a_mask_of_another_length_is_refused(size):
    store = stored(id_rows([1, 2, 3]))
    with pytest.raises(ValueError, match=r"\(N,\) = \(3,\)"):
        store.keep(np.zeros(size, dtype=bool))
    assert len(store) == 3


def test_gather_of_nothing():
    assert stored(id_rows([1])).gather(np.empty(0, np.int64)).count == 0
    assert RolloutStore().gather(np.empty(0, np.int64)).count == 0


def test_append_of_no_rollouts_stores_nothing():
    store = stored(id_rows([]))
    assert (len(store), store.nbytes) == (0, 0)


# ---- Rows ------------------------------------------------------------------------------------------------------------


def test_rows_concat_and_take_equal_lists():
    rng = np.random.default_rng(0)
    parts = [make_rows(rng, n) for n in (3, 0, 2)]
    joined = Rows.concat(parts)
    expected = [rollout for part in parts for rollout in rollouts_of(part)]
    assert rollouts_of(joined) == expected
    assert rollouts_of(joined.take(np.array([4, 1, 1]))) == [expected[i] for i in (4, 1, 1)]
    assert joined.rollouts.tolist() == offsets_of(np.concatenate([np.diff(part.rollouts) for part in parts])).tolist()


# ---- the naive twin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_random_operations_equal_a_list_of_rollouts(seed):
    rng = np.random.default_rng(seed)
    store, twin = RolloutStore(), []
    for _ in range(60):
        operation = rng.choice(["append", "append", "keep few", "keep most", "gather", "gather"])
        if operation == "append":
            rows = make_rows(rng, int(rng.choice([0, 1, 3, 70])), max_tokens=3)
            store.append(rows)
            twin += rollouts_of(rows)
            scramble(rows.columns)
        elif operation.startswith("keep"):
            mask = rng.random(len(twin)) < (0.3 if operation == "keep few" else 0.99)
            store.keep(mask)
            twin = [rollout for rollout, keep in zip(twin, mask, strict=True) if keep]
        else:
            positions = rng.permutation(len(twin))[: rng.integers(0, 20)]
            drawn = store.gather(positions)
            assert rollouts_of(drawn) == [twin[i] for i in positions]
            scramble(drawn.columns)
        assert len(store) == len(twin)
        assert store.check_valid() == (True, "")
    assert rollouts_of(everything(store)) == twin


def test_append_refuses_a_column_of_another_dtype_and_changes_nothing():
    store = RolloutStore()
    store.append(id_rows([1, 2]))
    floats = Rows({"id": Ragged(np.array([3.0], np.float32), np.arange(2))}, np.arange(2))
    with pytest.raises(ValueError, match="column id is stored as int64, these rollouts have float32"):
        store.append(floats)
    assert len(store) == 2
    assert store.gather(np.arange(2)).columns["id"].values.tolist() == [1, 2]


# ---- as flat arrays --------------------------------------------------------------------------------------------------


@repeatable
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 70), max_size=3))
def test_a_store_made_of_its_arrays_again_holds_the_same(seed, sizes):
    """Any bits, dead rollouts, no rollout at all. Nothing is copied, and what was kept once is kept once."""
    rng = np.random.default_rng(seed)
    store = stored(*(make_rows(rng, size, max_tokens=3) for size in sizes))
    store.keep(rng.random(len(store)) < 0.98)
    arrays, described = store.to_arrays()
    again = RolloutStore.from_arrays(arrays, described)
    assert again.check_valid() == (True, "")
    assert (len(again), again.names, again.nbytes) == (len(store), store.names, store.nbytes)
    assert sum(array.nbytes for array in arrays.values()) == store.nbytes
    assert rollouts_of(everything(again)) == rollouts_of(everything(store))
    for made, held in zip(again._segments, store._segments, strict=True):
        assert made.live is held.live and made.rollouts is held.rollouts
        assert all(made.columns[name].values is held.columns[name].values for name in held.columns)


def test_a_store_made_of_its_arrays_again_takes_what_the_other_takes():
    """The dtypes that come back are those of verl, not those kept."""
    store = stored(id_rows([1, 2]))
    again = RolloutStore.from_arrays(*store.to_arrays())
    again.append(id_rows([3]))
    assert everything(again).columns["id"].values.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="stored as int64, these rollouts have uint8"):
        again.append(one_column_named_id(np.uint8))


def one_column_named_id(dtype) -> Rows:
    return Rows({"id": Ragged.from_rows([[1]], dtype)}, np.arange(2))


def test_the_arrays_are_named_once_and_described_in_plain_json():
    """Two columns of equal offsets and equal values: one array of each."""
    offsets = np.array([0, 1, 3])
    rows = Rows({name: Ragged(np.array([1, 2, 3]), offsets.copy()) for name in ("a", "b")}, np.array([0, 1, 2]))
    arrays, described = stored(rows).to_arrays()
    column = {"values": "segment/0/a/values", "offsets": "segment/0/a/offsets", "repeated": False, "dtype": "<i8"}
    rest = {"rollouts": "segment/0/rollouts", "live": "segment/0/live"}
    assert json.loads(json.dumps(described)) == [{"columns": {"a": column, "b": column}, **rest}]
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "segment/0/a/values": [1, 2, 3],
        "segment/0/a/offsets": [0, 1, 3],
        "segment/0/rollouts": [0, 1, 2],
        "segment/0/live": [0, 1],
    }


FAULTS = [
    ("rollouts", np.array([1, 2, 3]), "row offsets of the rollouts do not ascend from 0"),
    ("rollouts", np.array([0, 2, 1]), "row offsets of the rollouts do not ascend from 0"),
    ("rollouts", np.empty(0, np.int64), "row offsets of the rollouts do not ascend from 0"),
    ("rollouts", np.array([0, 1, 2], np.int32), "row offsets of the rollouts do not ascend from 0"),
    ("rollouts", np.array([[0, 1, 2]]), "row offsets of the rollouts do not ascend from 0"),
    ("rollouts", np.array([0, 1, 3]), "column a must have one entry a row, 3"),
    ("rollouts", np.array([0, 2]), "a live rollout is not among those appended"),
    ("live", np.array([0, 0]), "the numbers of live rollouts do not ascend"),
    ("live", np.array([1, 0]), "the numbers of live rollouts do not ascend"),
    ("live", np.empty(0, np.int64), "the numbers of live rollouts do not ascend"),
    ("live", np.array([-1, 0]), "a live rollout is not among those appended"),
    ("live", np.array([0, 2]), "a live rollout is not among those appended"),
    ("a/offsets", np.array([0, 3, 1]), "column a must have one entry a row, 2"),
    ("a/offsets", np.array([0, 3]), "column a must have one entry a row, 2"),
    ("a/offsets", np.array([1, 2, 3]), "column a must hold 3 numbers, got (3,)"),
    ("a/offsets", np.array([0, 1, 2]), "column a must hold 2 numbers, got (3,)"),
    ("a/values", np.array([1, 2, 3, 4]), "column a must hold 3 numbers, got (4,)"),
    ("a/values", np.array([[1, 2, 3]]), "column a must hold 3 numbers, got (1, 3)"),
    ("b/values", np.array([5]), "column b must hold 2 numbers, got (1,)"),
]


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize(("name", "array", "message"), FAULTS)
def test_check_valid_says_which_segment_does_not_hold_together_and_why(name, array, message, where):
    """Two rollouts of one row: a is 1 | 2 3, b is 5 | 6 6, kept as one number a row."""
    a, b = Ragged.from_rows([[1], [2, 3]], np.int64), Ragged.from_rows([[5], [6, 6]], np.int64)
    arrays, described = stored(*[Rows({"a": a, "b": b}, np.arange(3))] * 2).to_arrays()
    described[where]["columns"]["b"]["offsets"] = "b's own"
    arrays["b's own"] = b.offsets
    arrays[f"segment/{where}/{name}"] = array
    assert RolloutStore.from_arrays(arrays, described).check_valid() == (False, f"segment {where}: {message}")


def test_check_valid_compares_the_columns_of_all_segments():
    arrays, described = stored(id_rows([1]), id_rows([2])).to_arrays()
    described[1]["columns"]["id"]["dtype"] = "<i4"
    told = RolloutStore.from_arrays(arrays, described).check_valid()
    assert told == (False, "segment 1: column id is int32, in the first segment int64")
    described[1]["columns"]["more"] = described[1]["columns"]["id"]
    told = RolloutStore.from_arrays(arrays, described).check_valid()
    assert told == (False, "segment 1: has the columns ['id', 'more'], the first has ['id']")
