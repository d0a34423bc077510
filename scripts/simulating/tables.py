"""A recording's steps as the tables that the transform decides on, with the advantages that verl itself computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from scripts.simulating.recording import Step
from verl_replay.ragged import Ragged
from verl_replay.table import RolloutTable
from verl_replay.trainers import columns


class Run(NamedTuple):
    """One run.

    Attributes:
        steps: step number -> its rollouts, ascending; groups are numbered through the run.
        prompt_tokens: (groups of the run,) int64.
    """

    steps: dict[int, RolloutTable]
    prompt_tokens: np.ndarray


def tabulate(steps: Sequence[Step], *, tokens: int, prompt_tokens: int, done: Callable[[], None]) -> Run:
    """The tables of one run.

    Args:
        steps: ascending.
        tokens, prompt_tokens: of every rollout and prompt, where the recording does not tell.
        done: called after each step.
    """
    tables: dict[int, RolloutTable] = {}
    prompts: list[np.ndarray] = []
    seen = 0
    for step in steps:
        table = _table(step, first_group=seen)
        lengths = np.full(len(table), tokens) if step.tokens is None else step.tokens
        groups = len(np.unique(step.group))
        prompts.append(np.full(groups, prompt_tokens) if step.prompt_tokens is None else step.prompt_tokens)
        tables[step.number] = replace(table, tokens=lengths)
        seen += groups
        done()
    return Run(tables, np.concatenate(prompts))


def _table(step: Step, *, first_group: int) -> RolloutTable:
    """Through verl's own advantage and the trainers' own tabulate. Each rollout is a row of one token with its reward:
    GRPO adds up the rewards of a response before anything else, so its length changes no advantage."""
    keys = [f"{group}_{i}_0" for i, group in enumerate(step.group.tolist())]
    each = np.arange(len(keys) + 1)
    with np.errstate(over="ignore"):  # infinite then, and dropped, as in training
        reward = step.reward.astype(np.float32)
    made = {
        columns.ADVANTAGE: Ragged(verl_advantage(keys, reward), each),
        columns.MASK: Ragged(np.ones(len(keys), np.int64), each),
        columns.SCORE: Ragged(reward, each),
    }
    return columns.tabulate(keys, each, made, born=np.full(len(keys), step.number), first_group=first_group)


def verl_advantage(keys: Sequence[str], reward: np.ndarray) -> np.ndarray:
    """(B,) float32: what verl's V1 trainer computes with algorithm.adv_estimator=grpo.

    Args:
        keys: verl's "{uid}_{session}_{trajectory}", one a rollout.
        reward: (B,) float32.
    """
    tensors = {
        "token_level_rewards": torch.from_numpy(reward.copy()).unsqueeze(1),  # copied: verl's formula writes into it
        "response_mask": torch.ones((len(keys), 1), dtype=torch.int64),
    }
    uids = np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})
    return compute_advantage_for_multi_trajectories(data, list(keys), "grpo").batch["advantages"][:, 0].numpy()
