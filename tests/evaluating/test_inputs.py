"""What scripts/evaluate.py is given: data files, models and checkpoints, prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.tokenizer import build_tokenizer, prompt_ids
from scripts.evaluating.models import find_model, model_digest
from scripts.evaluating.problems import SUFFIX, read_benchmark, read_benchmarks
from scripts.evaluating.prompts import context_length, end_tokens, load_tokenizer, render, requests, seed_of
from tests.evaluating.stub import ROOT, make_data, make_model

BENCH = ROOT.parent / "shared" / "data" / "bench"


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_jsonl_becomes_verl_rows(tmp_path):
    path = lines(tmp_path / "aime.jsonl", {"id": 3, "problem": "1+1?", "answer": 2}, "\n")
    (problem,) = read_benchmark(path).problems
    assert problem.id == "3" and problem.data_source == "aime" and problem.ground_truth == "2"
    assert problem.messages == [{"role": "user", "content": "1+1?" + SUFFIX}]
    assert read_benchmark(path, suffix="").problems[0].messages[0]["content"] == "1+1?"


def test_parquet_is_taken_as_it_is(tmp_path):
    benchmark = read_benchmark(make_data(tmp_path / "sums.parquet", rows=5))
    assert [problem.id for problem in benchmark.problems] == list("01234")
    assert {problem.data_source for problem in benchmark.problems} == {"verl_replay/addition"}
    assert benchmark.problems[0].messages[0]["role"] == "user"
    assert read_benchmark(tmp_path / "sums.parquet", limit=2).problems == benchmark.problems[:2]


def test_the_digest_is_of_what_is_asked_and_graded(tmp_path):
    row = {"id": 1, "problem": "a", "answer": "b"}
    path = tmp_path / "x.jsonl"
    digests = [
        read_benchmark(lines(path, {**row, **change})).digest for change in ({}, {"problem": "c"}, {"answer": 1})
    ]
    assert len(set(digests)) == 3
    assert read_benchmark(lines(path, row)).digest == digests[0] != read_benchmark(path, suffix="").digest


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("x.csv", ["a\n"], "end in .parquet or .jsonl"),
        ("x.jsonl", [], "holds no problem"),
        ("x.jsonl", ["{\n"], "line 1 is not JSON"),
        ("x.jsonl", [{"id": 1, "problem": "a"}], r"line 1: \['answer'\] missing"),
        ("x.jsonl", [{"id": 1, "problem": "a", "answer": "b"}] * 2, r"ids must differ, \['1'\]"),
        ("x.parquet", ["a\n"], "no parquet file"),
    ],
)
def test_files_that_are_no_benchmark_are_refused(tmp_path, name, rows, message):
    with pytest.raises(ValueError, match=message):
        read_benchmark(lines(tmp_path / name, *rows))


def test_two_benchmarks_of_one_name_are_refused(tmp_path):
    path = lines(tmp_path / "x.jsonl", {"id": 1, "problem": "a", "answer": "b"})
    with pytest.raises(ValueError, match=r"\['x'\] come more than once"):
        read_benchmarks([path, path])


@pytest.mark.skipif(not BENCH.is_dir(), reason="no shared/data/bench beside the project")
def test_the_benchmarks_of_the_paper_are_read():
    found = read_benchmarks(sorted(BENCH.glob("*.jsonl")))
    sizes = {benchmark.name: len(benchmark.problems) for benchmark in found}
    assert sizes["math500"] == 500 and sizes["aime_2025"] == sizes["aime_2026"] == sizes["hmmt_feb_2025"] == 30
    assert all(problem.ground_truth for benchmark in found for problem in benchmark.problems)


def make_checkpoint(folder: Path, *, ranks: int = 2, hf: bool = False) -> Path:
    actor = folder / "actor"
    actor.mkdir(parents=True)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    for rank in range(ranks):
        (actor / f"model_world_size_{ranks}_rank_{rank}.pt").write_bytes(b"shard")
    (actor / "huggingface").mkdir()
    (actor / "huggingface" / "config.json").write_text("{}")
    if hf:
        (actor / "huggingface" / "model.safetensors").write_bytes(b"weights")
    return folder


def test_models_and_checkpoints_are_told_apart(tmp_path):
    model = make_model(tmp_path / "model")
    assert find_model(model) == (model, ())
    step = make_checkpoint(tmp_path / "global_step_2")
    source = find_model(step)
    assert source == find_model(step / "actor") and source.folder == step / "actor"
    assert [shard.name for shard in source.shards] == [f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)]
    whole = make_checkpoint(tmp_path / "global_step_3", hf=True)
    assert find_model(whole) == (whole / "actor" / "huggingface", ())  # nothing to merge


def test_what_is_no_model_is_refused_with_what_to_give(tmp_path):
    step = make_checkpoint(tmp_path / "global_step_10")
    make_checkpoint(tmp_path / "global_step_9")
    with pytest.raises(ValueError, match="several checkpoints. Give one of them, e.g. .*global_step_10"):
        find_model(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        find_model(tmp_path / "nothing")
    with pytest.raises(ValueError, match="holds no model"):
        find_model(step / "actor" / "huggingface")
    (step / "actor" / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(ValueError, match=r"lacks \['model_world_size_2_rank_1.pt'\] of 2 FSDP shards"):
        find_model(step)
    (step / "actor" / "fsdp_config.json").write_text("{}")
    with pytest.raises(ValueError, match="does not name the world size"):
        find_model(step)
    (tmp_path / "megatron" / "actor" / "dist_ckpt").mkdir(parents=True)
    with pytest.raises(ValueError, match="--backend megatron"):
        find_model(tmp_path / "megatron")


def test_a_model_of_the_hub_comes_from_its_cache_or_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="nobody/nothing is not a folder.*cannot be fetched .*hf download"):
        find_model(Path("nobody/nothing"))
    cached = tmp_path / "models--somebody--a-model"
    model = make_model(cached / "snapshots" / "0123")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")
    assert find_model(Path("somebody/a-model")) == (model, ())


def test_end_tokens_are_those_of_the_generation_config(tmp_path):
    assert end_tokens(tmp_path) is None
    with pytest.raises(ValueError, match="needs a generation_config.json with eos_token_id"):
        end_tokens(tmp_path, must=True)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert end_tokens(tmp_path, must=True) == [7]
    recipe = Path(__file__).parents[2] / "recipes/qwen3/generation"
    assert end_tokens(recipe, must=True) == [151643, 151645]


def test_the_digest_is_of_weights_configuration_and_tokenizer(tmp_path):
    model, same = make_model(tmp_path / "one"), make_model(tmp_path / "two")
    digest = model_digest(model)
    assert digest == model_digest(same)
    (same / "README.md").write_text("more")
    assert digest == model_digest(same)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        content = (same / name).read_bytes()
        (same / name).write_bytes(content + b" ")
        assert digest != model_digest(same), name
        (same / name).write_bytes(content)


def test_prompts_are_rendered_as_verl_renders_them(tmp_path):
    model = make_model(tmp_path / "model")
    benchmark = read_benchmark(make_data(tmp_path / "sums.parquet", rows=3))
    rendered = render(load_tokenizer(model, None), [benchmark])
    content = benchmark.problems[1].messages[0]["content"]
    assert rendered["sums", "1"] == prompt_ids(build_tokenizer(), content)
    other = render(load_tokenizer(model, "{{ messages[0]['content'] }}"), [benchmark])
    assert other["sums", "1"] == build_tokenizer().encode(content)
    asked = requests([benchmark], rendered, n=2, seed=0)
    assert [request.key for request in asked[:3]] == [("sums", "0", 0), ("sums", "0", 1), ("sums", "1", 0)]
    assert asked[2].prompt == rendered["sums", "1"] and asked[2].seed == seed_of(0, ("sums", "1", 0))


def test_characters_that_a_tokenizer_does_not_know_are_rendered(tmp_path):
    path = lines(tmp_path / "odd.jsonl", {"id": 1, "problem": "∫ √2 \u2028 数 \U0001f600", "answer": "π"})
    rendered = render(load_tokenizer(make_model(tmp_path / "model"), None), [read_benchmark(path)])
    assert build_tokenizer().unk_token_id in rendered["odd", "1"]


def test_a_model_without_a_chat_template_needs_one(tmp_path):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="--chat-template FILE"):
        load_tokenizer(tmp_path, None)


def test_the_context_is_the_models_unless_less_is_asked_for(tmp_path):
    model = make_model(tmp_path / "model", positions=64)
    assert context_length(model, None) == 64 and context_length(model, 32) == 32
    (model / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 8}}))
    assert context_length(model, None) == 8
    (model / "config.json").write_text("{}")
    assert context_length(model, 99) == 99
    with pytest.raises(ValueError, match="Give --max-model-len"):
        context_length(model, None)


@given(st.integers(0, 2**40), st.text(max_size=4), st.text(max_size=4), st.integers(0, 99))
def test_seeds_are_of_the_answer_and_fit_vllm(seed, benchmark, name, sample):
    key = (benchmark, name, sample)
    value = seed_of(seed, key)
    assert 0 <= value < 2**63 and value == seed_of(seed, key)
    others = [
        seed_of(seed + 1, key),
        seed_of(seed, (benchmark + "1", name, sample)),
        seed_of(seed, (*key[:2], sample + 1)),
    ]
    assert value not in others
    assert seed_of(seed, ("a", "b1", 1)) != seed_of(seed, ("a", "b", 11))


def test_a_seed_never_changes():
    assert seed_of(0, ("sums", "0", 0)) == 2966009149331850816
