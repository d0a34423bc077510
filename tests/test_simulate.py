"""scripts/simulate.py on recordings worked by hand, against the trainers' own stage, and on real ones."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from matplotlib import image
from omegaconf import OmegaConf
from rich.console import Console

from scripts import simulate as command
from scripts.simulating.footprint import make_rows, measure
from scripts.simulating.reading import Line
from scripts.simulating.recording import gather
from scripts.simulating.running import Trace, simulate
from scripts.simulating.settings import PRESETS, grid
from scripts.simulating.tables import tabulate, verl_advantage
from scripts.simulating.writing import as_json
from tests.factories import binary_groups, make_columns, make_options, verl_advantages
from tests.test_simulate_recording import write_lines
from verl_replay.buffer import RolloutBuffer
from verl_replay.options import ReplayOptions
from verl_replay.ragged import Ragged
from verl_replay.table import RolloutTable
from verl_replay.trainers import columns
from verl_replay.trainers.stage import Fresh, ReplayStage

DATA = Path(__file__).parents[2] / "shared" / "data" / "rollouts"
with_data = pytest.mark.skipif(not DATA.is_dir(), reason="the recordings of shared/data are not there")
HAND = ["warmup_steps=0", "max_age=2", "ratio=2"]


def main(folder: Path, recording: Path, *arguments: str) -> dict[str, Any]:
    """results.json of the command, which writes into folder/out."""
    assert command.main([str(recording), *arguments, "--output", str(folder / "out")]) == 0
    return json.loads((folder / "out" / "results.json").read_text())


def run(recording: Path, *arguments: str) -> dict[str, Any]:
    """The same without writing it: a picture takes a second."""
    given = command.parser().parse_args([str(recording), *arguments])
    result = command.run(given, grid(given.replay, given.set, seed=given.seed), Console(stderr=True))
    return json.loads(json.dumps(as_json(result, command="")))


def refused(capsys, *arguments: str) -> str:
    """The one line that is said."""
    assert command.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = [line for line in said.err.splitlines() if line.startswith("simulate: ")]
    return line


def of(results: dict[str, Any], setting: int = 0, run: str | None = None) -> dict[str, Any]:
    made = results["settings"][setting]
    return made["all"] if run is None else made["runs"][run]


def by_hand(steps: Sequence[int] = (1, 2, 3, 4, 5), run: str = "a") -> list[dict[str, Any]]:
    """A step has a mixed group (10, 20, 30 and 40 tokens) and one without signal (5 tokens each)."""
    made = []
    for step in steps:
        made.append({"run": run, "step": step, "group": 0, "reward": [1, 0, 0, 0], "tokens": [10, 20, 30, 40]})
        made.append({"run": run, "step": step, "group": 1, "reward": [1, 1, 1, 1], "tokens": [5, 5, 5, 5]})
    return made


# ---- worked by hand --------------------------------------------------------------------------------------------------


def test_draws_that_take_all_there_is(tmp_path):
    """ratio 2, max_age 2, no warm-up: a step has 4 survivors and asks for 8, which is all that is ever drawable.

    step          1   2   3   4   5
    at the draw   0   4   8   8   8    born 1..2 steps before
    drawn         0   4   8   8   8    ages: 4 of age 1 in steps 2-5, 4 of age 2 in steps 3-5
    stored after  4   8  12  12  12    100 tokens a step's survivors
    """
    results = main(tmp_path, write_lines(tmp_path / "a.jsonl", by_hand()), "--replay", "uniform", "--set", *HAND)
    held = of(results, run="a")
    assert held["over_steps"]["step"] == [1, 2, 3, 4, 5]
    assert held["over_steps"]["drawable"] == held["over_steps"]["drawn"] == [0, 4, 8, 8, 8]
    assert held["over_steps"]["size"] == [4, 8, 12, 12, 12]
    assert held["over_steps"]["survivors"] == [4] * 5
    assert held["over_steps"]["stored_tokens"] == [100, 200, 300, 300, 300]
    assert held["over_steps"]["generated_tokens"] == [120] * 5
    assert held["over_steps"]["trained_tokens"] == [100, 200, 300, 300, 300]
    assert held["drawn_by_age"] == [0, 16, 12]
    whole = of(results)
    assert (whole["generated"], whole["trained_fresh"], whole["drawn"]) == (40, 20, 28)
    assert whole["kept_frac"] == 0.5 and whole["replayed_frac"] == 28 / 48
    assert whole["age_mean"] == pytest.approx((16 * 1 + 12 * 2) / 28)
    assert (whole["age_p90"], whole["age_max"]) == (2, 2)
    assert whole["whole_lives"] == 12  # born in steps 1, 2, 3; those of 4 could be drawn once more
    assert (whole["uses_mean"], whole["uses_max"], whole["never_drawn_frac"]) == (2, 2, 0)
    assert whole["drawable_mean"] == (0 + 4 + 8 + 8 + 8) / 5
    assert whole["rows_trained_per_generated"] == 48 / 40
    assert whole["tokens_trained_per_generated"] == 1200 / 600
    assert results["runs"]["a"]["zero_variance_frac"] == 0.5
    assert results["runs"]["a"]["zero_variance_parts"] == [0.5] * 5


def test_a_warm_up_only_fills(tmp_path):
    """Steps 1 and 2 draw nothing: 0 0 8 8 8. Whole lives are those born in 2 and 3."""
    path = write_lines(tmp_path / "a.jsonl", by_hand())
    results = run(path, "--set", "warmup_steps=2", "max_age=2", "ratio=2")
    assert of(results, run="a")["over_steps"]["drawn"] == [0, 0, 8, 8, 8]
    assert of(results)["whole_lives"] == 8 and of(results)["uses_mean"] == 2
    assert of(results)["drawable_mean"] == 8


def test_steps_with_holes(tmp_path):
    """Steps 1, 2, 5, 6: what was born in 2 is of age 3 in step 5 and gone. At the draws 0, 4, 0, 4."""
    path = write_lines(tmp_path / "a.jsonl", by_hand((1, 2, 5, 6)))
    results = run(path, "--set", *HAND)
    assert of(results, run="a")["over_steps"]["drawable"] == [0, 4, 0, 4]
    assert of(results, run="a")["drawn_by_age"] == [0, 8]
    assert any("steps are missing in a:" in line for line in results["advice"])


def test_runs_are_kept_apart(tmp_path):
    """Two runs in one file, line by line: each as if it were alone, and the sums of both."""
    lines = [line for pair in zip(by_hand(), by_hand(run="b"), strict=True) for line in pair]
    together = run(write_lines(tmp_path / "both.jsonl", lines), "--set", *HAND)
    alone = run(write_lines(tmp_path / "a.jsonl", by_hand()), "--set", *HAND)
    assert of(together, run="a") == of(together, run="b") == of(alone, run="a")
    assert of(together)["drawn"] == 2 * of(alone)["drawn"] and of(together)["size_max"] == of(alone)["size_max"] == 12
    shorter = run(write_lines(tmp_path / "two.jsonl", [*by_hand(), *by_hand((1, 2), run="b")]), "--set", *HAND)
    assert [of(shorter, run=name)["size_max"] for name in "ab"] == [12, 8]
    for peak in ("size_max", "stored_tokens_max", "nbytes_max"):  # of any run
        assert of(shorter)[peak] == of(shorter, run="a")[peak] > of(shorter, run="b")[peak]
    assert of(shorter)["size_last_mean"] == (12 + 8) / 2


def test_ragged_groups(tmp_path):
    """Groups of 4, 3 (a rollout is missing), 2 and 1. The last has nothing to be relative to: no signal."""
    lines = [{"step": 1, "group": g, "reward": r} for g, r in enumerate(([1, 0, 0, 0], [1, 0, 0], [0, 1], [1]))]
    results = run(write_lines(tmp_path / "a.jsonl", lines))
    found = results["runs"]["a"]
    assert (found["groups"], found["group_size_min"], found["group_size_max"], found["rollouts"]) == (4, 1, 4, 10)
    assert found["zero_variance_frac"] == 0.25
    assert of(results, run="a")["over_steps"]["survivors"] == [9]


def test_rewards_that_are_not_numbers(tmp_path):
    """A NaN, an infinity or nothing drops its whole group, which is then not one of zero variance either."""
    rewards = ["[1, 0, NaN]", "[1, 0, null]", "[1, 0, Infinity]", "[1, 0, 1e39]", "[1, 1, 1]", "[1, 0, 1]"]
    lines = [f'{{"step": 1, "group": {g}, "reward": {reward}}}\n' for g, reward in enumerate(rewards)]
    results = run(write_lines(tmp_path / "a.jsonl", lines))
    assert results["runs"]["a"]["nonfinite_groups"] == 4
    assert results["runs"]["a"]["zero_variance_frac"] == 1 / 6
    assert results["runs"]["a"]["reward_mean"] == 9 / 14  # of those that are finite in verl's float32
    assert of(results, run="a")["over_steps"]["survivors"] == [3]
    assert any("a: 4 of 6 groups hold a NaN" in line for line in results["advice"])


def test_off_trains_on_everything_and_filtered_on_survivors_once(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", by_hand())
    results = run(path, "--replay", "off", "filtered", "--set", "max_age=2,3")
    assert [s["name"] for s in results["settings"]] == ["off", "filtered max_age=2", "filtered max_age=3"]
    assert [of(results, i)["rows_trained_per_generated"] for i in range(3)] == [1.0, 0.5, 0.5]
    assert [of(results, i)["size_max"] for i in range(3)] == [0, 0, 0]
    assert of(results, 0)["uses_mean"] is None and of(results, 0)["age_mean"] is None


def test_unfiltered_still_tells_what_has_no_signal(tmp_path):
    results = run(write_lines(tmp_path / "a.jsonl", by_hand()), "--replay", "unfiltered")
    assert of(results)["kept_frac"] == 1 and of(results, run="a")["over_steps"]["zero_variance_groups"] == [1] * 5


# ---- what the method says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "max_age"), [(0.5, 10), (1.0, 5)])
def test_steady_state_of_the_method(tmp_path, ratio, max_age):
    """Uniform: a rollout is drawn r times in its life, at a mean age (tau_max + 1) / 2, from tau_max * B' rollouts.

    150 steps of B' = 32. A rollout's expected uses are r / tau_max in each of its tau_max steps: r, exactly. The mean
    of 2,000 drawn ages and more has a standard error of sqrt((tau_max^2 - 1) / 12 / 2000) < 0.07: four of these."""
    lines = [{"step": s, "group": g, "reward": [1, 0, 0, 0, 0, 0, 0, 1]} for s in range(1, 151) for g in range(4)]
    path = write_lines(tmp_path / "a.jsonl", lines)
    options = [f"ratio={ratio}", f"max_age={max_age}", "warmup_steps=20"]
    results = run(path, "--replay", "uniform", "--set", *options)
    assert set(of(results, run="a")["over_steps"]["drawable"][max_age:]) == {32 * max_age}
    assert of(results)["size_max"] == 32 * (max_age + 1)
    assert of(results)["uses_mean"] == pytest.approx(ratio, rel=0.03)
    assert of(results)["age_mean"] == pytest.approx((max_age + 1) / 2, abs=4 * 0.07)
    assert of(results)["age_max"] == max_age
    assert of(results)["drawn"] == ratio * 32 * 130


def test_the_advantages_are_those_of_verl():
    """Rewards of one token each, and the same spread over answers of other lengths: through verl's own, either way."""
    rng = np.random.default_rng(4)
    rewards = [*binary_groups(rng, 6, 5), [0.1, 0.7, 0.7], [0.25]]
    keys, made = make_columns(rewards, lengths=rng.integers(1, 9, size=34))
    reward = np.array([r for group in rewards for r in group], dtype=np.float32)
    expected = np.array([row[0] for row in (made["advantages"].row(i) for i in range(34))])
    assert np.array_equal(verl_advantage(keys, reward), expected)
    masks = [np.ones(1, np.int64)] * 34
    again = verl_advantages(keys, [np.array([r]) for r in reward], masks)
    assert np.array_equal(np.concatenate(again), expected)


@cache
def stock_config():
    """Composed once: hydra takes a second."""
    with initialize_config_module("verl_replay.config", version_base=None):
        return compose(
            "replay_trainer",
            overrides=[
                "algorithm.adv_estimator=grpo",
                "actor_rollout_ref.rollout.n=4",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                "actor_rollout_ref.actor.use_dynamic_bsz=true",
            ],
        )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"composition": "pooled", "ratio": 1.0},
        {"unit": "group", "priority": "sigma_g"},
        {"importance": "decoupled"},
        {"eviction": "none", "sampler": "rank_based"},
        {"replacement": True, "importance_sampling_exponent": 0.4},
        {"filter": "none"},
    ],
    ids=str,
)
def test_numbers_and_bytes_are_those_of_the_trainers_stage(changes):
    """12 steps of real rows through ReplayStage: what it logs is what is simulated, the bytes of its buffer too."""
    options = make_options(max_age=3, warmup_steps=2, **changes)
    rng = np.random.default_rng(5)
    stage = ReplayStage(stock_config().copy(), options, reward=columns.SCORE)
    logs, lines = [], []
    for step in range(1, 13):
        rewards = binary_groups(rng, 4, 4)
        lengths = rng.integers(2, 12, size=16)
        prompts = np.repeat(rng.integers(2, 9, size=4), 4)
        keys, made = make_columns(rewards, lengths=lengths, rng=rng)
        made["prompts"] = make_rows(["prompts"], prompts, lengths).columns["prompts"]
        made["rollout_log_probs"] = Ragged(rng.random(lengths.sum(), dtype=np.float32), made["old_log_probs"].offsets)
        fresh = Fresh(
            keys,
            np.arange(17),
            lengths + prompts,
            np.full(16, step),
            {name: made[name] for name in stage.decision_columns},
            np.arange(16),
            lambda names, rows, made=made: {name: made[name].take(rows) for name in names},
        )
        log: dict[str, Any] = {}
        stage.plan(fresh, log, step=step, batch_rows=16, ranks=1)
        logs.append(log)
        lines += [
            {"step": step, "group": g, "reward": r, "tokens": n.tolist(), "prompt_tokens": int(p)}
            for g, (r, n, p) in enumerate(zip(rewards, lengths.reshape(4, 4), prompts[::4], strict=True))
        ]
    trace = trace_of(lines, options)
    for ours, theirs in {
        "size": "replay/buffer/size",
        "nbytes": "replay/buffer/bytes",
        "drawn": "replay/draw/rollouts",
        "trained_fresh": "replay/fresh/rollouts",
        "generated": "replay/fresh/generated",
        "trained_tokens": "replay/trained_tokens",
        "evicted_capacity": "replay/buffer/evicted_capacity",
    }.items():
        assert trace[ours].tolist() == [log[theirs] for log in logs], ours
    for age in range(1, len(trace.age)):
        assert trace.age[age] == sum(log.get(f"replay/draw/age_hist/{age:02d}", 0) for log in logs)
    assert trace["drawn"].sum() > 40
    if options.filter != "none":
        shares = [log["replay/filter/zero_variance_frac"] for log in logs]
        assert (trace["zero_variance_groups"] / trace["groups"]).tolist() == shares
    assert np.array_equal(trace["nbytes"][[-1]], [stage.transform.buffer.nbytes])


def trace_of(lines: Sequence[dict[str, Any]], options: ReplayOptions) -> Trace:
    recording = gather([Line("", "a", line) for line in lines], {})
    made = tabulate(recording.runs["a"], tokens=0, prompt_tokens=0, done=lambda: None)
    return simulate(made, options, measure(options), done=lambda: None)


def test_the_footprint_is_that_of_a_real_buffer():
    """Rollouts of any length, in three steps."""
    options = make_options()
    names = columns.stored_columns(stock_config(), options)
    footprint, rng = measure(options), np.random.default_rng(1)
    buffer = RolloutBuffer(capacity=1000, seed=0)
    prompt_tokens = response_tokens = rollouts = 0
    for step in range(1, 4):
        prompts, responses = rng.integers(2, 40, size=(2, 20 * step))
        blank = RolloutTable(**dict.fromkeys(vars(RolloutTable.empty()), np.zeros(20 * step)))
        buffer.add(blank.stored(step), make_rows(names, prompts, responses))
        prompt_tokens, response_tokens = prompt_tokens + prompts.sum(), response_tokens + responses.sum()
        rollouts += 20 * step
        told = footprint.nbytes(
            rollouts=rollouts, prompt_tokens=prompt_tokens, response_tokens=response_tokens, steps=step
        )
        assert told == buffer.nbytes
    assert (footprint.prompt_token, footprint.response_token) == (4, 8)  # an int32; an int32 and a float32


# ---- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_what_a_run_composes():
    """With options on top, as main_ppo composes it from the words that `command` says."""
    made = grid(PRESETS, ["max_age=7"], seed=3)
    assert [setting.name for setting in made] == [p if p == "off" else f"{p} max_age=7" for p in PRESETS]
    switched_off = grid(["uniform"], ["enabled=false"], seed=3)
    for setting in [*made[::5], *(s for s in made if s.name == "off"), *switched_off]:
        with initialize_config_module("verl_replay.config", version_base=None):
            words = setting.command.split(" ")
            composed = compose("replay_trainer", overrides=[*words, "replay.seed=3"]).replay
        assert setting.options == ReplayOptions.from_config(OmegaConf.to_container(composed, resolve=True))


def test_a_grid_is_every_combination_in_order():
    made = grid(["uniform", "pooled"], ["max_age=5,10", "replay.ratio=0.5,1"], seed=0)
    assert [s.name for s in made] == [
        f"{preset} max_age={age} ratio={ratio}"
        for preset in ("uniform", "pooled")
        for age in (5, 10)
        for ratio in (0.5, 1)
    ]
    assert [(s.options.max_age, s.options.ratio) for s in made[:2]] == [(5, 0.5), (5, 1)]
    assert made[0].command == "replay=uniform replay.max_age=5 replay.ratio=0.5"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--replay", "fresh"], "--replay must name presets, got 'fresh'. They are base,"),
        (["--set", "maxage=3"], "--set must be OPTION=VALUE,VALUE,... with an option of enabled, ratio,"),
        (["--set", "max_age"], "--set must be OPTION=VALUE"),
        (["--set", "max_age=1,"], "--set must be OPTION=VALUE"),
        (["--set", "max_age=1", "max_age=2"], "--set max_age must be given once"),
        (["--set", "max_age=1,-1"], "fresh_anchored max_age=-1: replay.max_age must be a whole number >= 0, got -1."),
        (["--set", "max_age=1.5"], "replay.max_age must be a whole number >= 0, got 1.5."),
        (["--set", "filter=nonsense"], "replay.filter must name a policy, got 'nonsense'."),
        (["--set", "unit=group"], "replay.unit=group draws whole groups, but replay.priority=abs_advantage"),
        (["--set", "ratio=${x}"], "--set must hold values that Hydra can read"),
        (["--set", "filter=}"], "--set must hold values that Hydra can read"),
        (["--groups-a-step", "0"], "--groups-a-step must be at least 1, got 0."),
        (["--response-tokens", "0"], "--response-tokens must be at least 1, got 0."),
        (["--response-tokens", "9"], "--response-tokens is for recordings without lengths"),
        (["--mini-batches", "0"], "--mini-batches must be at least 1, got 0."),
        (["--column", "reward=nothing"], "--column reward must name a column of the recording, got 'nothing'."),
    ],
)
def test_what_is_refused_is_said_in_one_line(tmp_path, capsys, arguments, told):
    path = write_lines(tmp_path / "a.jsonl", by_hand())
    assert told in refused(capsys, str(path), "--output", str(tmp_path / "out"), *arguments)
    assert not (tmp_path / "out").exists()


def test_a_bad_line_an_empty_file_and_a_bad_output(tmp_path, capsys):
    bad = write_lines(tmp_path / "bad.jsonl", [*by_hand(), "{\n"])
    assert "bad.jsonl, line 11 is not JSON" in refused(capsys, str(bad), "--output", str(tmp_path / "out"))
    empty = write_lines(tmp_path / "empty.jsonl", [])
    assert "holds no rollout" in refused(capsys, str(empty), "--output", str(tmp_path / "out"))
    good = write_lines(tmp_path / "good.jsonl", by_hand())
    for below in ("", "x/y"):
        told = refused(capsys, str(good), "--output", str(empty / below))
        assert "--output must be a folder that can be written" in told and f"{empty} is a file" in told


# ---- results ---------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_numbers_and_another_other_ones(tmp_path):
    rng = np.random.default_rng(0)
    lines = [{"step": s, "group": g, "reward": r} for s in range(1, 21) for g, r in enumerate(binary_groups(rng, 4, 4))]
    path = write_lines(tmp_path / "a.jsonl", lines)
    settings = ("--set", "warmup_steps=0")
    first, second, other = (run(path, *settings, "--seed", seed) for seed in ("0", "0", "1"))
    assert first == second
    assert of(first, run="a")["drawn_by_age"] != of(other, run="a")["drawn_by_age"]
    assert of(first)["drawn"] == of(other)["drawn"]


def test_what_is_written_and_printed(tmp_path, capsys):
    """Two settings and two runs, one of an odd name: four files, a line a setting, nothing left over."""
    odd = "b|[red]\x1b[31m"
    path = write_lines(tmp_path / "a.jsonl", [*by_hand(), *by_hand(run=odd)])
    results = main(tmp_path, path, "--set", *HAND[:2], "ratio=1,2", "--prompt-tokens", "7")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "b|[red]\\x1b[31m" in printed
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "results.json",
        "simulation.png",
        "table.csv",
        "table.md",
    ]
    names = [f"fresh_anchored warmup_steps=0 max_age=2 ratio={ratio}" for ratio in (1, 2)]
    text = (tmp_path / "out" / "table.md").read_text()
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| fresh")] == [
        f"| {n}" for n in names
    ]
    assert "| b\\|[red]\\x1b[31m | 5 | 10 of 4 | 0.62 | 0.50 | 0.50 0.50 0.50 0.50 0.50 |" in text
    rows = list(csv.DictReader((tmp_path / "out" / "table.csv").open(newline="")))
    assert [(row["setting"], row["run"]) for row in rows] == [
        *((name, "all") for name in names),
        *((name, of_run) for name in names for of_run in ("a", odd)),
    ]
    assert int(rows[1]["drawn"]) == of(results, 1)["drawn"] == 56
    pixels = image.imread(tmp_path / "out" / "simulation.png")
    assert pixels.shape[0] > 400 and pixels[..., :3].std() > 0.05
    assert math.isclose(of(results, 1)["tokens_trained_per_generated"], 2.0)


def test_without_lengths_there_are_no_tokens_and_with_a_mean_there_are(tmp_path):
    lines = [{k: v for k, v in line.items() if k != "tokens"} for line in by_hand()]
    path = write_lines(tmp_path / "a.jsonl", lines)
    without = main(tmp_path, path, "--set", *HAND)
    assert of(without)["tokens_trained_per_generated"] is None
    assert "peak MB" not in (tmp_path / "out" / "table.md").read_text()
    assert any("no response lengths" in line for line in without["advice"])
    given = main(tmp_path, path, "--set", *HAND, "--response-tokens", "100", "--prompt-tokens", "50")
    assert of(given)["stored_tokens_max"] == 12 * 100
    assert "peak MB" in (tmp_path / "out" / "table.md").read_text()
    assert given["advice"] == []
    more = main(tmp_path, path, "--set", *HAND, "--response-tokens", "100", "--prompt-tokens", "51")
    assert of(more)["nbytes_max"] - of(given)["nbytes_max"] == 12 * 4  # one int32 for each of 12 rollouts


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["warmup_steps=5"], "warmup_steps=5 is no shorter than 1 of 1 runs (up to step 5), which draw nothing."),
        (["capacity=11"], "capacity=11 evicts 3 rollouts before their age does. Set capacity=12 or more"),
        (["ratio=3"], "in 3 of 3 steps that draw, the buffer holds fewer rollouts than ratio=3 asks for."),
        (["max_age=4"], "nothing in this recording (5 steps) gets older than max_age=4:"),
        (["eviction=none"], "eviction=none never filled the capacity (20 of 30000 rollouts)"),
        (["filter=zero_variance", "--mini-batches", "5"], "in 5 of 5 steps fewer rollouts survive than there are"),
    ],
)
def test_advice_where_something_is_off(tmp_path, settings, told):
    """And none where it is not: the same without what is off."""
    path = write_lines(tmp_path / "a.jsonl", by_hand())
    plain = ["--set", "priority_eps=0.1"]
    fine = {"warmup_steps": "2", "max_age": "2", "ratio": "0.5"}
    named = {text.split("=")[0] for text in settings if "=" in text}
    sets = [f"{name}={value}" for name, value in fine.items() if name not in named]
    results = run(path, *plain, *sets, *settings)
    assert any(told in line for line in results["settings"][0]["advice"])
    for age, batches in (("2", "4"), ("3", "1")):  # as many mini-batches as survivors; what is born in 1 leaves in 5
        sets = [f"{name}={value}" for name, value in {**fine, "max_age": age}.items()]
        assert run(path, *plain, *sets, "--mini-batches", batches)["settings"][0]["advice"] == []


def test_the_capacity_advised_does_not_bind_and_one_less_does(tmp_path):
    rng = np.random.default_rng(2)
    lines = [
        {"step": s, "group": g, "reward": r} for s in (1, 2, 3, 5, 8, 9) for g, r in enumerate(binary_groups(rng, 3, 4))
    ]
    path = write_lines(tmp_path / "a.jsonl", lines)
    (told,) = [
        line for line in run(path, "--set", "max_age=2", "capacity=2")["settings"][0]["advice"] if "capacity=2 " in line
    ]
    enough = int(told.split("Set capacity=")[1].split(" ")[0])
    for capacity, binds in ((enough, False), (enough - 1, True)):
        evicted = of(run(path, "--set", "max_age=2", f"capacity={capacity}"))["evicted_capacity"]
        assert (evicted > 0) == binds


def test_a_run_that_loses_its_signal_and_steps_without_survivors(tmp_path):
    """200 groups in 10 steps, the last two steps of one reward only: the last fifth has no signal."""
    lines = [{"step": s, "group": g, "reward": [1, int(s > 8), 1]} for s in range(1, 11) for g in range(20)]
    results = run(write_lines(tmp_path / "a.jsonl", lines), "--set", "warmup_steps=1", "max_age=2")
    assert results["runs"]["a"]["zero_variance_parts"] == [0, 0, 0, 0, 1]
    assert any("more than 80% of the last groups carry no signal (a 1.00)" in line for line in results["advice"])
    assert any("in 2 of 10 steps no rollout survives" in line for line in results["settings"][0]["advice"])
    assert of(results)["steps_without_update"] == 2


# ---- real recordings -------------------------------------------------------------------------------------------------


@with_data
def test_the_zero_variance_shares_of_the_17_runs(tmp_path):
    """As shared/data's README states them, to the two digits given: by reward, whole runs, and fifths (ten steps each):
    baseline's first, third and last, lr 2e-5's first, fourth and last."""
    results = main(tmp_path, DATA / "gsm8k_grpo_qwen3-1.7b_17runs.jsonl.gz", "--set", "warmup_steps=5", "max_age=5")
    found = results["runs"]
    assert len(found) == 17
    assert sum(r["groups"] for r in found.values()) == 7_000 and sum(r["rollouts"] for r in found.values()) == 57_600
    parts = {name: [f"{part:.2f}" for part in r["zero_variance_parts"]] for name, r in found.items()}
    whole = {name: f"{r['zero_variance_frac']:.2f}" for name, r in found.items()}
    assert [parts["baseline"][i] for i in (0, 2, 4)] == ["0.44", "0.23", "0.54"]
    assert (whole["group_size_16"], whole["group_size_4"]) == ("0.28", "0.51")
    assert [parts["lr_2e-5"][i] for i in (0, 3, 4)] == ["0.28", "0.91", "0.80"]
    assert "0.44 0.31 0.23 0.29 0.54" in (tmp_path / "out" / "table.md").read_text()


@with_data
def test_the_recording_of_100_prompts(tmp_path):
    path = DATA / "qwen2.5math_math_100x8.jsonl.gz"
    results = run(path, "--groups-a-step", "10", "--set", "warmup_steps=1")
    (found,) = results["runs"].values()
    assert (found["groups"], found["steps"], f"{found['zero_variance_frac']:.2f}") == (100, 10, "0.90")
    assert results["recording"]["columns"]["reward"] == "correct"


@with_data
def test_our_own_recording(tmp_path):
    """8 of 16 groups are mixed, 15.6 % of answers right; its lengths are known."""
    results = run(DATA / "own_qwen05coder_gsm8k.jsonl.gz", "--groups-a-step", "16")
    (found,) = results["runs"].values()
    assert (found["groups"], found["zero_variance_frac"], f"{found['reward_mean']:.3f}") == (16, 0.5, "0.156")
    assert results["recording"]["columns"] == {"reward": "score", "group": "index", "tokens": "len"}
    assert of(results)["generated_tokens"] > 128 * 100
