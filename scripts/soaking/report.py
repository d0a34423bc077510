"""The figures of a soak."""

from __future__ import annotations

from scripts.soaking.running import Measured, cost, growth
from scripts.soaking.steps import ODDS

MOST_GROWTH = 0.01
LEAST_WINDOW = 100  # steps: the means of shorter ones go up and down by as much


def markdown(measured: Measured, *, command: str, seconds: float) -> str:
    counts = measured.counts
    rows = [
        ("steps, equal to the naive twin at every one", f"{len(measured.seconds):,}"),
        ("- of them with an update", f"{counts['updates']:,}"),
        ("rollouts generated / stored / drawn", " / ".join(f"{counts[n]:,}" for n in ("generated", "stored", "drawn"))),
        ("- evicted by age or uses / by capacity", f"{counts['evicted']:,} / {counts['evicted by capacity']:,}"),
        ("- in the buffer at the end", f"{measured.size:,}"),
        ("checkpoints saved, loaded and gone on from", f"{counts['checkpoints']:,}"),
        *_memory(measured),
        *_cost(measured),
        ("seconds in all, twin included", f"{seconds:,.0f}"),
    ]
    lines = ["| what | measured |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]
    happened = ", ".join(f"{event} {counts[event]:,}" for event in ODDS)
    return "\n".join([*lines, "", f"Steps with: {happened}.", f"Command: `{command}`."]) + "\n"


def _memory(measured: Measured) -> list[tuple[str, str]]:
    grown = growth(measured)
    if grown is None:
        return [("memory", "too few steps with a full buffer to tell")]
    (ratio, process), (ratio_last, process_last) = grown.first, grown.last
    windows = f"first full and last {grown.window:,} steps"
    shares = [f"{share:+.2%}" for share in grown.shares]
    return [
        (f"buffer: bytes a byte needed, {windows}", f"{ratio:.4f} / {ratio_last:.4f} ({shares[0]})"),
        (f"process: MB, {windows}", f"{process / 1e6:,.1f} / {process_last / 1e6:,.1f} ({shares[1]})"),
    ]


def _cost(measured: Measured) -> list[tuple[str, str]]:
    early, late = cost(measured)
    told = f"{1000 * early:.2f} / {1000 * late:.2f} ({late / early:.2f}x)"
    return [("stage, median ms of processor a step, second tenth / last", told)]


def faults(measured: Measured) -> list[str]:
    """What must not be, in words."""
    grown = growth(measured)
    if grown is None or grown.window < LEAST_WINDOW:
        return []
    told = zip(("the buffer's bytes a byte needed", "the process"), grown.shares, strict=True)
    return [f"{what} grew by {share:.2%} once the buffer was full" for what, share in told if share >= MOST_GROWTH]
