"""A recording: for every run its steps, and for every step its rollouts in groups."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from scripts.simulating.detecting import detect
from scripts.simulating.reading import Line

VERL_DUMP = ("input", "output", "score", "step")  # columns of verl's trainer.rollout_data_dir
VERL_KEY = re.compile(r"(.+)_(\d+)_(\d+)")  # uid, session, trajectory: what a dump of verl's V1 trainers calls uid


class Step(NamedTuple):
    """The rollouts of one training step.

    Attributes:
        number: t, from 1.
        group: (B,) int64, 0, 1, ... in order of appearance.
        reward: (B,) float64, NaN where the recording holds none.
        tokens: (B,) int64 response tokens, or None.
        prompt_tokens: (groups,) int64, or None.
    """

    number: int
    group: np.ndarray
    reward: np.ndarray
    tokens: np.ndarray | None
    prompt_tokens: np.ndarray | None


class Recording(NamedTuple):
    """Runs by name, steps ascending, and which column meant what."""

    runs: dict[str, list[Step]]
    columns: dict[str, str]


@dataclass
class _Group:
    """Rollouts of one prompt; by a key each, so that a later row of the same rollout takes the place of the former."""

    reward: dict[Any, float] = field(default_factory=dict)
    tokens: dict[Any, int] = field(default_factory=dict)
    prompt: int = 0


def gather(lines: Iterable[Line], given: Mapping[str, str], *, groups_a_step: int | None = None) -> Recording:
    """The recording that the lines make. A line is a rollout, or, where its reward is a list, a whole group.

    Args:
        lines: in order.
        given: role -> column, for those not to be detected.
        groups_a_step: cut recordings without steps into steps of so many groups, in order.

    Raises:
        ValueError: nothing there, a line that cannot be used (it is named), or steps missing or given twice.
    """
    roles: dict[str, str] = {}
    runs: dict[str, dict[Any, _Group]] = {}
    for count, line in enumerate(lines):
        roles = roles or _roles(line, given, groups_a_step)
        run = str(_get(line, roles["run"])) if "run" in roles else line.source
        step = _step(line, roles["step"]) if "step" in roles else None
        group, rewards, tokens, prompt = _rollouts(line, roles, count)
        held = runs.setdefault(run, {}).setdefault((step, group), _Group(prompt=prompt))
        for key, reward in rewards.items():
            held.reward[key] = reward
            held.tokens[key] = held.tokens.get(key, 0) + tokens.get(key, 0)
    if not runs:
        raise ValueError("the recording holds no rollout: its files are empty. Record some steps first.")
    return Recording({run: list(_steps(groups, roles, groups_a_step)) for run, groups in runs.items()}, roles)


def _roles(first: Line, given: Mapping[str, str], groups_a_step: int | None) -> dict[str, str]:
    roles = detect(first.record, given, where=first.where)
    if "step" not in roles and groups_a_step is None:
        raise ValueError(
            "the recording has no column of steps, which ages need. Name it with --column step=NAME, or cut it into "
            "steps with --groups-a-step N (prompts of one training step)."
        )
    if "step" in roles and groups_a_step is not None:
        raise ValueError(
            f"--groups-a-step is for recordings without steps, this one has them (column {roles['step']}). Leave it "
            "out, or leave the column out: --column step="
        )
    return roles


def _rollouts(line: Line, roles: Mapping[str, str], count: int) -> tuple[Any, dict[Any, float], dict[Any, int], int]:
    """What a line holds: its group, rewards and response tokens of its rollouts by key, and tokens of the prompt."""
    value = _get(line, roles["reward"])
    prompt = (
        _length(line, roles["prompt_tokens"], _get(line, roles["prompt_tokens"])) if "prompt_tokens" in roles else 0
    )
    tokens = _get(line, roles["tokens"]) if "tokens" in roles else None
    if isinstance(value, list):
        if not value:
            raise ValueError(f"{line.where}: {roles['reward']} must hold a reward a rollout, got []. Leave it out.")
        if "tokens" in roles and (not isinstance(tokens, list) or len(tokens) != len(value)):
            got = f"{len(tokens)}" if isinstance(tokens, list) else repr(tokens)[:40]
            raise ValueError(
                f"{line.where}: {roles['tokens']} must be a list of {len(value)}, as {roles['reward']} is, got {got}. "
                "Mend it, or leave the column out: --column tokens="
            )
        rewards = {(count, i): _reward(line, roles["reward"], v) for i, v in enumerate(value)}
        lengths = {(count, i): _length(line, roles["tokens"], v) for i, v in enumerate(tokens or ())}
        return ("line", count), rewards, lengths, prompt
    if "group" not in roles:
        raise ValueError(
            f"{line.where} is a single rollout and no column says of which group. Name it: --column group=NAME."
        )
    group, key = _group(line, roles["group"], count)
    lengths = {key: _length(line, roles["tokens"], tokens)} if "tokens" in roles else {}
    return group, {key: _reward(line, roles["reward"], value)}, lengths, prompt


def _group(line: Line, column: str, count: int) -> tuple[Any, Any]:
    """The group and the key of a single rollout. In verl's own dumps several rows may be one rollout."""
    value = _get(line, column)
    if value is None or value != value:  # NaN: what pandas makes of nothing among numbers
        raise ValueError(f"{line.where}: {column} must name a group, got {value}. Mend it, or leave the line out.")
    is_dump = column == "uid" and all(name in line.record for name in VERL_DUMP)
    if is_dump and (parts := VERL_KEY.fullmatch(str(value))):
        return parts[1], int(parts[2])
    return (value if isinstance(value, str | int | float) else json.dumps(value, default=str)), count


def _get(line: Line, column: str) -> Any:
    if column not in line.record:
        raise ValueError(f"{line.where} has no {column}, which the first line has. Mend it, or leave the line out.")
    return line.record[column]


def _reward(line: Line, column: str, value: Any) -> float:
    if value is None:
        return math.nan  # how many tools write a NaN
    if not isinstance(value, int | float):
        raise ValueError(
            f"{line.where}: {column} must be a number, got {value!r:.40}. Mend it, or name another column."
        )
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(
            f"{line.where}: {column} must be a number that a float can hold, got {value.bit_length()} bits. Mend it."
        ) from error


def _length(line: Line, column: str, value: Any) -> int:
    value = len(value) if isinstance(value, list) else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf or value % 1:
        raise ValueError(
            f"{line.where}: {column} must be a whole number of tokens, got {value!r:.40}. Mend it, or name "
            "another column."
        )
    return int(value)


def _step(line: Line, column: str) -> int:
    value = _get(line, column)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 2**53 or value % 1:
        raise ValueError(
            f"{line.where}: {column} must be a whole number >= 0, got {value!r:.40}. Mend it, or leave the line out."
        )
    return int(value)


def _steps(groups: Mapping[Any, _Group], roles: Mapping[str, str], groups_a_step: int | None) -> Iterator[Step]:
    """The steps of one run, ascending; numbered from 1 where the recording begins with 0."""
    by_step: dict[int, list[_Group]] = {}
    for number, ((step, _), group) in enumerate(groups.items()):
        by_step.setdefault(1 + number // groups_a_step if step is None else step, []).append(group)
    shift = 1 if 0 in by_step else 0
    for step in sorted(by_step):
        held = by_step[step]
        yield Step(
            number=step + shift,
            group=np.repeat(np.arange(len(held)), [len(group.reward) for group in held]),
            reward=np.array([reward for group in held for reward in group.reward.values()], dtype=np.float64),
            tokens=_whole([n for group in held for n in group.tokens.values()]) if "tokens" in roles else None,
            prompt_tokens=_whole([group.prompt for group in held]) if "prompt_tokens" in roles else None,
        )


def _whole(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)
