"""The arms end to end on the CPU: verl's trainer on Ray, TransferQueue, async vLLM, FSDP2 over gloo, weight sync."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def filtered(run_recipe):
    return run_recipe("filtered", "replay=filtered")


@pytest.fixture(scope="module")
def fresh_anchored(run_recipe):
    return run_recipe("fresh_anchored", "replay=fresh_anchored")


@pytest.fixture(scope="module")
def pooled(run_recipe):
    return run_recipe("pooled", "replay=pooled")


@pytest.fixture(params=["fresh_anchored", "pooled"])
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
    assert (drawn["replay/ratio/replayed/log_ratio_abs/age_01"].dropna() > 0).all()


def test_replay_changes_the_policy(replayed, filtered):
    assert replayed.weights != filtered.weights


def test_i2_optimizer_steps_and_mini_batches(fresh_anchored):
    for record, updates in zip(fresh_anchored.records, fresh_anchored.metrics["replay/updates"], strict=True):
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
    import numpy as np

    return float(np.abs(np.frombuffer(bytes.fromhex(text.partition(":")[2]), np.float32)).max())


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
    assert (replayed.metrics["replay/buffer/size"].diff().dropna() >= 0).all()  # nothing is evicted in 4 steps


def test_log_probs_of_rollout_and_actor_agree(replayed):
    assert (replayed.metrics["training/rollout_probs_diff_max"] < 1e-3).all()
