"""An engine without a model: the tests of everything around vLLM. Right or wrong is decided by the answer's seed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data_prep import addition
from data_prep.parquet import write_parquet
from data_prep.problems import draw_problems
from data_prep.tokenizer import build_tokenizer, response_ids
from scripts.evaluate import evaluate, parse
from scripts.evaluating.engine import Sampled, Sampling
from scripts.evaluating.prompts import Request
from scripts.evaluating.store import Generation

ROOT = Path(__file__).resolve().parents[2]
REWARD = f"{ROOT / 'data_prep/reward.py'}:compute_score"
RIGHT = 0.4  # share of right answers


def never() -> bool:
    return False


class Stub:
    """Finishes a few answers a step, the latest first."""

    def __init__(
        self,
        sampling: Sampling,
        *,
        window: int = 7,
        share: float = RIGHT,
        stop_after: int | None = None,
        stop_when: Callable[[], bool] = never,
    ) -> None:
        """A Ctrl-C comes after so many steps, or as soon as `stop_when`, asked 0.2 seconds after every step."""
        self.window, self._left, self._share, self._max = window, stop_after, share, sampling.max_tokens
        self._stop_when = stop_when
        self.asked: list[tuple[str, str, int]] = []
        self._tokenizer = build_tokenizer()
        self._running: list[Request] = []
        self.most = 0  # answers at a time

    def add(self, request: Request) -> None:
        self.asked.append(request.key)
        self._running.append(request)
        self.most = max(self.most, len(self._running))

    def step(self) -> list[Sampled]:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        if self._left is None and self._stop_when is not never:
            time.sleep(0.2)
            if self._stop_when():
                raise KeyboardInterrupt
        return [self._answer(self._running.pop()) for _ in range(min(3, len(self._running)))]

    def _answer(self, request: Request) -> Sampled:
        right = np.random.default_rng(request.seed).random() < self._share
        ids = response_ids(self._tokenizer, request.problem.ground_truth if right else "no idea")
        return Sampled(request, ids[: self._max], "stop" if len(ids) <= self._max else "length")


def make_model(folder: Path, *, positions: int = 64, weights: bytes = b"weights") -> Path:
    """A folder that looks like a model, with a real tokenizer."""
    folder.mkdir(parents=True)
    build_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def make_data(path: Path, rows: int = 9, seed: int = 0) -> Path:
    problems = draw_problems(addition, np.random.default_rng(seed), rows, heldout=True)
    write_parquet(path, addition, problems, "heldout")
    return path


def run_stub(model: Path, data: Path, output: Path, *more: str, engine: Callable = Stub) -> dict:
    """The command with the stub in vLLM's place. Returns results.json's content."""
    options = ["--model", str(model), "--data", str(data), "--output", str(output)]
    options += ["--reward", REWARD, "--n", "4", "--max-tokens", "16", *more]
    return evaluate(parse(options), lambda given, model, sampling, context: engine(sampling))


def generation(sample: int = 0, score: float = 0.0, **more) -> Generation:
    return Generation(
        **{
            "benchmark": "b",
            "id": "1",
            "sample": sample,
            "tokens": 5,
            "finish_reason": "stop",
            "text": "t",
            "score": score,
            **more,
        }
    )
