"""Logs as verl's file logger writes them."""

from __future__ import annotations

import json
from pathlib import Path

VAL = "val-core/verl_replay/addition/acc/mean@8"


def record(step: int, *, reward: float = 0.5, **more: float) -> dict:
    """A step of stock verl: 64 rollouts of 10 + 5 tokens."""
    data = {"critic/score/mean": reward, "prompt_length/mean": 10.0, "response_length/mean": 5.0}
    return {"step": step, "data": {**data, "perf/total_num_tokens": 64 * 15, **more}}


def write_log(path: Path, accuracies: dict[int, float], *, steps: int = 4, trained: int | None = None) -> Path:
    """A run whose accuracy was measured at some steps, 0 (before training) among them."""
    path.mkdir(parents=True)
    lines = [{"step": 0, "data": {VAL: accuracies[0]}}] if 0 in accuracies else []
    for step in range(1, steps + 1):
        more = {VAL: accuracies[step]} if step in accuracies else {}
        more |= {} if trained is None else {"replay/trained_tokens": trained}
        lines.append(record(step, reward=0.1 * step, **more))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
