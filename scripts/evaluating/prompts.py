"""Problems -> token ids, rendered as verl's agent loop renders them; and what does not fit the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.evaluating.problems import Benchmark, Problem

REFUSE, WRONG = "refuse", "wrong"  # what to do about prompts that leave no room for an answer


class Request(NamedTuple):
    """One answer to sample.

    Attributes:
        prompt: token ids.
        seed: of this answer alone.
    """

    key: tuple[str, str, int]
    problem: Problem
    prompt: list[int]
    seed: int


def seed_of(seed: int, key: tuple[str, str, int]) -> int:
    """The same for the same answer in every run, whatever has been sampled before: 63 bits, as torch takes them."""
    digest = hashlib.blake2b(json.dumps([seed, *key]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def load_tokenizer(model: Path, chat_template: str | None) -> Any:
    """The model's tokenizer.

    Raises:
        ValueError: it has no chat template and none is given.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    if not tokenizer.chat_template:
        raise ValueError(f"{model}: its tokenizer has no chat template. Give one with --chat-template FILE.")
    return tokenizer


def context_length(model: Path, asked: int | None) -> int:
    """Tokens of prompt and answer together.

    Raises:
        ValueError: the model takes fewer than asked for, or does not say.
    """
    config = json.loads((model / "config.json").read_text())
    most = config.get("max_position_embeddings") or (config.get("text_config") or {}).get("max_position_embeddings")
    if asked is None and most is None:
        raise ValueError(f"{model}/config.json has no max_position_embeddings. Give --max-model-len.")
    if asked is not None and most is not None and asked > most:
        raise ValueError(f"--max-model-len {asked} is above the model's {most} positions. Give at most {most}.")
    return asked or most


def end_tokens(folder: Path, *, must: bool = False) -> list[int] | None:
    """Token ids that end an answer besides the tokenizer's own, by the folder's generation_config.json.

    Args:
        must: the folder was given for this file.

    Raises:
        ValueError: the file is missing or names no end token, though it must.
    """
    path = folder / "generation_config.json"
    named = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
    if must and named is None:
        raise ValueError(f"--generation-config {folder}: it needs a generation_config.json with eos_token_id.")
    return [named] if isinstance(named, int) else named


def render(tokenizer: Any, benchmarks: Sequence[Benchmark]) -> dict[tuple[str, str], list[int]]:
    """Token ids of every prompt, generation prompt included, by benchmark and problem."""
    return {
        (benchmark.name, problem.id): tokenizer.apply_chat_template(
            problem.messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for benchmark in benchmarks
        for problem in benchmark.problems
    }


def too_long(prompts: dict[tuple[str, str], list[int]], context: int, what: str) -> set[tuple[str, str]]:
    """Prompts that leave no room for a single token.

    Args:
        what: "refuse" or "wrong": whether they are an error, or later count as wrong answers.

    Raises:
        ValueError: there are some, and they are to be refused.
    """
    found = {key for key, ids in prompts.items() if len(ids) >= context}
    if found and what == REFUSE:
        most = max(len(prompts[key]) for key in found)
        raise ValueError(
            f"{len(found)} of {len(prompts)} prompts do not fit into the model's {context} tokens (longest: {most}). "
            "Raise --max-model-len if the model takes more, or count them as wrong with --too-long wrong."
        )
    return found


def requests(
    benchmarks: Sequence[Benchmark], prompts: dict[tuple[str, str], list[int]], *, n: int, seed: int
) -> list[Request]:
    """All answers to sample, those to one prompt one after another: vLLM then computes the prompt once."""
    return [
        Request(key, problem, prompts[benchmark.name, problem.id], seed_of(seed, key))
        for benchmark in benchmarks
        for problem in benchmark.problems
        for key in ((benchmark.name, problem.id, sample) for sample in range(n))
    ]
