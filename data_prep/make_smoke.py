"""Makes what recipes/qwen3_0.6b/smoke.sh needs: prompts, and a model of Qwen3-0.6B's shape with random weights.

python -m data_prep.make_smoke --output DIR                -> DIR/train.parquet, DIR/model (1.2 GB, half a minute)
python -m data_prep.make_smoke --output DIR --model PATH   -> DIR/train.parquet, DIR/tokenizer: PATH's, padded
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from data_prep import addition
from data_prep.parquet import write_parquet
from data_prep.problems import draw_problems
from data_prep.tiny_model import seeded_torch
from data_prep.tokenizer import CHAT_TEMPLATE, EOS, PAD, ROLES, START

PROMPTS = 64
SHAPE = {  # of Qwen3-0.6B, from its config.json
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
FIRST_SPECIAL = 151_643  # Qwen's <|endoftext|>; <|im_start|> and <|im_end|> follow


def padded(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> PreTrainedTokenizerBase:
    """`tokenizer` with tokens added until it has as many as the model has logits.

    verl masks logits past len(tokenizer) in vLLM and not in the actor: with random weights, where these have a share
    of the probability, the log-probs of the two would disagree.

    Raises:
        ValueError: it has more tokens than the model has logits.
    """
    missing = vocabulary - len(tokenizer)
    if missing < 0:
        raise ValueError(f"data_prep: the tokenizer has {len(tokenizer)} tokens, the model only {vocabulary} logits")
    tokenizer.add_tokens([AddedToken(f"<|unused_{index}|>", normalized=False) for index in range(missing)])
    return tokenizer


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """151,936 tokens: 256 bytes, with which it reads any text, Qwen's special tokens at their ids, and numbers, each
    with a space before it, which a random policy writes. The role words are one token each, as Qwen's."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *ROLES]
    names += [f"Ġ{number}" for number in range(len(names), FIRST_SPECIAL)]
    names += [PAD, START, EOS]
    backend = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([PAD, START, EOS])
    backend.add_tokens([AddedToken(role, special=False, normalized=False) for role in ROLES])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=PAD, pad_token=PAD)
    tokenizer.chat_template = CHAT_TEMPLATE
    return padded(tokenizer, SHAPE["vocab_size"])


def make_model(folder: Path, seed: int) -> None:
    """Write the model and its tokenizer to `folder`, whole or not at all. Does nothing when they are there."""
    if (folder / "config.json").exists():
        return
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        with seeded_torch(seed, threads=1):
            model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, dtype="bfloat16")).to(torch.bfloat16)
        model.save_pretrained(unfinished)
        byte_tokenizer().save_pretrained(unfinished)
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m data_prep.make_smoke", description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    parser.add_argument("--model", help="a model of your own, a folder or a hub name; only its tokenizer is padded")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        problems = draw_problems(addition, np.random.default_rng(options.seed), PROMPTS, heldout=False)
        write_parquet(options.output / "train.parquet", addition, problems, "train")
        if options.model is None:
            make_model(options.output / "model", options.seed)
            print(f"make_smoke: RANDOM weights in the shape of Qwen3-0.6B, seed {options.seed}: {options.output}/model")
        else:
            vocabulary = AutoConfig.from_pretrained(options.model).vocab_size
            padded(AutoTokenizer.from_pretrained(options.model), vocabulary).save_pretrained(
                options.output / "tokenizer"
            )
            print(f"make_smoke: the tokenizer of {options.model}, padded to {vocabulary} tokens")
    except (ValueError, OSError) as error:
        print(f"make_smoke: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
