"""verl_replay.trainers.columns: verl's V1 columns to ragged arrays and back, in an order of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from tests.factories import make_columns, make_options, make_rows, make_table, repeatable, rollouts_of, verl_advantages
from verl_replay.ragged import Ragged, offsets_of
from verl_replay.store import RolloutStore, Rows
from verl_replay.trainers import columns


def nested(rows, dtype=torch.int64) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


# ---- which columns ---------------------------------------------------------------------------------------------------


def config_of(rollout_is=None, use_kl_loss=False, bypass_mode=False, calculate_log_probs=True):
    return OmegaConf.create(
        {
            "algorithm": {"rollout_correction": {"rollout_is": rollout_is, "bypass_mode": bypass_mode}},
            "actor_rollout_ref": {
                "actor": {"use_kl_loss": use_kl_loss},
                "rollout": {"calculate_log_probs": calculate_log_probs},
            },
        }
    )


ALWAYS = ["prompts", "responses", "response_mask", "loss_mask", "old_log_probs", "advantages"]


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, []),
        ({"rollout_is": "token"}, ["rollout_is_weights"]),
        ({"rollout_is": "token", "bypass_mode": True}, []),  # verl writes no weights then
        ({"rollout_is": "token", "calculate_log_probs": False}, []),
        ({"use_kl_loss": True}, ["ref_log_prob"]),
        ({"rollout_is": "sequence", "use_kl_loss": True}, ["rollout_is_weights", "ref_log_prob"]),
    ],
)
def test_the_columns_stored_are_those_the_update_reads(options, more):
    """I7."""
    config = config_of(**options)
    assert list(columns.update_columns(config)) == [*ALWAYS, *more]
    assert list(columns.stored_columns(config, make_options())) == [*ALWAYS, *more]


def test_mode_decoupled_stores_also_what_sampled_the_tokens():
    options = make_options(importance="decoupled")
    assert list(columns.stored_columns(config_of(), options)) == [*ALWAYS, "rollout_log_probs"]
    assert "rollout_log_probs" in columns.decision_columns(config_of(), options, reward="rm_scores")
    assert "rollout_log_probs" not in columns.update_columns(config_of())


def test_no_rollout_correction_is_no_column():
    config = OmegaConf.create({"algorithm": {}, "actor_rollout_ref": {"actor": {"use_kl_loss": False}}})
    assert "rollout_is_weights" not in columns.update_columns(config)


# ---- read ------------------------------------------------------------------------------------------------------------


def verl_data(**more) -> TensorDict:
    """As TransferQueue returns rows that verl's agent loop wrote: jagged columns and per-row objects."""
    rows = [
        {
            "responses": torch.tensor([5, 6, 7]),
            "old_log_probs": torch.tensor([-1.0, -2.0, -0.5]),
            "raw_prompt": [{"a": 1}],
        },
        {"responses": torch.tensor([8]), "old_log_probs": torch.tensor([-0.0]), "raw_prompt": [{"a": 2}]},
    ]
    return list_of_dict_to_tensordict([{**row, **{k: v[i] for k, v in more.items()}} for i, row in enumerate(rows)])


def test_read_takes_the_columns_asked_for_as_they_are():
    got = columns.read(verl_data(), ["old_log_probs", "responses"])
    assert list(got) == ["old_log_probs", "responses"]
    assert [got["responses"].row(i).tolist() for i in range(2)] == [[5, 6, 7], [8]]
    assert got["old_log_probs"].values.dtype == np.float32
    assert np.signbit(got["old_log_probs"].row(1)).all()


def test_a_missing_column_is_refused_with_both_lists():
    """I7, O3: TransferQueue drops a column for all rows if one row lacks it."""
    with pytest.raises(ValueError, match="lacks the columns \\['advantages', 'ref_log_prob'\\]") as error:
        columns.read(verl_data(), ["responses", "ref_log_prob", "advantages"])
    assert "['old_log_probs', 'raw_prompt', 'responses']" in str(error.value)
    assert "replay=off" in str(error.value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("old_log_probs", torch.float64), ("old_log_probs", torch.bfloat16), ("responses", torch.int32)],
)
def test_a_column_of_another_dtype_is_refused(name, wrong):
    """I5: promoted silently it would come back in another dtype than verl's."""
    data = TensorDict({name: nested([[1, 2], [3]], wrong)}, batch_size=2)
    with pytest.raises((ValueError, TypeError)) as error:
        columns.read(data, [name])
    assert name in str(error.value) or "BFloat16" in str(error.value)


def test_objects_are_no_column():
    """O6: lists of equal length collapse to 2-D, ragged ones do not; neither is one number a token."""
    equal = TensorDict({"pairs": NonTensorStack([1, 2], [3, 4])}, batch_size=2)
    ragged = TensorDict({"pairs": NonTensorStack([1, 2], [3])}, batch_size=2)
    for data in (equal, ragged):
        with pytest.raises((ValueError, AttributeError)):
            columns.read(data, ["pairs"])


def test_rows_of_several_numbers_a_token_are_refused():
    """Three-dimensional position ids, of images."""
    column = torch.nested.nested_tensor_from_jagged(torch.zeros(5, 3), torch.tensor([0, 2, 5]))
    with pytest.raises(ValueError, match="one number a token.*text model"):
        columns.to_ragged(column)
    with pytest.raises(ValueError, match=r"\(rows, tokens\), got \(2, 3, 4\)"):
        columns.to_ragged(torch.zeros(2, 3, 4))


def test_padded_columns_are_read_too():
    got = columns.to_ragged(torch.tensor([[1, 2, 3], [4, 5, 6]]).T)  # not contiguous
    assert [got.row(i).tolist() for i in range(3)] == [[1, 4], [2, 5], [3, 6]]


@repeatable
@given(st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=1, max_size=5))
def test_nested_and_back(rows):
    ragged = columns.to_ragged(columns.to_nested(Ragged.from_rows(rows, np.int64)))
    assert [ragged.row(i).tolist() for i in range(len(rows))] == rows
    back = columns.to_nested(ragged)
    assert [row.tolist() for row in back.unbind()] == rows
    width = max(map(len, rows))
    padded = back.to_padded_tensor(0)
    assert padded.shape == (len(rows), width)  # to the longest row, not to all tokens together
    assert padded.tolist() == [row + [0] * (width - len(row)) for row in rows]


# ---- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [torch.tensor([3, 1]), np.array([3, 1]), [3, 1], NonTensorStack(3, 1)])
def test_dataset_index_in_any_dress(index):
    data = (
        TensorDict({"index": index}, batch_size=2)
        if isinstance(index, torch.Tensor | NonTensorStack)
        else {"index": index}
    )
    assert columns.dataset_index(data) == [3, 1]


def test_no_dataset_index_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="lacks the column index.*extra_info.index.*replay=off"):
        columns.dataset_index(verl_data())


def test_canonical_order_by_hand():
    """By data-set index, then session, then trajectory, as numbers: session 10 comes after 9. Uids may hold "_"."""
    keys = ["b_10_0", "a_x_0_1", "b_9_0", "a_x_0_0", "b_9_10", "b_9_2"]
    order = columns.canonical_order(keys, [1, 4, 1, 4, 1, 1])
    assert [keys[i] for i in order] == ["b_9_0", "b_9_2", "b_9_10", "b_10_0", "a_x_0_0", "a_x_0_1"]
    assert order.dtype == np.int64


def prompts_of(index) -> Ragged:
    return Ragged.from_rows([[i, i] for i in index], np.int64)


@repeatable
@given(st.data())
def test_canonical_order_does_not_depend_on_who_finished_first(data):
    """I11, with random uids each time."""
    shape = data.draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=4))
    rows = [(g, s, t) for g, sessions in enumerate(shape) for s, count in enumerate(sessions) for t in range(count)]
    uids = data.draw(st.lists(st.uuids(), min_size=len(shape), max_size=len(shape), unique=True))
    done = data.draw(st.permutations(rows))
    keys = [f"{uids[g]}_{s}_{t}" for g, s, t in done]
    index = [100 - g for g, _, _ in done]
    order = columns.canonical_order(keys, index)
    assert [done[i] for i in order] == sorted(rows, key=lambda row: (-row[0], row[1], row[2]))


def test_groups_of_one_index_are_ordered_by_their_prompts():
    """verl gives every row index 0 where the data has none: then prompts order the groups (I11)."""
    keys, index = ["b_1_0", "a_0_0", "b_0_0", "a_1_0"], [0, 0, 0, 0]
    prompts = Ragged.from_rows([[5, 9], [5, 2, 7], [5, 9], [5, 2, 7]], np.int64)
    assert columns.shared_index(keys, index)
    assert not columns.shared_index(keys, [1, 0, 1, 0])
    for done in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 1, 3]):
        order = columns.canonical_order([keys[i] for i in done], index, prompts.take(np.array(done)))
        assert [keys[done[i]] for i in order] == ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]


def test_rollout_ranges_by_hand():
    """Sessions of 2, 1 and 1 rows. One uid may begin another."""
    assert columns.rollout_ranges(["a_0_0", "a_0_1", "a_1_0", "ab_1_0"]).tolist() == [0, 2, 3, 4]
    assert columns.rollout_ranges([]).tolist() == [0]


# ---- tabulate --------------------------------------------------------------------------------------------------------


def test_the_table_is_of_verls_own_numbers():
    """Rewards are given at the last token; |A| of 1 in 4 is 1.5 and .5 (over std 1/2)."""
    keys, made = make_columns([[1, 0, 0, 0], [0.5, 0.5, -1]], lengths=[3, 1, 2, 4, 1, 2, 5])
    table = columns.tabulate(keys, np.arange(8), made, born=np.full(7, 6), first_group=40)
    assert table.group.tolist() == [40, 40, 40, 40, 41, 41, 41]
    assert table.reward.tolist() == [1, 0, 0, 0, 0.5, 0.5, -1]
    np.testing.assert_allclose(table.advantage[:4], [1.5, -0.5, -0.5, -0.5], rtol=1e-5)
    np.testing.assert_allclose(table.group_std[:4], 0.5)
    np.testing.assert_allclose(table.group_std[4:], np.std([0.5, 0.5, -1], ddof=1))
    assert table.tokens.tolist() == [3, 1, 2, 4, 1, 2, 5]
    assert (table.born.tolist(), table.uses.tolist(), table.finite.all()) == ([6] * 7, [0] * 7, True)


def several_rows_a_session(masks):
    """Group a: session 0 of two rows, session 1 of one; rewards on the last row of each session."""
    keys = ["a_0_0", "a_0_1", "a_1_0"]
    scores = [np.zeros(3, np.float32), np.array([0, 1], np.float32), np.array([0, 0, 0], np.float32)]
    arrays = {
        "rm_scores": scores,
        "response_mask": masks,
        "advantages": verl_advantages(keys, scores, masks),
        "old_log_probs": [-np.ones(len(m), np.float32) for m in masks],
    }
    return keys, {name: Ragged.from_rows(rows, columns.dtype(name)) for name, rows in arrays.items()}


def test_a_session_of_several_rows_is_one_rollout():
    """verl scores the last trajectory of a session and gives all its rows that advantage: (1, 0) is +-.7071."""
    keys, made = several_rows_a_session([np.array([0, 1, 1]), np.array([0, 1]), np.array([1, 0, 1])])
    np.testing.assert_allclose(made["advantages"].row(0), [0, 0.70710, 0.70710], atol=1e-4)  # verl itself
    table = columns.tabulate(keys, columns.rollout_ranges(keys), made, born=np.zeros(2), first_group=0)
    assert table.reward.tolist() == [1, 0]
    np.testing.assert_allclose(table.advantage, [0.7071, -0.7071], atol=1e-4)
    assert table.tokens.tolist() == [3, 2]  # tokens with loss, of all rows
    assert table.group.tolist() == [0, 0]


def test_the_advantage_is_of_a_token_with_loss():
    """verl's advantages are 0 where the mask is 0: the first token may say nothing."""
    keys, made = several_rows_a_session([np.array([1, 1, 1]), np.array([0, 1]), np.array([0, 0, 1])])
    assert made["advantages"].row(1)[0] == made["advantages"].row(2)[0] == 0
    table = columns.tabulate(keys, columns.rollout_ranges(keys), made, born=np.zeros(2), first_group=0)
    np.testing.assert_allclose(table.advantage, [0.7071, -0.7071], atol=1e-4)


def test_a_rollout_without_a_token_with_loss_has_advantage_0():
    keys, made = several_rows_a_session([np.array([1, 1, 1]), np.array([0, 1]), np.array([0, 0, 0])])
    table = columns.tabulate(keys, columns.rollout_ranges(keys), made, born=np.zeros(2), first_group=0)
    assert (table.advantage[1], table.tokens.tolist()) == (0, [4, 0])


@pytest.mark.parametrize("name", ["rm_scores", "old_log_probs", "advantages"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_one_number_that_is_not_finite_marks_its_rollout(name, bad, row):
    """I10: in any of its rows, not only in the last."""
    keys, made = several_rows_a_session([np.ones(3, np.int64), np.ones(2, np.int64), np.ones(3, np.int64)])
    made[name].row(row)[-1] = bad
    table = columns.tabulate(keys, columns.rollout_ranges(keys), made, born=np.zeros(2), first_group=0)
    assert table.finite.tolist() == [row == 2, row != 2]


def test_one_uid_in_two_steps_is_two_groups():
    """O12: groups of a run are numbered on; a stored rollout never joins a fresh group."""
    first, second = make_table([[1, 0]], first_group=0), make_table([[1, 1]], first_group=1)
    assert not set(first.group.tolist()) & set(second.group.tolist())


# ---- back to verl ----------------------------------------------------------------------------------------------------


def test_null_rows_carry_no_loss():
    """I6."""
    names = columns.update_columns(config_of("token", True))
    rows = columns.null_rows(3, names, token=9)
    assert rows.count == 3 and rows.rollouts.tolist() == [0, 1, 2, 3]
    for name, column in rows.columns.items():
        assert column.lengths.tolist() == [1, 1, 1]
        assert column.values.dtype == columns.dtype(name)
        assert column.values.tolist() == [9 if name in ("prompts", "responses") else 0] * 3


def test_sequence_lengths():
    rows = make_rows(np.random.default_rng(0), 4)
    expected = [len(rows.columns["prompts"].row(i)) + len(rows.columns["responses"].row(i)) for i in range(rows.count)]
    assert columns.sequence_lengths(rows).tolist() == expected
    assert columns.sequence_lengths(Rows({}, np.zeros(1, np.int64))).tolist() == []


def test_to_fields_rebuilds_the_derived_columns():
    """input_ids = prompt + response; position_ids = 0, 1, 2, ..."""
    rows = Rows(
        {
            "prompts": Ragged.from_rows([[1, 2], [], [3]], np.int64),
            "responses": Ragged.from_rows([[4], [5, 6], []], np.int64),
        },
        np.array([0, 1, 3]),
    )
    fields = columns.to_fields(rows)
    assert [row.tolist() for row in fields["input_ids"].unbind()] == [[1, 2, 4], [5, 6], [3]]
    assert [row.tolist() for row in fields["position_ids"].unbind()] == [[0, 1, 2], [0, 1], [0]]
    assert [row.tolist() for row in fields["responses"].unbind()] == [[4], [5, 6], []]
    assert {name: fields[name].dtype for name in fields.keys()} == dict.fromkeys(fields.keys(), torch.int64)
    assert fields.batch_size == (3,)


@pytest.mark.parametrize("width", [6, 12])
def test_stored_rows_join_batches_of_any_width(width):
    """O5, I3, I5: stored at 8 tokens, drawn beside fresh responses of up to 6 or 12, prompts of 3 and 5: byte-equal."""
    rng = np.random.default_rng(0)

    def of(lengths, prompt):
        return Rows(
            {
                "prompts": Ragged.from_rows([rng.integers(3, 99, prompt) for _ in lengths], np.int64),
                "responses": Ragged.from_rows([rng.integers(3, 99, n) for n in lengths], np.int64),
                "response_mask": Ragged.from_rows([np.ones(n) for n in lengths], np.int64),
                "old_log_probs": Ragged.from_rows([-rng.random(n) for n in lengths], np.float32),
            },
            np.arange(len(lengths) + 1),
        )

    born, fresh = of([8, 8], 3), of([width, 2], 5)
    store = RolloutStore()
    store.append(born)
    joined = Rows.concat([fresh, store.gather(np.array([1, 0]))])
    assert rollouts_of(joined) == rollouts_of(fresh) + rollouts_of(born)[::-1]
    fields = columns.to_fields(joined)
    for name in born.columns:
        row = fields[name].unbind()[2].numpy()
        assert row.tobytes() == born.columns[name].row(1).tobytes()
    assert fields["input_ids"].offsets().tolist() == offsets_of(np.array([5 + width, 7, 11, 11])).tolist()
    assert fields["position_ids"].unbind()[3].tolist() == list(range(11))


def test_fields_are_read_back_byte_for_byte():
    """I5: to TransferQueue's form and back."""
    rows = make_rows(np.random.default_rng(3), 5)
    back = columns.read(columns.to_fields(rows), list(rows.columns))
    assert rollouts_of(Rows(back, rows.rollouts)) == rollouts_of(rows)
