"""Rollouts of a run of the paper's kind, made up: the columns that verl's batch has, in verl's own dtypes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from verl_replay.ragged import Ragged, offsets_of
from verl_replay.trainers import columns

VOCABULARY = 151_936


@dataclass(frozen=True)
class Size:
    """What one step and the buffer hold.

    Attributes:
        groups, group_size: prompts a step and rollouts of each.
        mixed: groups whose rewards are not all equal, so that they survive the filter; the others have zero variance.
        stored: rollouts in the buffer when it is full, to within one step's survivors above it.
        drawn: stored rollouts drawn a step.
        prompt: least and greatest length of a prompt, tokens; uniform between.
        response: mean and greatest length of a response, tokens; gamma distributed (shape 2), cut.
        measured: steps that are timed.
    """

    groups: int = 128
    group_size: int = 8
    mixed: int = 58
    stored: int = 30_000
    drawn: int = 512
    prompt: tuple[int, int] = (384, 640)
    response: tuple[int, int] = (1_200, 4_096)
    measured: int = 31

    @property
    def rows(self) -> int:
        return self.groups * self.group_size

    @property
    def survivors(self) -> int:
        return self.mixed * self.group_size

    @property
    def max_age(self) -> int:
        """Steps after which age eviction takes away one step's survivors for every step's that come."""
        return -(-self.stored // self.survivors)

    def with_groups(self, groups: int) -> Size:
        """The same with another number of groups, survivors and drawn rollouts in proportion."""
        share = groups / self.groups
        return replace(self, groups=groups, mixed=round(self.mixed * share), drawn=round(self.drawn * share))


QUICK = Size(groups=4, mixed=2, stored=600, drawn=10, measured=3)  # about 1/50


class Batch(NamedTuple):
    """One step's rollouts, one row each, in the order in which they finished.

    Attributes:
        keys: verl's "{uid}_{session}_{trajectory}".
        index: number of each row's prompt in the data set.
        columns: those that the stage reads.
    """

    keys: list[str]
    index: list[int]
    columns: dict[str, Ragged]

    def take(self, rows: np.ndarray) -> Batch:
        picked = {name: column.take(rows) for name, column in self.columns.items()}
        return Batch([self.keys[i] for i in rows.tolist()], [self.index[i] for i in rows.tolist()], picked)


def make_batch(size: Size, rng: np.random.Generator, *, name: str, tool_calls: bool = False) -> Batch:
    """One step's fresh rollouts: binary rewards, advantages as GRPO has them, any tokens.

    Args:
        name: of the step; uids begin with it.
        tool_calls: a third of the response tokens, in runs of 50, came from a tool and carry no loss.
    """
    prompt = np.repeat(rng.integers(size.prompt[0], size.prompt[1] + 1, size=size.groups), size.group_size)
    mean, most = size.response
    response = np.clip(rng.gamma(2.0, mean / 2 * 1.01, size=size.rows).astype(np.int64), 16, most)
    offsets = offsets_of(response)
    reward, advantage = make_rewards(size, rng)
    score = np.zeros(offsets[-1], np.float32)
    score[offsets[1:] - 1] = reward
    mask = np.ones(offsets[-1], np.int64)
    if tool_calls:
        mask = (np.arange(offsets[-1]) // 50 % 3 > 0).astype(np.int64)
    made = {
        columns.PROMPT: Ragged(rng.integers(0, VOCABULARY, size=prompt.sum()), offsets_of(prompt)),
        columns.RESPONSE: Ragged(rng.integers(0, VOCABULARY, size=offsets[-1]), offsets),
        columns.MASK: Ragged(mask, offsets),
        "loss_mask": Ragged(mask.copy(), offsets),
        columns.LOG_PROB: Ragged(-rng.random(offsets[-1], dtype=np.float32), offsets),
        columns.ADVANTAGE: Ragged(np.repeat(advantage, response), offsets),
        columns.SCORE: Ragged(score, offsets),
    }
    groups, sessions = np.divmod(np.arange(size.rows), size.group_size)
    keys = [f"{name}x{g}_{s}_0" for g, s in zip(groups.tolist(), sessions.tolist(), strict=True)]
    return Batch(keys, groups.tolist(), made).take(rng.permutation(size.rows))


def make_rewards(size: Size, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) float32 binary rewards, of which `size.mixed` groups hold both, and (rows,) float32 advantages."""
    right = np.where(rng.random(size.groups) < 0.5, 0, size.group_size)
    right[: size.mixed] = rng.integers(1, size.group_size, size=size.mixed)
    rewards = (np.arange(size.group_size) < rng.permutation(right)[:, None]).astype(np.float64)
    deviation = rewards.std(axis=1, ddof=1, keepdims=True)
    advantage = (rewards - rewards.mean(axis=1, keepdims=True)) / (deviation + 1e-6)
    return rewards.ravel().astype(np.float32), advantage.ravel().astype(np.float32)


def survivors(batch: Batch) -> np.ndarray:
    """(rows,) int64: rows of groups whose rewards are not all equal."""
    advantage = batch.columns[columns.ADVANTAGE]
    return np.flatnonzero(advantage.values[advantage.offsets[:-1]])


def information(stored: dict[str, Ragged]) -> int:
    """Bytes that these rows cannot do without: an int32 a token, and for every response token a float32 log-prob and
    one bit of mask."""
    prompt, response = (len(stored[name].values) for name in (columns.PROMPT, columns.RESPONSE))
    return 4 * (prompt + response) + 4 * response + -(-response // 8)
