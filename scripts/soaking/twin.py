"""A naive twin of the stage: lists of dicts, written from the method's text.

It has the draws themselves (drawing.draw) and the weights (priority, sampler) in common with the stage, on a table and
a generator of its own. Who survives, who leaves, ages, uses, what is stored and what the metrics say is its own.
"""

from __future__ import annotations

import math
import statistics
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from scripts.soaking.steps import Step
from verl_replay import drawing
from verl_replay.options import ReplayOptions
from verl_replay.table import RolloutTable
from verl_replay.trainers import columns

Rollout = dict[str, Any]
_OWN = ("group", "reward", "advantage", "group_std", "reward_share", "born", "stored_at", "tokens", "uses", "finite")
_BYTES_A_ROLLOUT, _BYTES_A_ROW = 73 + 16, 16  # nine numbers and a flag, its place; offsets of prompt and response


class Expected(NamedTuple):
    """What the stage must have done.

    Attributes:
        fresh_rows: row numbers of the fresh rollouts trained on.
        drawn: copies of the drawn rollouts, uses counted.
        weights: importance-sampling weight of each rollout, fresh ones first.
        loss: whether each row trained on has a token with loss, fresh ones first.
        updates: least and greatest number of mini-batches, alike but where few rows have loss; 0 is no update.
        untouched: the update is verl's own on its own batch.
        metrics: but for replay/buffer/bytes, replay/updates and replay/null_rows.
    """

    fresh_rows: list[int]
    drawn: list[Rollout]
    weights: list[float]
    loss: list[bool]
    updates: tuple[int, int]
    untouched: bool
    metrics: dict[str, float]


class Twin:
    """The buffer as a list, and the algorithm on it.

    Args:
        options: the stage's.
        stored: names of the columns that a rollout keeps.
        rows_of_mini_batch: of verl's own mini-batches.
        ranks: data-parallel size.
    """

    def __init__(self, options: ReplayOptions, stored: tuple[str, ...], *, rows_of_mini_batch: int, ranks: int) -> None:
        self.options, self.stored = options, stored
        self.rows_of_mini_batch, self.ranks = rows_of_mini_batch, ranks
        self.rng = np.random.default_rng(options.seed)
        self.held: list[Rollout] = []
        self.groups_seen = 0
        self._priority, self._sampler = options.policy("priority"), options.policy("sampler")

    @property
    def needed_bytes(self) -> int:
        """Of the rollouts held, without sharing or waste: ids, log-prob, advantage, mask, offsets, numbers."""
        return sum(x["needed_bytes"] for x in self.held)

    def advance(self, made: Step) -> Expected:
        """METHOD's algorithm, step t."""
        o, t = self.options, made.step
        fresh = read(made, self.stored, first_group=self.groups_seen)
        groups = [list(group) for _, group in groupby(fresh, key=lambda x: x["group"])]
        self.groups_seen += len(groups)
        clean = [group for group in groups if all(x["finite"] for x in group)]
        kept = [survivors(group, o.filter) for group in clean]
        alive = [x for group in kept for x in group]

        before = len(self.held)
        self.held = [x for x in self.held if not evicted(x, t, o)]
        evicted_age = before - len(self.held)

        trained, drawn = self._compose(alive, t)
        for x, _ in drawn:
            x["uses"] += 1
        copies = [dict(x) for x, _ in drawn]
        stored, evicted_capacity = self._store(alive, t)
        metrics = {
            "replay/filter/zero_variance_frac": sum(not group for group in kept) / len(groups),
            "replay/filter/kept_groups": sum(bool(group) for group in kept),
            "replay/filter/nonfinite_groups": len(groups) - len(clean),
            "replay/buffer/evicted_age": evicted_age,
            "replay/fresh/generated": len(fresh),
            "replay/fresh/rollouts": len(trained),
            "replay/draw/rollouts": len(drawn),
            "replay/draw/frac_of_batch": len(drawn) / max(len(trained) + len(drawn), 1),
            "replay/buffer/size": len(self.held),
            "replay/buffer/stored": stored,
            "replay/buffer/evicted_capacity": evicted_capacity,
            "replay/trained_tokens": 0,
            **drawn_metrics(copies, [w for _, w in drawn], t, o.max_age),
        }
        rows = [row for x, _ in trained for row in x["row_numbers"]]
        loss, updates = self._updates(made, alive, [x for x, _ in trained], copies)
        untouched = (
            not drawn
            and sorted(rows) == list(range(made.batch_rows))
            and all(w == 1 for _, w in trained)
            and made.batch_rows % self.rows_of_mini_batch == 0
        )
        if updates != (0, 0):
            tokens = sum(x["tokens"] for x in (*(x for x, _ in trained), *copies))
            metrics["replay/trained_tokens"] = tokens
        return Expected(rows, copies, [w for _, w in (*trained, *drawn)], loss, updates, untouched, metrics)

    def _compose(self, alive: list[Rollout], t: int) -> tuple[list[tuple[Rollout, float]], list[tuple[Rollout, float]]]:
        """The fresh rollouts trained on and the stored ones drawn, each with its weight."""
        o = self.options
        if t <= o.warmup_steps or not alive:
            return [(x, 1.0) for x in alive], []
        earlier = [x for x in self.held if x["stored_at"] < t]
        if o.composition == "pooled":
            pool = alive + earlier
            mixed = self._draw(pool, min(math.floor((1 + o.ratio) * len(alive) + 0.5), len(pool)), t)
            fresh = sorted((place, weight) for place, weight in mixed if place < len(alive))
            return [(pool[i], w) for i, w in fresh], [(pool[i], w) for i, w in mixed if i >= len(alive)]
        drawn = self._draw(earlier, min(math.floor(o.ratio * len(alive) + 0.5), len(earlier)), t)
        return [(x, 1.0) for x in alive], [(earlier[i], w) for i, w in drawn]

    def _draw(self, pool: list[Rollout], k: int, t: int) -> list[tuple[int, float]]:
        drawn = drawing.draw(
            tabulate(pool),
            k,
            self.rng,
            log_weights=lambda table: self._sampler(self._priority(table, step=t), step=t),
            whole_groups=self.options.unit == "group",
            replacement=self.options.replacement,
            importance_sampling_exponent=self.options.importance_sampling_exponent,
        )
        return list(zip(drawn.positions.tolist(), drawn.weight.tolist(), strict=True))

    def _store(self, alive: list[Rollout], t: int) -> tuple[int, int]:
        """How many were stored, and how many the capacity evicted."""
        if not self.options.replays:
            return 0, 0
        self.held += [x | {"stored_at": t} for x in alive]
        before = len(self.held)
        while len(self.held) > self.options.capacity:
            first = self.held.pop(0)
            while self.options.unit == "group" and self.held and self.held[0]["group"] == first["group"]:
                self.held.pop(0)
        return len(alive), before - len(self.held)

    def _updates(
        self, made: Step, alive: list[Rollout], trained: list[Rollout], drawn: list[Rollout]
    ) -> tuple[list[bool], tuple[int, int]]:
        """Which rows have loss, and least and greatest number of mini-batches each of which has a row with loss."""
        loss = [has for x in (*trained, *drawn) for has in x["loss"]]
        surviving = sum(has for x in alive for has in x["loss"])
        most = min(max(made.batch_rows // self.rows_of_mini_batch, 1), surviving, sum(loss))
        fresh = sum(has for x in trained for has in x["loss"])
        certain = fresh >= most * self.ranks  # the first lap gives every cell one
        return loss, (most if certain else min(most, 1), most)


def read(made: Step, stored: tuple[str, ...], *, first_group: int) -> list[Rollout]:
    """The rollouts of a step one by one, in canonical order."""
    batch, rollouts = made.batch.columns, []
    for i, (group, born, reward) in enumerate(
        zip(made.group.tolist(), made.born.tolist(), made.reward.tolist(), strict=True)
    ):
        rows = range(int(made.ranges[i]), int(made.ranges[i + 1]))
        parts = {name: [column.row(row) for row in rows] for name, column in batch.items()}
        loss = np.flatnonzero(parts[columns.MASK][-1])
        prompt, response = (sum(map(len, parts[name])) for name in (columns.PROMPT, columns.RESPONSE))
        rollouts.append(
            {
                "group": first_group + group,
                "reward": reward,
                "advantage": float(parts[columns.ADVANTAGE][-1][loss[0]]) if len(loss) else 0.0,
                "born": born,
                "stored_at": 0,
                "tokens": sum(int(part.sum()) for part in parts[columns.MASK]),
                "uses": 0,
                "finite": all(np.isfinite(part).all() for of in parts.values() for part in of),
                "row_numbers": rows,
                "loss": [bool(part.any()) for part in parts[columns.MASK]],
                "rows": {name: [(part.dtype, part.tobytes()) for part in parts[name]] for name in stored},
                "needed_bytes": 4 * prompt + 13 * response + _BYTES_A_ROLLOUT + _BYTES_A_ROW * len(rows),
            }
        )
    for _, of_group in groupby(rollouts, key=lambda x: x["group"]):
        together = list(of_group)
        rewards = [x["reward"] for x in together]
        finite = all(math.isfinite(r) for r in rewards)
        for x in together:
            x["group_std"] = statistics.stdev(rewards) if finite and len(rewards) > 1 else 0.0
            x["reward_share"] = rewards.count(x["reward"]) / len(rewards)
    return rollouts


def survivors(group: list[Rollout], name: str) -> list[Rollout]:
    """Who of a group passes the filter."""
    if name == "none":
        return group
    varies = len({x["reward"] for x in group}) > 1
    return [x for x in group if varies and (name != "zero_advantage" or abs(x["advantage"]) > 1e-6)]


def evicted(x: Rollout, t: int, o: ReplayOptions) -> bool:
    old = o.eviction in ("age", "age_or_uses") and t - x["born"] > o.max_age
    return old or (o.eviction in ("uses", "age_or_uses") and x["uses"] >= o.max_uses)


def tabulate(rollouts: list[Rollout]) -> RolloutTable:
    """The numbers of the rollouts as the policies take them."""
    return RolloutTable(**{name: np.array([x[name] for x in rollouts]) for name in _OWN})


def drawn_metrics(drawn: list[Rollout], weights: list[float], t: int, max_age: int) -> dict[str, float]:
    """Means, quantiles and counts of what was drawn; none where nothing was."""
    if not drawn:
        return {}
    ages, uses = sorted(t - x["born"] for x in drawn), [x["uses"] for x in drawn]
    histogram = {f"{age:02d}": ages.count(age) for age in range(1, min(max(max_age, ages[-1]), 32) + 1)}
    if max(ages) > 32:
        histogram["over_32"] = sum(age > 32 for age in ages)
    return {
        "replay/draw/age/mean": statistics.fmean(ages),
        "replay/draw/age/p50": quantile(ages, 0.5),
        "replay/draw/age/p90": quantile(ages, 0.9),
        "replay/draw/age/min": ages[0],
        "replay/draw/age/max": ages[-1],
        "replay/draw/reuse/mean": statistics.fmean(uses),
        "replay/draw/reuse/max": max(uses),
        "replay/draw/abs_advantage/mean": statistics.fmean(abs(x["advantage"]) for x in drawn),
        "replay/draw/importance_weight/mean": statistics.fmean(weights),
        **{f"replay/draw/age_hist/{name}": count for name, count in histogram.items()},
    }


def quantile(ascending: list[int], q: float) -> float:
    """Between the two nearest in order, in proportion."""
    at = q * (len(ascending) - 1)
    low, high = ascending[math.floor(at)], ascending[math.ceil(at)]
    return low + (at - math.floor(at)) * (high - low)
