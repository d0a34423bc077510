"""Generations -> numbers."""

from __future__ import annotations

import pytest

from scripts.evaluating.engine import Sampling
from scripts.evaluating.scoring import average, compare, powers, score_benchmark
from scripts.evaluating.store import Generation
from tests.evaluating.stub import generation


def rows(scores: dict[str, list[float]], **more) -> list[Generation]:
    return [
        generation(sample, score, id=name, tokens=10 * (sample + 1), **more)
        for name, values in scores.items()
        for sample, score in enumerate(values)
    ]


def test_a_benchmark_worked_by_hand(rng):
    # one, none and all of four: mean (1/4 + 0 + 1) / 3 = 5/12; pass@2 (1 - C(3,2)/C(4,2) + 0 + 1) / 3 = 1/2
    generations = rows({"a": [1, 0, 0, 0], "b": [0] * 4, "c": [1] * 4})
    generations[0] = generations[0]._replace(finish_reason="length")
    row = score_benchmark(["a", "b", "c"], generations[::-1], n=4, rng=rng)
    assert row["mean"]["estimate"] == pytest.approx(5 / 12)
    assert row["pass"] == pytest.approx({"1": 5 / 12, "2": 1 / 2, "4": 2 / 3})
    # tokens 10, 20, 30, 40 of each; correct: 10 and 10 + 20 + 30 + 40 of five
    assert row["tokens"] == pytest.approx({"all": 25, "correct": 110 / 5, "wrong": (300 - 110) / 7})
    assert row["cut_share"] == pytest.approx(1 / 12)
    assert row["correct"] == [1, 0, 4] and row["binary"] and row["too_long"] == 0
    with pytest.raises(ValueError, match="1 of 12 answers are missing"):
        score_benchmark(["a", "b", "c"], generations[1:], n=4, rng=rng)


def test_scores_between_0_and_1_count_for_the_mean_alone(rng):
    row = score_benchmark(["a"], rows({"a": [0.5, 1.0]}), n=2, rng=rng)
    assert row["mean"]["estimate"] == 0.75 and row["correct"] == [1] and not row["binary"]


def test_the_average_is_of_benchmarks_and_differences_are_paired(rng):
    ours = {
        "x": score_benchmark(["a", "b"], rows({"a": [1, 1], "b": [1, 0]}), n=2, rng=rng),
        "y": score_benchmark(["a"], rows({"a": [0, 1]}), n=2, rng=rng),
    }
    base = {
        "x": score_benchmark(["a", "b"], rows({"a": [1, 0], "b": [0, 0]}), n=2, rng=rng),
        "y": score_benchmark(["a"], rows({"a": [0, 0]}), n=2, rng=rng),
    }
    averaged = average(ours, rng)
    assert averaged["mean"]["estimate"] == pytest.approx((0.75 + 0.5) / 2)
    assert averaged["pass"]["2"] == pytest.approx((1 + 1) / 2)
    found = compare(ours, averaged, {"benchmarks": base}, rng)
    assert found["x"]["mean"]["estimate"] == pytest.approx(0.5)
    assert found["x"]["mean"]["low"] == found["x"]["mean"]["high"] == pytest.approx(0.5)  # both problems gained .5
    assert found["average"]["mean"]["estimate"] == pytest.approx(0.5)
    # x: 0.25 -> 0.75 is dA 2; same lengths: AES 3 * 2
    assert found["x"]["aes"] == pytest.approx(6)
    assert found["y"]["aes"] is None  # nothing is relative to 0
    assert found["average"]["aes"] == pytest.approx(3 * (0.625 - 0.125) / 0.125)


def test_powers_of_two_up_to_n():
    assert powers(1) == [1] and powers(2) == [1, 2] and powers(7) == [1, 2, 4] and powers(8) == [1, 2, 4, 8]


def test_sampling_settings_are_checked_together():
    with pytest.raises(ValueError, match="--n must be at least 1; --max-tokens must be at least 1"):
        Sampling(n=0, temperature=1.0, top_p=1.0, top_k=-1, max_tokens=0, seed=0)
    Sampling(n=1, temperature=0.0, top_p=1.0, top_k=1, max_tokens=1, seed=0)
