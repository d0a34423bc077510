"""verl_replay.metrics: values by hand, scalars only, and names that verl's own aggregation reads as they are meant."""

from __future__ import annotations

import math
import numbers

import numpy as np
import pytest
import torch
from verl.trainer.ppo.v1.utils import MetricsAggregator
from verl.utils.metric import reduce_metrics

from tests.factories import id_rows, make_options, make_table
from verl_replay import metrics
from verl_replay.buffer import Drawn
from verl_replay.table import RolloutTable
from verl_replay.transform import ReplayTransform

MIXED = [[1, 0, 0, 0], [1, 1, 1, 1]]


def after(steps: int, **options):
    """Selection and buffer of the last of `steps` steps, each with 4 survivors of 8."""
    transform = ReplayTransform(make_options(**options))
    for t in range(1, steps + 1):
        table = make_table(MIXED, born=t, first_group=2 * t)
        chosen = transform.select(table, step=t)
        evicted = transform.store(table.take(chosen.survivors), id_rows(range(4)))
    return chosen, transform.buffer, evicted


def all_metrics() -> dict[str, float]:
    chosen, buffer, evicted = after(4)
    return {
        **metrics.selection(chosen, step=4),
        **metrics.buffer(buffer, stored=len(chosen.survivors), evicted_capacity=evicted),
        **metrics.update(2, trained_tokens=100, null_rows=3),
        **metrics.log_ratio_by_age(np.array([0.1, -0.3]), np.array([True, True]), np.array([1, 10])),
    }


# ---- values ----------------------------------------------------------------------------------------------------------


def test_selection_by_hand():
    """Two steps of 4 survivors out of 2 groups, r = 2: at step 3 all 8 stored, ages 2 2 2 2 1 1 1 1, uses 2 and 1
    (step 2 drew the first four). 8 drawn of 12 trained. |A| of (1, 0, 0, 0): 1.5, .5, .5, .5, so .75 on average."""
    chosen, *_ = after(3, ratio=2.0, max_age=5)
    got = metrics.selection(chosen, step=3)
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
        },
        rel=1e-5,
    )


def test_quantiles_of_age_by_hand():
    """Ages 1..11: the median is 6, nine tenths of the way from 1 to 11 is 10."""
    chosen, *_ = after(1)
    drawn = RolloutTable.concat([make_table([[1, 0]], born=born) for born in range(9, 20)])
    got = metrics.selection(chosen._replace(replayed=Drawn(drawn, id_rows(range(22)))), step=20)
    assert [got[f"replay/draw/age/{name}"] for name in ("min", "p50", "mean", "p90", "max")] == [1, 6, 6, 10, 11]


def test_nothing_drawn_has_no_ages():
    """O7. An average over nothing is not a number; the counts are there, as 0."""
    chosen, *_ = after(1)
    got = metrics.selection(chosen, step=1)
    assert got["replay/draw/rollouts"] == got["replay/draw/frac_of_batch"] == 0
    assert not [name for name in got if name.startswith(("replay/draw/age", "replay/draw/reuse", "replay/draw/abs"))]
    assert all(math.isfinite(value) for value in got.values())


def test_no_survivors_divides_by_nothing():
    """O20."""
    transform = ReplayTransform(make_options())
    for rewards in ([[1, 1]], []):
        chosen = transform.select(make_table(rewards), step=1)
        got = metrics.selection(chosen, step=1)
        assert all(math.isfinite(value) for value in got.values())
        assert got["replay/filter/zero_variance_frac"] == len(rewards)


def test_evictions_are_counted_by_reason():
    """max_age 1 at step 3: the 4 of step 1 (O17). Capacity 6 at step 2: 8 stored, 2 leave."""
    chosen, *_ = after(3, max_age=1)
    assert metrics.selection(chosen, step=3)["replay/buffer/evicted_age"] == 4
    _, buffer, evicted = after(2, capacity=6)
    assert metrics.buffer(buffer, stored=4, evicted_capacity=evicted) == {
        "replay/buffer/size": 6,
        "replay/buffer/bytes": buffer.nbytes,
        "replay/buffer/stored": 4,
        "replay/buffer/evicted_capacity": 2,
    }


def test_log_ratio_by_age_by_hand():
    """Tokens with loss: .1 and -.3 at age 1, .5 at age 12; the masked 9 does not count. (.1 + .3 + .5) / 3 = .3."""
    got = metrics.log_ratio_by_age(
        np.array([0.1, -0.3, 9.0, 0.5]), np.array([True, True, False, True]), np.array([1, 1, 1, 12])
    )
    assert got == pytest.approx(
        {
            "replay/ratio/replayed/log_ratio_abs": 0.3,
            "replay/ratio/replayed/log_ratio_abs/age_01": 0.2,
            "replay/ratio/replayed/log_ratio_abs/age_12": 0.5,
        }
    )
    assert metrics.log_ratio_by_age(np.array([1.0]), np.array([False]), np.array([1])) == {}


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


def test_the_check_of_names_catches_an_accident():
    assert reduce_metrics({"replay/minibatches": [1.0, 2.0, 6.0]})["replay/minibatches"] == 1.0
    aggregator = MetricsAggregator()
    aggregator.add_step_metrics({"replay/consumed": 1.0}, sample_count=1)
    aggregator.add_step_metrics({"replay/consumed": 2.0}, sample_count=1)
    assert aggregator.get_aggregated_metrics()["replay/consumed"] == 3.0


def test_no_name_is_given_twice():
    chosen, buffer, _ = after(4)
    parts = [
        metrics.selection(chosen, step=4),
        metrics.buffer(buffer, stored=4, evicted_capacity=0),
        metrics.update(1, trained_tokens=1, null_rows=0),
    ]
    assert sum(map(len, parts)) == len({name for part in parts for name in part})
