"""The reward, called directly and through verl's own loader."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import reward
from data_prep.tasks import TASKS

FILE = str(Path(reward.__file__).resolve())
CASES = [("verl_replay/addition", "9750", "9750"), ("verl_replay/countdown", "7571>43", "7*7=49-1=48-5=43")]
EVERY_CASE = pytest.mark.parametrize(("source", "truth", "right"), CASES, ids=["addition", "countdown"])
RIGHT, WRONG = {"score": 1.0, "acc": 1.0}, {"score": 0.0, "acc": 0.0}


@EVERY_CASE
def test_right_and_wrong(source, truth, right):
    assert reward.compute_score(source, right, truth) == RIGHT
    assert reward.compute_score(source, right[:-1], truth) == WRONG
    assert (
        reward.compute_score(data_source=source, solution_str=right, ground_truth=truth, extra_info={}, more=1) == RIGHT
    )
    assert all(type(value) is float for value in reward.compute_score(source, right, truth).values())


@EVERY_CASE
@given(response=st.one_of(st.text(), st.text("0123456789+-*=>", max_size=20), st.none(), st.binary(), st.integers()))
def test_no_response_raises_and_none_of_these_is_right(source, truth, right, response):
    if response != right:  # the second strategy could hit on a right one; with these lengths it does not in practice
        assert reward.compute_score(source, response, truth) == WRONG


def test_a_huge_response_is_graded_at_once():
    for source, truth, right in CASES:
        assert reward.compute_score(source, right * 1_000_000, truth) == WRONG


@pytest.mark.parametrize("source", ["verl_replay/division", "addition", "", None])
def test_an_unknown_source_is_refused_with_the_known_ones(source):
    with pytest.raises(ValueError, match=r"no rule for data_source .* it grades \['verl_replay/addition', "):
        reward.compute_score(source, "9750", "9750")


def test_every_task_has_its_own_source():
    assert set(reward.GRADES) == {"verl_replay/addition", "verl_replay/countdown"}
    assert len(reward.GRADES) == len(TASKS)


@pytest.mark.parametrize("path", [FILE, f"file://{FILE}", "pkg://data_prep.reward"])
@EVERY_CASE
def test_through_verls_loader(path, source, truth, right):
    from omegaconf import OmegaConf
    from verl.trainer.ppo.reward import get_custom_reward_fn

    config = OmegaConf.create({"reward": {"custom_reward_function": {"path": path, "name": "compute_score"}}})
    score = get_custom_reward_fn(config)
    assert score(data_source=source, solution_str=right, ground_truth=truth, extra_info={"num_turns": 2}) == RIGHT
    assert score(data_source=source, solution_str=f"{right} ", ground_truth=truth, extra_info=None) == WRONG


def test_by_path_from_a_checkout_that_is_not_installed(tmp_path):
    """A copy elsewhere, run in another folder, in a process from which every trace of this checkout is removed."""
    copy = tmp_path / "checkout" / "data_prep"
    shutil.copytree(Path(FILE).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = f"""
import sys, importlib.util
sys.path[:] = [path for path in sys.path if path not in ("", {str(Path(FILE).parent.parent)!r})]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
assert importlib.util.find_spec("data_prep") is None
spec = importlib.util.spec_from_file_location("custom_module_1", {str(copy / "reward.py")!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.compute_score("verl_replay/addition", "9750", "9750")["acc"], "torch" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True)
    assert run.stdout.split() == ["1.0", "False"], run.stderr


def test_numpy_strings_of_a_batch_are_graded():
    """verl keeps data_source in an object array, and hands numpy strings on where one was made."""
    score = reward.compute_score(np.array(["verl_replay/addition"])[0], np.str_("9750"), np.str_("9750"))
    assert score == RIGHT
