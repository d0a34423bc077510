"""A run's log -> accuracy and reward by step, with the tokens generated and trained on until then."""

from __future__ import annotations

import re

import pandas as pd

from verl_replay.analysis import ACCURACY

OLD_ACCURACY = re.compile(r"val/test_score/.*")  # verl before 0.3
REWARD = "critic/score/mean"
GENERATED, TRAINED = "generated", "trained"
_TOTAL, _PROMPT, _RESPONSE = "perf/total_num_tokens", "prompt_length/mean", "response_length/mean"


def series_of(
    frame: pd.DataFrame, *, accuracy: str | None = None, rollouts: int | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """What is compared of one run.

    Args:
        frame: one row a step, columns by verl's names.
        accuracy: the metric of held-out accuracy; without it the mean of all val-core/.../mean@k.
        rollouts: rollouts a step, for logs that do not tell.

    Returns:
        Columns accuracy, reward, generated, trained by step, NaN where unknown; the last two add up from the first step
        on. And what had to be assumed.

    Raises:
        ValueError: the named metric is not in the log.
    """
    assumed: list[str] = []
    generated, trained = _tokens(frame, rollouts, assumed)
    missing = int(frame.index[-1] - frame.index[0] + 1 - len(frame))
    if missing:
        assumed.append(f"{missing} steps are not in the log: their tokens are not counted")
    series = pd.DataFrame(
        {
            "accuracy": _accuracy(frame, accuracy, assumed),
            "reward": frame.get(REWARD),
            GENERATED: generated,
            TRAINED: trained,
        },
        index=frame.index,
        dtype=float,
    )
    return series, assumed


def _accuracy(frame: pd.DataFrame, name: str | None, assumed: list[str]) -> pd.Series | None:
    if name is not None:
        if name not in frame:
            known = sorted(column for column in frame if column.startswith("val"))
            raise ValueError(f"--accuracy {name} is not in the log; of validation it has {known}. Give one of these.")
        return frame[name]
    for pattern in (ACCURACY, OLD_ACCURACY):
        if names := [column for column in frame if pattern.fullmatch(column)]:
            if len(names) > 1:
                assumed.append(f"held-out accuracy is the plain mean of {', '.join(sorted(names))}")
            return frame[names].mean(axis=1, skipna=False)
    assumed.append("the run was never validated: its training reward alone is compared")
    return None


def _tokens(frame: pd.DataFrame, rollouts: int | None, assumed: list[str]) -> tuple[pd.Series | None, pd.Series | None]:
    """Cumulative tokens of responses, generated and trained on."""
    counted = _counted(frame, "replay/fresh/generated")
    if {_TOTAL, _PROMPT, _RESPONSE} <= set(frame):
        share = frame[_RESPONSE] / (frame[_RESPONSE] + frame[_PROMPT])
        generated = frame[_TOTAL] * share
        assumed.append(f"generated tokens: {_TOTAL} times the responses' share of it by {_RESPONSE} and {_PROMPT}")
    elif _RESPONSE in frame and counted is not None:
        generated = counted * frame[_RESPONSE]
        assumed.append(f"generated tokens: replay/fresh/generated times {_RESPONSE}")
    elif _RESPONSE in frame and (rollouts is not None or "rollouts" in frame):
        generated = (frame["rollouts"] if rollouts is None else rollouts) * frame[_RESPONSE]
        assumed.append(f"generated tokens: rollouts a step times {_RESPONSE}")
    else:
        assumed.append(f"no tokens: the log has no {_TOTAL}. Give --rollouts-a-step")
        return None, None
    trained = _counted(frame, "replay/trained_tokens")
    if trained is None:
        trained = generated
        assumed.append(
            "trained tokens: no replay/trained_tokens, so every generated token is trained on, once (1 epoch)"
        )
    return generated.fillna(0).cumsum(), trained.fillna(0).cumsum()


def _counted(frame: pd.DataFrame, name: str) -> pd.Series | None:
    """With several updates a step verl adds up what ends in /sum."""
    return next((frame[column] for column in (name, f"{name}/sum") if column in frame), None)
