"""Made-up training steps: small rollouts, and now and then everything that happens once in a long run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from scripts.benchmark.rollouts import VOCABULARY, Batch
from verl_replay.ragged import Ragged, offsets_of
from verl_replay.trainers import columns

GROUPS, GROUP_SIZE = 8, 8
UPDATES = 4  # optimizer steps a training step
ROWS_OF_MINI_BATCH = GROUPS * GROUP_SIZE // UPDATES
ODDS = {  # of a step
    "no survivors": 0.01,  # all groups without variance
    "one group": 0.01,  # that survives
    "NaN": 0.02,  # one log-prob of one rollout
    "infinite reward": 0.01,
    "gap": 0.01,  # up to 24 steps missing
    "second update": 0.02,  # of the same step
    "late": 0.03,  # one group was born up to 12 steps ago
    "very long": 0.02,  # one response of 1,000 to 4,000 tokens
    "lone rollout": 0.02,  # a group of one
    "uneven groups": 0.03,  # of 2 to 8
    "several rows": 0.5,  # of a tenth of the rollouts
    "without loss": 0.02,  # a rollout all of whose tokens are masked
    "cut off": 0.01,  # nine of ten rows are masked
    "empty row": 0.01,  # a trajectory without a token, before the one that is scored
}


class Step(NamedTuple):
    """One update's fresh rollouts.

    Attributes:
        step: t.
        happened: what of ODDS did.
        batch: the rows in canonical order.
        batch_rows: of verl's own batch, which pads to whole mini-batches.
        done: (rows,) int64, the order in which they finished.
        ranges: (B + 1,) row offsets of the rollouts.
        group: (B,) int64, 0, 1, ... in this step.
        born: (B,) int64, t_b.
        reward: (B,) float32.
    """

    step: int
    happened: Collection[str]
    batch: Batch
    batch_rows: int
    done: np.ndarray
    ranges: np.ndarray
    group: np.ndarray
    born: np.ndarray
    reward: np.ndarray


def make_steps(
    rng: np.random.Generator, count: int, names: Sequence[str], odds: Mapping[str, float] = ODDS
) -> Iterator[Step]:
    """`count` updates with the named columns of verl's batch."""
    step = 0
    for number in range(count):
        happened = {event for event, p in odds.items() if rng.random() < p}
        if not step or "second update" not in happened:
            step += 1 + (int(rng.integers(1, 25)) if "gap" in happened else 0)
        yield make_step(rng, step, names, happened, name=f"update{number}")


def make_step(
    rng: np.random.Generator, step: int, names: Sequence[str], happened: Collection[str], *, name: str
) -> Step:
    sizes = np.full(GROUPS, GROUP_SIZE)
    if "uneven groups" in happened:
        sizes = rng.integers(2, GROUP_SIZE + 1, size=GROUPS)
    if "lone rollout" in happened:
        sizes[rng.integers(GROUPS)] = 1
    group = np.repeat(np.arange(GROUPS), sizes)
    reward = make_rewards(rng, group, happened)
    born = np.full(len(group), step)
    if "late" in happened:
        born[group == rng.integers(GROUPS)] = max(1, step - int(rng.integers(1, 13)))
    rows = 1 + (rng.random(len(group)) < (0.1 if "several rows" in happened else 0))
    if "empty row" in happened:
        rows[rng.integers(len(rows))] = 2
    ranges = offsets_of(rows)
    made = make_columns(rng, ranges, reward, advantages(reward, group), happened)
    within = np.arange(len(group)) - offsets_of(sizes)[group]
    keys = [f"{name}x{group[i]}_{within[i]}_{row}" for i, n in enumerate(rows.tolist()) for row in range(n)]
    batch = Batch(keys, np.repeat(group, rows).tolist(), {column: made[column] for column in names})
    batch_rows = -(-len(keys) // ROWS_OF_MINI_BATCH) * ROWS_OF_MINI_BATCH
    return Step(step, happened, batch, batch_rows, rng.permutation(len(keys)), ranges, group, born, reward)


def make_rewards(rng: np.random.Generator, group: np.ndarray, happened: Collection[str]) -> np.ndarray:
    """(B,) float32: 0 and 1 at a pass rate of each group's own, in some groups partial credit; 4 of 10 groups alike."""
    alike = (rng.random(GROUPS) < 0.4) | bool({"no survivors", "one group"} & set(happened))
    if "one group" in happened:
        alike[rng.integers(GROUPS)] = False
    rate = np.where(alike, rng.integers(0, 2, size=GROUPS), rng.random(GROUPS))[group]
    reward = (rng.random(len(group)) < rate).astype(np.float32)
    partial = ((rng.random(GROUPS) < 0.1) & ~alike)[group] & (rng.random(len(group)) < 0.3)
    reward[partial] = 0.3
    if "infinite reward" in happened:
        reward[rng.integers(len(reward))] = rng.choice([np.inf, -np.inf, np.nan])
    return reward


def advantages(reward: np.ndarray, group: np.ndarray) -> np.ndarray:
    """(B,) float32: what verl's own GRPO makes of the rewards."""
    scores = torch.from_numpy(reward.copy())[:, None]
    return compute_grpo_outcome_advantage(scores, torch.ones_like(scores), group)[0][:, 0].numpy()


def make_columns(
    rng: np.random.Generator, ranges: np.ndarray, reward: np.ndarray, advantage: np.ndarray, happened: Collection[str]
) -> dict[str, Ragged]:
    """Every column a stage may read. Prompts of 4 to 12 tokens, responses of 8 to 40; a tenth of them call tools."""
    rows, last = int(ranges[-1]), ranges[1:] - 1
    prompt = offsets_of(rng.integers(4, 13, size=rows))
    length = rng.integers(8, 41, size=rows)
    if "very long" in happened:
        length[rng.integers(rows)] = rng.integers(1_000, 4_001)
    if "empty row" in happened:
        length[rng.choice(ranges[:-1][np.diff(ranges) > 1])] = 0
    response = offsets_of(length)
    tokens = int(response[-1])
    row = np.repeat(np.arange(rows), length)
    mask = ((rng.random(rows) >= 0.1)[row] | (rng.random(tokens) < 0.5)).astype(np.int64)
    if "without loss" in happened:
        mask[row == rng.choice(last)] = 0
    if "cut off" in happened:
        mask[(rng.random(rows) < 0.9)[row]] = 0
    score = np.zeros(tokens, np.float32)
    score[response[last + 1] - 1] = reward
    log_prob = -rng.random(tokens, dtype=np.float32)
    if "NaN" in happened:
        log_prob[rng.integers(tokens)] = np.nan
    of_row = np.repeat(advantage, np.diff(ranges))
    return {
        columns.PROMPT: Ragged(rng.integers(0, VOCABULARY, size=prompt[-1]), prompt),
        columns.RESPONSE: Ragged(rng.integers(0, VOCABULARY, size=tokens), response),
        columns.MASK: Ragged(mask, response),
        "loss_mask": Ragged(mask.copy(), response),
        columns.LOG_PROB: Ragged(log_prob, response),
        columns.ROLLOUT_LOG_PROB: Ragged(log_prob + rng.normal(0, 0.01, tokens).astype(np.float32), response),
        columns.ADVANTAGE: Ragged(of_row[row] * mask.astype(np.float32), response),
        columns.SCORE: Ragged(score, response),
    }
