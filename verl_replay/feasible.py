"""What verl accepts at start and fails on minutes later: in the workers, in the first update, in its own baseline.

Each check is a function `(config) -> fault or None`, as in support.py. IN_THE_WORKER holds for every run;
BATCH_SHAPES only for what verl does without replay (our layout deals any number of rows), which a recipe's own
baseline, replay=off, needs: DRY_RUN checks both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf

Check = Callable[[DictConfig], str | None]

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
TRAIN, MINI, N = "data.train_batch_size", f"{_ACTOR}.ppo_mini_batch_size", f"{_ROLLOUT}.n"
PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"
GPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
TP, SP = f"{_ROLLOUT}.tensor_model_parallel_size", f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size"
DYNAMIC, MICRO = f"{_ACTOR}.use_dynamic_bsz", f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
WHOLE = (TRAIN, MINI, N, PROMPT, RESPONSE, GPUS, NODES, TP, SP, f"{_ACTOR}.ppo_epochs", "trainer.total_epochs")
WHOLE_OR_NULL = (
    "data.gen_batch_size",
    "trainer.total_training_steps",
    MICRO,
    f"{_ACTOR}.ppo_max_token_len_per_gpu",
    f"{_ROLLOUT}.max_model_len",
    f"{_ROLLOUT}.max_num_seqs",
    f"{_ROLLOUT}.max_num_batched_tokens",
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
)
POSITIVE = (f"{_ROLLOUT}.temperature", f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio_high")


def faults(config: DictConfig, *, baseline: bool) -> list[str]:
    """Every fault found, a line each: the rule, the value and the remedy.

    Args:
        config: verl's composed config.
        baseline: check also that the run would work without replay.
    """
    found = [fault for check in NUMBERS if (fault := check(config))]
    if found:
        return found  # the rest calculates with them
    return [fault for check in (*IN_THE_WORKER, *(BATCH_SHAPES if baseline else ())) if (fault := check(config))]


def get(config: DictConfig, key: str, default: Any = None) -> Any:
    """The value at a dotted key, `default` where it is null or missing."""
    value = OmegaConf.select(config, key)
    return default if value is None else value


def ranks(config: DictConfig) -> int:
    """GPUs of the whole run."""
    return get(config, NODES, 1) * get(config, GPUS, 1)


def data_parallel(config: DictConfig) -> int:
    """Ranks among which the rows of a mini-batch are dealt: GPUs without those that share a row."""
    return max(1, ranks(config) // get(config, SP, 1))


def whole_numbers(config: DictConfig) -> str | None:
    for key in (*WHOLE, *WHOLE_OR_NULL):
        value = OmegaConf.select(config, key)
        if value is None and (key in WHOLE_OR_NULL or OmegaConf.select(config, key, default=0) == 0):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return f"{key} must be a whole number, at least 1, got {value!r}. Set {key}={_whole(value)}, say."
    return None


def _whole(value: object) -> int:
    return max(1, int(value)) if isinstance(value, int | float) and value == value and abs(value) < 1e15 else 1


def positive_numbers(config: DictConfig) -> str | None:
    for key in POSITIVE:
        value = get(config, key, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            return f"{key} must be a number above 0, got {value!r}. Set {key}=1.0, say."
    return None


def dual_clip(config: DictConfig) -> str | None:
    c = get(config, f"{_ACTOR}.clip_ratio_c", 3.0)
    if get(config, f"{_ACTOR}.policy_loss.loss_mode", "vanilla") == "vanilla" and not c > 1:
        return (
            f"{_ACTOR}.clip_ratio_c must be above 1, got {c}: verl's loss refuses it in the first update. "
            f"Set {_ACTOR}.clip_ratio_c=10.0."
        )
    return None


def dynamic_batches(config: DictConfig) -> str | None:
    actor, rollout = get(config, DYNAMIC, False), get(config, f"{_ROLLOUT}.log_prob_use_dynamic_bsz", False)
    if actor != rollout:
        return (
            f"{DYNAMIC} and {_ROLLOUT}.log_prob_use_dynamic_bsz must be equal, got {actor} and {rollout}: verl's "
            f"worker asserts it. Set {_ROLLOUT}.log_prob_use_dynamic_bsz={str(actor).lower()}."
        )
    return None


def longest_row(config: DictConfig) -> str | None:
    """A micro-batch must hold the longest row that a step can bring."""
    longest = get(config, PROMPT) + get(config, RESPONSE)
    if not get(config, DYNAMIC, False):
        return None
    for key in (f"{_ACTOR}.ppo_max_token_len_per_gpu", f"{_ROLLOUT}.log_prob_max_token_len_per_gpu"):
        tokens = get(config, key, longest) * get(config, SP, 1)
        if tokens < longest:
            return (
                f"{key} must hold the longest row, {PROMPT} + {RESPONSE} = {longest} tokens, got {tokens}: verl "
                f"asserts it when such a row comes. Set {key}={longest}, or allow shorter rows."
            )
    return None


def engine_length(config: DictConfig) -> str | None:
    length, prompt = get(config, f"{_ROLLOUT}.max_model_len"), get(config, PROMPT)
    if length is not None and length <= prompt:
        return (
            f"{_ROLLOUT}.max_model_len must be above {PROMPT}={prompt}, got {length}: the longest prompts leave no "
            f"room to answer. Set {_ROLLOUT}.max_model_len={prompt + get(config, RESPONSE)}."
        )
    tokens = get(config, f"{_ROLLOUT}.max_num_batched_tokens")
    if not get(config, f"{_ROLLOUT}.enable_chunked_prefill", True) and tokens is not None and tokens < (length or 0):
        return (
            f"{_ROLLOUT}.max_num_batched_tokens must be at least max_model_len={length} without chunked prefill, got "
            f"{tokens}. Set {_ROLLOUT}.enable_chunked_prefill=true."
        )
    return None


def parallel_sizes(config: DictConfig) -> str | None:
    """Rollout engines share the trainer's GPUs, unless they have nodes of their own (separate_async)."""
    own = get(config, f"{_ROLLOUT}.nnodes", 0) * get(config, f"{_ROLLOUT}.n_gpus_per_node", 0)
    of_rollout = (own, f"{_ROLLOUT}.nnodes x n_gpus_per_node") if own else (ranks(config), f"{NODES} x {GPUS}")
    for key, (gpus, product) in {TP: of_rollout, SP: (ranks(config), f"{NODES} x {GPUS}")}.items():
        size = get(config, key, 1)
        if gpus % size:
            return (
                f"{key} must divide the number of GPUs, {product} = {gpus}, got {size}. "
                f"Set {key}=1, or another number of GPUs."
            )
    return None


def whole_mini_batches(config: DictConfig) -> str | None:
    train, mini = get(config, TRAIN), get(config, MINI)
    if train % mini:
        return (
            f"{TRAIN} must be a multiple of {MINI}, got {train} and {mini}: verl's V0 fails on the rest, and V1 fills "
            f"it with padding, a mini-batch of which has no loss but NaN. Set {TRAIN}={max(1, train // mini) * mini}, "
            f"or {MINI} to a divisor of {train}."
        )
    return None


def rows_over_ranks(config: DictConfig) -> str | None:
    rows, dp = get(config, MINI) * get(config, N), data_parallel(config)
    if rows % dp:
        return (
            f"{MINI} x {N} must be a multiple of the {dp} data-parallel ranks, got {get(config, MINI)} x "
            f"{get(config, N)} = {rows}: verl's worker asserts it. Choose a multiple, or another number of GPUs."
        )
    return None


def rows_over_micro_batches(config: DictConfig) -> str | None:
    if get(config, DYNAMIC, False) or get(config, MICRO) is None:
        return None
    rows, micro = get(config, MINI) * get(config, N) // data_parallel(config), get(config, MICRO)
    if rows % micro:
        return (
            f"the rows of a mini-batch on a rank, {rows}, must be a multiple of {MICRO}, got {micro}. "
            f"Set {MICRO} to a divisor of {rows}, or {DYNAMIC}=true."
        )
    return None


NUMBERS: tuple[Check, ...] = (whole_numbers, positive_numbers)
IN_THE_WORKER: tuple[Check, ...] = (
    dual_clip,
    dynamic_batches,
    longest_row,
    engine_length,
    parallel_sizes,
)
BATCH_SHAPES: tuple[Check, ...] = (whole_mini_batches, rows_over_ranks, rows_over_micro_batches)
