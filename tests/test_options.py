"""verl_replay.options: every wrong value is refused with its name, the value and a remedy, all at once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.factories import DEFAULTS, id_rows, make_options, make_table
from verl_replay import compositions, eviction, filters, priorities, samplers
from verl_replay.options import POLICIES, ReplayConfigError, ReplayOptions
from verl_replay.transform import ReplayTransform

# ---- functions of a user ---------------------------------------------------------------------------------------------


def newest_first(table, *, step):
    """A priority."""
    return 1.0 / (1.0 + table.age(step))


def best_rewards(table):
    """A filter."""
    return table.reward > 0


def used_once(table, *, step, max_age):
    """An eviction."""
    return (table.age(step) <= max_age) & (table.uses < 1)


def first_k(priority, k, rng, *, exponent, eps):
    """A sampler."""
    return np.arange(min(k, len(priority)))


def only_fresh(fresh, stored, draw, *, ratio):
    """A composition."""
    return compositions.Composition(np.arange(len(fresh)), np.empty(0, np.int64))


def forgets_the_step(table):
    return np.ones(len(table))


def with_another_name(tabel, *, step):
    return np.ones(len(tabel))


a_number = 3
HERE = __name__

# ---- refusals --------------------------------------------------------------------------------------------------------

WRONG = [
    # (option, value, what the message says besides the name and the value)
    ("enabled", "true", "true or false"),
    ("enabled", 1, "replay=off"),
    ("enabled", None, "replay=off"),
    ("ratio", -0.1, "finite number >= 0"),
    ("ratio", math.nan, "finite number >= 0"),
    ("ratio", math.inf, "finite number >= 0"),
    ("ratio", "0.5", "0.5 as the paper does"),
    ("ratio", True, "finite number"),
    ("ratio", None, "finite number"),
    ("max_age", -1, "whole number >= 0"),
    ("max_age", 2.5, "whole number"),
    ("max_age", math.inf, "10 as the paper does"),
    ("max_age", True, "whole number"),
    ("capacity", 0, "whole number >= 1"),
    ("capacity", -5, "30000 as the paper does"),
    ("capacity", 3e4, "whole number"),
    ("warmup_steps", -1, "20 as the paper does"),
    ("warmup_steps", math.nan, "whole number"),
    ("seed", -1, "any whole number from 0"),
    ("seed", None, "any whole number from 0"),
    ("seed", False, "any whole number from 0"),
    ("priority_exponent", -0.5, "alpha"),
    ("priority_exponent", [0.5], "alpha"),
    pytest.param("priority_exponent", 10**400, "alpha", id="priority_exponent-too large for a float"),
    ("priority_eps", -1e-9, "1e-6"),
    ("priority_eps", math.nan, "1e-6"),
    ("diagnostics_every", -1, "0 never measures"),
    ("diagnostics_every", 1.0, "whole number"),
    ("importance", "proximal", "replay.importance=behavior"),
    ("importance", None, "replay.importance=behavior"),
    ("filter", "zero_varianse", "Use one of zero_variance, none"),
    ("filter", None, "Use one of zero_variance, none"),
    ("filter", False, "Use one of zero_variance, none"),
    ("filter", "finite_groups", "Use one of zero_variance, none"),  # there, but not an option
    ("filter", ["none"], "Use one of"),
    ("eviction", "newest", "Use one of age"),
    ("priority", "advantage", "Use one of abs_advantage, sigma_g, uniform"),
    ("priority", 3, "Use one of abs_advantage"),
    ("sampler", "uniform", "Use one of proportional"),
    ("composition", "mixed", "Use one of fresh_anchored, pooled"),
    ("priority", "no_such_package.module.function", "No module named 'no_such_package'"),
    ("priority", f"{HERE}.no_such_function", "has no attribute 'no_such_function'"),
    ("priority", f"{HERE}.forgets_the_step", "must be a function of (table, step)"),
    ("priority", f"{HERE}.with_another_name", "must be a function of (table, step)"),
    ("priority", f"{HERE}.a_number", "must be a function of (table, step)"),
    ("priority", f"{HERE}.newest_first.", "dotted path of your own function"),
    ("filter", f"{HERE}.newest_first", "must be a function of (table)"),
    ("eviction", f"{HERE}.newest_first", "must be a function of (table, step, max_age)"),
    ("sampler", f"{HERE}.newest_first", "must be a function of (priority, k, rng, exponent, eps)"),
    ("composition", f"{HERE}.newest_first", "must be a function of (fresh, stored, draw, ratio)"),
    ("priority", ".abs_advantage", "dotted path of your own function"),
    ("priority", "..abs_advantage", "dotted path of your own function"),
    ("priority", ".", "dotted path of your own function"),
    ("filter", "builtins.dict", "must be a function of (table)"),  # a signature that Python does not know
]


@pytest.mark.parametrize(("name", "value", "says"), WRONG)
def test_a_wrong_value_is_refused_with_name_value_and_remedy(name, value, says):
    with pytest.raises(ReplayConfigError) as error:
        make_options(**{name: value})
    (fault,) = error.value.faults
    assert fault.startswith(f"replay.{name} ")
    assert repr(value) in fault
    assert says in fault
    assert any(word in fault for word in ("Set ", "Use one of", "use replay=off"))  # what to do
    assert isinstance(error.value, ValueError)


def test_unknown_options_are_refused_with_those_there_are():
    with pytest.raises(ReplayConfigError) as error:
        make_options(alpha=0.5, tau_max=3)
    alpha, tau = error.value.faults
    assert alpha.startswith("replay.alpha is not an option. Remove it; the options are enabled, ratio, max_age")
    assert "priority_exponent" in alpha
    assert tau.startswith("replay.tau_max is not an option.")


@pytest.mark.parametrize("name", list(DEFAULTS))
def test_a_missing_option_is_refused_with_where_to_get_it(name):
    node = {key: value for key, value in DEFAULTS.items() if key != name}
    with pytest.raises(
        ReplayConfigError, match=rf"^replay.{name} is missing. Inherit config/replay/base.yaml"
    ) as error:
        ReplayOptions.from_config(node)
    assert len(error.value.faults) == 1


def test_all_faults_at_once_a_line_each():
    node = {**DEFAULTS, "ratio": -1, "max_age": "ten", "priority": "td_error", "alpha": 0.5}
    del node["seed"]
    with pytest.raises(ReplayConfigError) as error:
        ReplayOptions.from_config(node)
    assert str(error.value).split("\n") == error.value.faults
    named = [fault.split()[0] for fault in error.value.faults]
    assert named == ["replay.alpha", "replay.seed", "replay.ratio", "replay.max_age", "replay.priority"]


# ---- what is accepted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enabled", False),
        ("ratio", 0),
        ("ratio", 3),
        ("max_age", 0),
        ("capacity", 1),
        ("warmup_steps", 0),
        ("seed", 2**63),
        ("priority_exponent", 0),
        ("priority_exponent", 0.0),
        ("priority_eps", 0.0),
        ("diagnostics_every", 1),
        *[(kind, name) for kind, (_, names) in POLICIES.items() for name in names],
    ],
)
def test_edges_are_accepted(name, value):
    assert getattr(make_options(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("kind", "name", "function"),
    [
        ("filter", "zero_variance", filters.zero_variance),
        ("filter", "none", filters.none),
        ("eviction", "age", eviction.age),
        ("priority", "abs_advantage", priorities.abs_advantage),
        ("priority", "sigma_g", priorities.sigma_g),
        ("priority", "uniform", priorities.uniform),
        ("sampler", "proportional", samplers.proportional),
        ("composition", "fresh_anchored", compositions.fresh_anchored),
        ("composition", "pooled", compositions.pooled),
        ("filter", f"{HERE}.best_rewards", best_rewards),
        ("eviction", f"{HERE}.used_once", used_once),
        ("priority", f"{HERE}.newest_first", newest_first),
        ("sampler", f"{HERE}.first_k", first_k),
        ("composition", f"{HERE}.only_fresh", only_fresh),
    ],
)
def test_a_policy_is_the_function_of_its_name_or_dotted_path(kind, name, function):
    assert make_options(**{kind: name}).policy(kind) is function


def test_functions_of_a_user_are_what_decides():
    """A dotted path works all the way: filter, eviction and sampler of this file."""
    paths = {"filter": "best_rewards", "eviction": "used_once", "sampler": "first_k", "priority": "newest_first"}
    transform = ReplayTransform(make_options(ratio=0.5, **{kind: f"{HERE}.{name}" for kind, name in paths.items()}))
    for step, drawn, stored in ((1, [], 4), (2, [0, 1], 8), (3, [2, 3], 10)):  # what was drawn once is evicted
        table = make_table([[1, 0, 1, 0], [1, 1]], born=step)
        chosen = transform.select(table, step=step)
        assert chosen.survivors.tolist() == [0, 2, 4, 5]
        ids = chosen.replayed.rows.columns["id"].values.tolist() if drawn else []
        assert ids == drawn
        transform.store(table.take(chosen.survivors), id_rows(4 * (step - 1) + np.arange(4)))
        assert len(transform.buffer) == stored


@pytest.mark.parametrize("error", [ZeroDivisionError, ValueError, TypeError])
def test_an_error_inside_a_users_module_is_the_users_to_see(tmp_path, monkeypatch, error):
    """Not dressed up as a wrong option: the traceback leads into the module."""
    (tmp_path / "broken_policy.py").write_text(f"raise {error.__name__}('in the module')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match="^in the module$") as caught:
        make_options(priority="broken_policy.mine")
    assert not isinstance(caught.value, ReplayConfigError)


@pytest.mark.parametrize(
    ("changes", "replays"),
    [
        ({}, True),
        ({"ratio": 0.0}, False),  # preset filtered
        ({"ratio": 0.0, "composition": "pooled"}, True),  # B' of survivors and stored
        ({"max_age": 0}, False),
        ({"max_age": 0, "composition": "pooled"}, False),
    ],
)
def test_replays_says_whether_anything_stored_could_be_drawn(changes, replays):
    assert make_options(**changes).replays is replays


def test_options_are_frozen():
    with pytest.raises(AttributeError):
        make_options().ratio = 1.0
