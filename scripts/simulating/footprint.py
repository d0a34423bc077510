"""Bytes of a buffer, from counts: what the real store needs for a rollout and for a token, measured on a small one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from omegaconf import OmegaConf

from verl_replay.buffer import RolloutBuffer
from verl_replay.options import ReplayOptions
from verl_replay.ragged import Ragged, offsets_of
from verl_replay.store import Rows
from verl_replay.table import RolloutTable
from verl_replay.trainers import columns

VOCABULARY = 151_936  # token ids that need more than a byte, as any model's do
_STOCK = OmegaConf.create(  # neither of what adds a column: a KL loss (4 bytes a token), rollout correction (4 more)
    {
        "algorithm": {"rollout_correction": None},
        "actor_rollout_ref": {"actor": {"use_kl_loss": False}, "rollout": {"calculate_log_probs": True}},
    }
)


class Footprint(NamedTuple):
    """Bytes of a RolloutBuffer, linear in what it holds. Rollouts that are evicted singly (uses, capacity) may hold
    their memory until they are 1/32 of a step's."""

    rollout: int
    prompt_token: int
    response_token: int
    step: int  # of a step that has rollouts stored

    def nbytes(self, *, rollouts: int, prompt_tokens: int, response_tokens: int, steps: int) -> int:
        return (
            self.rollout * rollouts
            + self.prompt_token * prompt_tokens
            + self.response_token * response_tokens
            + self.step * steps
        )


def measure(options: ReplayOptions) -> Footprint:
    """What a buffer of these options needs. Every rollout is one row, every response token carries loss."""
    names = columns.stored_columns(_STOCK, options)
    rollouts, prompt, response = 8, 5, 7  # the two differ, or their offsets would be kept once
    base = _nbytes(names, rollouts, prompt, response)
    prompt_token = (_nbytes(names, rollouts, prompt + 1, response) - base) // rollouts
    response_token = (_nbytes(names, rollouts, prompt, response + 1) - base) // rollouts
    tokens = prompt * prompt_token + response * response_token
    rollout = _nbytes(names, rollouts + 1, prompt, response) - base - tokens
    return Footprint(rollout, prompt_token, response_token, base - rollouts * (rollout + tokens))


def _nbytes(names: Sequence[str], rollouts: int, prompt: int, response: int) -> int:
    buffer = RolloutBuffer(capacity=rollouts, seed=0)
    buffer.add(
        RolloutTable.empty().concat([_blank(rollouts)]), make_rows(names, [prompt] * rollouts, [response] * rollouts)
    )
    return buffer.nbytes


def _blank(count: int) -> RolloutTable:
    nothing = np.zeros(count)
    return RolloutTable(**{name: nothing for name in vars(RolloutTable.empty())})


def make_rows(names: Sequence[str], prompts: Sequence[int], responses: Sequence[int]) -> Rows:
    """Rollouts of these lengths with any tokens, log-probs and advantages, and a mask of ones, in verl's own dtypes."""
    rng = np.random.default_rng(0)
    made = {}
    for name in names:
        offsets = offsets_of(np.array(prompts if name == columns.PROMPT else responses, dtype=np.int64))
        if name in (columns.PROMPT, columns.RESPONSE):
            values = rng.integers(0, VOCABULARY, size=offsets[-1])
            values[:1] = VOCABULARY - 1
        elif columns.dtype(name) == np.int64:
            values = np.ones(offsets[-1], np.int64)
        elif name == columns.ADVANTAGE:
            values = np.repeat(rng.standard_normal(len(offsets) - 1), np.diff(offsets)).astype(np.float32)
        else:
            values = rng.standard_normal(offsets[-1], dtype=np.float32)
        made[name] = Ragged(values, offsets)
    return Rows(made, np.arange(len(prompts) + 1))
