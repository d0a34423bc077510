"""Runs of an arm -> means, spread, differences, tokens to the baseline."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from scripts.comparing.arms import (
    difference_over_seeds,
    final_rows,
    last_common_step,
    last_values,
    mean_curve,
    tokens_to_reach,
)


def run_of(accuracy: dict[int, float], *, a_step: float = 100.0, trained: float = 1.0, steps: int = 4) -> pd.DataFrame:
    index = pd.RangeIndex(steps + 1)
    generated = pd.Series(index * a_step, index=index)
    columns = {"accuracy": pd.Series(accuracy), "reward": pd.Series(np.linspace(0, 1, steps + 1), index=index)}
    return pd.DataFrame({**columns, "generated": generated, "trained": generated * trained}, index=index, dtype=float)


def test_mean_and_spread_over_seeds():
    curve = mean_curve([run_of({0: 0.1, 2: 0.2, 4: 0.5}), run_of({0: 0.3, 4: 0.7}, a_step=200)], "accuracy")
    assert curve.index.tolist() == [0, 4]  # where both have a value
    assert curve["mean"].tolist() == pytest.approx([0.2, 0.6])
    assert curve["spread"].tolist() == pytest.approx([math.sqrt(0.02)] * 2)  # of 0.1 and 0.3: sqrt(2 x .1^2 / 1)
    assert curve["generated"].tolist() == [0, 600]
    assert mean_curve([run_of({0: 0.1})], "accuracy")["spread"].isna().all()


def test_tokens_to_reach_go_straight_between_validations():
    curve = mean_curve([run_of({0: 0.1, 2: 0.2, 4: 0.5}, trained=1.5)], "accuracy")
    assert tokens_to_reach(curve, 0.35, "generated") == pytest.approx(300)  # half-way between 200 and 400
    assert tokens_to_reach(curve, 0.35, "trained") == pytest.approx(450)
    assert tokens_to_reach(curve, 0.5, "generated") == 400
    assert tokens_to_reach(curve, 0.05, "generated") == 0
    assert tokens_to_reach(curve, 0.51, "generated") is None
    assert tokens_to_reach(curve.assign(generated=np.nan), 0.2, "generated") is None


def test_arms_are_compared_at_the_last_step_that_all_have(rng):
    arms = {"off": [run_of({0: 0.1, 2: 0.4, 4: 0.5})], "ours": [run_of({0: 0.1, 1: 0.4, 2: 0.7}, trained=1.5)]}
    assert last_common_step(arms, "accuracy") == 2
    off, ours = final_rows(arms, "off", rng)
    assert (off["step"], off["final"], off["generated"], off["trained"]) == (2, 0.4, 200, 200)
    assert (ours["final"], ours["trained"], ours["generated_to_reach"], ours["trained_to_reach"]) == (
        0.7,
        300,
        100,
        150,
    )
    assert off["generated_to_reach"] == 200 and off["difference"] is None
    assert ours["difference"] == pytest.approx(0.3) and ours["low"] is None and ours["spread"] is None  # one seed
    apart = {"off": [run_of({2: 0.4})], "ours": [run_of({1: 0.4})]}
    with pytest.raises(ValueError, match="no step has a value of accuracy in every run"):
        final_rows(apart, "off", rng)


def test_without_validation_the_training_reward_is_compared(rng):
    arms = {"off": [run_of({}, steps=20)], "ours": [run_of({4: 0.5}, steps=12)]}
    off, ours = final_rows(arms, "off", rng)
    assert off["measure"] == "reward" and off["step"] == 12
    assert off["final"] == pytest.approx(np.mean(np.arange(3, 13) / 20))  # the ten steps 3 to 12 of a line from 0 to 1
    assert ours["final"] == pytest.approx(np.mean(np.arange(3, 13) / 12))
    assert last_values([run_of({})], "accuracy", 4).tolist() == pytest.approx([math.nan], nan_ok=True)


def test_the_interval_over_seeds_is_that_of_independent_means(rng):
    ours, base = rng.normal(0.6, 0.02, size=400), rng.normal(0.5, 0.04, size=300)
    found = difference_over_seeds(ours, base, np.random.default_rng(0))
    error = math.sqrt(ours.var() / 400 + base.var() / 300)
    assert found.estimate == pytest.approx(ours.mean() - base.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.05)
    assert (found.low + found.high) / 2 == pytest.approx(found.estimate, abs=0.1 * error)
    assert math.isnan(difference_over_seeds(ours, base[:1], rng).low)
    swapped = difference_over_seeds(base, ours, np.random.default_rng(0))
    assert swapped.estimate == pytest.approx(-found.estimate)
