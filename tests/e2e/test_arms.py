"""The arms end to end on the CPU: verl's trainer on Ray, TransferQueue, async vLLM, FSDP2 over gloo, weight sync."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.conftest import SAVED, SECONDS_A_RUN, recipe_environment, recipe_overrides, run_to_its_end
from tests.e2e.merging import merged

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def filtered(run_recipe):
    return run_recipe("filtered", "replay=filtered")


@pytest.fixture(scope="module")
def two_ranks(task, tmp_path_factory):
    """Pooled, on two nodes of a Ray cluster that runs already (both are this machine, with one counted GPU each): two
    FSDP workers over gloo, two vLLM replicas. Micro-batches of fixed size, two epochs."""
    folder = tmp_path_factory.mktemp("two_ranks")
    overrides = recipe_overrides(
        4,
        "replay=pooled",
        "actor_rollout_ref.actor.use_dynamic_bsz=false",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=false",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.actor.ppo_epochs=2",
    )
    script = str(Path(__file__).with_name("on_two_nodes.sh"))
    guarded = [sys.executable, "-m", "verl_replay.guard", "--timeout", str(SECONDS_A_RUN), "--", "bash", script]
    return run_to_its_end([*guarded, *overrides], recipe_environment(folder, task, "tests.e2e.recording"), folder)


@pytest.fixture(scope="module")
def decoupled(run_recipe):
    return run_recipe("decoupled", "replay=decoupled")


@pytest.fixture(params=["fresh_anchored", "two_ranks"])
def replayed(request):
    return request.getfixturevalue(request.param)


def by_tokens(rows):
    return {row["input_ids"]: row for row in rows}


def is_replayed(row):
    return row["key"].startswith("replayed-")


def is_null(row):
    return row["key"].startswith("null-")


def test_i3_i4_replayed_rows_are_of_earlier_steps_and_byte_equal_to_their_birth(replayed):
    births: list[tuple[int, dict]] = []
    ages = []
    for record in replayed.records:
        for row in record["trained"]:
            if is_replayed(row):
                same = [(step, born) for step, born in births if row["input_ids"] in born]
                assert same, "a replayed row that no earlier step generated"
                columns = ("old_log_probs", "advantages", "response_mask", "loss_mask")
                equal = [step for step, born in same if all(row[c] == born[row["input_ids"]][c] for c in columns)]
                assert equal, "a replayed row differs from every birth of its tokens"
                ages.append(record["step"] - max(equal))
        births.append((record["step"], by_tokens(record["fresh"])))
    assert len(ages) >= 1 and min(ages) >= 1 and max(ages) <= 10
    assert len(ages) == replayed.metrics["replay/draw/rollouts"].sum()


def test_the_policy_has_moved_from_replayed_rows(replayed):
    """O13: recomputed log-probs would make this 0."""
    drawn = replayed.metrics.loc[replayed.metrics["replay/draw/rollouts"] > 0]
    assert len(drawn) >= 2
    assert (drawn["replay/ratio/replayed/log_ratio_abs"] > 0).all()
    assert (drawn["replay/ratio/age_01/log_ratio_abs"].dropna() > 0).all()


def test_replay_changes_the_policy(replayed, filtered):
    assert replayed.weights(SAVED) != filtered.weights(SAVED)


def test_i2_optimizer_steps_and_mini_batches(fresh_anchored):
    for record, updates in zip(fresh_anchored.records, fresh_anchored.metrics["replay/updates"], strict=True):
        assert record["ranks"] == 1
        rows, size = record["trained"], record["mini_batch_size"]
        assert record["optimizer_steps"] == updates == len(rows) // size == 2  # 8 prompts in mini-batches of 4
        real = [row for row in rows if not is_null(row)]
        assert record["global_batch_size"] == len(real) / 2
        replay = sum(map(is_replayed, rows)) > 0
        for u in range(2):  # one rank: mini-batches are consecutive
            cell = rows[u * size : (u + 1) * size]
            assert any(not is_replayed(row) and not is_null(row) for row in cell)
            assert any(map(is_replayed, cell)) == replay
        assert len({row["key"] for row in rows}) == len(rows)


def test_filtered_trains_on_exactly_the_survivors(filtered):
    for record in filtered.records:
        signal = {row["key"] for row in record["fresh"] if float_bytes(row["advantages"]) != 0}
        assert {row["key"] for row in record["trained"] if not is_null(row)} == signal
    assert (filtered.metrics["replay/draw/rollouts"] == 0).all()


def float_bytes(text: str) -> float:
    return float(np.abs(numbers(text)).max())


def test_i8_verls_metrics_are_those_of_the_fresh_batch_alone(filtered, fresh_anchored):
    """Up to the second step both arms have the same weights, so the same fresh rollouts; only one of them replays."""
    assert fresh_anchored.metrics["replay/draw/rollouts"].loc[2] > 0
    names = [n for n in filtered.metrics if n.startswith(("critic/", "response_length", "prompt_length"))]
    assert len(names) > 10
    for name in names:
        assert filtered.metrics[name].loc[[1, 2]].tolist() == fresh_anchored.metrics[name].loc[[1, 2]].tolist(), name


def test_replay_metrics_are_in_the_log(replayed):
    expected = {
        "replay/buffer/size",
        "replay/buffer/bytes",
        "replay/filter/zero_variance_frac",
        "replay/updates",
        "replay/draw/rollouts",
        "replay/draw/frac_of_batch",
        "replay/draw/age/mean",
        "replay/draw/reuse/mean",
        "replay/trained_tokens",
        "timing_s/replay",
    }
    assert expected <= set(replayed.metrics)
    assert (replayed.metrics["replay/buffer/size"].diff().dropna() >= 0).all()  # nothing is evicted in so few steps


def test_log_probs_of_rollout_and_actor_agree(replayed):
    """On two nodes: both replicas sample from the weights that were trained."""
    assert (replayed.metrics["training/rollout_probs_diff_max"] < 1e-4).all()


def test_the_run_on_two_nodes_joined_the_cluster(two_ranks):
    """What follows from that, files in the place that the command names, is what the other tests read."""
    assert "nodes alive: 2" in two_ranks.output
    metrics = two_ranks.metrics
    assert list(metrics.index) == [1, 2, 3, 4]
    assert (metrics["replay/draw/rollouts"].iloc[1:] > 0).all()
    assert (metrics["actor/grad_norm"] > 0).all()


def test_i2_two_ranks_of_fsdp_share_every_mini_batch(two_ranks):
    """A rank holds half of the rows, cut into mini-batches in order; the same decisions as on one rank (dealt anew)."""
    drawn = 0
    for record, updates in zip(two_ranks.records, two_ranks.metrics["replay/updates"], strict=True):
        rows, per_rank = record["trained"], record["mini_batch_size"] // 2
        assert record["ranks"] == 2 and updates == 2
        assert record["optimizer_steps"] == 2 * updates  # two epochs
        assert len(rows) == record["mini_batch_size"] * updates and per_rank % 4 == 0
        cells = [rows[start : start + per_rank] for start in range(0, len(rows), per_rank)]
        for kind in (is_replayed, lambda row: not is_replayed(row) and not is_null(row)):
            shares = [sum(map(kind, cell)) for cell in cells]
            assert len(shares) == 4 and max(shares) - min(shares) <= 1
        drawn += sum(map(is_replayed, rows))
    assert drawn > 0


def numbers(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text.partition(":")[2]), np.float32)


def test_decoupled_recomputes_and_weighs_drawn_rows(decoupled):
    """Not their birth log-probs, but those of the start of the step; weight min(pi_start / pi_birth, 2) a token. In
    this run the engine's log-probs are the actor's to about 1e-6, so the ratio to the actor's at birth is the same."""
    births: dict[str, np.ndarray] = {}
    moved = 0
    for record in decoupled.records:
        for row in record["trained"]:
            if is_replayed(row):
                now, birth = numbers(row["old_log_probs"]), births[row["input_ids"]]
                weight = numbers(row["rollout_is_weights"])
                np.testing.assert_allclose(weight, np.minimum(np.exp(now - birth), 2.0), rtol=1e-3)
                moved += np.abs(now - birth).max() > 1e-4
            elif not is_null(row) and "rollout_is_weights" in row:
                assert (numbers(row["rollout_is_weights"]) == 1).all()
        births |= {row["input_ids"]: numbers(row["old_log_probs"]) for row in record["fresh"]}
    assert moved > 10


def test_evaluate_merges_the_shards_of_two_ranks(two_ranks, tmp_path):
    """verl's merger rounds to bfloat16: otherwise the weights are those that verl saved whole beside the shards."""
    step = two_ranks.folder / "checkpoints" / "global_step_4"
    whole = load_file(step / "actor/huggingface/model.safetensors")
    found = merged(step, tmp_path)
    assert found.keys() == whole.keys() and len(found) > 10
    for name, weight in found.items():
        assert torch.equal(weight.to(torch.bfloat16), whole[name].to(torch.bfloat16)), name
