"""The parquet files, as bytes and as verl reads them."""

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from data_prep.parquet import write_parquet
from data_prep.problems import draw_problems
from data_prep.tasks import TASKS
from data_prep.tokenizer import build_tokenizer, prompt_ids

EVERY_TASK = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def write(path, task, seed=0, count=12):
    problems = draw_problems(task, np.random.default_rng(seed), count, heldout=False)
    write_parquet(path, task, problems, "train")
    return problems


@EVERY_TASK
def test_rows(task, tmp_path):
    problems = write(tmp_path / "train.parquet", task)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert rows == [
        {
            "data_source": task.DATA_SOURCE,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
            "extra_info": {"split": "train", "index": index},
        }
        for index, problem in enumerate(problems)
    ]


@EVERY_TASK
def test_the_same_seed_gives_the_same_bytes(task, tmp_path):
    write(tmp_path / "a", task)
    write(tmp_path / "deeper" / "b", task)
    write(tmp_path / "c", task, seed=1)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "deeper" / "b").read_bytes() != (tmp_path / "c").read_bytes()


def test_nothing_but_the_file_is_left(tmp_path):
    write(tmp_path / "a", TASKS["addition"])
    write(tmp_path / "a", TASKS["addition"])  # replaces it
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    write(tmp_path / "a", TASKS["addition"])
    before = (tmp_path / "a").read_bytes()

    def fail_half_way(table, where):
        where.write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr("data_prep.parquet.pq.write_table", fail_half_way)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "a", TASKS["addition"], seed=1)
    assert (tmp_path / "a").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@EVERY_TASK
def test_verl_reads_the_rows_and_renders_the_prompt_that_was_trained_on(task, tmp_path, monkeypatch):
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    problems = write(tmp_path / "train.parquet", task)
    tokenizer = build_tokenizer()
    config = OmegaConf.create({"max_prompt_length": 16, "filter_overlong_prompts": True, "cache_dir": str(tmp_path)})
    dataset = RLHFDataset([str(tmp_path / "train.parquet")], tokenizer, config)
    assert len(dataset) == len(problems)  # none is longer than 16 tokens

    # What the agent loop does with a row (verl infers the builder from model_type in config.json).
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen3")
    for index, problem in enumerate(problems):
        row = dataset[index]
        assert row["index"] == index and row["data_source"] == task.DATA_SOURCE
        assert row["reward_model"]["ground_truth"] == problem.ground_truth
        assert builder.build_initial_tokens(list(row["raw_prompt"])) == prompt_ids(tokenizer, problem.prompt)
