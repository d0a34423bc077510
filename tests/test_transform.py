"""verl_replay.transform: METHOD's algorithm, step by step, against a naive one written from its text."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.factories import binary_groups, id_rows, make_columns, make_options, make_table, numbers, rollouts_of
from verl_replay.store import Rows
from verl_replay.table import RolloutTable
from verl_replay.trainers import columns
from verl_replay.transform import ReplayTransform, Selection


class Run:
    """Steps of one arm: rewards in, ids of what is trained on out. Rollouts are numbered as they are generated."""

    def __init__(self, **options) -> None:
        self.transform = ReplayTransform(make_options(**options))
        self.ids, self.groups = itertools.count(), itertools.count()

    @property
    def buffer(self):
        return self.transform.buffer

    @property
    def random_state(self):
        return self.buffer.rng.bit_generator.state

    def step(self, rewards, step: int) -> tuple[list[int], Selection]:
        """One step with these groups of rewards. Returns the ids drawn and the selection."""
        table = make_table(rewards, born=step, first_group=1000 * step)
        fresh = [next(self.ids) for _ in range(len(table))]
        chosen = self.transform.select(table, step=step)
        drawn = chosen.replayed.rows.columns["id"].values.tolist() if len(chosen.replayed.table) else []
        survivors = [fresh[i] for i in chosen.survivors.tolist()]
        assert not set(drawn) & set(fresh)  # I4: never in the birth step
        self.evicted = self.transform.store(table.take(chosen.survivors), id_rows(survivors)) if survivors else 0
        self.survivors, self.trained = survivors, [fresh[i] for i in chosen.trained.tolist()]
        assert self.buffer.check_valid() == (True, "")
        return drawn, chosen

    def stored(self) -> list[int]:
        if not len(self.buffer):
            return []
        return self.buffer._store.gather(np.arange(len(self.buffer))).columns["id"].values.tolist()


# ---- the naive algorithm ---------------------------------------------------------------------------------------------


def naive_draw(pool: list[dict], n: int, rng: np.random.Generator, *, alpha: float, eps: float) -> list[dict]:
    """n of the pool without replacement, P(i) ~ (|A_i| + eps)^alpha: the n least E_i / w_i, E_i exponential."""
    if n == 0 or not pool:
        return []
    keys = [
        e / (abs(x["advantage"]) + eps) ** alpha for e, x in zip(rng.exponential(size=len(pool)), pool, strict=True)
    ]
    return [pool[i] for i in sorted(range(len(pool)), key=keys.__getitem__)[:n]]


def naive_step(buffer, fresh, t, rng, *, r, tau_max, alpha, eps, warmup, capacity, pooled):
    """METHOD, "Algorithm, step t". `fresh` is a list of groups of dicts; `buffer` is changed in place."""
    # 2 drop zero-variance groups; B' rollouts survive
    survivors = [x for group in fresh if len({x["reward"] for x in group}) > 1 for x in group]
    # 3 evict age > tau_max BEFORE the draw
    buffer[:] = [x for x in buffer if t - x["t_b"] <= tau_max]
    # 4 draw n = round(r * B'), capped by the buffer's size; n = 0 in the warm-up
    if t <= warmup or not survivors:
        trained, drawn = survivors, []
    elif pooled:  # min((1 + r) B', pool) from survivors and stored rollouts together; train on the draw alone
        pool = survivors + buffer
        mixed = naive_draw(pool, min(math.floor((1 + r) * len(survivors) + 0.5), len(pool)), rng, alpha=alpha, eps=eps)
        trained = [x for x in survivors if x in mixed]
        drawn = [x for x in mixed if x not in survivors]
    else:
        n = min(math.floor(r * len(survivors) + 0.5), len(buffer))
        trained, drawn = survivors, naive_draw(buffer, n, rng, alpha=alpha, eps=eps)
    drawn = [{**x, "age": t - x["t_b"]} for x in drawn]
    # 6 store this step's survivors AFTER the draw; a draw does not consume
    buffer.extend(survivors)
    del buffer[: max(0, len(buffer) - capacity)]
    return survivors, trained, drawn


@pytest.mark.parametrize("composition", ["fresh_anchored", "pooled"])
@pytest.mark.parametrize(
    ("seed", "warmup", "tau_max", "capacity", "ratio", "alpha"),
    [
        (0, 0, 10, 30_000, 0.5, 0.5),  # METHOD's settings
        (1, 5, 10, 30_000, 0.5, 0.5),
        (2, 3, 2, 30_000, 1.5, 1.0),
        (3, 0, 4, 20, 0.5, 0.0),  # the capacity binds
        (4, 2, 0, 30_000, 0.5, 0.5),
        (5, 0, 30, 30_000, 0.3, 2.0),
    ],
)
def test_20_steps_equal_the_naive_algorithm(composition, seed, warmup, tau_max, capacity, ratio, alpha):
    """Same survivors, trained, drawn in order, ages, buffer and random numbers, every step."""
    run = Run(
        seed=seed,
        warmup_steps=warmup,
        max_age=tau_max,
        capacity=capacity,
        ratio=ratio,
        priority_exponent=alpha,
        composition=composition,
    )
    rng, rewards_rng = np.random.default_rng(seed), np.random.default_rng(100 + seed)
    buffer, total, seen = [], 0, 0
    for t in range(1, 21):
        rewards = binary_groups(rewards_rng, groups=int(rewards_rng.integers(1, 6)), size=4)
        flat = iter(numbers(make_table(rewards)))
        fresh = [[{**next(flat), "id": total + 4 * g + i, "t_b": t} for i in range(4)] for g in range(len(rewards))]
        total += 4 * len(rewards)
        survivors, trained, drawn = naive_step(
            buffer,
            fresh,
            t,
            rng,
            r=ratio,
            tau_max=tau_max,
            alpha=alpha,
            eps=1e-6,
            warmup=warmup,
            capacity=capacity,
            pooled=composition == "pooled",
        )
        drawn_ids, chosen = run.step(rewards, step=t)
        assert run.survivors == [x["id"] for x in survivors]
        assert run.trained == [x["id"] for x in trained]
        assert drawn_ids == [x["id"] for x in drawn]
        assert chosen.replayed.table.age(t).tolist() == [x["age"] for x in drawn]
        assert chosen.replayed.table.advantage.tolist() == [x["advantage"] for x in drawn]
        assert run.stored() == [x["id"] for x in buffer]
        assert run.random_state == rng.bit_generator.state
        seen += len(drawn)
    assert (seen > 0) == (tau_max > 0)


# ---- ages and time ---------------------------------------------------------------------------------------------------

MIXED = [[1, 0, 0, 0], [1, 1, 0, 0]]


def test_drawn_ages_are_1_to_max_age():
    """I4: never 0, never past tau_max, and each of 1, 2, 3 comes up."""
    run, ages = Run(max_age=3), set()
    for t in range(1, 30):
        _, chosen = run.step(MIXED, step=t)
        ages |= set(chosen.replayed.table.age(t).tolist())
        assert (run.buffer.table.age(t) <= 3).all()
    assert ages == {1, 2, 3}


def test_born_at_5_with_max_age_2_is_drawn_at_6_and_7_and_gone_at_8():
    """O17, through the transform. Groups without variance afterwards store nothing; r = 8 draws all there is."""
    run = Run(max_age=2, ratio=8.0)
    run.step(MIXED, step=5)
    for t, expected in ((6, 8), (7, 8), (8, 0)):
        table = make_table([[1, 0]], born=t)
        chosen = run.transform.select(table, step=t)  # not stored
        assert len(chosen.replayed.table) == expected
        assert chosen.evicted_age == (8 if t == 8 else 0)


def test_warm_up_draws_nothing_and_takes_no_random_numbers_while_the_buffer_fills():
    """METHOD step 4: the warm-up is steps 1..3; step 4 replays."""
    run = Run(warmup_steps=3)
    state = run.random_state
    for t in (1, 2, 3):
        drawn, chosen = run.step(MIXED, step=t)
        assert drawn == [] and len(chosen.trained) == 8
        assert (len(run.buffer), run.random_state) == (8 * t, state)
    assert len(run.step(MIXED, step=4)[0]) == 4
    assert run.random_state != state


def test_warm_up_of_pooled_trains_on_the_survivors_alone():
    """Arms part at the first replayed step, not before."""
    run = Run(composition="pooled", warmup_steps=2)
    run.step(MIXED, step=1)
    drawn, chosen = run.step(MIXED, step=2)
    assert (drawn, chosen.trained.tolist()) == ([], list(range(8)))


def test_the_first_step_has_nothing_to_draw():
    """O7: an empty buffer asked for 4: a fresh-only step."""
    run = Run()
    drawn, chosen = run.step(MIXED, step=1)
    assert (drawn, len(chosen.trained), chosen.replayed.rows.count) == ([], 8, 0)
    assert len(run.buffer) == 8


@pytest.mark.parametrize(("max_age", "steps"), [(0, (1, 2, 3)), (3, (1, 6, 11))])
def test_everything_evicted_is_a_fresh_only_step(max_age, steps):
    """O19: tau_max 0, and gaps of 5 steps with tau_max 3."""
    run = Run(max_age=max_age)
    for t in steps:
        drawn, chosen = run.step(MIXED, step=t)
        assert drawn == [] and len(chosen.trained) == 8
        assert chosen.evicted_age == (0 if t == 1 else 8)
        assert len(run.buffer) == 8


def test_a_draw_does_not_consume():
    """METHOD step 6: with r = 2 all of the 8 stored are drawn again and again; uses are counted (O11)."""
    run = Run(ratio=8.0)
    run.step(MIXED, step=1)
    for t in range(2, 6):
        chosen = run.transform.select(make_table([[1, 0]], born=t), step=t)
        assert sorted(chosen.replayed.rows.columns["id"].values.tolist()) == list(range(8))
        assert chosen.replayed.table.uses.tolist() == [t - 1] * 8


# ---- filter ----------------------------------------------------------------------------------------------------------


def test_only_survivors_are_trained_on_and_stored():
    """I1, O8: 3 groups, the second varies. Nothing drawn: trained on exactly the survivors."""
    run = Run(ratio=0.0)
    _, chosen = run.step([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]], step=1)
    assert chosen.survivors.tolist() == chosen.trained.tolist() == [4, 5, 6, 7]
    assert (chosen.groups, chosen.kept_groups, chosen.zero_variance_groups, chosen.nonfinite_groups) == (3, 1, 2, 0)
    assert run.stored() == [4, 5, 6, 7]


def test_filter_none_keeps_all():
    run = Run(filter="none", ratio=0.0)
    _, chosen = run.step([[1, 1], [1, 0]], step=1)
    assert chosen.trained.tolist() == [0, 1, 2, 3]
    assert chosen.zero_variance_groups == 0


@pytest.mark.parametrize("composition", ["fresh_anchored", "pooled"])
@pytest.mark.parametrize("before", [0, 8])
def test_no_survivors_no_update_and_the_next_step_runs(composition, before):
    """I10, O20: nothing trained, nothing drawn, no random numbers, buffer kept; with and without stored rollouts."""
    run = Run(composition=composition)
    if before:
        run.step(MIXED, step=1)
    state, uses = run.random_state, run.buffer.table.uses.tolist()
    drawn, chosen = run.step([[1, 1, 1, 1], [0, 0, 0, 0]], step=2)
    assert (drawn, len(chosen.trained), len(chosen.survivors)) == ([], 0, 0)
    assert (chosen.groups, chosen.kept_groups, chosen.zero_variance_groups) == (2, 0, 2)
    assert (len(run.buffer), run.random_state, run.buffer.table.uses.tolist()) == (before, state, uses)
    assert len(run.step(MIXED, step=3)[1].survivors) == 8


def test_no_rollouts_at_all():
    """I10."""
    chosen = ReplayTransform(make_options()).select(RolloutTable.empty(), step=1)
    assert (len(chosen.trained), chosen.groups, chosen.zero_variance_groups) == (0, 0, 0)


@pytest.mark.parametrize("filter_", ["zero_variance", "none"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_groups_that_are_not_finite_are_neither_trained_on_nor_stored_and_counted(filter_, bad):
    """I10, O9: (NaN, 1) beside (1, 0) and (1, 1)."""
    run = Run(filter=filter_)
    _, chosen = run.step([[bad, 1], [1, 0], [1, 1]], step=1)
    kept = [2, 3] if filter_ == "zero_variance" else [2, 3, 4, 5]
    assert chosen.trained.tolist() == chosen.survivors.tolist() == run.stored() == kept
    assert (chosen.groups, chosen.nonfinite_groups) == (3, 1)
    assert (chosen.kept_groups, chosen.zero_variance_groups) == ((1, 1) if filter_ == "zero_variance" else (2, 0))


def test_advantages_of_zero_are_drawn_by_eps_or_not_at_all():
    """O9: filter none and equal rewards: |A| = 0. eps > 0 draws them uniformly, eps = 0 draws none."""
    for eps, drawn_each_step in ((1e-6, 2), (0.0, 0)):
        run = Run(filter="none", priority_eps=eps)
        run.step([[1, 1, 1, 1]], step=1)
        assert run.buffer.table.advantage.tolist() == [0, 0, 0, 0]
        assert len(run.step([[1, 1, 1, 1]], step=2)[0]) == drawn_each_step


# ---- copies, capacity ------------------------------------------------------------------------------------------------


def test_the_input_table_is_left_as_it_was():
    """I5."""
    run = Run(ratio=2.0)
    for t in range(1, 4):
        table = make_table(MIXED, born=t)
        before = numbers(table)
        chosen = run.transform.select(table, step=t)
        survivors = table.take(chosen.survivors)
        run.transform.store(survivors, id_rows(range(len(survivors))))
        run.buffer.draw(np.arange(len(run.buffer)))
        assert numbers(table) == before
        assert survivors.uses.tolist() == [0] * 8


def test_what_is_drawn_is_frozen_at_birth():
    """I3, I5, O12: rows and numbers byte for byte as stored, also when a later group has the same number."""
    transform = ReplayTransform(make_options(ratio=1.0))
    keys, made = make_columns([[1, 0, 0, 1]])
    ranges = np.arange(5)
    born = {}
    for t in (1, 2, 3):
        table = columns.tabulate(keys, ranges, made, born=np.full(4, t), first_group=0)
        chosen = transform.select(table, step=t)
        for entry, rollout in zip(numbers(chosen.replayed.table), rollouts_of(chosen.replayed.rows), strict=True):
            entry["uses"] = 0
            assert (entry, rollout) in born[entry["born"]]
        rows = Rows({name: column.take(np.arange(4)) for name, column in made.items()}, ranges)
        born[t] = list(zip(numbers(table), rollouts_of(rows), strict=True))
        transform.store(table, rows)
        for column in rows.columns.values():
            column.values[...] = 77
    assert len(chosen.replayed.table) == 4


def test_capacity_counts_what_it_evicts():
    """Steps of 8 at capacity 10: 8, then 6 of 16 leave, oldest first."""
    run = Run(capacity=10)
    run.step(MIXED, step=1)
    assert run.evicted == 0
    run.step(MIXED, step=2)
    assert (run.evicted, run.stored()) == (6, list(range(6, 16)))


# ---- randomness ------------------------------------------------------------------------------------------------------


def draws(order_rng: np.random.Generator | None, seed: int = 0) -> list[list[int]]:
    """Ten steps whose rows come in order of completion and are sorted canonically. Tokens tell the rollouts apart."""
    transform, made_rng, drawn = ReplayTransform(make_options(seed=seed)), np.random.default_rng(1), []
    for t in range(1, 11):
        keys, made = make_columns(binary_groups(made_rng, groups=4, size=4), rng=made_rng)
        index = [17 - int(key[3:].split("_")[0]) for key in keys]  # of the data set: not the order of the groups
        done = np.arange(len(keys)) if order_rng is None else order_rng.permutation(len(keys))
        keys, index = [keys[i] for i in done], [index[i] for i in done]
        made = {name: column.take(done) for name, column in made.items()}

        order = columns.canonical_order(keys, index)
        keys = [keys[i] for i in order]
        made = {name: column.take(order) for name, column in made.items()}
        ranges = columns.rollout_ranges(keys)
        table = columns.tabulate(keys, ranges, made, born=np.full(len(keys), t), first_group=4 * t)
        chosen = transform.select(table, step=t)
        rows = Rows(
            {name: column.take(chosen.survivors) for name, column in made.items()}, np.arange(len(chosen.survivors) + 1)
        )
        transform.store(table.take(chosen.survivors), rows)
        tokens = chosen.replayed.rows.columns
        drawn.append(tokens["responses"].values.tolist() if tokens else [])
    return drawn


def test_the_order_of_completion_does_not_matter():
    """I11."""
    expected = draws(None)
    assert sum(map(len, expected)) > 0
    for seed in range(3):
        assert draws(np.random.default_rng(seed)) == expected
    assert draws(None, seed=1) != expected
