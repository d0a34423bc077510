"""verl_replay.layout: every update has its share of fresh rows, as verl itself cuts the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import BatchData
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils import tensordict_utils as tu

from tests.factories import repeatable
from verl_replay.layout import NULL, Layout, deal


def lengths(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 500, size=count)


def cells(layout: Layout, ranks: int) -> np.ndarray:
    """(updates, ranks, rows of a cell): verl cuts by rank first, then each rank's part into mini-batches."""
    return layout.order.reshape(ranks, layout.updates, -1).swapaxes(0, 1)


def count_within(cell_rows: np.ndarray, first: int, last: int) -> np.ndarray:
    """Rows numbered first..last - 1 of each (mini-batch, rank) cell."""
    return ((cell_rows >= first) & (cell_rows < last)).sum(axis=-1)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_by_hand():
    """Fresh 0..3 of 4, 3, 2, 1 tokens; replayed 4, 5 of 6 and 5. Two mini-batches on one rank. The first lap gives row
    0 to mini-batch 0 and 1 to 1 (4, 3 tokens); the second its longer, 2, to the lighter, 1 (4 + 1, 3 + 2). Replayed:
    one each, the longer to the first of two equal ones."""
    layout = deal(np.array([4, 3, 2, 1]), np.array([6, 5]), updates=2, ranks=1)
    assert layout.order.tolist() == [0, 3, 4, 1, 2, 5]
    assert (layout.updates, layout.mini_batch_size, layout.global_batch_size, layout.null_rows) == (2, 3, 3.0, 0)


def test_fresh_and_replayed_rows_are_balanced_on_one_account():
    """Fresh of 9, 1 and replayed of 9, 1 tokens on two ranks: 9 + 1 and 1 + 9. Dealt each by itself, from the first
    rank on, the long ones would meet: 9 + 9 and 1 + 1."""
    tokens = np.array([9, 1, 9, 1])
    layout = deal(tokens[:2], tokens[2:], updates=1, ranks=2)
    assert layout.order.tolist() == [0, 3, 1, 2]
    assert tokens[cells(layout, 2)].sum(axis=-1).tolist() == [[10, 10]]


def test_the_worst_case_by_hand():
    """Two ranks, fresh 101, 100, 100, 0, 0 and replayed 100. Laps 101 | 100 and 0 | 100, then the rest, a 0, to rank 0,
    and the replayed row to rank 1, which has fewer rows: 101 and 300, nearly twice the longest row."""
    tokens = np.array([101, 100, 100, 0, 0, 100])
    layout = deal(tokens[:5], tokens[5:], updates=1, ranks=2)
    assert tokens[cells(layout, 2)].sum(axis=-1).tolist() == [[101, 300]]


def test_null_rows_fill_up_by_hand():
    """3 rows over 2 mini-batches of 2 ranks: cells (mini, rank) (0,0) (1,0) (0,1) get one each, the last a null row."""
    layout = deal(np.array([9, 8]), np.array([7]), updates=2, ranks=2)
    assert layout.order.tolist() == [0, 1, 2, NULL]
    assert (layout.mini_batch_size, layout.global_batch_size, layout.null_rows) == (2, 1.5, 1)
    assert layout.with_nulls_from(3).tolist() == [0, 1, 2, 3]


def test_nulls_are_numbered_on():
    layout = deal(np.array([1]), np.empty(0), updates=1, ranks=2, multiple_of=2)
    assert layout.order.tolist() == [0, NULL, NULL, NULL]
    assert layout.with_nulls_from(7).tolist() == [0, 7, 8, 9]


def test_long_and_short_rows_even_out():
    """8 rows of 8..1 tokens on two ranks, each lap's longer to the lighter: 8 + 5 + 4 + 1 = 7 + 6 + 3 + 2 = 18."""
    tokens = np.arange(1, 9)
    layout = deal(tokens, np.empty(0), updates=1, ranks=2)
    assert tokens[cells(layout, 2)].sum(axis=-1).tolist() == [[18, 18]]


def test_every_third_row_long():
    """24 fresh and 24 replayed rows, every third 400 tokens and the rest 10, on 3 ranks. In their order one rank would
    have 16 * 400 = 6400 tokens and the others 160. Dealt, all are within one long row of each other."""
    tokens = np.where(np.arange(24) % 3, 10, 400)
    layout = deal(tokens, tokens, updates=1, ranks=3)
    totals = np.concatenate([tokens, tokens])[cells(layout, 3)].sum(axis=-1)
    assert np.ptp(totals) <= 390


def test_fewer_rows_than_ranks():
    """O2: 3 survivors, dp 4: trains on 3."""
    layout = deal(lengths(3), np.empty(0), updates=1, ranks=4)
    assert sorted(layout.order.tolist()) == [NULL, 0, 1, 2]
    assert layout.global_batch_size == 3


@pytest.mark.parametrize(("rows", "updates", "ranks", "nulls"), [(10, 1, 4, 2), (146, 4, 1, 2), (146, 4, 8, 14)])
def test_rows_that_do_not_divide(rows, updates, ranks, nulls):
    """O1: 10 rows on 4 ranks; 146 rows in 4 mini-batches: every real row once, the rest null rows."""
    layout = deal(lengths(rows), np.empty(0), updates=updates, ranks=ranks)
    assert sorted(layout.order[layout.order != NULL].tolist()) == list(range(rows))
    assert layout.null_rows == nulls
    assert layout.global_batch_size == rows / updates


@pytest.mark.parametrize("wrong", [{"updates": 0}, {"ranks": 0}, {"multiple_of": 0}, {"updates": -1}])
def test_sizes_below_1_are_refused(wrong):
    with pytest.raises(ValueError, match="must be at least 1"):
        deal(lengths(4), lengths(2), **{"updates": 1, "ranks": 1, **wrong})


def test_more_mini_batches_than_rows_are_refused():
    """I2: a mini-batch without a real row would be NaN in token-mean."""
    with pytest.raises(ValueError, match="7 mini-batches need at least as many rows, got 4 fresh \\+ 2 replayed"):
        deal(lengths(4), lengths(2), updates=7, ranks=1)
    with pytest.raises(ValueError, match="1 mini-batches"):
        deal(lengths(0), lengths(0), updates=1, ranks=1)


# ---- properties ------------------------------------------------------------------------------------------------------


@st.composite
def deals(draw):
    fresh, replayed = draw(st.integers(1, 60)), draw(st.integers(0, 60))
    return fresh, replayed, draw(st.integers(1, min(fresh, 9))), draw(st.integers(1, 9)), draw(st.integers(1, 5))


@repeatable
@given(deals(), st.integers(0, 9))
def test_every_real_row_once_and_every_share_within_one_row(sizes, seed):
    """I2, whatever the sizes: fresh, replayed and all real rows of the (mini-batch, rank) cells, each within one."""
    fresh, replayed, updates, ranks, multiple_of = sizes
    layout = deal(
        lengths(fresh, seed), lengths(replayed, seed + 1), updates=updates, ranks=ranks, multiple_of=multiple_of
    )
    real = fresh + replayed
    assert sorted(layout.order[layout.order != NULL].tolist()) == list(range(real))

    table = cells(layout, ranks)
    assert table.shape[:2] == (updates, ranks)
    for first, last in ((0, fresh), (fresh, real), (0, real)):
        assert np.ptp(count_within(table, first, last)) <= 1
        assert np.ptp(count_within(table, first, last).sum(axis=1)) <= 1  # and so of whole mini-batches
    assert count_within(table, 0, fresh).sum(axis=1).min() >= 1  # a fresh anchor in every mini-batch

    assert table.shape[2] % multiple_of == 0
    assert layout.mini_batch_size == ranks * table.shape[2]
    assert layout.global_batch_size == real / updates
    assert table.shape[2] - multiple_of < -(-real // (updates * ranks))  # no more null rows than needed
    numbered = layout.with_nulls_from(real)
    assert sorted(numbered.tolist()) == list(range(len(layout.order)))
    np.testing.assert_array_equal(numbered[layout.order != NULL], layout.order[layout.order != NULL])


@repeatable
@given(deals())
def test_the_layout_depends_on_its_arguments_alone(sizes):
    """I11: equal lengths keep the rows' order; nothing random."""
    fresh, replayed, updates, ranks, multiple_of = sizes
    make = lambda: deal(np.ones(fresh), np.ones(replayed), updates=updates, ranks=ranks, multiple_of=multiple_of)  # noqa: E731
    np.testing.assert_array_equal(make().order, make().order)
    one_cell = deal(np.ones(fresh), np.ones(replayed), updates=1, ranks=1)
    assert one_cell.order.tolist() == list(range(fresh + replayed))


@st.composite
def tokens_and_cells(draw):
    """Fresh and replayed lengths, from equal ones to a few long ones, with mini-batches and ranks."""
    length = draw(st.sampled_from([st.integers(1, 500), st.sampled_from([1, 500]), st.just(7)]))
    fresh, replayed = draw(st.lists(length, min_size=1, max_size=40)), draw(st.lists(length, max_size=40))
    return (
        np.array(fresh),
        np.array(replayed, dtype=np.int64),
        draw(st.integers(1, min(len(fresh), 4))),
        draw(st.integers(1, 4)),
    )


def spread(fresh: np.ndarray, replayed: np.ndarray, updates: int, ranks: int) -> int:
    """Tokens of the fullest cell less those of the emptiest."""
    layout = deal(fresh, replayed, updates=updates, ranks=ranks)
    tokens = np.concatenate([fresh, replayed, [0]])  # a null row, -1, has none
    return int(np.ptp(tokens[layout.order].reshape(updates * ranks, -1).sum(axis=1)))


@repeatable
@given(tokens_and_cells())
def test_cells_differ_by_at_most_twice_the_longest_row(case):
    fresh, replayed, updates, ranks = case
    assert spread(fresh, replayed, updates, ranks) <= 2 * max(fresh.max(), replayed.max(initial=0))


@repeatable
@given(tokens_and_cells())
def test_cells_of_full_laps_differ_by_at_most_the_longest_less_the_shortest(case):
    """Where fresh and replayed rows go all the way round. A lap leaves two cells apart by no more than they were, or
    than its own rows are: max(|a - b|, ...) of a lighter cell that gets the longer row."""
    fresh, replayed, updates, ranks = case
    lap = updates * ranks
    fresh, replayed = np.resize(fresh, -(-len(fresh) // lap) * lap), replayed[: len(replayed) // lap * lap]
    within = max(np.ptp(fresh), np.ptp(replayed) if len(replayed) else 0)
    assert spread(fresh, replayed, updates, ranks) <= within


def spread_at_random(fresh, replayed, updates, ranks, rng) -> int:
    """The same numbers of rows a cell, dealt in random order."""
    load, cells_ = np.zeros(updates * ranks), np.arange(updates * ranks)
    for rows, order in ((fresh, cells_), (replayed, np.roll(cells_, -(len(fresh) % len(cells_))))):
        np.add.at(load, np.resize(order, len(rows)), rng.permutation(rows))
    return int(np.ptp(load))


def test_dealing_is_no_worse_than_chance():
    """60 updates of 8..200 fresh rows and half as many replayed: within the better half of 40 random deals every time,
    and better than all 40 nine times of ten."""
    rng, worse = np.random.default_rng(0), []
    for _ in range(60):
        rows, updates, ranks = int(rng.integers(8, 200)), int(rng.integers(1, 5)), int(rng.integers(2, 5))
        case = rng.integers(1, 500, rows), rng.integers(1, 500, rows // 2), updates, ranks
        ours = spread(*case)
        worse.append(sum(spread_at_random(*case, rng) < ours for _ in range(40)))
    assert max(worse) <= 20 and np.mean(np.array(worse) == 0) > 0.85


# ---- verl's own path -------------------------------------------------------------------------------------------------


def through_verl(order: np.ndarray, mini_batch_size: int, ranks: int, kind: str) -> list[set[int]]:
    """Rows of each mini-batch over all ranks, cut by verl: dispatch over the ranks, then each rank's make_iterator."""
    if kind == "KVBatchMeta":
        keys = [str(row) for row in order]
        parts = KVBatchMeta(keys=keys, tags=[{} for _ in keys], partition_id="train").chunk(ranks)
        rows = [torch.tensor([int(key) for key in part.keys]) for part in parts]
    else:
        values = torch.nested.as_nested_tensor([torch.tensor([row]) for row in order.tolist()], layout=torch.jagged)
        whole = TensorDict({"rows": torch.from_numpy(order), "input_ids": values}, batch_size=len(order))
        parts = BatchData(whole).chunk(ranks)
        for part in parts:  # nested columns are cut alike
            assert part["input_ids"].values().tolist() == part["rows"].tolist()
        rows = [part["rows"] for part in parts]
    iterators = [
        tu.make_iterator(
            TensorDict({"rows": part}, batch_size=len(part)),
            mini_batch_size=mini_batch_size // ranks,
            epochs=1,
            seed=42 + rank,
            dataloader_kwargs={"shuffle": False},
        )
        for rank, part in enumerate(rows)
    ]
    updates = zip(*iterators, strict=True)  # a rank with more mini-batches than another would hang
    return [{row for part in update for row in part["rows"].tolist()} for update in updates]


@pytest.mark.parametrize("kind", ["KVBatchMeta", "TensorDict"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("updates", [1, 2, 3, 4])
def test_verls_own_dispatch_and_iterator_cut_it_as_laid_out(kind, ranks, updates):
    """I2, on the path the rows take: mini-batch u over all ranks holds what the layout says, and its share of both."""
    fresh, replayed = 21, 10
    layout = deal(lengths(fresh), lengths(replayed, 1), updates=updates, ranks=ranks)
    order = layout.with_nulls_from(fresh + replayed)
    got = through_verl(order, layout.mini_batch_size, ranks, kind)
    said = [set(update.ravel().tolist()) for update in order.reshape(ranks, updates, -1).swapaxes(0, 1)]
    assert got == said
    assert sorted(row for update in got for row in update) == list(range(len(order)))
    for first, last in ((0, fresh), (fresh, fresh + replayed)):
        shares = [sum(first <= row < last for row in update) for update in got]
        assert max(shares) - min(shares) <= 1


def test_appending_replayed_rows_instead_would_leave_an_update_without_a_fresh_row():
    """Why rows are dealt: 512 fresh and 256 appended, mini-batches of 256 on one rank, replayed 0 %, 0 % and 100 %.
    Dealt into verl's two updates without replay, each holds 256 fresh and 128 replayed rows."""
    appended = through_verl(np.arange(768), 256, 1, "KVBatchMeta")
    assert [sum(row >= 512 for row in update) / len(update) for update in appended] == [0, 0, 1]
    layout = deal(lengths(512), lengths(256, 1), updates=2, ranks=1)
    dealt = through_verl(layout.order, layout.mini_batch_size, 1, "KVBatchMeta")
    assert [sum(row >= 512 for row in update) for update in dealt] == [128, 128]
    assert [sum(row < 512 for row in update) for update in dealt] == [256, 256]


@pytest.mark.parametrize(
    "mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_null_rows_are_neutral_and_every_real_row_weighs_the_same(mode):
    """I6, by verl's own agg_loss, which sums over the ranks of a mini-batch: 7 rows in 2 mini-batches of 2 ranks, so
    one null row, with a loss of 1000 under mask 0. In the seq-mean modes the 7 rows share the weight of 2 updates."""
    rng, ranks, updates, rows, width = np.random.default_rng(0), 2, 2, 7, 5
    layout = deal(lengths(5), lengths(2), updates=updates, ranks=ranks)
    order = torch.from_numpy(layout.with_nulls_from(rows).reshape(ranks, updates, -1))
    assert layout.null_rows == 1
    loss = torch.cat([torch.from_numpy(rng.random((rows, width))), torch.full((1, width), 1000.0)])
    mask = torch.arange(width) < torch.from_numpy(np.append(rng.integers(1, width + 1, rows), 0))[:, None]
    mask = mask.to(loss.dtype)

    total = 0.0
    for update in order.unbind(1):  # (ranks, rows of a cell)
        tokens = mask[update.ravel()].sum()
        for cell in update:
            options = {
                "batch_num_tokens": tokens,
                "global_batch_size": layout.global_batch_size,
                "loss_scale_factor": 5,
            }
            total += agg_loss(loss[cell], mask[cell], mode, dp_size=ranks, **options).item() / ranks

    of_row, of_tokens = (loss * mask)[:rows].sum(1), mask[:rows].sum(1)
    in_update = [[row for row in update.ravel().tolist() if row < rows] for update in order.unbind(1)]
    expected = {
        "token-mean": sum(of_row[real].sum() / of_tokens[real].sum() for real in in_update),
        "token-sum": of_row.sum(),
        "seq-mean-token-sum": updates * of_row.mean(),
        "seq-mean-token-mean": updates * (of_row / of_tokens).mean(),
        "seq-mean-token-sum-norm": updates * (of_row / 5).mean(),
    }
    assert total == pytest.approx(expected[mode].item(), rel=1e-6)
