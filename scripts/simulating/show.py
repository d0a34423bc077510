"""The figures as tables: on a screen (rich), in Markdown and in CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text


class Column(NamedTuple):
    header: str
    value: Callable[[Mapping[str, Any]], str]


def _number(name: str, spec: str, scale: float = 1.0) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "-" if row[name] is None else format(row[name] / scale if scale != 1 else row[name], spec)


def _parts(row: Mapping[str, Any]) -> str:
    return " ".join("-" if part is None else f"{part:.2f}" for part in row["zero_variance_parts"])


def _sizes(row: Mapping[str, Any]) -> str:
    low, high = row["group_size_min"], row["group_size_max"]
    return f"{low}" if low == high else f"{low}-{high}"


RUNS = (
    Column("steps", _number("steps", ",")),
    Column("groups", lambda row: f"{row['groups']:,} of {_sizes(row)}"),
    Column("mean\nreward", _number("reward_mean", ".2f")),
    Column("zero\nvariance", _number("zero_variance_frac", ".2f")),
    Column("in each fifth of the run", _parts),
)
SETTINGS = (
    Column("kept", _number("kept_frac", ".0%")),
    Column("drawn", _number("drawn", ",")),
    Column("of\nupdate", _number("replayed_frac", ".0%")),
    Column("age", lambda row: f"{_number('age_mean', '.1f')(row)} / {_number('age_max', ',')(row)}"),
    Column("uses", lambda row: f"{_number('uses_mean', '.2f')(row)} / {_number('uses_max', ',')(row)}"),
    Column("never", _number("never_drawn_frac", ".0%")),
    Column("at\ndraw", _number("drawable_mean", ",.0f")),
    Column("peak", _number("size_max", ",")),
    Column("rows\nx", _number("rows_trained_per_generated", ".2f")),
)
TOKENS = (
    Column("tokens\nx", _number("tokens_trained_per_generated", ".2f")),
    Column("peak\ntokens", _number("stored_tokens_max", ",")),
    Column("peak\nMB", _number("nbytes_max", ",.1f", 1e6)),
)
LEGEND = (
    "kept: share of rollouts that survive the filter. of update: share of trained rollouts that are replayed. "
    "age: of drawn rollouts, mean / greatest. uses: draws of a rollout over its whole life, mean / most of any; never: "
    "share of whole lives without a draw. at draw: rollouts in the buffer then, mean over the steps after the "
    "warm-up; peak: after storing, the most of any step and run. rows x, tokens x: trained / generated."
)


def setting_columns(has_tokens: bool) -> tuple[Column, ...]:
    return SETTINGS + TOKENS if has_tokens else SETTINGS


def screen(title: str, first: str, columns: Sequence[Column], rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Names come from files: they are text, never markup."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold", min_width=14)
    for column in columns:
        table.add_column(column.header, justify="right", overflow="fold")
    for name, row in rows.items():
        table.add_row(Text(printable(name)), *(column.value(row) for column in columns))
    return table


def markdown(first: str, columns: Sequence[Column], rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [[first, *(column.header.replace("\n", " ") for column in columns)], ["---", *("---:" for _ in columns)]]
    lines += [
        [printable(name).replace("|", "\\|"), *(column.value(row) for column in columns)] for name, row in rows.items()
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def comma_separated(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every number as it is; empty where there is none."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def printable(text: str) -> str:
    """Without what would steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
