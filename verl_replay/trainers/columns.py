"""Columns of verl's batch: which of them the update reads, and how they become ragged arrays and tensors again.

The only place that knows verl's column names. A column missing on any row of a TransferQueue request silently vanishes
for all rows, so the list is made once from the config and asserted on everything that is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict

from verl_replay.options import ReplayOptions
from verl_replay.ragged import Ragged, offsets_of
from verl_replay.store import Rows
from verl_replay.table import RolloutTable, group_statistics, reward_share

PROMPT, RESPONSE, MASK = "prompts", "responses", "response_mask"
ADVANTAGE, LOG_PROB = "advantages", "old_log_probs"
SCORE, REWARD = "rm_scores", "token_level_rewards"  # before and after verl's KL penalty in the reward
WEIGHT = "rollout_is_weights"  # multiplies the loss of each token
ROLLOUT_LOG_PROB = "rollout_log_probs"  # of the engine that sampled the tokens
INDEX = "index"  # of the prompt in its data set
DERIVED = ("input_ids", "position_ids")  # prompts + responses and 0, 1, 2, ...: rebuilt, never stored
_INTEGERS = (PROMPT, RESPONSE, MASK, "loss_mask", *DERIVED)


def weighted_by_verl(config: DictConfig) -> bool:
    """Whether verl's rollout correction writes importance weights."""
    correction = OmegaConf.select(config, "algorithm.rollout_correction")
    if correction is None or correction.get("rollout_is") is None or correction.get("bypass_mode", False):
        return False
    return bool(config.actor_rollout_ref.rollout.calculate_log_probs)


def optional_columns(config: DictConfig) -> tuple[str, ...]:
    """The columns that the update reads in some configurations only."""
    names = []
    if weighted_by_verl(config):
        names.append(WEIGHT)
    if config.actor_rollout_ref.actor.use_kl_loss:
        names.append("ref_log_prob")
    return tuple(names)


def update_columns(config: DictConfig) -> tuple[str, ...]:
    """The columns of verl's batch that this configuration's update reads and that cannot be rebuilt from others."""
    return (PROMPT, RESPONSE, MASK, "loss_mask", LOG_PROB, ADVANTAGE, *optional_columns(config))


def stored_columns(config: DictConfig, options: ReplayOptions) -> tuple[str, ...]:
    """The columns that a rollout keeps in the buffer."""
    return (*update_columns(config), *_birth_columns(options))


def decision_columns(config: DictConfig, options: ReplayOptions, *, reward: str) -> tuple[str, ...]:
    """The columns that a table is made of: every number that could be a NaN, and the mask."""
    return (ADVANTAGE, MASK, reward, LOG_PROB, *optional_columns(config), *_birth_columns(options))


def _birth_columns(options: ReplayOptions) -> tuple[str, ...]:
    return (ROLLOUT_LOG_PROB,) if options.importance == "decoupled" else ()


def dtype(name: str) -> np.dtype:
    """What verl keeps the column in."""
    return np.dtype(np.int64 if name in _INTEGERS else np.float32)


def read(data: TensorDict, names: Sequence[str]) -> dict[str, Ragged]:
    """The columns of what TransferQueue returned, sharing its memory.

    Raises:
        ValueError: a column is missing, of another dtype than verl's, or not one number a token.
    """
    check_present(names, data.keys())
    return {name: _read(name, data[name]) for name in names}


def check_present(names: Iterable[str], held: Iterable[str]) -> None:
    """Raise ValueError where a column that is needed is not held by every row."""
    held = set(held)
    missing = sorted(set(names) - held)
    if missing:
        raise ValueError(
            f"verl's batch lacks the columns {missing}, which this configuration's update reads; it has "
            f"{sorted(held)}. TransferQueue drops a column for every row when one row lacks it: look for the "
            "agent loop or the stage that does not write it on all rows, or set replay=off."
        )


def _read(name: str, column: Any) -> Ragged:
    if not isinstance(column, torch.Tensor):
        raise ValueError(
            f"column {name} must be one number a token, as verl writes it, got objects ({type(column).__name__}). "
            "Look for the agent loop or the stage that writes it, or set replay=off."
        )
    if column.is_nested and column.layout != torch.jagged:  # what TransferQueue makes of rows that differ in kind
        raise ValueError(
            f"column {name} must be {dtype(name)} on every row, as verl writes it, got rows of different dtypes or "
            "shapes. Look for the agent loop or the stage that writes it, or set replay=off."
        )
    got = str(column.dtype).removeprefix("torch.")
    if got != str(dtype(name)):
        raise ValueError(
            f"column {name} must be {dtype(name)}, as verl writes it, got {got}. "
            "Look for the agent loop or the stage that writes it, or set replay=off."
        )
    return to_ragged(column)


def check(columns: Mapping[str, Ragged], *, checked: Container[str] = ()) -> None:
    """Raise ValueError where columns of one response disagree in length, or hold what verl's update cannot take.

    Args:
        checked: columns whose numbers were checked before.
    """
    if PROMPT in columns:
        check_prompts(columns[PROMPT].lengths)
    of_response = {name: column for name, column in columns.items() if name != PROMPT}
    if not of_response:
        return
    like, first = next(iter(of_response.items()))
    for name, column in of_response.items():
        if not np.array_equal(column.offsets, first.offsets):
            lengths = f"{name} has {_some(column.lengths)} tokens a row, {like} {_some(first.lengths)}"
            raise ValueError(
                f"the columns of a response must have one number a token, but {lengths}. "
                "Look for the agent loop or the stage that writes them, or set replay=off."
            )
    for name in {MASK, "loss_mask"} & set(columns):
        mask = columns[name].values if name not in checked else ()
        if len(mask) and mask.view(np.uint64).max() > 1:  # less than 0 is more than 1, unsigned
            raise ValueError(
                f"{name} must hold 0 and 1, got {mask.min()} to {mask.max()}. "
                "Look for the agent loop or the stage that writes it, or set replay=off."
            )


def check_prompts(lengths: np.ndarray) -> None:
    """Raise ValueError where a prompt is empty: verl takes the log-prob of a token from the place before it."""
    if (lengths == 0).any():
        raise ValueError(
            f"every row must have a token of prompt, got none in {np.count_nonzero(lengths == 0)} of {len(lengths)} "
            "rows. Look at the data set's prompts, or set replay=off."
        )


def _some(lengths: np.ndarray) -> str:
    return str(lengths[:8].tolist()) + (" ..." if len(lengths) > 8 else "")


def to_ragged(column: torch.Tensor) -> Ragged:
    """(rows, jagged) or (rows, width) tensor -> Ragged. Shares memory with the tensor."""
    if column.is_nested:
        values = column.values()
        if values.dim() != 1:
            raise ValueError(
                f"a column must be one number a token, got a nested tensor of {tuple(values.shape)}: rows with images "
                "or other modalities are not supported. Use a text model, or set replay=off."
            )
        return Ragged(values.numpy(), column.offsets().numpy())
    if column.dim() != 2:
        raise ValueError(
            f"a column must be (rows, tokens), got {tuple(column.shape)}: rows with images or other modalities are not "
            "supported. Use a text model, or set replay=off."
        )
    rows, width = column.shape
    return Ragged(column.contiguous().view(-1).numpy(), np.arange(rows + 1) * width)


def to_nested(column: Ragged) -> torch.Tensor:
    """Ragged -> (rows, jagged) nested tensor, as verl's agent loop writes it."""
    least, greatest = (int(f(column.lengths)) if len(column) else 0 for f in (np.min, np.max))
    return torch.nested.nested_tensor_from_jagged(
        torch.from_numpy(column.values),
        torch.from_numpy(column.offsets),
        min_seqlen=least,
        max_seqlen=greatest,  # where torch does not know it, it pads every row to the length of all together
    )


def dataset_index(data: TensorDict) -> list[int]:
    """(rows,) number of each row's prompt in its data set. Raises ValueError where verl's batch has none."""
    if INDEX not in data.keys():
        raise ValueError(
            "verl's batch lacks the column index, by which rollouts are put into an order of their own. Give the data "
            "set's rows extra_info.index, as verl's own data preparation does, or set replay=off."
        )
    column = data[INDEX]  # a tensor, an array or a list, as the storage backend pleases
    return whole_numbers(column.tolist() if hasattr(column, "tolist") else list(column))


def whole_numbers(index: Sequence[Any]) -> list[int]:
    """The dataset indices as numbers. Raises ValueError naming the first that is none."""
    return [_whole(i) for i in index]


def _whole(index: Any) -> int:
    if isinstance(index, Integral) or isinstance(index, float) and index.is_integer():
        return int(index)
    if isinstance(index, str) and index.removeprefix("-").isdecimal():
        return int(index)
    raise ValueError(
        f"the column index must number the rows of the data set, got {index!r}. Give every row a whole number as "
        "extra_info.index, as verl's own data preparation does, or set replay=off."
    )


def check_keys(keys: Sequence[str]) -> None:
    """Raise ValueError where a key stands twice, or does not say session and trajectory."""
    if len(set(keys)) < len(keys):
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise ValueError(
            f"a row must be in verl's batch once, but key {twice!r} stands in it twice. Remove the copies."
        )
    for key in keys:
        if not (len(parts := key.rsplit("_", 2)) == 3 and all(map(_is_number, parts[1:]))):
            raise ValueError(
                f"a key of verl's batch must be uid_session_trajectory, the last two numbers, got {key!r}. "
                "Write rows under the keys of verl's agent loop, or set replay=off."
            )


def _is_number(text: str) -> bool:
    return text.isdecimal() and str(int(text)) == text  # "01" would be another session than "1", of the same number


def shared_index(keys: Sequence[str], index: Sequence[int]) -> bool:
    """Whether two groups have one dataset index, so that it does not order them (verl sets 0 where data has none)."""
    groups = _least([key.rsplit("_", 2)[0] for key in keys], index)
    return len(set(groups.values())) < len(groups)


def _least(groups: Sequence[str], values: Iterable[Any]) -> dict[str, Any]:
    """The least value of each group, groups in order of first appearance."""
    least: dict[str, Any] = {}
    for group, value in zip(groups, values, strict=True):
        least[group] = min(least.get(group, value), value)
    return least


def canonical_order(keys: Sequence[str], index: Sequence[int], prompts: Ragged | None = None) -> np.ndarray:
    """Order of rows that does not depend on which rollout finished first: by (dataset index, session, trajectory).

    Args:
        keys: verl's "{uid}_{session}_{trajectory}", one a row. uids are random, so they only keep groups together.
        index: dataset index of each row's prompt.
        prompts: tokens of each row's prompt, which order groups of one index. Needed where `shared_index` says so.

    Returns:
        (rows,) int64 permutation. Two groups of one prompt in one step keep the order of their first appearance. The
        rows of a group may differ in index and prompt (later trajectories of a session do); the least is the group's.
    """
    parts = [key.rsplit("_", 2) for key in keys]
    uids = [uid for uid, _, _ in parts]
    first = _least(uids, index)
    prompt = _least(uids, (prompts.row(i).tolist() for i in range(len(keys)))) if prompts else dict.fromkeys(first, [])
    by_rank = sorted(first, key=lambda uid: (first[uid], prompt[uid]))
    group = {uid: rank for rank, uid in enumerate(by_rank)}
    rank = [(group[uid], int(session), int(trajectory)) for uid, session, trajectory in parts]
    return np.array(sorted(range(len(keys)), key=rank.__getitem__), dtype=np.int64)


def rollout_ranges(keys: Sequence[str]) -> np.ndarray:
    """(N + 1,) row offsets of the rollouts (sessions) of rows in canonical order."""
    sessions = [key.rsplit("_", 1)[0] for key in keys]
    starts = [i for i, s in enumerate(sessions) if i == 0 or s != sessions[i - 1]]
    return np.array([*starts, len(sessions)], dtype=np.int64)


def tabulate(
    keys: Sequence[str],
    ranges: np.ndarray,
    columns: Mapping[str, Ragged],
    *,
    born: np.ndarray,
    first_group: int,
    order: np.ndarray | None = None,
    reward: str = SCORE,
) -> RolloutTable:
    """The table of rollouts.

    Args:
        keys: one a row, in canonical order.
        ranges: (N + 1,) row offsets of the rollouts, in that order.
        columns: those of decision_columns, one entry a row.
        born: (N,) int, t_b.
        first_group: number of the first group; the groups of a run are numbered on.
        order: (rows,) int64, where in `columns` each row is; in place where not given. So numbers are put in order, not
            tokens.
        reward: the column of token-level rewards that the advantage was made of.

    Returns:
        RolloutTable of N rollouts. verl scores the last trajectory of a session and gives all its rows that advantage.

    Raises:
        ValueError: as `check`.
    """
    check(columns)
    order = np.arange(len(keys)) if order is None else order
    last = ranges[1:] - 1
    uids = [keys[row].rsplit("_", 2)[0] for row in last.tolist()]
    seen: dict[str, int] = {}
    group = np.array([seen.setdefault(uid, len(seen)) for uid in uids], dtype=np.int64)
    rewards = _row_sums(columns[reward], np.float64)[order][last]
    finite = np.logical_and.reduce([_row_finite(column) for column in columns.values()])[order]
    return RolloutTable(
        group=first_group + group,
        reward=rewards,
        advantage=_first_where(columns[ADVANTAGE], columns[MASK])[order][last],
        group_std=group_statistics(group, rewards)[0],
        reward_share=reward_share(group, rewards),
        born=born,
        stored_at=np.zeros(len(last)),
        tokens=_range_sums(_row_sums(columns[MASK], np.int64)[order], ranges),
        uses=np.zeros(len(last)),
        finite=_range_sums(~finite, ranges) == 0,
    )


def _first_where(values: Ragged, mask: Ragged) -> np.ndarray:
    """(rows,) the value of each row's first token with loss; 0 where none has any (such a row moves nothing)."""
    first = np.zeros(len(mask), values.values.dtype)
    for row, (start, stop) in enumerate(zip(mask.offsets[:-1].tolist(), mask.offsets[1:].tolist(), strict=True)):
        if start < stop:
            at = start if mask.values[start] else start + int(np.argmax(mask.values[start:stop] != 0))
            if mask.values[at]:
                first[row] = values.values[at]
    return first


def with_loss(mask: Ragged) -> np.ndarray:
    """(rows,) bool: whether a row has a token with loss. Most begin with one; only the others are looked through."""
    loss = np.zeros(len(mask), dtype=bool)
    filled = mask.lengths > 0
    loss[filled] = mask.values[mask.offsets[:-1][filled]] > 0
    for row in np.flatnonzero(filled & ~loss).tolist():
        loss[row] = mask.row(row).any()
    return loss


def _range_sums(values: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    return np.diff(offsets_of(values)[ranges])


def _row_sums(column: Ragged, dtype: type) -> np.ndarray:
    sums = np.zeros(len(column), dtype)
    filled = column.lengths > 0  # reduceat would give an empty row the first token of the next
    if filled.any():
        sums[filled] = np.add.reduceat(column.values, column.offsets[:-1][filled], dtype=dtype)
    return sums


def _row_finite(column: Ragged) -> np.ndarray:
    finite = np.ones(len(column), dtype=bool)
    fine = np.isfinite(column.values)
    if not fine.all():
        finite[np.searchsorted(column.offsets, np.flatnonzero(~fine), side="right") - 1] = False
    return finite


def null_rows(count: int, names: Sequence[str], token: int) -> Rows:
    """Rows of one prompt and one response token with mask 0: they carry no loss and weigh nothing.

    Args:
        count: how many.
        names: the columns to make.
        token: any token the model knows; the pad or end token.
    """
    columns = {
        name: Ragged(np.full(count, token if name in (PROMPT, RESPONSE) else 0, dtype(name)), np.arange(count + 1))
        for name in names
    }
    return Rows(columns, np.arange(count + 1))


def of_no_rows(names: Iterable[str]) -> dict[str, Ragged]:
    """The named columns without a row."""
    return {name: Ragged(np.empty(0, dtype(name)), np.zeros(1, np.int64)) for name in names}


def sequence_lengths(rows: Rows) -> np.ndarray:
    """(rows,) int64: tokens of each row, prompt and response."""
    if not rows.count:
        return np.empty(0, dtype=np.int64)
    return rows.columns[PROMPT].lengths + rows.columns[RESPONSE].lengths


def with_derived(rows: Rows) -> Rows:
    """The same rows with the columns that are rebuilt from others."""
    prompts, responses = rows.columns[PROMPT], rows.columns[RESPONSE]
    lengths = sequence_lengths(rows)
    offsets = offsets_of(lengths)
    none = np.empty(0, np.int64)  # concatenate wants at least one part
    sequences = [part.row(i) for i in range(rows.count) for part in (prompts, responses)]
    input_ids = np.concatenate([none, *sequences])
    count = np.arange(lengths.max(initial=0))
    position_ids = np.concatenate([none, *(count[:length] for length in lengths.tolist())])
    derived = {"input_ids": Ragged(input_ids, offsets), "position_ids": Ragged(position_ids, offsets)}
    return Rows({**rows.columns, **derived}, rows.rollouts)


def to_fields(rows: Rows) -> TensorDict:
    """Rows -> the fields of a TransferQueue put, the derived columns included, in verl's dtypes."""
    columns = with_derived(rows).columns
    return TensorDict({name: to_nested(column) for name, column in columns.items()}, batch_size=rows.count)
