"""Which column of a recording means what: as given, or found by its name and by what the first line holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {  # role -> names by which it is found, the first that is there
    "reward": ("reward", "rewards", "score", "scores", "acc", "accuracy", "correct", "is_correct"),
    "group": ("group", "group_id", "uid", "prompt_id", "problem_id", "index", "idx", "input", "prompt", "question"),
    "run": ("run", "run_id", "run_name", "experiment"),
    "step": ("step", "global_step", "global_steps", "training_step"),
    "tokens": ("tokens", "response_tokens", "response_length", "completion_length", "length", "lengths", "len"),
    "prompt_tokens": ("prompt_tokens", "prompt_length", "prompt_len"),
}
MEANING = {
    "reward": "reward of a rollout, a number, or a list: one a rollout of the group",
    "group": "what rollouts of one prompt share",
    "run": "name of the run",
    "step": "training step",
    "tokens": "response tokens of a rollout, their number or a list of ids; a list where the reward is one",
    "prompt_tokens": "tokens of the prompt",
}


def parse(given: Sequence[str]) -> dict[str, str]:
    """["reward=correct", "step="] -> {"reward": "correct", "step": ""}. Raises ValueError for what is no role."""
    roles: dict[str, str] = {}
    for text in given:
        role, equals, name = text.partition("=")
        if role not in NAMES or not equals:
            raise ValueError(
                f"--column must be ROLE=NAME with a role of {', '.join(NAMES)}, got {text!r}. "
                "Write --column reward=correct, say; step= (nothing behind it) leaves a column out."
            )
        if role in roles:
            raise ValueError(f"--column {role} must be given once, got {roles[role]!r} and {name!r}. Keep one.")
        roles[role] = name
    if not roles.get("reward", "reward"):
        raise ValueError("--column reward must name a column, got none. Write --column reward=correct, say.")
    return roles


def detect(record: Mapping[str, Any], given: Mapping[str, str], *, where: str) -> dict[str, str]:
    """Role -> column, for the roles that the recording has.

    Args:
        record: the first line.
        given: columns named by the user; an empty name switches the role off.
        where: the line, for messages.

    Raises:
        ValueError: a column that was named is not there, or none looks like a reward.
    """
    roles = {}
    for role, names in NAMES.items():
        if role in given:
            if given[role] and given[role] not in record:
                raise ValueError(
                    f"--column {role} must name a column of the recording, got {given[role]!r}. "
                    f"{where} has {', '.join(record)}."
                )
            found = given[role]
        else:
            found = next((name for name in names if _fits(role, record.get(name))), "")
        if found:
            roles[role] = found
    if "reward" not in roles:
        raise ValueError(
            f"no column looks like a reward ({', '.join(NAMES['reward'])}): {where} has {', '.join(record) or 'none'}. "
            "Name it: --column reward=NAME."
        )
    return roles


def _fits(role: str, value: Any) -> bool:
    if role == "reward" or role == "tokens":
        return _is_number(value) or (isinstance(value, list) and all(_is_number(v) or v is None for v in value))
    if role == "prompt_tokens":
        return _is_number(value) or isinstance(value, list)
    return isinstance(value, str | int | float) and value is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)  # a bool is an int: correct or not
