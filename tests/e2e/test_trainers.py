"""Other trainers of verl end to end on the CPU: V0 (DataProto), and colocate_async, whose rollouts run ahead."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.merging import merged

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def v0(run_recipe):
    """V0 has no session numbers, so the loop with a seed a session does not run there."""
    return run_recipe(
        "v0",
        "trainer.use_v1=false",
        "actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent",
        module="verl_replay.main_ppo",
    )


@pytest.fixture(scope="module")
def ahead(run_recipe):
    return run_recipe(
        "colocate_async",
        "trainer.v1.trainer_mode=colocate_async",
        "trainer.v1.sampler.custom_sampler.name=AsyncPromptRolloutQueue",
        steps=6,
    )


@pytest.fixture(scope="module")
def lora(run_recipe):
    """A LoRA actor, merged for the weight sync (vLLM's CPU build fails to load adapters)."""
    return run_recipe(
        "lora",
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora_alpha=16",
        "actor_rollout_ref.model.lora.merge=true",
        "actor_rollout_ref.rollout.load_format=safetensors",
        "actor_rollout_ref.actor.optim.lr=3.0e-3",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model]",
    )


def test_a_lora_actor_learns_from_replayed_rows(lora):
    metrics = lora.metrics
    assert (metrics["actor/grad_norm"] > 0).all()
    assert (metrics["replay/draw/rollouts"].iloc[1:] > 0).all()
    assert (metrics["replay/ratio/replayed/log_ratio_abs"].dropna() > 1e-4).all()  # the adapter has moved
    # and vLLM has it: the merged weights went through bfloat16, verl's default for the adapter
    assert (metrics["training/rollout_probs_diff_max"] < 0.02).all()


def test_evaluate_adds_a_lora_adapter_to_its_base(lora, task, tmp_path):
    """verl's merger leaves the adapter apart. W + alpha / r B A, by the tensors of the shard; alpha / r is 2."""
    step = lora.folder / "checkpoints" / "global_step_4"
    found, base = merged(step, tmp_path), load_file(task / "model/model.safetensors")
    shard = torch.load(step / "actor/model_world_size_1_rank_0.pt", weights_only=False)
    shard = {name: getattr(tensor, "_local_tensor", tensor).float() for name, tensor in shard.items()}
    assert found.keys() == base.keys()
    layers = [name.partition("base_model.model.")[2].partition(".lora_A")[0] for name in shard if ".lora_A." in name]
    assert len(layers) > 3
    for layer in layers:
        a, b = (shard[f"base_model.model.{layer}.lora_{part}.default.weight"] for part in "AB")
        moved = 2 * b @ a
        change = found[f"{layer}.weight"].float() - base[f"{layer}.weight"]
        assert moved.abs().max() > 1e-3
        torch.testing.assert_close(change, moved, rtol=0, atol=0.01 * float(base[f"{layer}.weight"].abs().max()))


def test_v0_trains_with_replay_and_logs_the_same_metrics(v0, ahead):
    metrics = v0.metrics
    assert len(metrics) == 4
    assert (metrics["actor/grad_norm"] > 0).all()
    drawn = metrics["replay/draw/rollouts"]
    assert drawn.iloc[0] == 0 and (drawn.iloc[1:] > 0).all()
    assert metrics["replay/draw/age/max"].max() <= 3 and metrics["replay/draw/age/min"].min() == 1
    assert (metrics["replay/ratio/replayed/log_ratio_abs"].dropna() > 0).all()  # O13: not recomputed
    assert (metrics["replay/ratio/fresh/log_ratio_abs"].dropna() < 1e-5).all()  # the policy has not moved from these
    assert (metrics["replay/updates"] == 2).all()

    def of_replay(frame):
        aged = ("replay/ratio/age_", "replay/draw/age_hist/")
        return {n for n in frame if n.startswith(("replay/", "timing_s/replay")) and not n.startswith(aged)}

    assert of_replay(metrics) == of_replay(ahead.metrics)


def test_i4_rollouts_that_ran_ahead_are_born_into_the_update_after_their_weights(ahead):
    births: dict[str, int] = {}
    staleness = drawn = 0
    for record in ahead.records:
        for row in record["trained"]:
            if row["key"].startswith("replayed-"):
                age = record["step"] - births[row["input_ids"]]
                assert age >= 1
                drawn += 1
        for row in record["fresh"]:
            births[row["input_ids"]] = row["begun_with"] + 1
            staleness = max(staleness, record["step"] - births[row["input_ids"]])
    assert drawn == ahead.metrics["replay/draw/rollouts"].sum() > 0
    assert staleness >= 1  # some were trained on a step after they were born
    ages = ahead.metrics["replay/draw/age/max"].dropna()
    assert len(ages) >= 4 and ages.max() <= 10
