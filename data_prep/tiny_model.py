"""A tiny Qwen3 and its supervised start on demonstrations: the base policy that GRPO then improves."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from data_prep.problems import Problem, Task
from data_prep.tokenizer import prompt_ids, response_ids

IGNORED = -100  # label of a token without loss, in transformers


@dataclass(frozen=True)
class SupervisedSettings:
    """The supervised start. With the defaults it takes about 50 seconds on one core."""

    steps: int = 1000  # optimizer steps
    batch_size: int = 64  # demonstrations a step; many small steps leave the early plateau sooner than few large ones
    demonstrations: int = 20_000  # drawn with replacement, from the training side of the split
    learning_rate: float = 4e-3  # peak
    warmup_steps: int = 50
    final_share: float = 0.1  # of the peak, reached linearly at the last step
    beta2: float = 0.98  # AdamW's second-moment decay: at 0.999 some seeds had not learnt to carry by the last step
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "demonstrations"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"data_prep: {name} of the supervised start must be at least 1, got {value}")


@dataclass(frozen=True)
class Accuracy:
    """What a policy gets right."""

    mean_at_k: float  # share of right rollouts at temperature 1, over problems and k rollouts each
    greedy: float  # share of problems that greedy decoding gets right


@contextmanager
def seeded_torch(seed: int, threads: int) -> Iterator[None]:
    """Torch's global CPU generator seeded and its threads set, both put back afterwards.

    transformers draws initial weights and generated tokens from the global generator; it takes no other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def tiny_config(tokenizer: PreTrainedTokenizerBase) -> Qwen3Config:
    """About 0.23M parameters. vocab_size is len(tokenizer) exactly: verl masks logits past the tokenizer's length."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        # Prompts of 16 tokens: with the usual base of 10,000 most dimensions hardly turn, and addition is learnt late.
        rope_parameters={"rope_type": "default", "rope_theta": 30.0},
        tie_word_embeddings=True,
        initializer_range=0.1,  # about 1 / sqrt(hidden_size); the usual 0.02 is for wide models and starts slowly here
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def untrained_model(tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    """A model with weights from torch's global generator: call it within seeded_torch."""
    return Qwen3ForCausalLM(tiny_config(tokenizer)).float()


def supervised_batch(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels of (prompt, response) pairs, padded on the right.

    Returns:
        ids: (N, T) int64.
        labels: (N, T) int64, the ids where the token is of the response or its end, IGNORED elsewhere.
    """
    prompts = [prompt_ids(tokenizer, prompt) for prompt, _ in pairs]
    responses = [response_ids(tokenizer, response) for _, response in pairs]
    width = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True))
    ids = torch.full((len(pairs), width), tokenizer.pad_token_id)
    labels = torch.full((len(pairs), width), IGNORED)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        end = len(prompt) + len(response)
        ids[row, :end] = torch.tensor(prompt + response)
        labels[row, len(prompt) : end] = torch.tensor(response)
    return ids, labels


def supervised_start(
    model: Qwen3ForCausalLM,
    ids: torch.Tensor,
    labels: torch.Tensor,
    rng: np.random.Generator,
    settings: SupervisedSettings,
) -> list[float]:
    """Train `model` in place on rows of (ids, labels), each (N, T), drawn uniformly by `rng`.

    Returns:
        The loss of every step, in nats a response token.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(0.9, settings.beta2),
        weight_decay=settings.weight_decay,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_share(step, settings))
    # Padding is on the right, so causal attention needs no mask: no loss token sees a padding token.
    first = int((labels != IGNORED).any(0).nonzero()[0])  # no label lies before it: no logits needed there
    losses = []
    seconds = 0.1 if sys.stderr.isatty() else 10  # between two looks: a log file keeps every one of them
    with tqdm(total=settings.steps, desc="supervised start", unit="step", mininterval=seconds) as bar:
        for _ in range(settings.steps):
            rows = torch.from_numpy(rng.integers(0, len(ids), size=settings.batch_size))
            logits = model(input_ids=ids[rows, :-1], use_cache=False).logits[:, first - 1 :]
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[rows, first:].flatten(), ignore_index=IGNORED
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
            bar.update()
    model.eval()
    return losses


def learning_rate_share(step: int, settings: SupervisedSettings) -> float:
    """Share of the peak at `step` (0-based): linear warm-up times linear decay from 1 to final_share."""
    warmup = min(1.0, (step + 1) / settings.warmup_steps)
    return warmup * (1 - (1 - settings.final_share) * step / settings.steps)


@torch.no_grad()
def generate(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    k: int,
    *,
    max_new_tokens: int,
    greedy: bool = False,
    prompts_at_once: int = 64,
) -> list[list[str]]:
    """k responses for each prompt by transformers' generate, at temperature 1 from the whole distribution.

    Rollouts are drawn from torch's global generator: call it within seeded_torch.

    Returns:
        len(prompts) lists of k decoded responses, special tokens left out as verl's reward managers leave them out.
    """
    rows = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    draw = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    responses: list[list[str]] = []
    for start in range(0, len(rows), prompts_at_once):
        batch = rows[start : start + prompts_at_once]
        width = max(map(len, batch))
        # Padded on the left, so that every response starts in the same column.
        ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(row)) + row for row in batch])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
        out = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, num_return_sequences=k, **draw
        )
        texts = tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
        responses += [texts[row * k : (row + 1) * k] for row in range(len(batch))]
    return responses


def measure(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, task: Task, problems: Sequence[Problem], k: int
) -> Accuracy:
    """The accuracy on `problems`, graded as verl grades it. Call it within seeded_torch."""
    longest = max(len(response_ids(tokenizer, problem.answer)) for problem in problems)
    prompts = [problem.prompt for problem in problems]

    def share_right(responses: list[list[str]]) -> float:
        graded = zip(problems, responses, strict=True)
        return float(np.mean([[task.grade(problem.ground_truth, text) for text in texts] for problem, texts in graded]))

    return Accuracy(
        mean_at_k=share_right(generate(model, tokenizer, prompts, k, max_new_tokens=longest)),
        greedy=share_right(generate(model, tokenizer, prompts, 1, max_new_tokens=longest, greedy=True)),
    )


def parameter_count(model: torch.nn.Module) -> int:
    """Trainable numbers, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
