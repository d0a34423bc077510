"""Makers shared by the tests of the pure core. Advantages come from verl's own compute_advantage, never from a hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from verl import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from verl_replay.options import ReplayOptions
from verl_replay.ragged import Ragged, offsets_of
from verl_replay.store import Rows
from verl_replay.table import RolloutTable
from verl_replay.trainers import columns

repeatable = settings(derandomize=True, deadline=None, max_examples=60, database=None)  # hypothesis: one seed, no clock

DEFAULTS: dict[str, Any] = {  # METHOD's settings, without the warm-up
    "enabled": True,
    "ratio": 0.5,
    "max_age": 10,
    "max_uses": 4,
    "capacity": 30_000,
    "warmup_steps": 0,
    "seed": 0,
    "unit": "rollout",
    "filter": "zero_variance",
    "eviction": "age",
    "priority": "abs_advantage",
    "priority_exponent": 0.5,
    "priority_eps": 1e-6,
    "priority_decay_steps": 5.0,
    "sampler": "proportional",
    "replacement": False,
    "importance_sampling_exponent": 0.0,
    "composition": "fresh_anchored",
    "importance": "behavior",
    "importance_cap": 2.0,
    "resume": "auto",
    "diagnostics_every": 0,
}


def make_options(**changes: Any) -> ReplayOptions:
    return ReplayOptions.from_config({**DEFAULTS, **changes})


# ---- tables ----------------------------------------------------------------------------------------------------------


def verl_advantages(
    keys: Sequence[str], scores: Sequence[np.ndarray], masks: Sequence[np.ndarray], estimator: str = "grpo"
) -> list[np.ndarray]:
    """What verl's V1 trainer makes of rows of token scores: one float32 array a row, padding taken off.

    Args:
        keys: "{uid}_{session}_{trajectory}", one a row.
        scores: one (tokens,) array a row.
        masks: one (tokens,) array a row.
    """
    pad = torch.nn.utils.rnn.pad_sequence
    tensors = {
        "token_level_rewards": pad([torch.tensor(s, dtype=torch.float32) for s in scores], batch_first=True),
        "response_mask": pad([torch.tensor(m, dtype=torch.int64) for m in masks], batch_first=True),
    }
    uids = np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})
    data = compute_advantage_for_multi_trajectories(data, list(keys), estimator)
    return [row[: len(mask)].numpy() for row, mask in zip(data.batch["advantages"], masks, strict=True)]


def make_columns(
    rewards: Sequence[Sequence[float]],
    *,
    lengths: Sequence[int] | None = None,
    estimator: str = "grpo",
    rng: np.random.Generator | None = None,
) -> tuple[list[str], dict[str, Ragged]]:
    """Keys and columns of one step's batch in canonical order, one row a rollout, as verl's V1 trainer has them.

    Args:
        rewards: (groups, G), G may differ. Given at the last token, as verl's reward loop does.
        lengths: (rows,) response tokens; 1, 2, 3, 1, 2, 3, ... where not given.
        rng: of tokens and log-probs.
    """
    rng = rng or np.random.default_rng(0)
    keys = [f"uid{g}_{s}_0" for g, group in enumerate(rewards) for s in range(len(group))]
    flat = [float(r) for group in rewards for r in group]
    lengths = [1 + i % 3 for i in range(len(flat))] if lengths is None else list(lengths)
    scores = [np.array([0.0] * (n - 1) + [r], dtype=np.float32) for r, n in zip(flat, lengths, strict=True)]
    masks = [np.ones(n, dtype=np.int64) for n in lengths]
    rows = {
        "prompts": [rng.integers(0, 151_936, size=1 + i % 4) for i in range(len(flat))],
        "responses": [rng.integers(0, 151_936, size=n) for n in lengths],
        "response_mask": masks,
        "loss_mask": masks,
        "rm_scores": scores,
        "old_log_probs": [-rng.random(n, dtype=np.float32) for n in lengths],
        "advantages": verl_advantages(keys, scores, masks, estimator) if keys else [],
    }
    return keys, {name: Ragged.from_rows(arrays, columns.dtype(name)) for name, arrays in rows.items()}


def make_table(rewards: Sequence[Sequence[float]], *, born: int = 1, first_group: int = 0, **options) -> RolloutTable:
    """A table of groups of rewards, with the advantages that verl gives them. Options as of make_columns."""
    keys, made = make_columns(rewards, **options)
    ranges = np.arange(len(keys) + 1)
    return columns.tabulate(keys, ranges, made, born=np.full(len(keys), born), first_group=first_group)


def binary_groups(rng: np.random.Generator, groups: int, size: int) -> list[list[float]]:
    """Rewards 0 and 1 at a pass rate of its own for each group; some groups come out with zero variance."""
    rates = rng.random(groups)
    return [(rng.random(size) < rate).astype(float).tolist() for rate in rates]


def numbers(table: RolloutTable) -> list[dict[str, Any]]:
    """The table as a list of dicts, one a rollout."""
    return [{name: column[i].item() for name, column in vars(table).items()} for i in range(len(table))]


# ---- rows ------------------------------------------------------------------------------------------------------------

DTYPES = {
    "prompts": np.int64,
    "responses": np.int64,
    "response_mask": np.int64,
    "old_log_probs": np.float32,
    "advantages": np.float32,
}


def any_bits(rng: np.random.Generator, count: int) -> np.ndarray:
    """(count,) float32 of any bit pattern: NaN with payloads, infinities, denormals, -0.0."""
    return rng.integers(0, 2**32, size=count, dtype=np.uint32).view(np.float32)


def make_rows(rng: np.random.Generator, rollouts: int, *, max_rows: int = 2, max_tokens: int = 6) -> Rows:
    """Random rows in verl's dtypes: rollouts of 1..max_rows rows of 0..max_tokens tokens, any bits."""
    counts = rng.integers(1, max_rows + 1, size=rollouts)
    total = int(counts.sum())
    prompt, response = rng.integers(0, max_tokens + 1, size=(2, total))
    made = {
        "prompts": [rng.integers(0, 200, size=n) for n in prompt],  # fits uint8
        "responses": [rng.integers(0, 151_936, size=n) for n in response],
        "response_mask": [
            np.full(n, rng.integers(0, 2)) if i % 3 else rng.integers(0, 2, n) for i, n in _each(response)
        ],
        "old_log_probs": [any_bits(rng, n) for n in response],
        "advantages": [np.repeat(any_bits(rng, 1), n) for n in response],
    }
    return Rows({name: Ragged.from_rows(rows, DTYPES[name]) for name, rows in made.items()}, offsets_of(counts))


def _each(lengths: np.ndarray) -> enumerate:
    return enumerate(lengths.tolist())


def id_rows(ids: Sequence[int] | np.ndarray) -> Rows:
    """Rollouts of one row of one token, a number to know them by."""
    return Rows({"id": Ragged(np.array(ids, dtype=np.int64), np.arange(len(ids) + 1))}, np.arange(len(ids) + 1))


def rollouts_of(rows: Rows) -> list[dict[str, list[tuple[str, bytes]]]]:
    """The rollouts one by one: of every column the rows, each as its dtype and its bytes."""
    return [
        {
            name: [(str(column.values.dtype), column.row(row).tobytes()) for row in range(first, last)]
            for name, column in rows.columns.items()
        }
        for first, last in zip(rows.rollouts[:-1].tolist(), rows.rollouts[1:].tolist(), strict=True)
    ]


def scramble(columns_: Mapping[str, Ragged]) -> None:
    """Overwrite every value in place: what was copied before must not notice."""
    for column in columns_.values():
        column.values[...] = 77
