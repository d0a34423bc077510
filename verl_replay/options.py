"""ReplayOptions: the `replay` node, checked. Every wrong value is refused with the rule, the value and the remedy."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from verl_replay import compositions, eviction, filters, priorities, samplers


class ReplayConfigError(ValueError):
    """The configuration cannot work. One line a fault, each with the option, the value and the remedy."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


# option -> (module of its functions, names of those functions a user may choose)
POLICIES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "filter": (filters, ("zero_variance", "none")),
    "eviction": (eviction, ("age",)),
    "priority": (priorities, ("abs_advantage", "sigma_g", "uniform")),
    "sampler": (samplers, ("proportional",)),
    "composition": (compositions, ("fresh_anchored", "pooled")),
}


@dataclass(frozen=True)
class ReplayOptions:
    """Options of replay, as in config/replay/base.yaml, where each is explained. Build with `from_config`."""

    enabled: bool
    ratio: float
    max_age: int
    capacity: int
    warmup_steps: int
    seed: int
    filter: str
    eviction: str
    priority: str
    priority_exponent: float
    priority_eps: float
    sampler: str
    composition: str
    importance: str
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
        if faults:
            raise ReplayConfigError(faults)
        return cls(**{name: values[name] for name in names})

    @property
    def replays(self) -> bool:
        """Whether anything stored could ever be drawn. If not, nothing need be stored."""
        return self.max_age > 0 and (self.ratio > 0 or self.composition != "fresh_anchored")

    def policy(self, kind: str) -> Callable[..., Any]:
        """The function that option `kind` names."""
        return _function(kind, getattr(self, kind))


# option -> (least value, whole number?, what to set instead)
_NUMBERS: dict[str, tuple[float, bool, str]] = {
    "ratio": (0, False, "0.5 as the paper does (stored rollouts a fresh survivor); 0 replays nothing"),
    "max_age": (0, True, "10 as the paper does (trainer steps); 0 replays nothing"),
    "capacity": (1, True, "30000 as the paper does (rollouts); to replay nothing use replay=filtered or replay=off"),
    "warmup_steps": (0, True, "20 as the paper does (trainer steps); 0 replays from the second step on"),
    "seed": (0, True, "any whole number from 0"),
    "priority_exponent": (0, False, "0.5 as the paper does (alpha); 0 draws uniformly"),
    "priority_eps": (0, False, "1e-6 as the paper does; 0 never draws a rollout of priority 0"),
    "diagnostics_every": (0, True, "10, say (trainer steps); 0 never measures"),
}


def _faults(name: str, value: Any) -> list[str]:
    if name == "enabled":
        if not isinstance(value, bool):
            return [f"replay.enabled must be true or false, got {value!r}. To switch replay off use replay=off."]
    elif name in _NUMBERS:
        least, whole, remedy = _NUMBERS[name]
        kind = "a whole number" if whole else "a finite number"
        right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not (right and least <= value <= sys.float_info.max):
            return [f"replay.{name} must be {kind} >= {least}, got {value!r}. Set {remedy}."]
    elif name == "importance":
        if value != "behavior":
            return [
                f"replay.importance must be behavior, got {value!r}: proximal and decoupled are not supported yet. "
                "Set replay.importance=behavior."
            ]
    elif name in POLICIES:
        try:
            _function(name, value)
        except ReplayConfigError as error:
            return error.faults
    return []


def _function(kind: str, name: Any) -> Callable[..., Any]:
    module, names = POLICIES[kind]
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
    wanted = _parameters(getattr(module, names[0]))
    if _parameters(function) != wanted:
        rule = f"must be a function of ({', '.join(wanted)}), like {names[0]}"
        raise ReplayConfigError([f"replay.{kind} = {name!r} {rule}. {remedy}"])
    return function


def _parameters(function: Any) -> list[str] | None:
    """Names of the parameters; None where there is no function, or a builtin that does not tell them."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
