"""RolloutTable: the few numbers of a rollout that every policy decides on.

One entry a rollout (a session: one sampled answer, usually one row of verl's batch, several when an agent loop returns
several). No tokens, no torch, no verl: policies are pure functions of this table, and tokens move by index elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

# Share of the group's largest |reward|: some eight float32 steps, so sums that differ in their last digits are equal.
ROUNDING = 1e-6

_DTYPES = {
    "group": np.int64,
    "reward": np.float64,
    "advantage": np.float64,
    "group_std": np.float64,
    "reward_share": np.float64,
    "born": np.int64,
    "stored_at": np.int64,
    "tokens": np.int64,
    "uses": np.int64,
    "finite": np.bool_,
}


@dataclass(frozen=True)
class RolloutTable:
    """Columns of equal length N, one entry a rollout. Everything but `uses` and `stored_at` is frozen at birth.

    Attributes:
        group: (N,) int64. Rollouts of one prompt in one step share a number; no two groups of a run share one.
        reward: (N,) float64. Outcome reward (the sum of verl's token-level scores).
        advantage: (N,) float64. A_i, the group-relative advantage at birth.
        group_std: (N,) float64. sigma_g, standard deviation of the group's rewards (unbiased, as verl's GRPO).
        reward_share: (N,) float64. Share of the rollout's group that has its reward; 1 / G where no other has.
        born: (N,) int64. t_b, the step whose update the rollout was born into.
        stored_at: (N,) int64. The step that stored it, which never draws it; 0 while fresh. Where several updates make
            one step, or rollouts arrive late, it differs from `born`.
        tokens: (N,) int64. Response tokens that carry loss.
        uses: (N,) int64. How often the rollout has been drawn from the buffer.
        finite: (N,) bool. False where a column that the update reads holds NaN or infinity.
    """

    group: np.ndarray
    reward: np.ndarray
    advantage: np.ndarray
    group_std: np.ndarray
    reward_share: np.ndarray
    born: np.ndarray
    stored_at: np.ndarray
    tokens: np.ndarray
    uses: np.ndarray
    finite: np.ndarray

    def __post_init__(self) -> None:
        for name, dtype in _DTYPES.items():
            column = np.asarray(getattr(self, name), dtype=dtype)
            if column.shape != np.shape(self.group)[:1]:
                raise ValueError(f"RolloutTable.{name} must be (N,) = {np.shape(self.group)[:1]}, got {column.shape}")
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.group)

    def take(self, index: np.ndarray) -> RolloutTable:
        """The rollouts at `index` ((K,) int, or (N,) bool), as copies."""
        return RolloutTable(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def stored(self, step: int) -> RolloutTable:
        """The same rollouts, stored at `step`."""
        return replace(self, stored_at=np.full(len(self), step))

    def age(self, step: int) -> np.ndarray:
        """(N,) int64: step - t_b, in trainer steps."""
        return step - self.born

    @staticmethod
    def empty() -> RolloutTable:
        return RolloutTable(**{name: np.empty(0, dtype) for name, dtype in _DTYPES.items()})

    @staticmethod
    def concat(tables: Sequence[RolloutTable]) -> RolloutTable:
        """The tables one after another; of no tables, the empty table."""
        if not tables:
            return RolloutTable.empty()
        return RolloutTable(**{name: np.concatenate([getattr(t, name) for t in tables]) for name in _DTYPES})


def group_statistics(group: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unbiased standard deviation, least and greatest value of each rollout's group.

    Args:
        group: (N,) int, any numbers.
        values: (N,) float.

    Returns:
        Three (N,) float64 arrays (std, least, greatest). A group of one has standard deviation 0.
    """
    values = np.asarray(values, dtype=np.float64)
    if not len(values):
        return values, values, values
    _, inverse, counts = np.unique(group, return_inverse=True, return_counts=True)
    with np.errstate(invalid="ignore"):  # a group with an infinite reward: NaN here, dropped by finite_groups
        mean = np.bincount(inverse, weights=values) / counts
        square = np.bincount(inverse, weights=(values - mean[inverse]) ** 2)
    std = np.sqrt(square / np.maximum(counts - 1, 1))
    least = np.full(len(counts), np.inf)
    greatest = np.full(len(counts), -np.inf)
    with np.errstate(invalid="ignore"):
        np.minimum.at(least, inverse, values)
        np.maximum.at(greatest, inverse, values)
    return std[inverse], least[inverse], greatest[inverse]


def reward_share(group: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """Share of each rollout's group whose reward is the same, up to rounding. 3 of 4 wrong: 3/4 each, and 1/4.

    Args:
        group: (N,) int, any numbers.
        reward: (N,) float.

    Returns:
        (N,) float64 in (0, 1]. Rewards are the same where neighbours in order differ by at most 1e-6 of the group's
        largest |reward|.
    """
    reward = np.asarray(reward, dtype=np.float64)
    if not len(reward):
        return reward
    _, inverse, counts = np.unique(group, return_inverse=True, return_counts=True)
    _, least, greatest = group_statistics(inverse, reward)
    order = np.lexsort((reward, inverse))
    with np.errstate(invalid="ignore"):  # infinite rewards: finite_groups drops them
        apart = np.diff(reward[order]) > ROUNDING * np.maximum(np.abs(least), np.abs(greatest))[order][1:]
    other_group = np.diff(inverse[order]) != 0
    level = np.empty(len(reward), dtype=np.int64)
    level[order] = np.concatenate([[0], np.cumsum(apart | other_group)])
    return np.bincount(level)[level] / counts[inverse]
