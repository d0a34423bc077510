"""Draws by weight without replacement, ours and others', of the same weights |A|^0.5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from scripts.benchmark.rollouts import Size, make_rewards
from scripts.benchmark.timing import Report, milliseconds
from verl_replay import drawing, samplers

REPEATS = 15
EXPONENT = 0.5
TORCH_MOST = 2**24  # torch.multinomial refuses more


def advantages(size: Size, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count,) float64 of stored rollouts: those of groups with both rewards, step after step."""
    steps = -(-count // size.survivors)
    made = np.concatenate([make_rewards(size, rng)[1] for _ in range(steps)])
    return made[made != 0][:count].astype(np.float64)


def ways_to_draw(advantage: np.ndarray, k: int, seed: int) -> dict[str, Callable[[], Any]]:
    """By name, a call that draws k anew. From the priorities on, as weights change with every step."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)

    def ours() -> np.ndarray:
        log_weight = samplers.proportional(np.abs(advantage), priority_exponent=EXPONENT, priority_eps=1e-6)
        return drawing.without_replacement(log_weight, k, rng)

    def numpy_choice() -> np.ndarray:
        weight = np.abs(advantage) ** EXPONENT
        return rng.choice(len(weight), k, replace=False, p=weight / weight.sum())

    def torch_multinomial() -> torch.Tensor:
        weight = torch.from_numpy(np.abs(advantage) ** EXPONENT)
        return torch.multinomial(weight, k, replacement=False, generator=generator)

    ways = {"ours": ours, "numpy Generator.choice": numpy_choice}
    if len(advantage) <= TORCH_MOST:
        ways["torch.multinomial"] = torch_multinomial
    return ways


def measure_draws(size: Size, *, million: int, seed: int, report: Report) -> dict[str, Any]:
    """Milliseconds of each way, at the buffer's size and of `million` stored rollouts, of which twice as many."""
    asked = {"stored": (size.stored, size.drawn), "million": (million, 2 * size.drawn)}
    timed = {}
    for done, (name, (count, k)) in enumerate(asked.items()):
        ways = ways_to_draw(advantages(size, count, np.random.default_rng(seed)), k, seed)
        times = {way: milliseconds(call, REPEATS) for way, call in ways.items()}
        timed[name] = {"of": count, "drawn": k, "ms": times}
        report(done + 1, len(asked))
    return timed
