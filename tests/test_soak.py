"""scripts/soak.py: a short soak of some arms, and that whatever goes wrong in one of the two is noticed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from omegaconf import DictConfig

from scripts import soak as command
from scripts.soaking.compare import Difference
from scripts.soaking.report import faults, markdown
from scripts.soaking.running import Measured, cost, growth, make_twin, soak
from scripts.soaking.settings import PRESETS, compose_config, make_stage
from scripts.soaking.steps import GROUPS, ODDS, advantages, make_steps
from scripts.soaking.twin import Twin
from tests.factories import verl_advantages
from tests.test_presets import DIFFERENCES
from verl_replay import compositions, eviction, filters
from verl_replay.buffer import RolloutBuffer
from verl_replay.options import ReplayOptions
from verl_replay.store import RolloutStore
from verl_replay.trainers import columns

pytestmark = pytest.mark.slow

OFTEN = {event: min(5 * p, 0.5) for event, p in ODDS.items()}  # so that a short soak has them all
SHORT = {"warmup_steps": 3, "max_age": 4}
CAPPED = {"max_uses": 1, "ratio": 1.0}


@cache
def base_config() -> DictConfig:
    return compose_config("fresh_anchored")


def composed(preset: str, **changes: Any) -> DictConfig:
    """The config of a preset, composed once for all of them: hydra takes half a second."""
    config = base_config().copy()
    config.replay = {**config.replay, **DIFFERENCES.get(preset, {}), **SHORT, **changes}
    return config


def run(
    tmp_path,
    preset: str = "fresh_anchored",
    changes: Mapping[str, Any] = MappingProxyType({}),
    *,
    count: int = 50,
    twin: Callable[[ReplayOptions], ReplayOptions] = lambda options: options,
    seed: int = 0,
) -> tuple[Measured, Twin]:
    """A soak with the rare things often; `twin` changes the options of the twin alone."""
    config = composed(preset, **changes)
    stage = make_stage(config)
    names = tuple(dict.fromkeys((*stage.decision_columns, *stage.stored_columns)))
    steps = make_steps(np.random.default_rng(seed), count, names, OFTEN)
    naive = make_twin(stage, twin(stage.options))
    return soak(partial(make_stage, config), naive, steps, checkpoint_every=15, folder=tmp_path / "c"), naive


def drawn(measured: Measured) -> int:
    return measured.counts["drawn"]


# ---- a short soak ----------------------------------------------------------------------------------------------------


def test_the_papers_settings(tmp_path):
    measured, twin = run(tmp_path, count=150)
    assert len(measured.seconds) == len(measured.held) == 150
    assert measured.counts["checkpoints"] == 10
    assert measured.size == len(twin.held) > 50 and drawn(measured) > 500
    assert all(measured.counts[event] >= 2 for event in ODDS)
    assert measured.counts["evicted"] > 500
    assert 15 < measured.full_from < 20  # after the first checkpoint
    assert 0.9 < sum(measured.held[20:]) / sum(measured.needed[20:]) < 1.1


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("per", {}),
        ("pooled", {}),
        ("grouped", {"capacity": 90}),
        ("pooled_grouped", {"replacement": True}),
        ("capped_uses", CAPPED),
        ("no_age_limit", {"capacity": 200}),
        ("unfiltered", {}),
        ("decoupled", {}),
        ("rank_based", {"filter": "zero_advantage"}),
        ("recency_decayed", {"importance_sampling_exponent": 0.4}),
        ("filtered", {}),
    ],
)
def test_other_arms(preset, changes, tmp_path):
    measured, _ = run(tmp_path, preset, changes)
    assert (drawn(measured) > 150) == (preset != "filtered")
    assert (measured.counts["evicted by capacity"] > 100) == ("capacity" in changes)


def test_every_preset_but_off_can_be_soaked():
    assert {"fresh_anchored", "pooled", "per"} < set(PRESETS) and "off" not in PRESETS


# ---- what is noticed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "changes", "wrong"),
    [
        ("fresh_anchored", {}, {"max_age": 5}),
        ("fresh_anchored", {}, {"max_age": 3}),
        ("fresh_anchored", {}, {"warmup_steps": 4}),
        ("fresh_anchored", {}, {"ratio": 0.4}),
        ("fresh_anchored", {}, {"filter": "none"}),
        ("fresh_anchored", {}, {"seed": 1}),
        ("fresh_anchored", {}, {"priority_exponent": 0.51}),
        ("capped_uses", CAPPED, {"max_uses": 2}),
        ("no_age_limit", {"capacity": 200}, {"capacity": 201}),
        ("grouped", {"capacity": 90}, {"unit": "rollout"}),
        ("pooled", {}, {"composition": "fresh_anchored"}),
        ("per", {}, {"importance_sampling_exponent": 0.3}),
    ],
)
def test_a_wrong_twin_is_noticed(preset, changes, wrong, tmp_path):
    with pytest.raises(Difference, match=r"(?s)update \d+, step \d+ .*stage"):
        run(tmp_path, preset, changes, twin=lambda options: dataclasses.replace(options, **wrong))


def uses_not_counted(self: RolloutBuffer, positions: np.ndarray, draw: Any = RolloutBuffer.draw):
    made = draw(self, positions)
    np.add.at(self.table.uses, positions, -1)
    return made


def forgets_the_generator(self: RolloutBuffer, state: Any, load: Any = RolloutBuffer.load):
    state.meta["random_state"] = np.random.default_rng(0).bit_generator.state
    return load(self, state)


def another_row(self: RolloutStore, positions: np.ndarray, gather: Any = RolloutStore.gather):
    return gather(self, np.roll(positions, 1))


@pytest.mark.parametrize(
    ("owner", "name", "broken", "said"),
    [
        (eviction, "age", lambda table, *, step, max_age: table.age(step) < max_age, "evicted_age"),
        (filters, "finite_groups", lambda table: np.ones(len(table), bool), "nonfinite_groups"),
        (compositions, "_half_up", lambda x: int(x), "draw/rollouts|age_hist"),
        (RolloutBuffer, "draw", uses_not_counted, "held, uses"),
        (RolloutBuffer, "load", forgets_the_generator, "update 16|generators"),
        (RolloutStore, "gather", another_row, "not as at birth"),
        (columns, "with_loss", lambda mask: np.ones(len(mask), bool), "no row with loss|replay/updates|update"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_stage_is_noticed(owner, name, broken, said, monkeypatch, tmp_path):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((Difference, ValueError), match=said):
        run(tmp_path, count=200)


# ---- the made-up steps -----------------------------------------------------------------------------------------------


def test_the_advantages_are_those_that_verls_v1_trainer_makes(rng):
    names = (columns.ADVANTAGE, columns.MASK, columns.SCORE)
    for made in make_steps(rng, 20, names, OFTEN | {"empty row": 0.0, "infinite reward": 0.0}):
        batch = made.batch
        of_column = {name: [batch.columns[name].row(i) for i in range(len(batch.keys))] for name in names}
        expected = verl_advantages(batch.keys, of_column[columns.SCORE], of_column[columns.MASK])
        for i, (ours, theirs, mask) in enumerate(
            zip(of_column[columns.ADVANTAGE], expected, of_column[columns.MASK], strict=True)
        ):
            np.testing.assert_allclose(ours, theirs * mask, rtol=1e-6, err_msg=str(i))


def test_steps_go_up_and_late_ones_were_born_before(rng):
    made = list(make_steps(rng, 400, (columns.MASK,)))
    gaps = np.diff([m.step for m in made])
    assert set(gaps.tolist()) > {0, 1} and gaps.min() == 0 and gaps.max() > 4
    for m in made:
        assert (m.born >= 1).all() and (m.born <= m.step).all()
        assert (m.born < m.step).any() <= ("late" in m.happened)
        assert sorted(set(m.group.tolist())) == list(range(GROUPS))
    alike = [len(set(m.reward[m.group == g].tolist())) == 1 for m in made for g in range(GROUPS)]
    assert 0.4 < np.mean(alike) < 0.7  # the paper saw 50 to 65 % of groups without variance


def test_advantages_by_hand():
    """1 of 4 correct: (1 - 1/4) / (1/2 + 1e-6), and (0 - 1/4) / (1/2 + 1e-6)."""
    made = advantages(np.array([1, 0, 0, 0], np.float32), np.zeros(4, np.int64))
    np.testing.assert_allclose(made, [1.5, -0.5, -0.5, -0.5], rtol=1e-5)


# ---- the figures -----------------------------------------------------------------------------------------------------


def measured(held: list[int], resident: list[int]) -> Measured:
    count = len(held)
    return Measured([0.001] * count, held, [100] * count, resident, full_from=150, size=10)


def test_memory_that_grows_is_a_fault():
    """2,000 steps in windows of 100: the first full window is steps 200..299, the last 1900..1999."""
    flat = measured([110] * 2000, [500] * 200)
    assert growth(flat).window == 100 and growth(flat).shares == (0, 0) and not faults(flat)
    grows = measured([110] * 1900 + [112] * 100, [500] * 190 + [506] * 10)
    assert growth(grows).shares == pytest.approx((112 / 110 - 1, 506 / 500 - 1))
    assert len(faults(grows)) == 2
    before = measured([10] * 200 + [110] * 1800, [400] * 20 + [500] * 180)  # filling is no growth
    assert not faults(before)


def test_too_few_steps_are_not_judged():
    few = measured([110] * 1000 + [220] * 40, [500] * 104)
    assert growth(few).window == 52 and not faults(few)
    assert growth(dataclasses.replace(few, full_from=None)) is None
    assert "too few steps" in markdown(dataclasses.replace(few, full_from=1039), command="c", seconds=1.0)


def test_cost_is_of_the_second_and_the_last_tenth():
    seconds = [9.0] * 10 + [1.0] * 10 + [5.0] * 70 + [3.0] * 10
    assert cost(Measured(seconds=seconds)) == (1.0, 3.0)


OVERRIDES = [f"replay.{name}={value}" for name, value in SHORT.items()]


def test_the_command(tmp_path, capsys):
    arguments = ["--steps", "40", "--checkpoint-every", "20", "--output", str(tmp_path / "table.md"), *OVERRIDES]
    assert command.main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == (tmp_path / "table.md").read_text().strip()
    assert "| steps, equal to the naive twin at every one | 40 |" in printed.out
    assert "step 40/40" in printed.err


def test_the_command_tells_the_first_difference_and_the_seed(monkeypatch, capsys):
    monkeypatch.setattr(eviction, "age", lambda table, *, step, max_age: table.age(step) < max_age)
    assert command.main(["--steps", "40", "--seed", "7", *OVERRIDES]) == 1
    errors = capsys.readouterr().err
    assert "differ, seed 7, preset fresh_anchored: update" in errors
    assert "The same again: python -m scripts.soak --steps 40 --seed 7" in errors
    assert "Traceback" not in errors
