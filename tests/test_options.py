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
    """A priority that wants the step."""
    return 1.0 / (1.0 + table.age(step))


def powered(table, *, priority_exponent):
    """A priority that wants an option, and no step."""
    return table.reward**priority_exponent


def best_rewards(table):
    """A filter."""
    return table.reward > 0


def used_once(table, *, max_age, step):
    """An eviction."""
    return (table.age(step) <= max_age) & (table.uses < 1)


def greatest_first(priority):
    """A sampler: so far apart that the draw is in order of priority, equal ones by place."""
    return 1e6 * priority - 1e3 * np.arange(len(priority))


def only_fresh(fresh, stored, draw, *, ratio, seed):
    """A composition."""
    return compositions.everything_fresh(fresh)


def with_another_name(tabel):
    return np.ones(len(tabel))


def step_by_position(table, step):
    return np.ones(len(table))


def no_such_option(table, *, step, alpha, tau):
    return np.ones(len(table))


def takes_anything(table, **options):
    return np.ones(len(table))


def takes_more(table, *more):
    return np.ones(len(table))


ANSWER = []  # what the next two return, whatever they are asked


def answers(table):
    return ANSWER[-1]


def answers_with_weights(priority):
    return ANSWER[-1]


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
    ("max_uses", 0, "whole number >= 1"),
    ("max_uses", 2.0, "eviction=uses and age_or_uses"),
    ("unit", "groups", "must be rollout or group"),
    ("unit", None, "replay.unit=rollout"),
    ("unit", ["group"], "replay.unit=rollout"),
    ("replacement", 0, "The paper draws without: false"),
    ("replacement", "false", "true or false"),
    ("importance_sampling_exponent", -0.1, "finite number >= 0"),
    ("importance_sampling_exponent", math.nan, "0 for none, 1 to correct in full"),
    ("importance_sampling_exponent", True, "beta of PER"),
    ("priority_decay_steps", 0, "finite number > 0"),
    ("priority_decay_steps", -5.0, "tau of p exp(-age / tau)"),
    ("priority_decay_steps", math.inf, "5, say"),
    ("priority_decay_steps", True, "finite number > 0"),
    ("importance_cap", 0.0, "finite number > 0"),
    ("importance_cap", math.nan, "2, say"),
    ("importance_cap", None, "greatest weight of a token in mode decoupled"),
    ("resume", "always", "must be auto or fresh"),
    ("resume", False, "replay.resume=auto"),
    ("importance", "proximate", "must be behavior or proximal or decoupled"),
    ("importance", None, "replay.importance=behavior"),
    ("filter", "zero_varianse", "Use one of zero_variance, zero_advantage, none"),
    ("filter", None, "Use one of zero_variance, zero_advantage, none"),
    ("filter", False, "Use one of zero_variance, zero_advantage, none"),
    ("filter", "finite_groups", "Use one of zero_variance, zero_advantage, none"),  # there, but not an option
    ("filter", ["none"], "Use one of"),
    ("eviction", "newest", "Use one of age, uses, age_or_uses, none"),
    ("priority", "advantage", "Use one of abs_advantage, sigma_g, uniform, reward_rarity, recency_decayed"),
    ("priority", 3, "Use one of abs_advantage"),
    ("sampler", "uniform", "Use one of proportional, rank_based"),
    ("composition", "mixed", "Use one of fresh_anchored, pooled"),
    ("composition", "everything_fresh", "Use one of fresh_anchored, pooled"),
    ("priority", "no_such_package.module.function", "No module named 'no_such_package'"),
    ("priority", f"{HERE}.no_such_function", "has no attribute 'no_such_function'"),
    ("priority", f"{HERE}.with_another_name", "must be a function of (table), like abs_advantage"),
    ("priority", f"{HERE}.step_by_position", "must be a function of (table), like abs_advantage"),
    ("priority", f"{HERE}.a_number", "must be a function of (table), like abs_advantage"),
    ("priority", f"{HERE}.takes_anything", "must be a function of (table), like abs_advantage"),
    ("priority", f"{HERE}.takes_more", "must be a function of (table), like abs_advantage"),
    ("priority", f"{HERE}.no_such_option", "may take step and options of replay by keyword, got alpha, tau"),
    ("filter", f"{HERE}.no_such_option", "The options are capacity, composition, diagnostics_every"),
    ("priority", f"{HERE}.newest_first.", "dotted path of your own function"),
    ("filter", f"{HERE}.greatest_first", "must be a function of (table), like zero_variance"),
    ("eviction", f"{HERE}.greatest_first", "must be a function of (table), like age"),
    ("sampler", f"{HERE}.newest_first", "must be a function of (priority), like proportional"),
    ("composition", f"{HERE}.newest_first", "must be a function of (fresh, stored, draw), like fresh_anchored"),
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
    assert any(
        word in fault for word in ("Set ", "Use one of", "use replay=off", "false.", "The options are")
    )  # what to do
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


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"priority": "abs_advantage"}, ["replay.priority=abs_advantage is of single rollouts"]),
        ({"priority": "reward_rarity"}, ["replay.priority=reward_rarity is of single rollouts"]),
        ({"priority": "recency_decayed"}, ["Set replay.priority=sigma_g or uniform, or replay.unit=rollout."]),
        (
            {"priority": "sigma_g", "filter": "zero_advantage"},
            ["replay.filter=zero_advantage is of single rollouts. Set replay.filter=zero_variance, or"],
        ),
        ({"priority": "abs_advantage", "filter": "zero_advantage"}, ["replay.filter=", "replay.priority="]),
    ],
)
def test_whole_groups_contradict_what_is_of_single_rollouts(changes, says):
    """One line a contradiction: both options, the values and the remedies."""
    with pytest.raises(ReplayConfigError) as error:
        make_options(unit="group", **changes)
    for fault, part in zip(error.value.faults, says, strict=True):
        assert fault.startswith("replay.unit=group draws whole groups, but ") and part in fault
        assert fault.endswith("or replay.unit=rollout.")
    assert make_options(unit="rollout", **changes).unit == "rollout"


@pytest.mark.parametrize("filter_", ["zero_variance", "none"])
@pytest.mark.parametrize("priority", ["sigma_g", "uniform", f"{HERE}.newest_first"])
def test_whole_groups_go_with_what_groups_have(filter_, priority):
    assert make_options(unit="group", filter=filter_, priority=priority).unit == "group"


def test_wrong_values_are_told_before_contradictions():
    with pytest.raises(ReplayConfigError) as error:
        make_options(unit="group", ratio=-1)
    assert [fault.split()[0] for fault in error.value.faults] == ["replay.ratio"]


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
        ("max_uses", 1),
        ("replacement", True),
        ("importance_sampling_exponent", 0),
        ("importance_sampling_exponent", 1.0),
        ("priority_decay_steps", 1e-9),
        ("importance_cap", 1),
        ("unit", "rollout"),
        ("importance", "behavior"),
        ("importance", "proximal"),
        ("importance", "decoupled"),
        *[(kind, name) for kind, policies in POLICIES.items() for name in policies.names],
    ],
)
def test_edges_are_accepted(name, value):
    assert getattr(make_options(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("kind", "name", "function", "bound"),
    [
        ("filter", "zero_variance", filters.zero_variance, []),
        ("filter", "zero_advantage", filters.zero_advantage, []),
        ("filter", "none", filters.none, []),
        ("eviction", "age", eviction.age, ["max_age"]),
        ("eviction", "uses", eviction.uses, ["max_uses"]),
        ("eviction", "age_or_uses", eviction.age_or_uses, ["max_age", "max_uses"]),
        ("eviction", "none", eviction.none, []),
        ("priority", "abs_advantage", priorities.abs_advantage, []),
        ("priority", "sigma_g", priorities.sigma_g, []),
        ("priority", "uniform", priorities.uniform, []),
        ("priority", "reward_rarity", priorities.reward_rarity, []),
        ("priority", "recency_decayed", priorities.recency_decayed, ["priority_decay_steps"]),
        ("sampler", "proportional", samplers.proportional, ["priority_exponent", "priority_eps"]),
        ("sampler", "rank_based", samplers.rank_based, ["priority_exponent"]),
        ("composition", "fresh_anchored", compositions.fresh_anchored, ["ratio"]),
        ("composition", "pooled", compositions.pooled, ["ratio"]),
        ("filter", f"{HERE}.best_rewards", best_rewards, []),
        ("eviction", f"{HERE}.used_once", used_once, ["max_age"]),
        ("priority", f"{HERE}.newest_first", newest_first, []),
        ("priority", f"{HERE}.powered", powered, ["priority_exponent"]),
        ("sampler", f"{HERE}.greatest_first", greatest_first, []),
        ("composition", f"{HERE}.only_fresh", only_fresh, ["ratio", "seed"]),
    ],
)
def test_a_policy_is_the_function_of_its_name_or_dotted_path_with_its_options(kind, name, function, bound):
    options = make_options(**{kind: name}, ratio=0.3, seed=7, max_age=6, max_uses=5, priority_exponent=2.0)
    policy = options.policy(kind).function
    assert policy.func is function
    assert policy.keywords == {option: getattr(options, option) for option in bound}


def test_every_named_policy_is_a_policy():
    """What options accepts by name has the arguments that it demands of a dotted path."""
    for kind, (module, names, _) in POLICIES.items():
        for name in names:
            path = f"{module.__name__}.{name}"
            assert make_options(**{kind: path}).policy(kind).function.func is getattr(module, name)


def test_a_policy_gets_the_step_only_if_it_wants_it():
    table = make_table([[4, 0]], born=3)
    assert make_options(priority=f"{HERE}.newest_first").policy("priority")(table, step=5).tolist() == [1 / 3, 1 / 3]
    assert make_options(priority=f"{HERE}.powered").policy("priority")(table, step=5).tolist() == [2, 0]


def test_functions_of_a_user_are_what_decides():
    """A dotted path works all the way: filter, eviction, priority and sampler of this file. Each step stores 4 of 6;
    the 2 drawn in a step are evicted before the next draw; of those left the newest go first, in order."""
    paths = {"filter": "best_rewards", "eviction": "used_once", "sampler": "greatest_first", "priority": "newest_first"}
    transform = ReplayTransform(make_options(ratio=0.5, **{kind: f"{HERE}.{name}" for kind, name in paths.items()}))
    for step, drawn, stored in ((1, [], 4), (2, [0, 1], 8), (3, [4, 5], 10)):
        table = make_table([[1, 0, 1, 0], [1, 1]], born=step)
        chosen = transform.select(table, step=step)
        assert chosen.survivors.tolist() == [0, 2, 4, 5]
        ids = chosen.replayed.rows.columns["id"].values.tolist() if drawn else []
        assert ids == drawn
        transform.store(table.take(chosen.survivors), id_rows(4 * (step - 1) + np.arange(4)), step=step)
        assert len(transform.buffer) == stored


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        ("filter", [True] * 4, r"must return a mask \(N,\) = \(4,\) of bool, got list"),
        ("filter", np.ones(4), r"of bool, got float64 \(4,\)"),
        ("filter", np.ones((4, 1), bool), r"of bool, got bool \(4, 1\)"),
        ("eviction", np.ones(3, bool), r"= \(4,\) of bool, got bool \(3,\)"),
        ("priority", np.ones(3), r"must return \(N,\) = \(4,\) numbers, got \(3,\)"),
        ("priority", np.ones((4, 1)), r"numbers, got \(4, 1\)"),  # O8
        ("priority", 1.0, r"numbers, got \(\)"),
        ("priority", [1, np.nan, 1, 1], "must return finite numbers >= 0, got NaN, infinity or less"),  # O9
        ("priority", [1, np.inf, 1, 1], "must return finite numbers >= 0"),
        ("priority", [1, -1e-300, 1, 1], "must return finite numbers >= 0"),
        ("sampler", np.ones(3), r"must return \(N,\) = \(4,\) numbers, got \(3,\)"),
        ("sampler", [0, np.nan, 0, 0], "must return logarithms of weights, got NaN"),
        ("sampler", [0, np.inf, 0, 0], "must return logarithms of weights"),
    ],
)
def test_what_a_policy_returns_is_checked_and_takes_no_numbers(kind, values, says):
    """Four rollouts are stored, four are fresh. Refused by the name of the option, before anything is drawn."""
    name = "answers_with_weights" if kind == "sampler" else "answers"
    transform, table = ReplayTransform(make_options(**{kind: f"{HERE}.{name}"})), make_table([[1, 0, 0, 1]])
    transform.store(table, id_rows(range(4)), step=1)
    state = transform.buffer.rng.bit_generator.state
    ANSWER[:] = [values]
    with pytest.raises(ValueError, match=f"^replay.{kind} .*{says}.* Mend "):
        transform.select(table, step=2)
    assert transform.buffer.rng.bit_generator.state == state
    assert transform.buffer.table.uses.tolist() == [0] * 4


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
        ({"max_age": 0, "eviction": "age_or_uses"}, False),
        ({"max_age": 0, "eviction": "uses"}, True),  # max_age does not count there
        ({"max_age": 0, "eviction": "none"}, True),
        ({"max_age": 0, "eviction": "none", "ratio": 0}, False),
        ({"max_age": 0, "eviction": f"{HERE}.used_once"}, True),  # what a user's own does is not known
        ({"ratio": 0.0, "composition": f"{HERE}.only_fresh"}, True),
    ],
)
def test_replays_says_whether_anything_stored_could_be_drawn(changes, replays):
    assert make_options(**changes).replays is replays


@pytest.mark.parametrize(
    ("changes", "weighs", "recomputes"),
    [
        ({}, False, False),
        ({"importance_sampling_exponent": 0.4}, True, False),
        ({"importance": "proximal"}, False, True),
        ({"importance": "decoupled"}, True, True),
        ({"importance": "proximal", "importance_sampling_exponent": 1}, True, True),
    ],
)
def test_what_needs_weights_and_what_needs_log_probs_anew(changes, weighs, recomputes):
    options = make_options(**changes)
    assert (options.weighs, options.recomputes) == (weighs, recomputes)


def test_options_are_frozen():
    with pytest.raises(AttributeError):
        make_options().ratio = 1.0
