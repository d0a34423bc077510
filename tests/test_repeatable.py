"""verl_replay.repeatable: a seed that says which session it is and, by verl's own worker, reaches the vLLM server."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop import agent_loop as verl_agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.import_utils import resolve_config_path
from verl.workers.rollout.replica import TokenOutput

from verl_replay import repeatable
from verl_replay.repeatable import agent_loop_config_path, session_seed

SESSION = dict(run_seed=42, global_step=3, validate=False, dataset_index=17, session_id=2)

# ---- the seed --------------------------------------------------------------------------------------------------------


def test_seeds_stay_the_same():
    """Constants, so nothing of the process is in them; others would make each earlier repeatable run another run."""
    assert session_seed(**SESSION) == 4861414351557472368
    assert session_seed(**SESSION, prompt=[{"role": "user", "content": "3+4=?"}]) == 421301766071951284


def test_each_session_has_its_own_seed():
    sessions = itertools.product([0, 1], [0, 1, 11], [False, True], [0, 1, 11, "1"], range(12))
    seeds = [
        session_seed(run_seed=r, global_step=g, validate=v, dataset_index=i, session_id=s) for r, g, v, i, s in sessions
    ]
    assert len(set(seeds)) == len(seeds) == 2 * 3 * 2 * 4 * 12
    assert all(0 <= seed < 2**63 for seed in seeds)  # what torch.Generator and vLLM's msgpack take


def test_prompts_with_one_index_have_their_own_seeds():
    class Image:
        """Its repr holds an address, which is another one in every run."""

    def prompt(text):
        return [{"role": "user", "content": [{"type": "image", "image": Image()}, {"type": "text", "text": text}]}]

    assert session_seed(**SESSION, prompt=prompt("3+4=?")) != session_seed(**SESSION, prompt=prompt("3+5=?"))
    assert session_seed(**SESSION, prompt=prompt("3+4=?")) == session_seed(**SESSION, prompt=prompt("3+4=?"))


# ---- the loop, run by verl's worker ----------------------------------------------------------------------------------


class Server:
    """In place of the client of verl's vLLM server: notes the sampling parameters and answers with one token."""

    def __init__(self):
        self.requests: list[dict] = []

    async def generate(self, *, sampling_params, **kwargs):
        self.requests.append(sampling_params)
        await asyncio.sleep(0)
        return TokenOutput(token_ids=[1], log_probs=[0.0], extra_fields={})


@pytest.fixture
def worker(monkeypatch):
    """verl's AgentLoopWorker with its own method _run_agent_loop, without the model and Ray around it."""
    vocab = {word: i for i, word in enumerate(["<unk>", "<eos>", "3", "+", "4", "5"])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>")
    fast.chat_template = "{%- for m in messages %}{{ m['content'] }} {% endfor %}"

    worker = object.__new__(AgentLoopWorker)
    worker.config = OmegaConf.create(
        {
            "data": {},
            "actor_rollout_ref": {"rollout": {"prompt_length": 16, "response_length": 8, "seed": 42}},
        }
    )
    worker.llm_client = Server()
    worker.tokenizer, worker.processor, worker.tools, worker.hf_model_type = fast, None, [], None
    worker.dataset_cls = RLHFDataset
    # as AgentLoopWorker.__init__ reads it
    registry = {entry.name: entry for entry in OmegaConf.load(resolve_config_path(agent_loop_config_path()))}
    monkeypatch.setattr(verl_agent_loop, "_agent_loop_registry", registry)

    async def keep(output, validate, **kwargs):
        return output

    worker._agent_loop_postprocess = keep
    return worker


def run_session(worker, *, validate=False, sampling_params=None, **fields) -> dict:
    """One session, started as verl's workers start it; returns the sampling parameters of its request."""
    fields = {
        "raw_prompt": [{"role": "user", "content": "3 + 4"}],
        "global_steps": 3,
        "index": 17,
        "session_id": 2,
        "uid": "u",
        **fields,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    trajectory = {"step": 3, "sample_index": 17, "rollout_n": 0, "validate": validate}

    async def resume_span():  # Ray's tracing wraps each method of an actor in a coroutine of this name
        params = sampling_params or {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
        await worker._run_agent_loop(params, trajectory, agent_name="repeatable_single_turn", trace=False, **fields)

    async def start():
        await asyncio.create_task(resume_span())

    asyncio.run(start())
    return worker.llm_client.requests[-1]


def test_verls_registry_of_agent_loops_can_load_the_file():
    path = Path(agent_loop_config_path())
    assert path.is_absolute() and path.is_file()
    with pytest.raises(FileNotFoundError):  # why it is a path: verl does not resolve packages here
        resolve_config_path("pkg://verl_replay/config/repeatable_agent_loop.yaml")


def test_the_request_has_the_seed_of_its_session_and_the_configured_parameters(worker):
    params = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "logprobs": True, "repetition_penalty": 1.0}
    request = run_session(worker, sampling_params=params)
    prompt = [{"role": "user", "content": "3 + 4"}]
    assert request == {**params, "seed": session_seed(**SESSION, prompt=prompt)}
    assert "seed" not in params  # one dict for all sessions of a prompt: it must not change


def test_the_seed_follows_all_that_verl_says_of_the_session(worker):
    seeds = [
        run_session(worker)["seed"],
        run_session(worker, validate=True)["seed"],
        run_session(worker, global_steps=4)["seed"],
        run_session(worker, index=18)["seed"],
        run_session(worker, session_id=3)["seed"],
        run_session(worker, raw_prompt=[{"role": "user", "content": "3 + 5"}])["seed"],
    ]
    worker.config.actor_rollout_ref.rollout.seed = 43
    seeds.append(run_session(worker)["seed"])
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("index", [17, np.int64(17), torch.tensor(17)])
def test_the_type_of_the_index_does_not_matter(worker, index):
    assert run_session(worker, index=index)["seed"] == run_session(worker)["seed"]


def test_without_the_sessions_identity_the_reason_is_given(worker):
    with pytest.raises(ValueError, match=r"\['session_id'\] are missing.*use_v1=true"):
        run_session(worker, session_id=None)


def test_with_another_caller_the_reason_is_given():
    def _run_agent_loop(path):
        return repeatable._validating()

    for caller in (repeatable._validating, lambda: _run_agent_loop({"validate": True})):
        with pytest.raises(RuntimeError, match="_run_agent_loop of verl 0.9.1, and did not find it"):
            caller()
