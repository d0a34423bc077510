"""scripts/compare_runs.py from arguments to files, on logs, on evaluations, and on real logs where they are."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scripts.compare_runs import main, parse_arms
from scripts.comparing.logs import read_log
from scripts.comparing.report import tokens
from scripts.comparing.series import series_of
from tests.comparing.runs import write_log
from tests.evaluating.stub import Stub, make_data, make_model, run_stub

LOGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "logs"


def test_logs_become_tables_curves_and_numbers(tmp_path, capsys):
    off = [write_log(tmp_path / f"off{i}", {0: 0.2, 2: 0.3 + 0.02 * i, 4: 0.4 + 0.02 * i}) for i in range(3)]
    ours = [write_log(tmp_path / f"ours{i}", {0: 0.2, 2: 0.42, 4: 0.6 + 0.02 * i}, trained=480) for i in range(3)]
    arms = [f"off={','.join(map(str, off))}", f"ours={','.join(map(str, ours))}"]
    assert main([*arms, "--output", str(tmp_path / "out")]) == 0
    numbers = json.loads((tmp_path / "out/comparison.json").read_text())
    base, row = numbers["training"]
    assert row["difference"] == pytest.approx(0.2) and 0.15 < row["low"] < 0.2 < row["high"] < 0.25
    assert base["final"] == pytest.approx(0.42) and row["generated_to_reach"] == pytest.approx(2 * 320)
    assert row["trained_to_reach"] == pytest.approx(2 * 480) and base["trained_to_reach"] == pytest.approx(4 * 320)
    text = (tmp_path / "out/comparison.md").read_text()
    assert "640 (-50%)" in text and "960 (-25%)" in text and "+20.00 [" in text and "Assumed:" in text
    assert "held-out accuracy at step 4" in capsys.readouterr().out
    assert (tmp_path / "out/curves.png").read_bytes().startswith(b"\x89PNG")
    curves = pd.read_csv(tmp_path / "out/curves.csv")
    assert len(curves) == 6 * 5 and set(curves["arm"]) == {"off", "ours"}
    assert curves.query("arm == 'ours' and seed == 2 and step == 4")["accuracy"].item() == pytest.approx(0.64)


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluations")
    model, data = make_model(folder / "model"), make_data(folder / "sums.parquet", rows=20)
    for name, share, seed in (("off_1", 0.3, 1), ("off_2", 0.3, 2), ("ours_1", 0.8, 3), ("ours_2", 0.8, 4)):
        run_stub(model, data, folder / name, "--seed", str(seed), engine=partial(Stub, share=share))
    return folder


def numbers_of(output: Path) -> list[dict]:
    return json.loads((output / "comparison.json").read_text())["evaluation"]


def test_evaluations_become_the_papers_table(evaluations, tmp_path):
    arms = [f"{name}={evaluations / name}_1,{evaluations / name}_2" for name in ("off", "ours")]
    assert main([*arms, "--output", str(tmp_path)]) == 0
    base, row = numbers_of(tmp_path)
    each = [json.loads((evaluations / f"ours_{i}" / "results.json").read_text())["average"] for i in (1, 2)]
    assert row["average"] == pytest.approx(np.mean([a["mean"]["estimate"] for a in each])) == row["benchmarks"]["sums"]
    assert row["pass"]["4"] == pytest.approx(np.mean([a["pass"]["4"] for a in each]))
    assert row["over"] == "seeds" and row["difference"] == pytest.approx(row["average"] - base["average"])
    shorter = 1 - row["tokens"]["all"] / base["tokens"]["all"]
    assert row["aes"] == pytest.approx(shorter + 3 * (row["average"] / base["average"] - 1))
    assert base["aes"] is None and base["difference"] is None
    assert f"{row['aes']:+.3f}" in (tmp_path / "comparison.md").read_text()
    assert (tmp_path / "pass_at_k.png").exists() and not (tmp_path / "curves.png").exists()


def test_one_evaluation_an_arm_is_compared_over_problems(evaluations, tmp_path):
    log = write_log(tmp_path / "log", {0: 0.2, 4: 0.4})
    arms = [f"off={log},{evaluations}/off_1", f"ours={log},{evaluations}/ours_1"]
    assert main([*arms, "--output", str(tmp_path / "out")]) == 0
    row = numbers_of(tmp_path / "out")[1]
    assert row["over"] == "problems" and row["low"] < row["difference"] < row["high"]
    text = (tmp_path / "out/comparison.md").read_text()
    assert "## Training" in text and "## Evaluation" in text


def test_evaluations_on_other_problems_are_refused(evaluations, tmp_path, capsys):
    other = make_data(tmp_path / "sums.parquet", rows=3, seed=9)
    run_stub(evaluations / "model", other, tmp_path / "other")
    arms = [f"off={evaluations}/off_1", f"ours={tmp_path}/other"]
    assert main([*arms, "--output", str(tmp_path / "out")]) == 2
    assert "has other problems" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        (["off"], "an arm is NAME=PATH"),
        (["off="], "an arm is NAME=PATH"),
        (["off=a,"], "an arm is NAME=PATH"),
        (["off=a", "off=b"], "arm off comes twice"),
        (["off=a", "--baseline", "b"], "--baseline b is not one of the arms"),
        (["off=no/such/file"], "is missing"),
    ],
)
def test_bad_arms_are_one_line_and_status_2(tmp_path, capsys, arms, message):
    assert main([*arms, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("compare_runs: ") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_parse_arms():
    assert parse_arms(["off=a,b", "x=c=d"]) == {"off": ["a", "b"], "x": ["c=d"]}
    assert tokens(None) == "-" and tokens(640) == "640" and tokens(17_800_000) == "17.8M" and tokens(1e4) == "10k"


@pytest.mark.skipif(not LOGS.is_dir(), reason="no shared/data/logs beside the project")
def test_real_logs_are_read(tmp_path):
    console = LOGS / "verl_ppo_qwen2.5-0.5b_gsm8k_resp256.log.gz"
    frame = read_log(str(console))
    assert len(frame) == 435 and frame["critic/score/mean"].iloc[[0, -1]].tolist() == [0.004, 0.715]
    found, _ = series_of(frame, rollouts=256)
    assert found["accuracy"].notna().sum() == 43
    assert found["generated"].iloc[0] == pytest.approx(256 * 234.902)
    table = LOGS / "gsm8k_grpo_qwen3-1.7b_17runs_steps.csv.gz"
    arms = [f"{name}={table}::{name}" for name in ("baseline", "mu_2")]
    assert main([*arms, "--output", str(tmp_path)]) == 0
    base, row = json.loads((tmp_path / "comparison.json").read_text())["training"]
    assert base["step"] == 50 and base["final"] == 0.74 and row["difference"] == pytest.approx(0.04)
