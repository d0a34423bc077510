"""ReplayOptions: the `replay` node, checked. Every wrong value is refused with the rule, the value and the remedy."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

from verl_replay import compositions, eviction, filters, priorities, samplers


class ReplayConfigError(ValueError):
    """The configuration cannot work. One line a fault, each with the option, the value and the remedy."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


class Kind(NamedTuple):
    """A kind of policy: where its functions are, which of them a user may name, and what they are called with."""

    module: Any
    names: tuple[str, ...]
    arguments: tuple[str, ...]  # positional; keyword-only parameters are `step` or names of options


POLICIES: dict[str, Kind] = {
    "filter": Kind(filters, ("zero_variance", "zero_advantage", "none"), ("table",)),
    "eviction": Kind(eviction, ("age", "uses", "age_or_uses", "none"), ("table",)),
    "priority": Kind(
        priorities, ("abs_advantage", "sigma_g", "uniform", "reward_rarity", "recency_decayed"), ("table",)
    ),
    "sampler": Kind(samplers, ("proportional", "rank_based"), ("priority",)),
    "composition": Kind(compositions, ("fresh_anchored", "pooled"), ("fresh", "stored", "draw")),
}
_CHOICES = {
    "unit": ("rollout", "group"),
    "importance": ("behavior", "proximal", "decoupled"),
    "resume": ("auto", "fresh"),
}
_FLAGS = {"enabled": "To switch replay off use replay=off.", "replacement": "The paper draws without: false."}
# What only single rollouts have: it would tear a group apart.
_OF_SINGLE_ROLLOUTS = {
    "filter": ("zero_advantage",),
    "priority": ("abs_advantage", "reward_rarity", "recency_decayed"),
}
_BOUNDED_BY_AGE = ("age", "age_or_uses")


class Policy:
    """A policy function with its options bound; called with the kind's arguments and the step."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any], takes_step: bool) -> None:
        self.function = partial(function, **options)
        self._takes_step = takes_step

    def __call__(self, *arguments: Any, step: int) -> Any:
        return self.function(*arguments, step=step) if self._takes_step else self.function(*arguments)


@dataclass(frozen=True)
class ReplayOptions:
    """Options of replay, as in config/replay/base.yaml, where each is explained. Build with `from_config`."""

    enabled: bool
    ratio: float
    max_age: int
    max_uses: int
    capacity: int
    warmup_steps: int
    seed: int
    unit: str
    filter: str
    eviction: str
    priority: str
    priority_exponent: float
    priority_eps: float
    priority_decay_steps: float
    sampler: str
    replacement: bool
    importance_sampling_exponent: float
    composition: str
    importance: str
    importance_cap: float
    resume: str
    diagnostics_every: int

    @classmethod
    def from_config(cls, node: Mapping[str, Any]) -> ReplayOptions:
        """Check the `replay` node as a whole.

        Raises:
            ReplayConfigError: unknown, missing, mistyped or out-of-range options, all of them at once.
        """
        names = [f.name for f in fields(cls)]
        values = dict(node)
        faults = [
            f"replay.{name} is not an option. Remove it; the options are {', '.join(names)}."
            for name in sorted(set(values) - set(names))
        ]
        faults += [
            f"replay.{name} is missing. Inherit config/replay/base.yaml (defaults: [base, _self_]), which sets it."
            for name in names
            if name not in values
        ]
        faults += [fault for name in names if name in values for fault in _faults(name, values[name])]
        faults = faults or _contradictions(values)
        if faults:
            raise ReplayConfigError(faults)
        return cls(**{name: values[name] for name in names})

    @property
    def replays(self) -> bool:
        """Whether anything stored could ever be drawn. If not, nothing need be stored."""
        ages = self.max_age > 0 or self.eviction not in _BOUNDED_BY_AGE
        return ages and (self.ratio > 0 or self.composition != "fresh_anchored")

    @property
    def weighs(self) -> bool:
        """Whether rows may carry an importance weight of replay's own."""
        return self.importance == "decoupled" or self.importance_sampling_exponent > 0

    @property
    def recomputes(self) -> bool:
        """Whether the log-probs of drawn rows are computed anew at the start of the step."""
        return self.importance != "behavior"

    def policy(self, kind: str) -> Policy:
        """The policy that option `kind` names, with its options bound."""
        function = _function(kind, getattr(self, kind))
        names = _keywords(function)
        options = {name: getattr(self, name) for name in names if name != "step"}
        return Policy(function, options, takes_step="step" in names)


# option -> (least value, whole number?, what to set instead)
_NUMBERS: dict[str, tuple[float, bool, str]] = {
    "ratio": (0, False, "0.5 as the paper does (stored rollouts a fresh survivor); 0 replays nothing"),
    "max_age": (0, True, "10 as the paper does (trainer steps); 0 replays nothing"),
    "max_uses": (1, True, "4, say (draws of one rollout); it counts with eviction=uses and age_or_uses"),
    "capacity": (1, True, "30000 as the paper does (rollouts); to replay nothing use replay=filtered or replay=off"),
    "warmup_steps": (0, True, "20 as the paper does (trainer steps); 0 replays from the second step on"),
    "seed": (0, True, "any whole number from 0"),
    "priority_exponent": (0, False, "0.5 as the paper does (alpha); 0 draws uniformly"),
    "priority_eps": (0, False, "1e-6 as the paper does; 0 never draws a rollout of priority 0"),
    "importance_sampling_exponent": (0, False, "0 for none, 1 to correct in full (beta of PER)"),
    "diagnostics_every": (0, True, "10, say (trainer steps); 0 never measures"),
}


_POSITIVE = {
    "priority_decay_steps": "5, say (trainer steps; tau of p exp(-age / tau))",
    "importance_cap": "2, say: the greatest weight of a token in mode decoupled (C)",
}


def _faults(name: str, value: Any) -> list[str]:
    if name in _FLAGS:
        if not isinstance(value, bool):
            return [f"replay.{name} must be true or false, got {value!r}. {_FLAGS[name]}"]
    elif name in _CHOICES:
        if value not in _CHOICES[name]:
            choices = " or ".join(_CHOICES[name])
            return [f"replay.{name} must be {choices}, got {value!r}. Set replay.{name}={_CHOICES[name][0]}."]
    elif name in _POSITIVE:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 < value <= sys.float_info.max):
            return [f"replay.{name} must be a finite number > 0, got {value!r}. Set {_POSITIVE[name]}."]
    elif name in _NUMBERS:
        least, whole, remedy = _NUMBERS[name]
        kind = "a whole number" if whole else "a finite number"
        right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not (right and least <= value <= sys.float_info.max):
            return [f"replay.{name} must be {kind} >= {least}, got {value!r}. Set {remedy}."]
    elif name in POLICIES:
        try:
            _function(name, value)
        except ReplayConfigError as error:
            return error.faults
    return []


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    """What is right by itself and wrong together."""
    faults = []
    if values["unit"] == "group":
        remedies = {"filter": "replay.filter=zero_variance", "priority": "replay.priority=sigma_g or uniform"}
        faults += [
            f"replay.unit=group draws whole groups, but replay.{kind}={values[kind]} is of single rollouts. "
            f"Set {remedies[kind]}, or replay.unit=rollout."
            for kind, names in _OF_SINGLE_ROLLOUTS.items()
            if values[kind] in names
        ]
    return faults


def _function(kind: str, name: Any) -> Callable[..., Any]:
    module, names, arguments = POLICIES[kind]
    if name in names:
        return getattr(module, name)
    remedy = f"Use one of {', '.join(names)}, or the dotted path of your own function (package.module.function)."
    if not isinstance(name, str) or "." not in name or not all(name.split(".")):
        raise ReplayConfigError([f"replay.{kind} must name a policy, got {name!r}. {remedy}"])
    path, _, attribute = name.rpartition(".")
    try:
        function = getattr(importlib.import_module(path), attribute)
    except (ImportError, AttributeError) as error:
        raise ReplayConfigError([f"replay.{kind} = {name!r} cannot be imported ({error}). {remedy}"]) from error
    keywords = _keywords(function)
    if keywords is None or tuple(_positional(function)) != arguments:
        rule = f"must be a function of ({', '.join(arguments)}), like {names[0]}"
        raise ReplayConfigError([f"replay.{kind} = {name!r} {rule}. {remedy}"])
    known = {f.name for f in fields(ReplayOptions)} | {"step"}
    if unknown := sorted(set(keywords) - known):
        rule = f"may take step and options of replay by keyword, got {', '.join(unknown)}"
        raise ReplayConfigError([f"replay.{kind} = {name!r} {rule}. The options are {', '.join(sorted(known))}."])
    return function


def _positional(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]


def _keywords(function: Any) -> list[str] | None:
    """Names of the keyword-only parameters; None where there is no function, or one that does not tell them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD) for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
