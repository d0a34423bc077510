"""verl_replay.metrics: values by hand, scalars only, and names that verl's own aggregation reads as they are meant."""

from __future__ import annotations

import math
import numbers

import numpy as np
import pytest
import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
from verl.trainer.ppo.v1.utils import MetricsAggregator
from verl.utils.metric import reduce_metrics
from verl.workers.config import ActorConfig

from tests.factories import id_rows, make_options, make_table
from verl_replay import metrics
from verl_replay.buffer import Drawn
from verl_replay.table import RolloutTable
from verl_replay.transform import ReplayTransform

CLIP = metrics.Clip(low=0.2, high=0.28, c=10.0)  # METHOD's
MIXED = [[1, 0, 0, 0], [1, 1, 1, 1]]


def after(steps: int, **options):
    """Selection and buffer of the last of `steps` steps, each with 4 survivors of 8."""
    transform = ReplayTransform(make_options(**options))
    for t in range(1, steps + 1):
        table = make_table(MIXED, born=t, first_group=2 * t)
        chosen = transform.select(table, step=t)
        evicted = transform.store(table.take(chosen.survivors), id_rows(range(4)), step=t)
    return chosen, transform.buffer, evicted


def all_metrics() -> dict[str, float]:
    chosen, buffer, evicted = after(4)
    return {
        **metrics.selection(chosen, step=4, max_age=10),
        **metrics.buffer(buffer, stored=len(chosen.survivors), evicted_capacity=evicted),
        **metrics.update(2, trained_tokens=100, null_rows=3),
        **metrics.age_histogram(np.array([40]), max_age=10),
        **metrics.ratios(np.zeros(4), np.ones(4), np.ones(4, bool), np.array([-1, 1, 10, 40]), CLIP),
    }


# ---- values ----------------------------------------------------------------------------------------------------------


def test_selection_by_hand():
    """Two steps of 4 survivors out of 2 groups, r = 2: at step 3 all 8 stored, ages 2 2 2 2 1 1 1 1, uses 2 and 1
    (step 2 drew the first four). 8 drawn of 12 trained. |A| of (1, 0, 0, 0): 1.5, .5, .5, .5, so .75 on average."""
    chosen, *_ = after(3, ratio=2.0, max_age=5)
    got = metrics.selection(chosen, step=3, max_age=5)
    assert got == pytest.approx(
        {
            "replay/filter/zero_variance_frac": 0.5,
            "replay/filter/kept_groups": 1,
            "replay/filter/nonfinite_groups": 0,
            "replay/buffer/evicted_age": 0,
            "replay/fresh/generated": 8,
            "replay/fresh/rollouts": 4,
            "replay/draw/rollouts": 8,
            "replay/draw/frac_of_batch": 8 / 12,
            "replay/draw/age/mean": 1.5,
            "replay/draw/age/p50": 1.5,
            "replay/draw/age/p90": 2,
            "replay/draw/age/min": 1,
            "replay/draw/age/max": 2,
            "replay/draw/reuse/mean": 1.5,
            "replay/draw/reuse/max": 2,
            "replay/draw/abs_advantage/mean": 0.75,
            "replay/draw/importance_weight/mean": 1,
            "replay/draw/age_hist/01": 4,
            "replay/draw/age_hist/02": 4,
            "replay/draw/age_hist/03": 0,
            "replay/draw/age_hist/04": 0,
            "replay/draw/age_hist/05": 0,
        },
        rel=1e-5,
    )


def test_quantiles_of_age_by_hand():
    """Ages 1..11: the median is 6, nine tenths of the way from 1 to 11 is 10."""
    chosen, *_ = after(1)
    drawn = RolloutTable.concat([make_table([[1, 0]], born=born) for born in range(9, 20)])
    chosen = chosen._replace(replayed=Drawn(drawn, id_rows(range(22))), replayed_weight=np.ones(22))
    got = metrics.selection(chosen, step=20, max_age=11)
    assert [got[f"replay/draw/age/{name}"] for name in ("min", "p50", "mean", "p90", "max")] == [1, 6, 6, 10, 11]


def test_nothing_drawn_has_no_ages():
    """O7. An average over nothing is not a number; the counts are there, as 0."""
    chosen, *_ = after(1)
    got = metrics.selection(chosen, step=1, max_age=10)
    assert got["replay/draw/rollouts"] == got["replay/draw/frac_of_batch"] == 0
    assert not [name for name in got if name.startswith(("replay/draw/age", "replay/draw/reuse", "replay/draw/abs"))]
    assert all(math.isfinite(value) for value in got.values())


def test_no_survivors_divides_by_nothing():
    """O20."""
    transform = ReplayTransform(make_options())
    for rewards in ([[1, 1]], []):
        chosen = transform.select(make_table(rewards), step=1)
        got = metrics.selection(chosen, step=1, max_age=10)
        assert all(math.isfinite(value) for value in got.values())
        assert got["replay/filter/zero_variance_frac"] == len(rewards)


def test_evictions_are_counted_by_reason():
    """max_age 1 at step 3: the 4 of step 1 (O17). Capacity 6 at step 2: 8 stored, 2 leave."""
    chosen, *_ = after(3, max_age=1)
    assert metrics.selection(chosen, step=3, max_age=1)["replay/buffer/evicted_age"] == 4
    _, buffer, evicted = after(2, capacity=6)
    assert metrics.buffer(buffer, stored=4, evicted_capacity=evicted) == {
        "replay/buffer/size": 6,
        "replay/buffer/bytes": buffer.nbytes,
        "replay/buffer/stored": 4,
        "replay/buffer/evicted_capacity": 2,
    }


def test_the_mean_importance_weight_is_of_what_was_drawn():
    """Weights 1, .5, .25, .25: .5 on average."""
    chosen, *_ = after(3, ratio=1.0)
    chosen = chosen._replace(replayed_weight=np.array([1, 0.5, 0.25, 0.25]))
    assert metrics.selection(chosen, step=3, max_age=10)["replay/draw/importance_weight/mean"] == 0.5


def test_age_histogram_by_hand():
    """Ages 1, 2, 2, 4 with max_age 3, which eviction by uses does not keep to: a bin each, up to the oldest."""
    got = metrics.age_histogram(np.array([1, 2, 2, 4]), max_age=3)
    assert got == {f"replay/draw/age_hist/0{age}": count for age, count in ((1, 1), (2, 2), (3, 0), (4, 1))}


@pytest.mark.parametrize(
    ("ages", "max_age", "last", "over"),
    [
        ([32], 10, 32, None),
        ([33], 10, 32, 1),
        ([1, 33, 900], 10, 32, 2),
        ([1], 1000, 32, None),  # the names do not depend on what happens to be drawn, while max_age holds
        ([1], 32, 32, None),
        ([], 3, 3, None),
        ([2], 0, 2, None),
    ],
)
def test_ages_above_32_share_a_bin(ages, max_age, last, over):
    got = metrics.age_histogram(np.array(ages, dtype=np.int64), max_age=max_age)
    names = [f"replay/draw/age_hist/{age:02d}" for age in range(1, last + 1)]
    assert list(got) == names + ["replay/draw/age_hist/over_32"] * (over is not None)
    assert got.get("replay/draw/age_hist/over_32") == over
    assert sum(got.values()) == len(ages)


# ---- ratios ----------------------------------------------------------------------------------------------------------


def test_ratio_by_hand():
    """Ratios 1.2, 1.3, .7 of positive and .9, .7, 9, 11 of negative advantage, with clip .2, .28 and c 10. Without a
    gradient: 1.3 (past 1.28), .7 (below .8) and 11 (past 10), 3 of 7; .7 of a positive advantage keeps its own.
    ess: (1.2 + 1.3 + .7 + .9 + .7 + 9 + 11)^2 = 24.8^2 = 615.04, over 7 times the sum of squares,
    1.44 + 1.69 + .49 + .81 + .49 + 81 + 121 = 206.92."""
    w = np.array([1.2, 1.3, 0.7, 0.9, 0.7, 9, 11])
    got = metrics.ratio(np.log(w), np.array([1, 1, 2, -1, -1, -0.1, -3.0]), CLIP)
    assert got == pytest.approx(
        {"log_ratio_abs": np.abs(np.log(w)).mean(), "clip_frac": 3 / 7, "ess": 615.04 / (7 * 206.92)}
    )


def test_tokens_on_policy_are_not_clipped_and_all_count():
    got = metrics.ratio(np.zeros(5), np.array([1, -1, 0, 2, -2.0]), CLIP)
    assert got == {"log_ratio_abs": 0, "clip_frac": 0, "ess": 1}


def test_clip_frac_is_the_share_without_a_gradient_in_verls_loss():
    """verl's own dual-clip loss, differentiated: 2,000 tokens of both signs, ratios from e^-4 to e^4."""
    rng = np.random.default_rng(0)
    log_ratio, advantage = rng.uniform(-4, 4, 2000), rng.normal(size=2000)
    log_prob = torch.tensor(log_ratio[None], requires_grad=True)
    actor = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=CLIP.low,
        clip_ratio_high=CLIP.high,
        clip_ratio_c=CLIP.c,
    )
    loss, _ = compute_policy_loss_vanilla(
        old_log_prob=torch.zeros(1, 2000, dtype=torch.float64),
        log_prob=log_prob,
        advantages=torch.tensor(advantage[None]),
        response_mask=torch.ones(1, 2000),
        config=actor,
    )
    loss.backward()
    without_gradient = (log_prob.grad == 0).double().mean().item()
    assert 0.2 < without_gradient < 0.8
    assert metrics.ratio(log_ratio, advantage, CLIP)["clip_frac"] == pytest.approx(without_gradient)


@pytest.mark.parametrize(
    ("log_ratio", "ess"),
    [([1000, 1000], 1), ([-1000, -1000], 1), ([1000, -1000], 1 / 2), ([1000, 0, 0, 0], 1 / 4), ([-1000], 1)],
)
def test_log_ratios_that_overflow_are_numbers_still(log_ratio, ess):
    """e^1000 is infinite and e^-1000 is 0: of n tokens one alone weighs, 1/n, or all alike, 1."""
    with np.errstate(all="raise", under="ignore"):
        got = metrics.ratio(np.array(log_ratio, dtype=np.float64), np.full(len(log_ratio), -1.0), CLIP)
    assert got == {
        "log_ratio_abs": np.abs(log_ratio).mean(),
        "clip_frac": np.mean(np.array(log_ratio) != 0),
        "ess": ess,
    }


def test_ratios_by_hand():
    """Fresh tokens -.2 and 0. Replayed: .1 and -.3 at age 1, .5 at age 12, .7 and .9 at 33 and 50. The masked ones, a 9
    of each, do not count."""
    log_ratio = np.array([-0.2, 0, 9, 0.1, -0.3, 9, 0.5, 0.7, 0.9], dtype=np.float32)
    age = np.array([-1, -1, -1, 1, 1, 1, 12, 33, 50])
    got = metrics.ratios(log_ratio, np.ones(9), log_ratio != 9, age, CLIP)
    means = {"fresh": 0.1, "replayed": 0.5, "age_01": 0.2, "age_12": 0.5, "age_over_32": 0.8}
    assert {name.split("/")[2] for name in got} == set(means)
    assert len(got) == 3 * len(means)
    for part, mean in means.items():
        assert got[f"replay/ratio/{part}/log_ratio_abs"] == pytest.approx(mean)
    assert got["replay/ratio/fresh/clip_frac"] == 0
    assert got["replay/ratio/replayed/clip_frac"] == 3 / 5  # e^.5, e^.7, e^.9 are past 1.28
    fresh = np.exp([-0.2, 0])
    assert got["replay/ratio/fresh/ess"] == pytest.approx(fresh.sum() ** 2 / (2 * (fresh**2).sum()))


def test_ratios_of_no_tokens_are_absent():
    ones, age = np.ones(3), np.array([-1, -1, 4])
    assert metrics.ratios(ones, ones, np.zeros(3, bool), age, CLIP) == {}
    only_fresh = metrics.ratios(ones, ones, np.array([True, True, False]), age, CLIP)
    assert {name.split("/")[2] for name in only_fresh} == {"fresh"}
    only_replayed = metrics.ratios(ones, ones, np.array([False, False, True]), age, CLIP)
    assert {name.split("/")[2] for name in only_replayed} == {"replayed", "age_04"}


def test_only_age_minus_1_is_fresh():
    got = metrics.ratios(np.zeros(2), np.ones(2), np.ones(2, bool), np.array([0, 0]), CLIP)
    assert {name.split("/")[2] for name in got} == {"replayed", "age_00"}


# ---- names -----------------------------------------------------------------------------------------------------------


def test_scalars_only():
    """MetricsAggregator drops bools, TensorBoard refuses all but numbers."""
    for name, value in all_metrics().items():
        assert isinstance(value, numbers.Number) and not isinstance(value, bool | np.bool_ | torch.Tensor), name
        assert math.isfinite(value)


@pytest.mark.parametrize("name", sorted(all_metrics()))
def test_verls_aggregation_reads_the_name_as_it_is_meant(name):
    """verl goes by SUBSTRING: "minibatch" would be a minimum, "consumed" a sum. Of the steps' values 1, 2 and 6 (each
    of 10 fresh rows) a name ending in /max gets the greatest, in /min the least, and every other the mean."""
    assert name.startswith("replay/")
    meant = {"max": 6.0, "min": 1.0}.get(name.rsplit("/", 1)[1], 3.0)
    assert reduce_metrics({name: [1.0, 2.0, 6.0]})[name] == meant
    aggregator = MetricsAggregator()
    for value in (1.0, 2.0, 6.0):
        aggregator.add_step_metrics({name: value}, sample_count=10)
    assert aggregator.get_aggregated_metrics()[name] == meant


# What adds up over the updates of one step; every other metric of ours does not.
ADD_UP = [
    "replay/filter/kept_groups",
    "replay/filter/nonfinite_groups",
    "replay/buffer/evicted_age",
    "replay/buffer/evicted_capacity",
    "replay/buffer/stored",
    "replay/fresh/generated",
    "replay/fresh/rollouts",
    "replay/draw/rollouts",
    "replay/updates",
    "replay/trained_tokens",
    "replay/null_rows",
    *(f"replay/draw/age_hist/{age:02d}" for age in range(1, 33)),
    "replay/draw/age_hist/over_32",
]


def test_summed_marks_the_counts_and_nothing_else():
    before = all_metrics()
    got = metrics.summed(before)
    assert sorted(got) == sorted(f"{name}/sum" if name in ADD_UP else name for name in before)
    assert list(got.values()) == list(before.values())
    assert set(ADD_UP) <= set(before)


@pytest.mark.parametrize("name", sorted(metrics.summed(all_metrics())))
def test_verls_aggregator_adds_up_the_counts_of_updates(name):
    """Values 1, 2 and 6 of three updates of one step, of 10, 10 and 40 fresh rows: counts 9, shares their weighted mean
    (10 + 20 + 240) / 60 = 4.5, the least and the greatest as they are named."""
    aggregator = MetricsAggregator()
    for value, rows in ((1.0, 10), (2.0, 10), (6.0, 40)):
        aggregator.add_step_metrics({name: value}, sample_count=rows)
    meant = {"sum": 9.0, "max": 6.0, "min": 1.0}.get(name.rsplit("/", 1)[1], 4.5)
    assert aggregator.get_aggregated_metrics()[name] == meant


def test_the_histogram_still_adds_up_to_the_draws_over_updates():
    """Two updates of step 5, by verl's aggregator: the bins sum to the rollouts drawn."""
    aggregator = MetricsAggregator()
    for chosen in (after(5)[0], after(5, ratio=2.0)[0]):
        aggregator.add_step_metrics(metrics.summed(metrics.selection(chosen, step=5, max_age=10)), sample_count=4)
    got = aggregator.get_aggregated_metrics()
    assert got["replay/draw/rollouts/sum"] == 2 + 8
    assert sum(value for name, value in got.items() if "age_hist" in name) == 10


def test_the_check_of_names_catches_an_accident():
    assert reduce_metrics({"replay/minibatches": [1.0, 2.0, 6.0]})["replay/minibatches"] == 1.0
    aggregator = MetricsAggregator()
    aggregator.add_step_metrics({"replay/consumed": 1.0}, sample_count=1)
    aggregator.add_step_metrics({"replay/consumed": 2.0}, sample_count=1)
    assert aggregator.get_aggregated_metrics()["replay/consumed"] == 3.0


def test_no_name_is_given_twice():
    chosen, buffer, _ = after(4)
    parts = [
        metrics.selection(chosen, step=4, max_age=10),
        metrics.buffer(buffer, stored=4, evicted_capacity=0),
        metrics.update(1, trained_tokens=1, null_rows=0),
    ]
    assert sum(map(len, parts)) == len({name for part in parts for name in part})
