"""What looks wrong in a simulation, and what to set instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scripts.simulating.running import Trace
from scripts.simulating.summary import PARTS
from verl_replay.options import ReplayOptions

MOST_WITHOUT_SIGNAL = 0.8  # share of groups: a rule of thumb
LEAST_GROUPS = 20  # of which a share is worth telling
_BY_AGE = ("age", "age_or_uses")


def of_recording(runs: Mapping[str, Mapping[str, Any]], *, has_tokens: bool, has_prompts: bool) -> list[str]:
    """Advice on what was recorded.

    Args:
        runs: name -> summary.describe.
        has_tokens, has_prompts: whether response and prompt lengths are known, from the recording or as given.
    """
    said = []
    if not has_tokens:
        said.append("no response lengths: tokens and bytes are not told. Give --response-tokens MEAN.")
    elif not has_prompts:
        said.append("no prompt lengths: bytes are of responses alone. Give --prompt-tokens MEAN.")
    for name, run in runs.items():
        if run["nonfinite_groups"]:
            said.append(
                f"{name}: {run['nonfinite_groups']} of {run['groups']} groups hold a NaN, an infinity or a reward that "
                "is missing, and are left out. Look for them: a run would lose them too."
            )
    late = {name: _late(run) for name, run in runs.items()}
    bad = {name: share for name, share in late.items() if share > MOST_WITHOUT_SIGNAL}
    if bad:
        named = ", ".join(f"{name} {share:.2f}" for name, share in bad.items())
        said.append(
            f"more than {MOST_WITHOUT_SIGNAL:.0%} of the last groups carry no signal ({named}): few survivors to train "
            "on or to store. Take other prompts, or larger groups."
        )
    holes = [name for name, run in runs.items() if run["last_step"] - run["first_step"] + 1 > run["steps"]]
    if holes:
        said.append(
            f"steps are missing in {', '.join(holes)}: ages count them, nothing is generated or stored at them. Where "
            "only every n-th step was recorded, divide the step numbers by n."
        )
    return said


def _late(run: Mapping[str, Any]) -> float:
    """Zero-variance share of the last fifth, or of all where a fifth is too few groups to tell."""
    if run["groups"] < PARTS * LEAST_GROUPS:
        return run["zero_variance_frac"]
    return [share for share in run["zero_variance_parts"] if share is not None][-1]


def of_setting(traces: Sequence[Trace], options: ReplayOptions, *, mini_batches: int) -> list[str]:
    """Advice on one setting over all runs.

    Args:
        mini_batches: optimizer steps of a training step (data.train_batch_size / ppo_mini_batch_size).
    """
    if not options.enabled:
        return []
    checks = (_warmup, _capacity, _unbounded, _too_short, _starved)
    said = [text for check in checks for text in check(traces, options)] if options.replays else []
    return [*said, *_few_survivors(traces, mini_batches)]


def _warmup(traces: Sequence[Trace], options: ReplayOptions) -> list[str]:
    silent = [trace for trace in traces if trace["step"].max() <= options.warmup_steps]
    if not silent:
        return []
    longest = max(int(trace["step"].max()) for trace in silent)
    return [
        f"warmup_steps={options.warmup_steps} is no shorter than {len(silent)} of {len(traces)} runs (up to step "
        f"{longest}), which draw nothing. Set warmup_steps lower, or record longer."
    ]


def _capacity(traces: Sequence[Trace], options: ReplayOptions) -> list[str]:
    evicted = sum(int(trace["evicted_capacity"].sum()) for trace in traces)
    if not evicted or options.eviction not in _BY_AGE:
        return []
    return [
        f"capacity={options.capacity} evicts {evicted} rollouts before their age does. "
        f"Set capacity={needed(traces, options)} or more, or a smaller max_age."
    ]


def needed(traces: Sequence[Trace], options: ReplayOptions) -> int:
    """Most rollouts that are ever of age 0..max_age together: a capacity that never binds."""
    most = 0
    for trace in traces:
        steps, survivors = trace["step"], np.concatenate([[0], np.cumsum(trace["survivors"])])
        first = np.searchsorted(steps, steps - options.max_age)
        most = max(most, int((survivors[1:] - survivors[first]).max()))
    return most


def _unbounded(traces: Sequence[Trace], options: ReplayOptions) -> list[str]:
    full = any(trace["evicted_capacity"].any() for trace in traces)
    if options.eviction in _BY_AGE or full:
        return []
    size = max(int(trace["size"].max()) for trace in traces)
    return [
        f"eviction={options.eviction} never filled the capacity ({size} of {options.capacity} rollouts): the buffer "
        "goes on growing past this recording. Reckon with the capacity."
    ]


def _too_short(traces: Sequence[Trace], options: ReplayOptions) -> list[str]:
    longest = max(int(trace["step"].max() - trace["step"].min()) for trace in traces)
    if options.eviction not in _BY_AGE or longest > options.max_age:
        return []
    return [
        f"nothing in this recording ({longest + 1} steps) gets older than max_age={options.max_age}: nothing leaves by "
        "age, and the buffer is not at its steady size. Reckon with about max_age times the survivors of a step."
    ]


def _starved(traces: Sequence[Trace], options: ReplayOptions) -> list[str]:
    """Anchored draws are round(ratio * B'), or all that there is. That is no fault while the buffer first fills."""
    if options.composition != "fresh_anchored":
        return []
    short = steps = 0
    for trace in traces:
        filled = trace["step"].min() + options.max_age - 1
        draws = (trace["step"] > max(options.warmup_steps, filled)) & (trace["survivors"] > 0)
        asked = np.floor(options.ratio * trace["survivors"] + 0.5)
        short += int((draws & (asked > trace["drawable"])).sum())
        steps += int(draws.sum())
    if not short:
        return []
    return [
        f"in {short} of {steps} steps that draw, the buffer holds fewer rollouts than ratio={options.ratio:g} asks "
        "for. Set a smaller ratio, a larger max_age, or a longer warm-up."
    ]


def _few_survivors(traces: Sequence[Trace], mini_batches: int) -> list[str]:
    survivors = np.concatenate([trace["survivors"] for trace in traces])
    said = []
    if none := int((survivors == 0).sum()):
        said.append(f"in {none} of {len(survivors)} steps no rollout survives: no update. Take larger batches.")
    if few := int(((survivors > 0) & (survivors < mini_batches)).sum()):
        said.append(
            f"in {few} of {len(survivors)} steps fewer rollouts survive than there are mini-batches ({mini_batches}): "
            "such steps take fewer optimizer steps. Take larger mini-batches or larger batches."
        )
    return said
