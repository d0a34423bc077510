"""Logs of runs: verl's file logger, its console, or a table of metrics; plain or gzipped."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pandas as pd

from scripts.evaluating.scoring import RESULTS
from verl_replay.analysis import read_metrics

METRICS = "metrics.jsonl"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"(?:^|\s)step:(\d+) - (.*)")
_VALUE = re.compile(r"(?:np\.\w+\()?([-+]?(?:\d[\d.eE+-]*|nan|inf))\)?")  # numpy's scalars print with their type
_COLUMNS = {"reward_mean": "critic/score/mean", "eval_accuracy": "val-core/table/mean@1"}


def is_evaluation(path: Path) -> bool:
    """Whether it is the output folder of scripts/evaluate.py."""
    return (path / RESULTS).exists()


def read_log(given: str) -> pd.DataFrame:
    """One row a step (index `step`), one column a metric under verl's name; NaN where a step has no such metric.

    Args:
        given: a file of verl's file logger (.jsonl), of its console (any other name) or a table (.csv); or the folder
            of a run with a metrics.jsonl. `table.csv::name` takes the rows of that name in the column `run`.

    Raises:
        ValueError: there is nothing to read in it.
    """
    where, _, run = given.partition("::")
    path = Path(where)
    if path.is_dir():
        path = path / METRICS
    if not path.is_file():
        raise ValueError(f"{path} is missing. Give a run's log, its folder, or the output folder of scripts.evaluate.")
    name = path.name.removesuffix(".gz")
    if name.endswith(".csv"):
        return _read_table(path, run)
    if run:
        raise ValueError(f"{given}: only a .csv holds several runs. Leave out ::{run}.")
    return read_metrics(path) if path.name.endswith(".jsonl") else read_console(path)


def read_console(path: Path) -> pd.DataFrame:
    """The lines `step:N - name:value - ...` of verl's console logger, whatever else is printed between them.

    Raises:
        ValueError: there is no such line.
    """
    rows: dict[int, dict[str, float]] = {}
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", errors="replace") as file:
        for line in file:
            if found := _STEP.search(_ESCAPE.sub("", line)):
                rows.setdefault(int(found[1]), {}).update(_pairs(found[2]))
    if not rows:
        raise ValueError(f"{path} holds no line `step:N - name:value`. Log with trainer.logger=[console,file].")
    return pd.DataFrame.from_dict(rows, orient="index").sort_index().rename_axis("step")


def _pairs(text: str) -> dict[str, float]:
    pairs = (part.rpartition(":") for part in text.strip().split(" - "))
    return {name: float(value[1]) for name, _, number in pairs if (value := _VALUE.fullmatch(number.strip()))}


def _read_table(path: Path, run: str) -> pd.DataFrame:
    """A table with a column `step`. Raises ValueError where it has none, or holds several runs and none is named."""
    frame = pd.read_csv(path)
    if "step" not in frame:
        raise ValueError(f"{path} has no column step: {list(frame)[:8]}. Name the column of training steps so.")
    if "run" in frame:
        names = sorted(frame["run"].unique())
        if run not in names:
            raise ValueError(f"{path} holds several runs: give {path}::NAME, one of {names}.")
        frame = frame[frame["run"] == run]
    frame = frame.select_dtypes("number").set_index("step").sort_index()
    if frame.index.has_duplicates:
        raise ValueError(f"{path} has steps that come twice. Keep one row a step.")
    if {"num_groups", "group_size", "seq_len_mean", "asst_token_ratio"} <= set(frame):
        frame["response_length/mean"] = frame["seq_len_mean"] * frame["asst_token_ratio"]
        frame["rollouts"] = frame["num_groups"] * frame["group_size"]
    return frame.rename(columns=_COLUMNS)
