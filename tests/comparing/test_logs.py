"""Logs in the form of verl's loggers -> what is compared of a run."""

from __future__ import annotations

import gzip
import math

import numpy as np
import pandas as pd
import pytest

from scripts.comparing.logs import read_console, read_log
from scripts.comparing.series import series_of
from tests.comparing.runs import VAL, write_log


def test_tokens_of_a_stock_run_are_its_responses(tmp_path):
    found, assumed = series_of(read_log(str(write_log(tmp_path / "off", {0: 0.2, 4: 0.6}))))
    # 64 rollouts x 5 response tokens a step, nothing before the first
    assert found["generated"].tolist() == [0, 320, 640, 960, 1280] == found["trained"].tolist()
    assert found["accuracy"].dropna().to_dict() == {0: 0.2, 4: 0.6}
    assert found["reward"].dropna().tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert any("every generated token is trained on" in text for text in assumed)


def test_tokens_of_a_replay_run_are_what_it_trained_on(tmp_path):
    found, assumed = series_of(read_log(str(write_log(tmp_path / "ours", {4: 0.6}, trained=400))))
    assert found["generated"].tolist() == [320, 640, 960, 1280] and found["trained"].tolist() == [400, 800, 1200, 1600]
    assert not any("trained" in text for text in assumed)


def test_logs_that_do_not_tell_their_tokens():
    frame = pd.DataFrame({"critic/score/mean": [0.1], "response_length/mean": [7.0]}, index=[1])
    found, assumed = series_of(frame)
    assert found["generated"].isna().all() and found["accuracy"].isna().all()
    assert any("--rollouts-a-step" in text for text in assumed) and any("never validated" in text for text in assumed)
    assert series_of(frame, rollouts=8)[0]["generated"].tolist() == [56]
    assert series_of(frame.assign(**{"replay/fresh/generated/sum": 3.0}))[0]["generated"].tolist() == [21]


def test_accuracy_is_the_mean_of_benchmarks_unless_one_is_named(tmp_path):
    frame = pd.DataFrame({VAL: [0.2, 0.9], "val-core/b/acc/mean@4": [0.4, np.nan], "other": [1.0, 2.0]}, index=[1, 4])
    found, assumed = series_of(frame)
    assert found["accuracy"].iloc[0] == pytest.approx(0.3) and math.isnan(found["accuracy"].iloc[1])
    assert any("plain mean of" in text for text in assumed) and any("2 steps are not in the log" in t for t in assumed)
    assert series_of(frame, accuracy=VAL)[0]["accuracy"].iloc[0] == 0.2
    with pytest.raises(ValueError, match="--accuracy nothing is not in the log"):
        series_of(frame, accuracy="nothing")


CONSOLE = (
    "\x1b[2m\x1b[36m(main_task pid=9)\x1b[0m step:0 - timing/gen:20.251 - critic/lr(1e-4):0.100 - critic/kl:-1e-05\n"
    "(TaskRunner pid=3) noise - step: 4 - not:one\n\n"
    "step:1 - val-core/openai/gsm8k/acc/mean@1:0.25 - critic/score/mean:np.float64(0.5) - bad:abc - n:nan\r\n"
)


@pytest.mark.parametrize("name", ["run.log", "run.log.gz"])
def test_the_console_log_is_read_through_its_colours_and_noise(tmp_path, name):
    content = CONSOLE.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    frame = read_console(tmp_path / name)
    assert frame.index.tolist() == [0, 1]
    assert frame.loc[0].dropna().to_dict() == {"timing/gen": 20.251, "critic/lr(1e-4)": 0.1, "critic/kl": -1e-05}
    assert frame.loc[1, "critic/score/mean"] == 0.5 and frame.loc[1, "val-core/openai/gsm8k/acc/mean@1"] == 0.25
    assert "bad" not in frame and math.isnan(frame.loc[1, "n"])


def test_verls_own_console_line_comes_back_as_it_was(tmp_path):
    aggregate_logger = pytest.importorskip("verl.utils.logger.aggregate_logger")
    data = {VAL: 0.125, "critic/score/mean": np.float32(0.5), "actor/lr": 1e-6, "perf/total_num_tokens": 960}
    (tmp_path / "log").write_text(aggregate_logger.concat_dict_to_str(data, step=12) + "\n")
    frame = read_console(tmp_path / "log")
    assert frame.index.tolist() == [12] and frame.loc[12].to_dict() == pytest.approx(data, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.log", "nothing\n", "holds no line `step:N"),
        ("x.jsonl", "nothing\n", "not one of verl's file logger"),
        ("x.csv", "a,b\n1,2\n", "has no column step"),
        ("x.csv", "run,step\na,1\nb,1\n", r"one of \['a', 'b'\]"),
        ("x.csv", "step,reward_mean\n1,0\n1,0\n", "come twice"),
        (None, "", "is missing"),
    ],
)
def test_files_that_are_no_log_are_refused(tmp_path, name, content, message):
    if name:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_log(str(tmp_path / (name or "nothing")))
