"""A throw-away base policy, made once for the session by the command line."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep import make_tiny

QUICK = ["--task", "addition", "--sft-steps", "20", "--train-rows", "32", "--heldout-rows", "8", "--threads", "1"]


@pytest.fixture(scope="session")
def quick_output(tmp_path_factory) -> Path:
    """The output folder of make_tiny for addition with 20 optimizer steps; read it only."""
    output = tmp_path_factory.mktemp("tiny")
    assert make_tiny.main([*QUICK, "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="session")
def saved_tokenizer(quick_output):
    return AutoTokenizer.from_pretrained(quick_output / "model")


@pytest.fixture(scope="session")
def saved_model(quick_output):
    return AutoModelForCausalLM.from_pretrained(quick_output / "model")
