"""The summary on a terminal. Nothing that comes from a file is read as rich's markup, or sent as it is."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from scripts.inspecting.texts import visible

_APART = ("ages", "distributions", "top_abs_advantage", "top_uses")  # shown as tables of their own
QUANTITIES = ("min", "median", "p90", "max", "mean")


def show(summary: dict[str, Any], console: Console) -> None:
    console.print(_facts(summary), _ages(summary), _distributions(summary))
    if summary["rollouts"]:
        console.print(_rollouts("Largest |A|", summary["top_abs_advantage"]))
        console.print(_rollouts("Most uses", summary["top_uses"]))


def _facts(summary: dict[str, Any]) -> Table:
    table = Table(title="Replay buffer", show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in summary.items():
        if name not in _APART and value != {}:
            table.add_row(_text(name.replace("_", " ")), _text(_value(name, value)))
    return table


def _value(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.startswith("bytes"):
        return f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value / 1e3:,.1f} kB"
    if name.endswith("_share"):
        return f"{value:.1%}"
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_plain(entry)}" for key, entry in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _ages(summary: dict[str, Any]) -> Table:
    headers = ("age", "rollouts", "mean |A|", "mean uses", "mean reward", "never drawn")
    table = _numbers("Ages, in steps since birth", headers)
    for line in summary["ages"]:
        ages = f"{line['from']}" if line["from"] == line["to"] else f"{line['from']}-{line['to']}"
        means = (f"{line[name]:.3f}" for name in ("mean_abs_advantage", "mean_uses", "mean_reward"))
        table.add_row(ages, f"{line['count']:,}", *means, f"{line['never_drawn_share']:.1%}")
    return table


def _distributions(summary: dict[str, Any]) -> Table:
    table = _numbers("Distributions", ("of a rollout", *QUANTITIES))
    for name, values in summary["distributions"].items():
        if values:
            table.add_row(name, *(f"{round(values[which], 6):,.4g}" for which in QUANTITIES))
    return table


def _numbers(title: str, headers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _rollouts(title: str, entries: list[dict[str, Any]]) -> RenderableType:
    parts: list[RenderableType] = [Rule(title, align="left")]
    for number, entry in enumerate(entries, start=1):
        head = Text(f"{number:2d}. ", style="bold")
        head.append(
            f"A {entry['advantage']:+.3f}  reward {entry['reward']:g}  uses {entry['uses']}  age {entry['age']}  "
            f"born {entry['born']}  group {entry['group']}"
        )
        if entry["rows"] > 1:
            head.append(f"  (the last of {entry['rows']} rows)")
        parts.append(head)
        for name, style in (("prompt", "dim"), ("response", "")):
            if name in entry:
                parts.append(Padding(Text.assemble((f"{name}: ", "cyan"), (entry[name], style)), (0, 0, 0, 4)))
    return Group(*parts)


def _text(value: str) -> Text:
    return Text("\n".join(visible(line) for line in value.split("\n")))
