"""The command line, the saved folder, and when it is made again."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch

from data_prep import addition, base_policy, make_tiny
from data_prep.base_policy import BaseSettings, make_base, random_streams
from data_prep.problems import draw_problems, is_heldout
from data_prep.tasks import TASKS
from data_prep.tiny_model import SupervisedSettings
from data_prep.tokenizer import prompt_ids
from tests.data_prep.conftest import QUICK

SMALL = BaseSettings(
    task="addition", threads=1, eval_problems=4, supervised=SupervisedSettings(steps=2, batch_size=8, demonstrations=8)
)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_the_output_folder(quick_output):
    assert sorted(path.name for path in quick_output.iterdir()) == ["heldout.parquet", "model", "train.parquet"]
    files = {path.name for path in (quick_output / "model").iterdir()}
    assert files >= {"base.json", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert "chat_template.jinja" in files
    assert pq.read_metadata(quick_output / "train.parquet").num_rows == 32
    assert pq.read_metadata(quick_output / "heldout.parquet").num_rows == 8


def test_the_files_lie_on_their_sides_of_the_split(quick_output):
    for split, heldout in (("train", False), ("heldout", True)):
        rows = pq.read_table(quick_output / f"{split}.parquet").to_pylist()
        terms = [map(int, row["prompt"][0]["content"].removesuffix("=").split("+")) for row in rows]
        assert {is_heldout(addition.problem_key(*pair)) for pair in terms} == {heldout}
        assert {row["extra_info"]["split"] for row in rows} == {split}


def test_another_seed_makes_other_rows_and_another_model(quick_output, tmp_path):
    arguments = [*QUICK, "--output", str(tmp_path), "--seed", "1", "--sft-steps", "1"]
    assert make_tiny.main(arguments) == 0
    for name in ("train.parquet", "heldout.parquet"):
        assert (tmp_path / name).read_bytes() != (quick_output / name).read_bytes()
    assert json.loads((tmp_path / "model" / "base.json").read_text())["identity"]["settings"]["seed"] == 1


def test_the_saved_model_and_tokenizer_fit_together(saved_model, saved_tokenizer):
    assert saved_model.config.model_type == "qwen3" and saved_model.dtype == torch.float32
    assert saved_model.config.vocab_size == len(saved_tokenizer) == saved_model.lm_head.weight.shape[0]
    for config in (saved_model.config, saved_model.generation_config):
        assert config.eos_token_id == saved_tokenizer.eos_token_id
        assert config.pad_token_id == saved_tokenizer.pad_token_id
    assert saved_model.config.tie_word_embeddings
    assert saved_model.config.rope_parameters["rope_theta"] == 30.0
    assert saved_tokenizer.decode(prompt_ids(saved_tokenizer, "123+456=")) == (
        "<|im_start|>user\n123+456=<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_manifest(quick_output):
    manifest = json.loads((quick_output / "model" / "base.json").read_text())
    settings = manifest["identity"]["settings"]
    assert (settings["task"], settings["seed"], settings["supervised"]["steps"]) == ("addition", 0, 20)
    assert manifest["identity"]["versions"]["torch"] == torch.__version__
    assert (manifest["accuracy"]["k"], manifest["accuracy"]["n"]) == (8, 256)
    assert 0 <= manifest["accuracy"]["mean_at_k"] <= 1
    assert manifest["loss"]["last"] < manifest["loss"]["first"]
    assert manifest["seconds"] > 0


def test_a_second_run_reuses_the_model_and_writes_the_same_parquet(quick_output, capsys, monkeypatch):
    before = {path: path.read_bytes() for path in quick_output.rglob("*") if path.is_file()}
    monkeypatch.setattr(base_policy, "build_base", lambda *_: pytest.fail("trained again"))
    assert make_tiny.main([*QUICK, "--output", str(quick_output)]) == 0
    assert {path: path.read_bytes() for path in quick_output.rglob("*") if path.is_file()} == before
    assert "reused" in capsys.readouterr().out


def test_what_is_printed(tmp_path, capsys):
    arguments = ["--task", "countdown", "--output", str(tmp_path), "--sft-steps", "1", "--train-rows", "4"]
    assert make_tiny.main([*arguments, "--heldout-rows", "2", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "4 training and 2 held-out problems" in out
    assert "256 held-out problems: mean@16 at temperature 1 0.0" in out
    assert "data.max_prompt_length=16 data.max_response_length=17" in out


def test_a_wrong_number_is_an_error_message_and_not_a_trace(tmp_path, capsys):
    arguments = ["--task", "countdown", "--output", str(tmp_path), "--heldout-rows", "3000"]
    assert make_tiny.main(arguments) == 2
    assert "1908 distinct ones exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("task", TASKS)
def test_the_default_recipe_is_the_tasks(task):
    assert make_tiny.supervised_settings(task, None).steps == TASKS[task].SUPERVISED_STEPS
    assert make_tiny.supervised_settings(task, 2).demonstrations == 128  # two batches of 64


def test_equal_settings_make_equal_weights(tmp_path):
    make_base(tmp_path / "a", SMALL)
    make_base(tmp_path / "b", SMALL)
    make_base(tmp_path / "c", replace(SMALL, seed=1))
    assert weights(tmp_path / "a") == weights(tmp_path / "b") != weights(tmp_path / "c")


def test_the_seed_also_decides_the_initial_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(base_policy, "random_streams", lambda seed: random_streams(0))
    make_base(tmp_path / "a", SMALL)
    make_base(tmp_path / "b", replace(SMALL, seed=1))
    assert weights(tmp_path / "a") != weights(tmp_path / "b")


def test_it_is_trained_and_measured_on_the_right_sides_of_the_split(tmp_path, monkeypatch):
    """And the problems it is measured on start with those that make_tiny writes to heldout.parquet."""
    drawn = []

    def spy(*args, **options):
        drawn.append(draw_problems(*args, **options))
        return drawn[-1]

    monkeypatch.setattr(base_policy, "draw_problems", spy)
    make_base(tmp_path / "a", SMALL)
    demonstrated, measured = drawn
    assert not any(is_heldout(problem.key) for problem in demonstrated)
    assert all(is_heldout(problem.key) for problem in measured)
    assert measured[:2] == draw_problems(addition, random_streams(0)["heldout"], 2, heldout=True)


def test_when_it_is_made_again(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    made = []
    build = base_policy.build_base
    monkeypatch.setattr(base_policy, "build_base", lambda *args: made.append(1) or build(*args))

    assert make_base(folder, SMALL)[1] is False and len(made) == 1
    assert make_base(folder, SMALL)[1] is True and len(made) == 1  # identical
    assert make_base(folder, replace(SMALL, seed=1))[1] is False and len(made) == 2  # other settings
    assert make_base(folder, replace(SMALL, seed=1), force=True)[1] is False and len(made) == 3
    monkeypatch.setattr(base_policy, "RECIPE", base_policy.RECIPE + 1)
    assert make_base(folder, replace(SMALL, seed=1))[1] is False and len(made) == 4  # another version of the code
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # nothing half-made is left


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"identity": '])
def test_a_folder_without_a_readable_manifest_is_not_touched(tmp_path, content):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_text("somebody's weights")
    if content is not None:
        (folder / "base.json").write_text(content)
    with pytest.raises(ValueError, match="exists without a readable base.json.* --force"):
        make_base(folder, SMALL)
    assert (folder / "model.safetensors").read_text() == "somebody's weights"
    assert make_base(folder, SMALL, force=True)[1] is False
    assert make_base(folder, SMALL)[1] is True


def test_a_failed_build_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    make_base(folder, SMALL)
    before = weights(folder)

    def fail_late(*args):
        raise OSError("disk full")

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", fail_late)
    with pytest.raises(OSError, match="disk full"):
        make_base(folder, replace(SMALL, seed=1))
    assert weights(folder) == before and make_base(folder, SMALL)[1] is True
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_streams_are_independent_and_seeded():
    first = {purpose: rng.random(4).tolist() for purpose, rng in random_streams(0).items()}
    assert first == {purpose: rng.random(4).tolist() for purpose, rng in random_streams(0).items()}
    assert len({tuple(numbers) for numbers in first.values()}) == 4
    assert first["train"] != random_streams(1)["train"].random(4).tolist()
