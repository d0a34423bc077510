"""The reward, called directly, in threads as verl does, and through verl's own loader."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.maths import reward
from data_prep.maths.sources import DATASETS

FILE = str(Path(reward.__file__).resolve())
RIGHT, WRONG = {"score": 1.0, "acc": 1.0}, {"score": 0.0, "acc": 0.0}


def test_right_and_wrong():
    assert reward.compute_score("math500", r"So \boxed{\frac12}.", r"\frac{1}{2}") == RIGHT
    assert reward.compute_score("math500", r"So \boxed{\frac13}.", r"\frac{1}{2}") == WRONG
    keywords = dict(data_source="hmmt_feb_2025", solution_str=r"\boxed{x+y}", ground_truth="y+x", extra_info={}, more=1)
    assert reward.compute_score(**keywords) == RIGHT
    assert all(type(value) is float for value in reward.compute_score(**keywords).values())


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.text("0123456789+-*/\\boxed{} f", max_size=60), st.none(), st.binary(), st.integers()))
def test_no_response_raises(response):
    assert reward.compute_score("math500", response, "123456789123") == WRONG


@settings(max_examples=40, deadline=None)
@given(st.text("0123456789+-*/\\{}() fracsqrtpi^x,=", max_size=30))
def test_no_answer_raises(answer):
    assert reward.compute_score("math500", rf"\boxed{{{answer}}}", r"x^{77} + \sqrt{z}") == WRONG


@pytest.mark.parametrize("source", ["verl_replay/addition", "MATH500", "", None])
def test_an_unknown_source_is_refused_with_the_known_ones(source):
    with pytest.raises(ValueError, match=r"no rule for data_source .* it grades \['aime_2024', "):
        reward.compute_score(source, r"\boxed{5}", "5")


@pytest.mark.parametrize("truth", ["", None, 5, ["5"]])
def test_a_ground_truth_that_is_no_text_is_refused(truth):
    with pytest.raises(ValueError, match="make the parquet files with"):
        reward.compute_score("math500", r"\boxed{5}", truth)


def test_a_ground_truth_that_cannot_be_parsed_ends_no_run():
    assert reward.compute_score("math500", r"\boxed{\foo{}}", r"\foo{}") == RIGHT
    assert reward.compute_score("math500", r"\boxed{\bar{}}", r"\foo{}") == WRONG


def test_every_data_set_has_the_reward():
    for source in DATASETS:
        assert reward.compute_score(np.array([source])[0], np.str_(r"\boxed{5}"), np.str_("5")) == RIGHT


def test_in_threads_as_verl_calls_it():
    """math-verify itself raises in a thread."""
    with ThreadPoolExecutor(8) as threads:
        responses = [rf"\boxed{{{n}+x^{{17}}}}" for n in range(16)]
        scores = list(threads.map(lambda text: reward.compute_score("math500", text, "x^{17}+3")["acc"], responses))
    assert scores == [0.0] * 3 + [1.0] + [0.0] * 12


@pytest.mark.parametrize("path", [FILE, f"file://{FILE}", "pkg://data_prep.maths.reward"])
def test_through_verls_loader(path):
    from omegaconf import OmegaConf
    from verl.trainer.ppo.reward import get_custom_reward_fn

    config = OmegaConf.create({"reward": {"custom_reward_function": {"path": path, "name": "compute_score"}}})
    score = get_custom_reward_fn(config)
    keywords = dict(data_source="aime_2025", ground_truth="70")
    assert score(solution_str=r"\boxed{70}", extra_info={"num_turns": 2}, **keywords) == RIGHT
    assert score(solution_str=r"\boxed{71}", extra_info=None, **keywords) == WRONG


def test_through_verls_reward_loop():
    """verl's naive reward manager, which calls the reward by run_in_executor."""
    import asyncio
    from types import SimpleNamespace

    import torch
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    texts = [r"\boxed{x+1}", r"\boxed{x+2}", "none"]
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: texts[int(ids[0])])

    async def scores() -> list[float]:
        manager = NaiveRewardManager(OmegaConf.create({}), tokenizer, reward.compute_score)
        rows = [
            DataProto(
                batch=TensorDict(
                    {"responses": torch.tensor([[i]]), "attention_mask": torch.ones(1, 1, dtype=torch.int64)},
                    batch_size=1,
                ),
                non_tensor_batch={
                    "data_source": np.array(["math500"], dtype=object),
                    "reward_model": np.array([{"ground_truth": "1+x"}], dtype=object),
                    "extra_info": np.array([{}], dtype=object),
                },
            )
            for i in range(len(texts))
        ]
        return [result["reward_score"] for result in await asyncio.gather(*map(manager.run_single, rows))]

    assert asyncio.run(scores()) == [1.0, 0.0, 0.0]


def test_by_path_from_a_checkout_that_is_not_installed(tmp_path):
    """A copy elsewhere, run in another folder, in a process from which every trace of this checkout is removed."""
    copy = tmp_path / "checkout" / "data_prep"
    shutil.copytree(Path(FILE).parents[1], copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = f"""
import sys, importlib.util
sys.path[:] = [path for path in sys.path if path not in ("", {str(Path(FILE).parents[2])!r})]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
assert importlib.util.find_spec("data_prep") is None
spec = importlib.util.spec_from_file_location("custom_module_1", {str(copy / "maths" / "reward.py")!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.compute_score("math500", "\\\\boxed{{x+y}}", "y+x")["acc"], "torch" in sys.modules, "sympy" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True)
    assert run.stdout.split() == ["1.0", "False", "False"], run.stderr
