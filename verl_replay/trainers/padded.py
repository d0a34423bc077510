"""Padded columns of a DataProto, as verl's V0 trainer has them, to ragged rows and back.

A row of verl's is [prompt, padded on the left | response, padded on the right]; columns of the response have its width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto

from verl_replay.ragged import Ragged, offsets_of
from verl_replay.store import Rows
from verl_replay.trainers import columns

ATTENTION = "attention_mask"


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
    sources = {name: columns.MASK if name == "loss_mask" else name for name in names}  # verl derives one from the other
    missing = sorted({source for source in sources.values() if source not in batch.batch.keys()})
    if missing:
        raise ValueError(
            f"verl's batch lacks the columns {missing}, which this configuration's update reads; it has "
            f"{sorted(batch.batch.keys())}. Look for the stage that should write them, or set replay=off."
        )
    prompt, response = (length[rows] for length in lengths(batch))
    index = torch.from_numpy(np.asarray(rows, dtype=np.int64))
    made = {}
    for name, source in sources.items():
        padded = batch.batch[source]
        if padded.dim() != 2:
            raise ValueError(
                f"column {source} must be (rows, tokens), got {tuple(padded.shape)}: rows with images or other "
                "modalities are not supported. Use a text model, or set replay=off."
            )
        padded = padded[index].numpy()
        if padded.dtype != columns.dtype(name):
            if not (name in (columns.MASK, "loss_mask") and padded.dtype.kind in "biu"):
                raise ValueError(
                    f"column {source} must be {columns.dtype(name)}, as verl writes it, got {padded.dtype}. "
                    "Look for the stage that writes it, or set replay=off."
                )
            padded = padded.astype(columns.dtype(name))
        place, width = np.arange(padded.shape[1]), padded.shape[1]
        if name == columns.PROMPT:
            made[name] = Ragged(padded[place >= width - prompt[:, None]], offsets_of(prompt))
        else:
            made[name] = Ragged(padded[place < response[:, None]], offsets_of(response))
    return made


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
