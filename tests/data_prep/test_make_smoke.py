"""The smoke run's parts: a tokenizer as long as the vocabulary, with Qwen's special ids, and a reward with a signal."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data_prep import make_smoke
from data_prep.dense_toy_reward import compute_score
from data_prep.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> PreTrainedTokenizerFast:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_smoke.byte_tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_the_tokenizer_is_as_long_as_the_vocabulary_and_has_qwens_special_ids(tokenizer):
    assert len(tokenizer) == 151_936
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [151643, 151644, 151645]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (151643, 151643)


@pytest.mark.parametrize("text", ["12+34=", "line\nbreak", "√2 ≠ 3, 漢字"])
def test_it_reads_any_text_and_writes_it_back(text, tokenizer):
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text.encode())


def test_a_random_policy_writes_numbers(tokenizer):
    assert tokenizer.decode([1000, 151642], skip_special_tokens=True) == " 1000 151642"


def test_a_tokenizer_of_ones_own_is_padded_or_refused():
    own = build_tokenizer()
    before = len(own)
    assert len(make_smoke.padded(own, before + 9)) == before + 9
    assert own.encode("12") == build_tokenizer().encode("12")
    with pytest.raises(ValueError, match=f"has {before} tokens, the model only 5 logits"):
        make_smoke.padded(build_tokenizer(), 5)


def test_the_command_pads_the_tokenizer_of_a_model(tmp_path, capsys):
    build_tokenizer().save_pretrained(tmp_path / "mine")
    (tmp_path / "mine/config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 128}))
    assert make_smoke.main(["--output", str(tmp_path / "out"), "--model", str(tmp_path / "mine")]) == 0
    assert "padded to 128 tokens" in capsys.readouterr().out
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out/tokenizer")) == 128
    assert pq.read_table(tmp_path / "out/train.parquet").num_rows == make_smoke.PROMPTS
    assert not (tmp_path / "out/model").exists()
    assert make_smoke.main(["--output", str(tmp_path / "out"), "--model", str(tmp_path / "nowhere")]) == 2
    assert "make_smoke:" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "score"), [("2468", 1.0), (" 1234", 0.4), ("", 0.0), ("none", 0.0)])
def test_the_toy_reward(text, score):
    assert compute_score("any", text, "7", extra_info=None) == score
