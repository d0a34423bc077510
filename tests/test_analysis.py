"""Logs -> summaries and plots, on lines in the form of verl's file logger (orjson, one object a step)."""

from __future__ import annotations

import json

import pytest

from verl_replay.analysis import accuracy, log_ratio_by_age, plot_run, read_metrics, summarize

VAL = "val-core/verl_replay/addition/acc/mean@8"


def line(step: int, **data: float) -> str:
    return json.dumps({"step": step, "data": {name.replace("__", "/"): value for name, value in data.items()}})


def step_line(step: int, *, drawn: int, age: tuple[float, int, int] | None, **more: float) -> str:
    ages = {} if age is None else {"mean": age[0], "min": age[1], "max": age[2]}
    return line(
        step,
        critic__score__mean=0.5,
        replay__fresh__generated=64,
        replay__fresh__rollouts=48,
        replay__draw__rollouts=drawn,
        replay__buffer__size=48 * step,
        replay__filter__zero_variance_frac=0.25,
        timing_s__step=2.0,
        timing_s__replay=0.1,
        timing_s__adv=0.05,
        **{f"replay__draw__age__{name}": value for name, value in ages.items()},
        **more,
    )


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        line(0, **{VAL: 0.5}),
        step_line(1, drawn=0, age=None),
        step_line(2, drawn=10, age=(1.0, 1, 1)),
        step_line(3, drawn=30, age=(2.0, 1, 2), **{VAL: 0.75, "replay/ratio/age_02/log_ratio_abs": 0.1}),
    ]
    path.write_text("\n".join(lines) + "\n" + '{"step":4,"da')  # a step that is being written
    return path


def test_summary_counts_and_weights_ages_by_draws(log):
    summary = summarize(read_metrics(log))
    assert summary["steps"] == 3
    assert summary["rollouts_generated"] == 3 * 64
    assert summary["rollouts_replayed"] == 40
    assert summary["rollouts_trained"] == 3 * 48 + 40
    assert summary["drawn_age_mean"] == pytest.approx((10 * 1 + 30 * 2) / 40)
    assert (summary["drawn_age_min"], summary["drawn_age_max"]) == (1, 2)
    assert summary["buffer_size"] == 144
    assert (summary["val_accuracy_before"], summary["val_accuracy_after"]) == (0.5, 0.75)


def test_a_run_without_draws_has_no_ages(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "\n".join([line(0, **{VAL: 0.5}), step_line(1, drawn=0, age=None), step_line(2, drawn=0, age=None)]) + "\n"
    )
    summary = summarize(read_metrics(path))
    assert summary["rollouts_replayed"] == 0 and summary["drawn_age_mean"] is None and summary["drawn_age_max"] is None
    plot_run(read_metrics(path), tmp_path / "curves.png", title="nothing replayed")


def test_accuracy_and_log_ratios_are_found_by_name(log):
    frame = read_metrics(log)
    assert accuracy(frame).to_dict() == {0: 0.5, 3: 0.75}
    assert log_ratio_by_age(frame).to_dict() == {2: {3: 0.1}}


def test_the_plot_has_four_named_panels_with_labelled_axes(log, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    plot_run(read_metrics(log), tmp_path / "curves.png", title="a run")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    panels = [axes for axes in figures[0].axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == [
        "Reward and held-out accuracy",
        "Buffer size and drawn ages",
        "Zero-variance share",
        "|log ratio| of replayed rows by age",
    ]
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in panels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no step yet"),
        ('{"step":1}\n', "line 1 is not one of verl's"),
        ("garbage\n", "line 1 is not one of verl's"),
    ],
)
def test_a_file_that_is_no_log_is_refused(tmp_path, text, message):
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_metrics(path)


def test_a_run_that_was_never_validated_is_told_so(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(step_line(1, drawn=0, age=None) + "\n")
    with pytest.raises(ValueError, match="trainer.test_freq"):
        accuracy(read_metrics(path))
