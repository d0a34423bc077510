"""The table of the benchmark, made of its numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

NOT_MEASURED = "-"


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        what: measured.
        value: as text; "-" where it was not measured.
        target: as text; empty where there is none.
        met: whether the target is met; None where there is none or nothing was measured.
    """

    what: str
    value: str
    target: str = ""
    met: bool | None = None


Numbers = dict[str, Any]
AT_MOST = {  # target by name
    "stage_ms": 100.0,
    "stage_copies": 3.0,
    "memory": 1.15,
    "million_ms": 50.0,
    "replay_adv": 2.0,
}
AT_LEAST = {"dataproto_faster": 10.0}


def ms(value: float) -> str:
    """Three significant digits, not fewer than whole milliseconds."""
    return f"{value:.3g} ms" if value < 100 else f"{value:,.0f} ms"


def times(value: float) -> str:
    return f"{value:.3g}x"


def at_most(what: str, value: float, name: str, show: Any) -> Row:
    return Row(what, show(value), f"<= {show(AT_MOST[name])}", value <= AT_MOST[name])


def at_least(what: str, value: float, name: str, show: Any) -> Row:
    return Row(what, show(value), f">= {show(AT_LEAST[name])}", value >= AT_LEAST[name])


def core_ms(stage: Numbers) -> float:
    """Decide on the table and gather, store, lay out, compose; not: sort, cut out and tabulate fresh rows."""
    return sum(stage["median_ms"][name] for name in ("select", "store", "deal", "compose"))


def buffer_ms(stage: Numbers) -> float:
    """The buffer's own work: filter, evict, draw and gather, store."""
    return stage["median_ms"]["select"] + stage["median_ms"]["store"]


def make_table(numbers: Numbers) -> list[Row]:
    """Every row, measured or not, in order."""
    return [
        *_stage(numbers["stage"]),
        *_ten_times(numbers["ten_times"]),
        *_memory(numbers["stage"], numbers["ten_times"]),
        *_peers(numbers),
        *_draws(numbers["peers"]["draws"], numbers["torchrl"]),
        *_transfer_queue(numbers["transfer_queue"]),
    ]


def _stage(stage: Numbers) -> list[Row]:
    whole, copies, core = stage["median_ms"]["step"], stage["median_ms"]["copies"], core_ms(stage)
    megabytes = stage["copied_bytes"] / 1e6
    return [
        at_most(f"pure stage, {stage['stored']:,} stored, {stage['drawn']} drawn", whole, "stage_ms", ms),
        Row("- of it: decide, gather, store, lay out, compose", ms(core)),
        Row("- of it: sort, cut out and tabulate fresh rows", ms(whole - core)),
        Row(f"bare copies of the bytes stored and drawn ({megabytes:,.1f} MB)", ms(copies)),
        at_most("decide, gather, store, lay out, compose / bare copies", core / copies, "stage_copies", times),
        Row("pure stage / bare copies", times(whole / copies)),
    ]


def _ten_times(stage: Numbers) -> list[Row]:
    if "missing" in stage:
        return [Row("pure stage, 10x stored", NOT_MEASURED), Row("- decide ... compose / bare copies", NOT_MEASURED)]
    return [
        Row(f"pure stage, {stage['stored']:,} stored, {stage['drawn']} drawn", ms(stage["median_ms"]["step"])),
        Row(
            f"- decide ... compose / bare copies, {stage['stored']:,} stored",
            times(core_ms(stage) / stage["median_ms"]["copies"]),
        ),
    ]


def _memory(stage: Numbers, ten_times: Numbers) -> list[Row]:
    tools = stage["tool_calls"]
    rows = [
        at_most(
            f"bytes of buffer / information ({stage['buffer_bytes'] / 1e6:,.0f} MB)",
            stage["buffer_bytes"] / stage["information_bytes"],
            "memory",
            times,
        ),
        at_most(
            "- with tool calls in every response",
            tools["store_bytes"] / tools["information_bytes"],
            "memory",
            times,
        ),
        Row("memory of buffer and step at its peak / information", times(_peak(stage))),
    ]
    measured = "missing" not in ten_times
    return [*rows, Row("- 10x stored", times(_peak(ten_times)) if measured else NOT_MEASURED)]


def _peak(stage: Numbers) -> float:
    return (stage["resident_peak_bytes"] - stage["resident_before_bytes"]) / stage["information_bytes"]


def _peers(numbers: Numbers) -> list[Row]:
    stage, torchrl, listed = numbers["stage"], numbers["torchrl"], numbers["peers"]["dataproto_list"]
    ours = buffer_ms(stage)
    rows = [
        Row("our buffer alone: filter, evict, draw, gather, store", f"{ms(ours)}; {gigabytes(stage['buffer_bytes'])}")
    ]
    for name, form in (("padded", "LazyTensorStorage, padded"), ("ragged", "ListStorage, a TensorDict a row")):
        what = f"- torchrl, {form}: add, update priorities, draw with replacement"
        if "missing" in torchrl:
            rows.append(Row(what, NOT_MEASURED))
        else:
            theirs = torchrl[name]
            held = gigabytes(theirs["buffer_bytes"])
            rows.append(Row(what, f"{ms(theirs['step_ms'])}, {times(theirs['step_ms'] / ours)} ours; {held}"))
    theirs = listed["median_ms"]["add"] + listed["median_ms"]["draw"]
    held = f"{gigabytes(listed['bytes_at_stored'])} if it held {stage['stored']:,}"
    return [
        *rows,
        Row("- a list of one-row DataProtos, padded: add, draw, concat", f"{ms(theirs)}; {held}"),
        at_least("- the same / our buffer alone", theirs / ours, "dataproto_faster", times),
        Row("- the same / our pure stage", times(theirs / stage["median_ms"]["step"])),
    ]


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"


def _draws(draws: Numbers, torchrl: Numbers) -> list[Row]:
    rows = []
    for name in ("stored", "million"):
        asked = draws[name]
        what = f"draw {asked['drawn']:,} of {asked['of']:,} without replacement: "
        ours = asked["ms"]["ours"]
        rows.append(
            at_most(what + "ours", ours, "million_ms", ms) if name == "million" else Row(what + "ours", ms(ours))
        )
        for way in ("numpy Generator.choice", "torch.multinomial"):
            rows.append(Row(f"- {way}", ms(asked["ms"][way]) if way in asked["ms"] else NOT_MEASURED))
        if "missing" in torchrl:
            rows.append(Row("- torchrl PrioritizedSampler, with replacement", NOT_MEASURED))
        else:
            theirs = torchrl["draws"][name]
            what = f"- torchrl PrioritizedSampler, with replacement ({theirs['distinct']:,} different)"
            rows.append(Row(what, ms(theirs["ms"])))
    return rows


def _transfer_queue(queue: Numbers) -> list[Row]:
    if "missing" in queue:
        return [Row("TransferQueue: timing_s/replay / timing_s/adv", NOT_MEASURED)]
    rows = []
    for one in queue.values():
        replay, adv = one["median_ms"]["replay"], one["median_ms"]["adv"]
        what = f"TransferQueue, {one['rows']:,} fresh rows, {one['drawn']} drawn"
        rows.append(Row(f"{what}: verl's timing_s/adv", ms(adv)))
        rows.append(Row("- timing_s/replay, transfers included", ms(replay)))
        rows.append(at_most("- replay / adv", one["ratio"], "replay_adv", times))
    return rows


def markdown(rows: list[Row], notes: list[str]) -> str:
    lines = ["| what | measured | target | |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.value} | {row.target} | {_verdict(row)} |" for row in rows]
    return "\n".join([*lines, "", *notes]) + "\n"


def _verdict(row: Row) -> str:
    return "" if row.met is None else "met" if row.met else "OPEN"


def notes(numbers: Numbers) -> list[str]:
    """What a reader needs beside the table."""
    machine = numbers["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    said = [
        f"Machine: {machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']:.0f} GB; load average "
        f"{machine['load']:.2f} at the start. One thread. {versions}.",
        f"Command: `{numbers['command']}`; seed {numbers['seed']}. Medians of {numbers['size']['measured']} steps.",
    ]
    if numbers["size"]["stored"] < 30_000:
        said.append("A --quick run, at 1/50 of the size: its times mean nothing.")
    missing = {name: part["missing"] for name, part in numbers.items() if isinstance(part, dict) and "missing" in part}
    return [*said, *(f"Not measured, {name}: {why}" for name, why in missing.items())]
