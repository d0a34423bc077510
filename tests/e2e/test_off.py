"""I1, O18: replay=off against verl's own main_ppo. Stock against stock is shown equal first: runs are repeatable."""

from __future__ import annotations

import pandas as pd
import pytest

pytestmark = pytest.mark.e2e

STOCK = "verl.trainer.main_ppo"


@pytest.fixture(scope="module")
def stock(run_recipe):
    return run_recipe("stock", module=STOCK)


@pytest.fixture(scope="module")
def stock_again(run_recipe):
    return run_recipe("stock_again", module=STOCK)


@pytest.fixture(scope="module")
def off(run_recipe):
    return run_recipe("off", "replay=off", module="verl_replay.main_ppo")


def compared(metrics: pd.DataFrame) -> pd.DataFrame:
    """What the policy did and what was done to it; not time, not the machine, and not vLLM's own log-probs, whose last
    digits depend on which requests happened to share a batch."""
    kept = ("critic/", "actor/", "response_length", "prompt_length", "global_seqlen", "training/num_turns")
    return metrics[sorted(name for name in metrics if name.startswith(kept) and not name.startswith("actor/perf/"))]


def test_stock_runs_are_repeatable_and_the_comparison_is_not_empty(stock, stock_again):
    assert compared(stock.metrics).equals(compared(stock_again.metrics)) and len(compared(stock.metrics).columns) > 20
    assert stock.weights(4) == stock_again.weights(4)
    assert (stock.metrics["actor/grad_norm"] > 0).all()
    score = stock.metrics["critic/score/mean"]
    assert ((score > 0) & (score < 1)).all() and score.nunique() > 1
    spread = stock.metrics["critic/advantages/max"] - stock.metrics["critic/advantages/min"]
    assert (spread > 0).all()  # a mixed group in every step


def test_off_is_stock_to_the_last_digit(stock, off):
    assert set(off.metrics) == set(stock.metrics)
    assert compared(off.metrics).equals(compared(stock.metrics))
    assert off.weights(4) == stock.weights(4)
    assert not [name for name in off.metrics if "replay" in name]
