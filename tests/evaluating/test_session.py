"""scripts/evaluate.py from arguments to files, with a stub for vLLM; the reward and its processes are real."""

from __future__ import annotations

import json
import math
from functools import partial

import numpy as np
import pytest

from scripts.evaluate import main
from scripts.evaluating.store import Generation, Store, read_generations
from tests.evaluating.stub import REWARD, RIGHT, Stub, make_data, make_model, run_stub

FILES = ["generations.jsonl", "manifest.json", "plot.png", "results.json", "results.md"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "sums.parquet")


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory):
    """An evaluation that nothing disturbed: its folder and results."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run_stub(model, data, folder)


def kept(folder):
    return sorted(read_generations(folder / "generations.jsonl")[0])


def scores(results):
    return {name: results[name] for name in ("benchmarks", "average", "settings")}


def test_every_answer_is_kept_and_scored(whole, data):
    folder, results = whole
    generations = kept(folder)
    assert len({g.key for g in generations}) == len(generations) == 9 * 4
    assert {g.score for g in generations} == {0.0, 1.0}
    assert all(g.tokens == (5 if g.score else 8) for g in generations)  # four digits or seven letters, and the end
    row = results["benchmarks"]["sums"]
    assert row["mean"]["estimate"] == pytest.approx(np.mean([g.score for g in generations]))
    # RIGHT of 36: four standard deviations
    assert abs(row["mean"]["estimate"] - RIGHT) < 4 * math.sqrt(RIGHT * (1 - RIGHT) / 36)
    assert row["tokens"]["correct"] == 5 and row["tokens"]["wrong"] == 8
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert json.loads((folder / "results.json").read_text())["benchmarks"] == results["benchmarks"]
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    text = (folder / "results.md").read_text()
    assert "| sums | 9 | 4 |" in text and "pass@4" in text and "Beside generation" in text


@pytest.mark.parametrize("steps", [0, 1, 6])
def test_a_stopped_evaluation_goes_on_to_the_same_results(model, data, whole, tmp_path, steps):
    with pytest.raises(KeyboardInterrupt):
        run_stub(model, data, tmp_path, engine=partial(Stub, stop_after=steps))
    with (tmp_path / "generations.jsonl").open("ab") as file:
        file.write(b'{"benchmark": "sums", "id": "torn')  # as a power cut leaves it
    assert len(kept(tmp_path)) < 36
    results = run_stub(model, data, tmp_path)
    assert scores(results) == scores(whole[1])
    assert kept(tmp_path) == kept(whole[0])


def test_what_was_there_is_not_sampled_again(model, data, whole, tmp_path):
    file = tmp_path / "generations.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_stub(model, data, tmp_path, engine=partial(Stub, stop_when=lambda: file.stat().st_size > 0))
    before = {g.key for g in kept(tmp_path)}
    assert 0 < len(before) < 36
    engines: list[Stub] = []

    def remembered(sampling):
        engines.append(Stub(sampling))
        return engines[0]

    results = run_stub(model, data, tmp_path, engine=remembered)
    assert scores(results) == scores(whole[1])
    assert sorted([*engines[0].asked, *before]) == sorted(g.key for g in kept(whole[0]))
    assert engines[0].most == engines[0].window  # and it was kept full


def test_a_finished_evaluation_starts_no_engine(model, data, whole):
    def never(sampling):
        raise AssertionError("nothing is missing")

    results = run_stub(model, data, whole[0], engine=never)
    assert scores(results) == scores(whole[1])
    assert "nothing to generate" in (whole[0] / "results.md").read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--temperature", "0.7"], "'temperature': 1.0.* there, .*'temperature': 0.7.* now"),
        (["--n", "8"], "sampling"),
        (["--seed", "1"], "sampling"),
        (["--limit", "8"], "data"),
        (["--max-model-len", "32"], "context: 64 there, 32 now"),
        (["--dtype", "float32"], "dtype"),
        (["--reward", "data_prep.reward:compute_score"], "reward"),
    ],
)
def test_other_settings_are_refused_in_a_begun_folder(model, data, whole, more, message):
    before = (whole[0] / "generations.jsonl").read_bytes()
    with pytest.raises(ValueError, match=message):
        run_stub(model, data, whole[0], *more)
    assert (whole[0] / "generations.jsonl").read_bytes() == before


def test_another_model_is_refused_in_a_begun_folder(data, whole, tmp_path):
    other = make_model(tmp_path / "other", weights=b"other weights")
    with pytest.raises(ValueError, match="model: .* there"):
        run_stub(other, data, whole[0])


def test_the_baseline_is_compared_problem_by_problem(model, data, whole, tmp_path):
    results = run_stub(model, data, tmp_path, "--baseline", str(whole[0]), engine=partial(Stub, share=0.9))
    base, ours = whole[1]["benchmarks"]["sums"], results["benchmarks"]["sums"]
    row = results["baseline"]["differences"]["sums"]
    expected = np.mean(ours["scores"]) - np.mean(base["scores"])
    assert row["mean"]["estimate"] == pytest.approx(expected)
    assert row["mean"]["low"] < expected < row["mean"]["high"]
    assert row["pass"]["1"]["estimate"] == pytest.approx(expected)
    shorter = 1 - ours["tokens"]["all"] / base["tokens"]["all"]
    better = ours["mean"]["estimate"] / base["mean"]["estimate"] - 1
    assert row["aes"] == pytest.approx(shorter + 3 * better)
    assert results["baseline"]["differences"]["average"] == row  # one benchmark
    text = (tmp_path / "results.md").read_text()
    assert f"{row['aes']:+.3f}" in text and "paired by problem" in text


def test_a_baseline_on_other_problems_is_refused(model, whole, tmp_path):
    other = make_data(tmp_path / "sums.parquet", seed=1)
    with pytest.raises(ValueError, match=r"other problems or prompts in \['sums'\]"):
        run_stub(model, other, tmp_path / "out", "--baseline", str(whole[0]))
    renamed = make_data(tmp_path / "more.parquet")
    with pytest.raises(ValueError, match=r"lacks \['more'\]"):
        run_stub(model, renamed, tmp_path / "out", "--baseline", str(whole[0]))
    with pytest.raises(ValueError, match="holds no results.json"):
        run_stub(model, renamed, tmp_path / "out", "--baseline", str(tmp_path))
    assert not (tmp_path / "out").exists()  # nothing was begun


def test_prompts_without_room_are_refused_or_counted(data, tmp_path):
    small = make_model(tmp_path / "small", positions=12)  # <im_start>user\n123+456=<im_end>\n... has 16 tokens
    with pytest.raises(ValueError, match=r"9 of 9 prompts do not fit into the model's 12 tokens \(longest: 16\)"):
        run_stub(small, data, tmp_path / "refused")
    results = run_stub(small, data, tmp_path / "counted", "--too-long", "wrong")
    row = results["benchmarks"]["sums"]
    assert row["mean"]["estimate"] == 0 and row["too_long"] == 9 and row["tokens"]["all"] is None
    assert {g.finish_reason for g in kept(tmp_path / "counted")} == {"prompt_too_long"}
    assert "9 prompts did not fit" in (tmp_path / "counted" / "results.md").read_text()
    assert results["notes"] == []


def test_answers_that_the_context_cuts_are_announced(model, data, tmp_path):
    results = run_stub(model, data, tmp_path, "--max-tokens", "60")
    assert "cut by the context of 64 tokens" in results["notes"][0]


def test_an_error_of_the_reward_names_the_answer(model, data, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def f(data_source, solution_str, ground_truth, extra_info):\n    return 1 / (not solution_str)\n"
    )
    with pytest.raises(ValueError, match=r"grading failed on \('sums', .*ZeroDivisionError"):
        run_stub(model, data, tmp_path / "out", "--reward", f"{reward}:f")


def test_a_reward_that_knows_no_such_problems_is_refused_before_the_start(model, tmp_path):
    data = tmp_path / "unknown.jsonl"
    data.write_text('{"id": 7, "problem": "a", "answer": "b"}\n')
    with pytest.raises(ValueError, match=r"grading failed on \('unknown', '7', 0\).*no rule for data_source.*--reward"):
        run_stub(model, data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_evaluations_of_one_folder_are_refused(model, data, whole):
    store = Store(whole[0])
    with pytest.raises(ValueError, match="being written by another evaluation"):
        run_stub(model, data, whole[0])
    store.close()


def test_several_benchmarks_count_the_same(model, data, tmp_path):
    small = make_data(tmp_path / "few.parquet", rows=2, seed=5)
    results = run_stub(model, data, tmp_path / "out", "--data", str(data), str(small))
    each = [results["benchmarks"][name]["mean"]["estimate"] for name in ("sums", "few")]
    assert results["average"]["mean"]["estimate"] == pytest.approx(np.mean(each))
    assert results["average"]["problems"] == 11


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--n", "0"], "--n must be at least 1"),
        (["--temperature", "0"], "--n must be 1"),
        (["--top-p", "0"], "--top-p must lie in"),
        (["--max-model-len", "65"], "above the model's 64 positions"),
        (["--reward", "nothing"], "--reward must be path_or_module:name"),
        (["--reward", f"{REWARD}r"], "cannot be loaded"),
        (["--limit", "0"], "--limit must be at least 1"),
    ],
)
def test_what_cannot_work_is_one_line_and_status_2(model, data, tmp_path, monkeypatch, capsys, more, message):
    monkeypatch.setenv("VERL_REPLAY_EVALUATE", "1")
    options = ["--model", str(model), "--data", str(data), "--output", str(tmp_path / "out"), "--reward", REWARD, *more]
    assert main(options) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("evaluate: ") and error.count("\n") == 1
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_generation_round_trips_through_the_file(tmp_path):
    odd = Generation("b", "1", 0, 3, "stop", 'quote " \\ \n \u2028 \ud800 ü', 0.5)
    store = Store(tmp_path)
    store.append([odd], now=0.0)
    store.close()
    assert read_generations(tmp_path / "generations.jsonl")[0] == [odd]
