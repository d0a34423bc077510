"""Results -> files. Each is written under another name first, so that none is ever there in part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import pyplot as plt

from scripts.simulating import show
from scripts.simulating.plot import Curves, plot
from scripts.simulating.running import Trace
from scripts.simulating.settings import Setting
from scripts.simulating.summary import ages, shares_over_steps, summarize
from scripts.simulating.tables import Run
from verl_replay.files import written_whole


class Result(NamedTuple):
    """All that a simulation found.

    Attributes:
        recording: how it was read: paths, columns, lengths given.
        runs, described: the tables and the figures of each run, by name.
        settings: in order.
        traces: setting's name -> run -> trace.
        advice: of the recording (under "recording") and of each setting, by name.
    """

    recording: dict[str, Any]
    runs: dict[str, Run]
    described: dict[str, dict[str, Any]]
    settings: list[Setting]
    traces: dict[str, dict[str, Trace]]
    advice: dict[str, list[str]]
    has_tokens: bool

    def summary(self, setting: Setting) -> dict[str, Any]:
        return summarize(list(self.traces[setting.name].values()), setting.options)


def write(result: Result, folder: Path, *, command: str) -> list[Path]:
    """table.md, table.csv, simulation.png and results.json in `folder`, which is made. Returns the four.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "table.md": markdown(result, command=command),
        "table.csv": show.comma_separated(table(result)),
        "results.json": json.dumps(as_json(result, command=command), allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        with written_whole(folder / name) as unfinished:
            unfinished.write_text(text)
    picture = folder / "simulation.png"
    curves = [Curves(s.name, s.options, list(result.traces[s.name].values())) for s in result.settings]
    figure = plot(shares_over_steps(result.runs), curves, title=" ".join(result.recording["names"]))
    with written_whole(picture) as unfinished:
        figure.savefig(unfinished, dpi=110)
    plt.close(figure)
    return [*(folder / name for name in texts), picture]


def table(result: Result) -> list[dict[str, Any]]:
    """A row a setting over all runs (run "all"), and then one a setting and run."""
    rows = [{"setting": s.name, "run": "all", **result.summary(s)} for s in result.settings]
    for setting in result.settings:
        for run, trace in result.traces[setting.name].items():
            rows.append({"setting": setting.name, "run": run, **summarize([trace], setting.options)})
    return rows


def markdown(result: Result, *, command: str) -> str:
    parts = [
        f"Command: `{command}`\n",
        show.markdown("run", show.RUNS, result.described),
        show.markdown(
            "setting", show.setting_columns(result.has_tokens), {s.name: result.summary(s) for s in result.settings}
        ),
        f"{show.LEGEND}\n",
        "".join(f"- {line}\n" for line in advice_lines(result.advice)),
    ]
    return "\n".join(part for part in parts if part)


def advice_lines(advice: Mapping[str, Sequence[str]]) -> list[str]:
    """One a fault: where several settings have the very same, they are named together."""
    every = [name for name in advice if name != "recording"]
    told: dict[str, list[str]] = {}
    for where, texts in advice.items():
        for text in texts:
            told.setdefault(text, []).append(where)
    return [show.printable(f"{_named(where, every)}: {text}") for text, where in told.items()]


def _named(where: list[str], every: list[str]) -> str:
    return f"all {len(every)} settings" if where == every and len(every) > 1 else ", ".join(where)


def as_json(result: Result, *, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "recording": result.recording,
        "runs": result.described,
        "settings": [
            {
                "name": setting.name,
                "command": setting.command,
                "options": asdict(setting.options),
                "all": result.summary(setting),
                "advice": result.advice[setting.name],
                "runs": {
                    run: {
                        **summarize([trace], setting.options),
                        "drawn_by_age": ages([trace]).tolist(),
                        "over_steps": trace.counts,
                    }
                    for run, trace in result.traces[setting.name].items()
                },
            }
            for setting in result.settings
        ],
        "advice": result.advice["recording"],
    }
