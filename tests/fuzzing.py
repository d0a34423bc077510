"""Random and odd batches, and what must be true of whatever is trained on: for tests/trainers/test_fuzz.py.

A row is a dict of verl's columns, arrays without padding. It is known by a number of its own, the first token of its
response, or the last of its prompt where the response is empty.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.factories import verl_advantages

FIRST_NUMBER = 1000  # of rows; other tokens are below
INTEGERS = ("prompts", "responses", "response_mask", "loss_mask")
FLOATS = (
    "rm_scores",
    "token_level_rewards",
    "old_log_probs",
    "rollout_log_probs",
    "ref_log_prob",
    "rollout_is_weights",
    "advantages",
)
RESPONSE_COLUMNS = ("responses", "response_mask", "loss_mask", *FLOATS)
ODD_FLOATS = (np.nan, np.inf, -np.inf)

Row = dict[str, Any]
Rng = np.random.Generator


# ---- rows ------------------------------------------------------------------------------------------------------------


def groups_of_rewards(rng: Rng, groups: int) -> list[list[float]]:
    """Groups of unequal size, of one now and then: binary, all equal, continuous."""
    kinds: list[Callable[[int], Any]] = [
        lambda n: rng.integers(0, 2, n),
        lambda n: np.full(n, rng.random()),
        lambda n: rng.standard_normal(n),
    ]
    return [kinds[rng.integers(3)](int(rng.integers(1, 6))).astype(float).tolist() for _ in range(groups)]


def make_rows(rng: Rng, rewards: Sequence[Sequence[float]], *, step: int) -> list[Row]:
    """Good rows, without advantages yet."""
    rows = []
    for g, group in enumerate(rewards):
        prompt = rng.integers(3, FIRST_NUMBER, size=int(rng.integers(1, 5)))
        for s, reward in enumerate(group):
            n = int(rng.integers(1, 7))
            responses = rng.integers(3, FIRST_NUMBER, size=n)
            responses[0] = FIRST_NUMBER * (10_000 * step + len(rows) + 1)
            scores = np.zeros(n, np.float32)
            scores[-1] = reward
            mask = np.ones(n, np.int64)
            rows.append(
                {
                    "uid": f"uid{step}x{g}",
                    "session": s,
                    "trajectory": 0,
                    "index": g,
                    "prompts": prompt.copy(),
                    "responses": responses,
                    "response_mask": mask,
                    "loss_mask": mask.copy(),
                    "rm_scores": scores,
                    "token_level_rewards": scores.copy(),
                    "old_log_probs": -rng.random(n, dtype=np.float32),
                    "rollout_log_probs": -rng.random(n, dtype=np.float32),
                    "ref_log_prob": -rng.random(n, dtype=np.float32),
                    "rollout_is_weights": 2 * rng.random(n, dtype=np.float32),
                }
            )
    return rows


def key(row: Row) -> str:
    return f"{row['uid']}_{row['session']}_{row['trajectory']}"


def with_advantages(rows: list[Row]) -> list[Row]:
    """Adds what verl's own GRPO makes of the rewards."""
    with np.errstate(all="ignore"):
        made = verl_advantages(list(map(key, rows)), _of(rows, "rm_scores"), _of(rows, "response_mask"))
    for row, advantages in zip(rows, made, strict=True):
        row["advantages"] = advantages.copy()
    return rows


def _of(rows: Sequence[Row], name: str) -> list[np.ndarray]:
    return [row[name] for row in rows]


def number(prompts: np.ndarray, responses: np.ndarray) -> int:
    """What a row is known by."""
    return int(responses[0] if len(responses) else prompts[-1])


# ---- odd rows, which are to be trained on rightly --------------------------------------------------------------------


def _some(rng: Rng, rows: list[Row]) -> Row:
    return rows[rng.integers(len(rows))]


def _shorten(row: Row) -> None:
    """An empty response: an answer that was aborted."""
    row["prompts"][-1] = number(row["prompts"], row["responses"])
    for name in set(RESPONSE_COLUMNS) & set(row):
        row[name] = row[name][:0]


def empty_response(rng: Rng, rows: list[Row]) -> None:
    if len(rows) > 1:  # verl's padding cannot make a batch of nothing but empty rows
        _shorten(rows[rng.integers(1, len(rows))])


def all_masked(rng: Rng, rows: list[Row]) -> None:
    for row in rows:
        if rng.random() < 0.4:
            for name in ("response_mask", "loss_mask"):
                row[name][:] = 0


def first_masked(rng: Rng, rows: list[Row]) -> None:
    for row in rows:
        for name in ("response_mask", "loss_mask"):
            row[name][:1] = 0


def tool_calls(rng: Rng, rows: list[Row]) -> None:
    for row in rows:
        mask = rng.integers(0, 2, len(row["responses"]))
        row["response_mask"], row["loss_mask"] = mask, mask.copy()


def odd_tokens(rng: Rng, rows: list[Row]) -> None:
    odd = [-1, 0, 2**31 - 1, 2**31, 2**40, -(2**40)]
    for row in rows:
        row["responses"][1:] = rng.choice(odd, len(row["responses"][1:]))
        row["prompts"][:-1] = rng.choice(odd, len(row["prompts"][:-1]))


def _reward(row: Row, value: float) -> None:
    for name in ("rm_scores", "token_level_rewards"):
        row[name][-1:] = value


def odd_rewards(rng: Rng, rows: list[Row]) -> None:
    """Huge, subnormal, minus nothing, equal up to rounding."""
    scale = rng.choice([1e30, 1e-40, -0.0, 3e38, 0.7])
    for row in rows:
        noise = 1 + 1e-7 * rng.integers(0, 2) if scale == 0.7 else rng.integers(-1, 2)
        _reward(row, scale * noise)


def odd_log_probs(rng: Rng, rows: list[Row]) -> None:
    for row in rows:
        n = len(row["responses"])
        row["old_log_probs"] = rng.choice(np.array([-0.0, -1e30, -1e-40, 0.5], np.float32), n)


def one_uid_for_two_prompts(rng: Rng, rows: list[Row]) -> None:
    first = rows[0]["uid"]
    for i, row in enumerate(rows):
        if row["index"] <= 1:
            row["uid"], row["session"] = first, i


def uid_of_another_step(rng: Rng, rows: list[Row]) -> None:
    for row in rows:
        row["uid"] = f"again_{row['index']}"  # with an underscore too


def odd_index(rng: Rng, rows: list[Row]) -> None:
    """Missing in the data (verl writes 0 then), huge, below 0, the digits of a number, twice."""
    kind = rng.integers(5)
    for row in rows:
        i = row["index"]
        row["index"] = [0, 2**40 + i, -i, i // 2, str(i)][kind]


def several_trajectories(rng: Rng, rows: list[Row]) -> None:
    """A second row in some sessions, whose prompt goes on where the first row's ends; sometimes it finishes first."""
    for i in reversed(range(len(rows))):
        first = rows[i]
        if len(first["responses"]) and rng.random() < 0.4:
            second = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in first.items()}
            second["prompts"] = np.concatenate([first["prompts"], [7]])
            second["responses"][0] += 1
            second["trajectory"] = 1
            _reward(first, 0.0)
            rows.insert(i + int(rng.integers(2)), second)


def not_finite(rng: Rng, rows: list[Row]) -> None:
    """NaN or infinity in any column of numbers, where there is loss and where there is none."""
    for _ in range(int(rng.integers(1, 4))):
        row, name = _some(rng, rows), rng.choice(FLOATS[:-1])
        if len(row[name]):
            row[name][rng.integers(len(row[name]))] = rng.choice(ODD_FLOATS)


def advantage_not_finite(rng: Rng, rows: list[Row]) -> None:
    column = _some(rng, rows)["advantages"]
    if len(column):
        column[rng.integers(len(column))] = rng.choice(ODD_FLOATS)


def advantages_differ_within_a_row(rng: Rng, rows: list[Row]) -> None:
    for row in rows:
        row["advantages"] = row["advantages"] * rng.random(len(row["advantages"]), dtype=np.float32)


def shuffled(rng: Rng, rows: list[Row]) -> None:
    rng.shuffle(rows)


BEFORE_ADVANTAGES = (
    empty_response,
    all_masked,
    first_masked,
    tool_calls,
    odd_tokens,
    odd_rewards,
    odd_log_probs,
    one_uid_for_two_prompts,
    uid_of_another_step,
    odd_index,
    several_trajectories,
    not_finite,
    shuffled,
)
AFTER_ADVANTAGES = (advantage_not_finite, advantages_differ_within_a_row)
ODDITIES = (*BEFORE_ADVANTAGES, *AFTER_ADVANTAGES)


def odd_rows(rng: Rng, rewards: Sequence[Sequence[float]], oddities: Sequence[Any], *, step: int) -> list[Row]:
    """Rows with the oddities, in the order in which verl would meet them."""
    rows = make_rows(rng, rewards, step=step)
    for change in BEFORE_ADVANTAGES:
        if change in oddities:
            change(rng, rows)
    rows = with_advantages(rows)
    for change in AFTER_ADVANTAGES:
        if change in oddities:
            change(rng, rows)
    return rows


# ---- what is right ---------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """The rows of one mini-batch, of all ranks: columns by name, without padding."""

    rows: list[Row]


def survivors(rows: Sequence[Row], read: Sequence[str], *, filtered: bool) -> set[int]:
    """Numbers of the rows that may be trained on, worked out from scratch.

    Args:
        read: the columns in which a NaN or infinity drops a group.
        filtered: groups of equal rewards are dropped (up to 1e-6 of the greatest).
    """
    groups = defaultdict(list)
    for row in rows:
        groups[row["uid"]].append(row)
    return {
        number(row["prompts"], row["responses"])
        for group in groups.values()
        if all(np.isfinite(row[name]).all() for row in group for name in read)
        and (not filtered or _varies(_rewards(group)))
        for row in group
    }


def _rewards(group: Sequence[Row]) -> np.ndarray:
    last = {row["session"]: row for row in sorted(group, key=lambda row: row["trajectory"])}
    return np.array([row["rm_scores"].astype(np.float64).sum() for row in last.values()])


def _varies(rewards: np.ndarray) -> bool:
    return np.ptp(rewards) > 1e-6 * np.abs(rewards).max()


class Births:
    """What every row was born with, and at which step."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, Row]] = {}

    def add(self, rows: Sequence[Row], step: int) -> None:
        for row in rows:
            frozen = {name: row[name].copy() for name in (*INTEGERS, *FLOATS)}
            self.rows[number(row["prompts"], row["responses"])] = (step, frozen)

    def step(self, n: int) -> int:
        return self.rows[n][0]

    def check(self, sent: Row, *, read: Sequence[str], changed: Sequence[str]) -> None:
        """A sent row is what it was at birth, bit for bit, `changed` columns left out; what is read is finite."""
        n = number(sent["prompts"], sent["responses"])
        assert n in self.rows, f"row {n} was never born"
        _, born = self.rows[n]
        for name, column in sent.items():
            if column.dtype.kind == "f":
                finite = np.isfinite(column).all() or name not in read
                assert column.dtype == np.float32 and finite, (n, name, column)
                assert len(column) == len(born["responses"]), (n, name)
            if name in born and name not in changed:
                assert column.dtype == born[name].dtype, (n, name)
                assert column.tobytes() == born[name].tobytes(), (n, name, column, born[name])
        sequence = np.concatenate([born["prompts"], born["responses"]])
        assert sent["input_ids"].tolist() == sequence.tolist()
        assert sent["position_ids"].tolist() == list(range(len(sequence)))


class Expectation(NamedTuple):
    """What one step may do.

    Attributes:
        step: t.
        fresh: numbers of the survivors among this step's rows.
        max_age: of drawn rows.
        anchored: every fresh survivor is trained on.
        repeats: a row may be drawn twice.
        stock: the update may be verl's own, on its own batch, cut as it happens to lie.
        read: columns of numbers that the update reads.
        changed: columns that may differ from birth.
    """

    step: int
    fresh: set[int]
    max_age: int
    anchored: bool
    repeats: bool
    stock: bool
    read: Sequence[str]
    changed: Sequence[str]


def check_update(
    mini_batches: Sequence[Cell], epochs: int, log: dict[str, Any], births: Births, expected: Expectation
) -> None:
    """One update: every row once an epoch, as it was born; null rows without loss; no mini-batch without a token."""
    updates = len(mini_batches) // epochs
    assert updates * epochs == len(mini_batches) and updates == log["replay/updates"]
    for epoch in range(epochs):
        counted: Counter[int] = Counter()
        for cell in mini_batches[epoch * updates : (epoch + 1) * updates]:
            with_loss = any(row["response_mask"].any() for row in cell.rows)
            assert with_loss or expected.stock, "a mini-batch without a token to average over"
            for row in cell.rows:
                if is_null(row):
                    assert not row["response_mask"].any() and not row["loss_mask"].any()
                    assert all(np.isfinite(column).all() for column in row.values())
                    continue
                births.check(row, read=expected.read, changed=expected.changed)
                counted[number(row["prompts"], row["responses"])] += 1
        _check_counts(counted, births, expected)


def is_null(row: Row) -> bool:
    return 0 <= number(row["prompts"], row["responses"]) < FIRST_NUMBER


def _check_counts(counted: Counter[int], births: Births, expected: Expectation) -> None:
    fresh = {n for n in counted if births.step(n) == expected.step}
    assert not expected.anchored or all(counted[n] == 1 for n in fresh)
    assert fresh <= expected.fresh, "a row was trained on that the filter drops"
    assert fresh == expected.fresh or not expected.anchored
    assert expected.repeats or set(counted.values()) == {1}
    ages = [expected.step - births.step(n) for n in counted if n not in fresh]
    assert all(1 <= age <= expected.max_age for age in ages), ages
