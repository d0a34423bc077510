"""Digests of weights: vLLM's joined layers taken apart as transformers names them, and one changed bit seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from verl_replay.weight_digests import append, digests, rows_of_parts, split_fused

ROWS = {"q_proj": 4, "k_proj": 2, "v_proj": 2, "gate_proj": 3, "up_proj": 3}


def test_joined_layers_are_taken_apart():
    q, k, v = torch.randn(4, 5), torch.randn(2, 5), torch.randn(2, 5)
    gate, up, norm = torch.randn(3, 5), torch.randn(3, 5), torch.randn(5)
    ours = {
        "layers.0.self_attn.qkv_proj.weight": torch.cat([q, k, v]),
        "layers.0.mlp.gate_up_proj.weight": torch.cat([gate, up]),
        "norm.weight": norm,
    }
    found = dict(split_fused(ours.items(), ROWS))
    theirs = {
        "layers.0.self_attn.q_proj.weight": q,
        "layers.0.self_attn.k_proj.weight": k,
        "layers.0.self_attn.v_proj.weight": v,
        "layers.0.mlp.gate_proj.weight": gate,
        "layers.0.mlp.up_proj.weight": up,
        "norm.weight": norm,
    }
    assert list(found) == list(theirs)
    assert all(torch.equal(found[name], theirs[name]) for name in theirs)


def test_rows_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match=r"qkv_proj.weight has 9 rows, its parts \[4, 2, 2\]"):
        list(split_fused([("qkv_proj.weight", torch.zeros(9, 2))], ROWS))


def test_rows_come_from_the_models_configuration():
    text = SimpleNamespace(
        head_dim=8, hidden_size=999, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40
    )
    model_config = SimpleNamespace(hf_text_config=text)
    whole = {"q_proj": 32, "k_proj": 16, "v_proj": 16, "gate_proj": 40, "up_proj": 40}
    assert rows_of_parts(model_config, 1) == whole
    assert rows_of_parts(model_config, 2) == {name: rows // 2 for name, rows in whole.items()}


def test_a_digest_is_of_the_values_whatever_the_format_and_sees_one_bit():
    narrow = torch.randn(7, 3).to(torch.bfloat16)
    one = digests([("w", narrow)])
    assert one == digests([("w", narrow.float())]) == digests([("w", torch.nn.Parameter(narrow.float()))])
    bits = narrow.clone().view(torch.int16)
    bits[3, 1] ^= 1
    assert digests([("w", bits.view(torch.bfloat16))]) != one
    assert digests([("w", narrow.t().contiguous())]) != one


def test_values_that_bfloat16_does_not_hold_are_refused():
    with pytest.raises(ValueError, match="w .* holds values that bfloat16 does not.*model_dtype=bf16"):
        digests([("w", torch.tensor([1.0, 1.0 + 2**-20]))])


def test_a_line_a_sync(tmp_path):
    append(tmp_path / "new/actor.jsonl", 0, {"b": "2", "a": "1"})
    append(tmp_path / "new/actor.jsonl", 1, {"a": "3"})
    lines = [json.loads(line) for line in (tmp_path / "new/actor.jsonl").read_text().splitlines()]
    assert lines == [{"sync": 0, "digests": {"a": "1", "b": "2"}}, {"sync": 1, "digests": {"a": "3"}}]


@pytest.mark.slow
@pytest.mark.parametrize("watched", [True, False])
def test_verl_is_watched_only_where_asked(watched, tmp_path):
    """In a process of its own: the classes of verl are changed when they are imported."""
    code = (
        "import verl_replay.weight_digests\n"
        "from verl.workers.engine_workers import ActorRolloutRefWorker as worker\n"
        "from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension as extension\n"
        "watched = [hasattr(f, '__wrapped__') and f.__code__.co_filename.endswith('weight_digests.py')\n"
        "           for f in (worker.update_weights, extension.update_weights_from_ipc)]\n"
        "kept = worker.update_weights.__dict__.keys() >= {'attrs_3141562937'}\n"
        "print(watched, kept)\n"
    )
    env = {**os.environ, "VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "verl_replay.platforms.cpu"}
    env |= {"WEIGHT_DIGESTS": str(tmp_path)} if watched else {}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == f"{[watched, watched]} True", done.stderr[-2000:]
