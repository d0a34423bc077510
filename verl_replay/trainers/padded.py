"""Padded columns of a DataProto, as verl's V0 trainer has them, to ragged rows and back.

A row of verl's is [prompt, padded on the left | response, padded on the right]; columns of the response have its width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto

from verl_replay.ragged import Ragged, offsets_of
from verl_replay.store import Rows
from verl_replay.trainers import columns

ATTENTION = "attention_mask"
DERIVED = (ATTENTION, *columns.DERIVED)
_LOOK = "Look for the stage that writes it, or set replay=off."


def check(batch: DataProto, names: Sequence[str]) -> None:
    """Raise ValueError where the batch is not laid out as verl's is: what is read would then be other tokens.

    Args:
        names: the columns that will be read.
    """
    check_present((columns.PROMPT, columns.RESPONSE, *DERIVED, *map(_source, names)), batch)
    width = {name: _width(name, batch) for name in (columns.PROMPT, columns.RESPONSE, *DERIVED)}
    sequence = width[columns.PROMPT] + width[columns.RESPONSE]
    for name in DERIVED:
        if width[name] != sequence:
            raise ValueError(
                f"column {name} must be as wide as prompts and responses together, {sequence}, got {width[name]}. "
                f"{_LOOK}"
            )
    for name in names:
        _check_column(batch, name)
    _check_attention(batch)
    columns.check_prompts(lengths(batch)[0])
    _check_derived(batch, width[columns.PROMPT])


def check_present(names: Iterable[str], batch: DataProto) -> None:
    """Raise ValueError where the batch lacks a column."""
    held = set(batch.batch.keys()) if batch.batch is not None else set()
    if missing := sorted(set(names) - held):
        raise ValueError(
            f"verl's batch lacks the columns {missing}, which this configuration's update reads; it has "
            f"{sorted(held)}. Look for the stage that should write them, or set replay=off."
        )


def _width(name: str, batch: DataProto) -> int:
    column = batch.batch[name]
    if not isinstance(column, torch.Tensor) or column.is_nested or column.dim() != 2:
        got = tuple(column.shape) if isinstance(column, torch.Tensor) and not column.is_nested else type(column)
        raise ValueError(
            f"column {name} must be (rows, tokens), got {got}: rows with images or other modalities are not supported. "
            "Use a text model, or set replay=off."
        )
    return column.shape[1]


def _check_attention(batch: DataProto) -> None:
    mask = batch.batch[ATTENTION]
    if mask.dtype not in (torch.int64, torch.int32, torch.bool):
        raise ValueError(f"column {ATTENTION} must be int64, as verl writes it, got {mask.dtype}. {_LOOK}")
    prompt, response = (torch.from_numpy(length)[:, None] for length in lengths(batch))
    width = batch.batch[columns.PROMPT].shape[1]
    in_prompt = torch.arange(width) >= width - prompt
    in_response = torch.arange(mask.shape[1] - width) < response
    if not torch.equal(mask, torch.cat([in_prompt, in_response], dim=1).to(mask.dtype)):
        raise ValueError(
            f"{ATTENTION} must be 1 on a row's tokens, prompts padded on the left and responses on the right, and 0 "
            f"elsewhere, got a row with holes, padded elsewhere or of other numbers. {_LOOK}"
        )
    loss = batch.batch.get(columns.MASK)
    if loss is not None and loss.shape == in_response.shape and bool((loss.bool() & ~in_response).any()):
        raise ValueError(f"{columns.MASK} must be 0 where {ATTENTION} is 0, got a token of padding with loss. {_LOOK}")


def _check_derived(batch: DataProto, width: int) -> None:
    """input_ids and position_ids are rebuilt: they must be what they are rebuilt as."""
    ids, position = batch.batch["input_ids"], batch.batch["position_ids"]
    prompts, responses = batch.batch[columns.PROMPT], batch.batch[columns.RESPONSE]
    if not (torch.equal(ids[:, :width], prompts) and torch.equal(ids[:, width:], responses)):
        raise ValueError(f"input_ids must be prompts and responses side by side, got other tokens. {_LOOK}")
    prompt, response = (torch.from_numpy(length) for length in lengths(batch))
    rows, first, last = torch.arange(len(ids)), width - prompt, width + response - 1
    counted = (position[rows, first] == 0) & (position[rows, last] == last - first)
    if not bool(counted.all()):
        raise ValueError(f"position_ids must count the tokens of a row from 0, got others. {_LOOK}")


def lengths(batch: DataProto) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) int64 tokens of each prompt and of each response."""
    mask = batch.batch[ATTENTION]
    width = batch.batch[columns.PROMPT].shape[1]
    return mask[:, :width].sum(-1).numpy(), mask[:, width:].sum(-1).numpy()


def read(batch: DataProto, names: Sequence[str], rows: np.ndarray) -> dict[str, Ragged]:
    """The columns of the rows at `rows` ((K,) int), copied, padding taken off.

    Raises:
        ValueError: a column is missing, of another shape or of another dtype than verl's.
    """
    check_present(map(_source, names), batch)
    prompt, response = (length[rows] for length in lengths(batch))
    return {name: _read(batch, name, rows, prompt if name == columns.PROMPT else response) for name in names}


def _source(name: str) -> str:
    return columns.MASK if name == "loss_mask" else name  # verl derives one from the other


def _check_column(batch: DataProto, name: str) -> None:
    source = _source(name)
    width = _width(source, batch)
    expected = batch.batch[columns.PROMPT if name == columns.PROMPT else columns.RESPONSE].shape[1]
    if width != expected:
        raise ValueError(f"column {source} must be as wide as the responses, {expected}, got {width}. {_LOOK}")
    got = str(batch.batch[source].dtype).removeprefix("torch.")
    is_mask = source == columns.MASK and got in ("bool", "uint8", "int8", "int16", "int32")
    if got != str(columns.dtype(name)) and not is_mask:
        raise ValueError(f"column {source} must be {columns.dtype(name)}, as verl writes it, got {got}. {_LOOK}")


def _read(batch: DataProto, name: str, rows: np.ndarray, length: np.ndarray) -> Ragged:
    _check_column(batch, name)
    padded = batch.batch[_source(name)][torch.from_numpy(np.asarray(rows, dtype=np.int64))].numpy()
    place, width = np.arange(padded.shape[1]), padded.shape[1]
    where = place >= width - length[:, None] if name == columns.PROMPT else place < length[:, None]
    return Ragged(padded[where].astype(columns.dtype(name), copy=False), offsets_of(length))


def to_dataproto(rows: Rows, *, prompt_width: int, response_width: int, pad_token: int, meta_info: dict) -> DataProto:
    """Rows -> the padded columns of a DataProto, those derived from others included. Wider where a row needs it."""
    prompt, response = (rows.columns[name].lengths for name in (columns.PROMPT, columns.RESPONSE))
    prompt_width = max(prompt_width, int(prompt.max(initial=0)))
    response_width = max(response_width, int(response.max(initial=0)))
    in_prompt = np.arange(prompt_width) >= prompt_width - prompt[:, None]
    in_response = np.arange(response_width) < response[:, None]

    padded = {}
    for name, column in rows.columns.items():
        if name == "loss_mask":  # verl derives it from response_mask
            continue
        where = in_prompt if name == columns.PROMPT else in_response
        fill = pad_token if name in (columns.PROMPT, columns.RESPONSE) else 0
        padded[name] = np.full(where.shape, fill, column.values.dtype)
        padded[name][where] = column.values
    attention = np.concatenate([in_prompt, in_response], axis=1).astype(np.int64)
    padded["input_ids"] = np.concatenate([padded[columns.PROMPT], padded[columns.RESPONSE]], axis=1)
    padded[ATTENTION] = attention
    padded["position_ids"] = np.maximum(np.cumsum(attention, axis=1) - 1, 0)
    tensors = {name: torch.from_numpy(values) for name, values in padded.items()}
    return DataProto(
        batch=TensorDict(tensors, batch_size=rows.count),
        meta_info={**meta_info, "global_token_num": (prompt + response).tolist()},
    )
