"""verl_replay.table: the columns, their dtypes, copies, ages, and the statistics of a group against verl's own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import make_table, numbers, repeatable, verl_advantages
from verl_replay.table import RolloutTable, group_statistics, reward_share


def test_columns_have_the_documented_dtypes():
    table = make_table([[1, 0], [0, 1, 1]], born=4, first_group=7)
    assert {name: column.dtype.name for name, column in vars(table).items()} == {
        "group": "int64",
        "reward": "float64",
        "advantage": "float64",
        "group_std": "float64",
        "reward_share": "float64",
        "born": "int64",
        "stored_at": "int64",
        "tokens": "int64",
        "uses": "int64",
        "finite": "bool",
    }
    assert table.group.tolist() == [7, 7, 8, 8, 8]
    assert len(table) == 5


@pytest.mark.parametrize("name", [name for name in vars(RolloutTable.empty()) if name != "group"])
@pytest.mark.parametrize("shape", [(2,), (3, 1), ()])
def test_a_column_of_another_shape_is_refused_by_name(name, shape):
    columns = {**vars(make_table([[1, 0, 0]])), name: np.zeros(shape)}
    with pytest.raises(ValueError, match=rf"RolloutTable.{name} must be \(N,\) = \(3,\), got"):
        RolloutTable(**columns)


def test_group_of_two_dimensions_is_refused():
    """O8: rewards (groups, G) read as (N,) collapsed a batch elsewhere."""
    with pytest.raises(ValueError, match="group"):
        RolloutTable(**{**vars(make_table([[1, 0]])), "group": np.zeros((2, 1))})


def test_the_table_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_table([[1, 0]]).born = np.zeros(2)


@pytest.mark.parametrize("index", [np.array([2, 0]), np.array([True, False, True, False])])
def test_take_copies(index):
    """I5. Every column with numbers of its own."""
    table = dataclasses.replace(make_table([[1, 0, 0], [1]]), born=[4, 5, 6, 7], uses=[0, 3, 1, 2], finite=[1, 0, 0, 1])
    before = numbers(table)
    taken = table.take(index)
    assert numbers(taken) == [before[i] for i in np.arange(4)[index]]
    for column in vars(taken).values():
        column[...] = 0
    assert numbers(table) == before


def test_age_is_step_minus_born():
    """I4: t = 9, born 9, 8 and 4: ages 0, 1 and 5."""
    table = RolloutTable.concat([make_table([[1]], born=born) for born in (9, 8, 4)])
    assert table.age(9).tolist() == [0, 1, 5]


def test_stored_is_the_same_but_for_the_step_and_leaves_the_table():
    """I5. A fresh rollout is of step 0, before any."""
    table = make_table([[1, 0, 0]], born=4)
    before = numbers(table)
    assert numbers(table.stored(6)) == [{**rollout, "stored_at": 6} for rollout in before]
    assert table.stored_at.tolist() == [0, 0, 0]
    assert numbers(table) == before


def test_empty_is_the_neutral_element_of_concat():
    table = make_table([[1, 0], [0, 1]])
    assert len(RolloutTable.empty()) == 0
    assert numbers(RolloutTable.concat([])) == []
    assert numbers(RolloutTable.concat([RolloutTable.empty(), table, RolloutTable.empty()])) == numbers(table)
    for name, column in vars(RolloutTable.concat([RolloutTable.empty(), table])).items():
        assert column.dtype == vars(table)[name].dtype
        assert not np.shares_memory(column, vars(table)[name])


def test_concat_keeps_the_order():
    first, second = make_table([[1, 0, 0]], born=1), make_table([[0, 1]], born=2, first_group=1)
    assert numbers(RolloutTable.concat([first, second])) == numbers(first) + numbers(second)


# ---- reward_share ----------------------------------------------------------------------------------------------------


def test_reward_share_by_hand():
    """(1, 0, 0, 0): the 1 is 1 of 4, each 0 is 3 of 4. (.5, 0, .5): 2 of 3 and 1 of 3. A group of one: 1 of 1."""
    table = make_table([[1, 0, 0, 0], [0.5, 0, 0.5], [7]])
    assert table.reward_share.tolist() == [1 / 4, 3 / 4, 3 / 4, 3 / 4, 2 / 3, 1 / 3, 2 / 3, 1]


@pytest.mark.parametrize(
    ("rewards", "share"),
    [
        ([0.7, 0.7, 0.7, 0.7000001], [1, 1, 1, 1]),  # 1.2e-7 apart in float32
        ([1e6, 1e6 + 0.5, 1e6 + 3], [2 / 3, 2 / 3, 1 / 3]),  # 1e-6 of the largest is 1
        ([1e-12, 0, 0], [1 / 3, 2 / 3, 2 / 3]),  # small is not equal
        ([-1e6, -1e6 - 0.5, 0], [2 / 3, 2 / 3, 1 / 3]),
        ([0, 1, 2, 3], [1 / 4] * 4),
        ([-0.0, 0.0], [1, 1]),
    ],
)
def test_rewards_are_the_same_up_to_rounding(rewards, share):
    assert reward_share(np.zeros(len(rewards)), np.array(rewards)).tolist() == share


def test_reward_share_of_nothing():
    assert reward_share(np.empty(0, np.int64), np.empty(0)).shape == (0,)


@repeatable
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=30))
def test_reward_share_counts_within_the_group_in_any_order(pairs):
    group, reward = np.array(pairs).T
    expected = [pairs.count(pair) / group.tolist().count(pair[0]) for pair in pairs]
    assert reward_share(group, reward / 3).tolist() == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_leaves_the_shares_of_other_groups(bad):
    """Its own group is dropped by finite_groups; no warning either."""
    with np.errstate(all="raise"):
        share = reward_share(np.array([0, 1, 0, 1, 1]), np.array([bad, 1, 1, 0, 0]))
    assert share[[1, 3, 4]].tolist() == [1 / 3, 2 / 3, 2 / 3]
    assert ((share > 0) & (share <= 1)).all()


# ---- group_statistics ------------------------------------------------------------------------------------------------


def test_group_statistics_by_hand():
    """Rewards 1, 0, 0, 0: mean 1/4, squares 9/16 + 3 * 1/16 = 3/4, over (4 - 1): 1/4, root 1/2. A group of one: 0."""
    std, least, greatest = group_statistics(np.array([5, 5, -2, 5, 5]), np.array([1, 0, 9, 0, 0]))
    assert std.tolist() == [0.5, 0.5, 0, 0.5, 0.5]
    assert least.tolist() == [0, 0, 9, 0, 0]
    assert greatest.tolist() == [1, 1, 9, 1, 1]


def test_group_statistics_of_nothing():
    assert [len(column) for column in group_statistics(np.empty(0, np.int64), np.empty(0))] == [0, 0, 0]


rewards = st.floats(-1e3, 1e3, width=32)


@repeatable
@given(st.lists(st.tuples(st.integers(-2, 2), rewards), min_size=1, max_size=30))
def test_group_statistics_equal_torch_group_by_group(pairs):
    """torch.std is what verl's GRPO divides by; groups may stand in any order and have any numbers."""
    group, values = np.array([g for g, _ in pairs]), np.array([v for _, v in pairs])
    std, least, greatest = group_statistics(group, values)
    for g in set(group.tolist()):
        members = torch.tensor(values[group == g], dtype=torch.float64)
        expected = members.std().item() if len(members) > 1 else 0.0
        np.testing.assert_allclose(std[group == g], expected, rtol=1e-9, atol=1e-9)
        assert (least[group == g] == members.min().item()).all()
        assert (greatest[group == g] == members.max().item()).all()


@repeatable
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=8).filter(lambda group: len(set(group)) > 1))
def test_group_std_is_the_one_in_verls_advantage(group):
    """verl: A = (reward - mean) / (std + 1e-6), so std = (reward - mean) / A - 1e-6."""
    table = make_table([group])
    masks = [np.ones(1, np.int64)] * len(group)
    scores = [np.array([r], dtype=np.float32) for r in group]
    advantage = np.concatenate(verl_advantages([f"u_{i}_0" for i in range(len(group))], scores, masks))
    expected = (table.reward - table.reward.mean()) / (table.group_std + 1e-6)
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(table.advantage, advantage.astype(np.float64))
