"""verl_replay.support, on verl's real config as hydra composes it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, AdvantageEstimator

from verl_replay.options import ReplayConfigError, ReplayOptions
from verl_replay.support import _OTHER_LOSSES, CHECKS, RATIO_LOSSES, check_config

ACTOR = "actor_rollout_ref.actor"
ACCEPTED = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8"]  # all that stock verl needs for replay


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("verl_replay.config", version_base=None):
        return compose("replay_trainer", overrides=list(overrides))


@pytest.fixture(scope="module")
def base() -> DictConfig:
    return composed(*ACCEPTED)


@pytest.fixture
def config(base) -> Iterator[DictConfig]:
    return copy.deepcopy(base)


def set_all(config: DictConfig, **changes) -> DictConfig:
    """Set dotted keys (with __ for the dots). The config is a struct: a key that verl does not have raises."""
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    return config


def test_stock_verl_with_grpo_and_a_group_size_is_accepted(config):
    options = check_config(config)
    assert isinstance(options, ReplayOptions)
    assert options.enabled and options.composition == "fresh_anchored"


RULES = [
    # (check, refused, accepted, key named, remedy)
    (
        "trainer_mode",
        {"trainer.v1.trainer_mode": "my_own"},
        {"trainer.v1.trainer_mode": "my_own", "trainer.use_v1": False},  # V0 has no modes
        "Set trainer.v1.trainer_mode=sync",
    ),
    *[
        ("trainer_mode", None, {"trainer.v1.trainer_mode": mode}, "")
        for mode in ("sync", "colocate_async", "separate_async")
    ],
    (
        "estimator",
        {"algorithm.adv_estimator": "gae"},
        {"algorithm.adv_estimator": "rloo"},
        "Set algorithm.adv_estimator=grpo",
    ),
    ("group_size", {"actor_rollout_ref.rollout.n": 1}, {"actor_rollout_ref.rollout.n": 2}, "rollout.n=8"),
    (
        "filter_groups",
        {"algorithm.filter_groups.enable": True},
        {"algorithm.filter_groups.enable": True, "replay.filter": "none"},
        "Set replay.filter=none",
    ),
    (
        "filter_groups",
        {
            "algorithm.filter_groups.enable": True,
            "replay.filter": "none",
            "trainer.v1.sampler.custom_sampler.name": "PromptRolloutQueue",
        },
        {"trainer.v1.sampler.custom_sampler.name": "PromptRolloutQueue"},
        "Remove the custom sampler",
    ),
    ("prefix_grouper", {f"{ACTOR}.use_prefix_grouper": True}, {}, f"Set {ACTOR}.use_prefix_grouper=false"),
    ("shuffle", {f"{ACTOR}.shuffle": True}, {f"{ACTOR}.shuffle": False}, f"Set {ACTOR}.shuffle=false"),
    ("strategy", {f"{ACTOR}.strategy": "megatron"}, {f"{ACTOR}.strategy": "fsdp2"}, f"Set {ACTOR}.strategy=fsdp2"),
    *[
        ("loss_mode", {f"{ACTOR}.policy_loss.loss_mode": mode}, {}, why)
        for mode, why in {
            "gpg": "no ratio to the log-probs at birth",
            "geo_mean": "averages over the rows of a micro-batch",
            "clip_cov": "covariance within a micro-batch",
            "kl_cov": "covariance within a micro-batch",
            "bypass_mode": "algorithm.rollout_correction.bypass_mode=true",
            "my_own": "Set it to vanilla",
        }.items()
    ],
    *[
        ("loss_mode", None, {f"{ACTOR}.policy_loss.loss_mode": mode}, "")
        for mode in ("vanilla", "gspo", "sapo", "cispo", "dro", "dppo_tv", "dppo_kl")
    ],
    (
        "loss_aggregation",
        {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"},
        {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor": 1024},
        "loss_scale_factor to the longest response",
    ),
    *[
        ("loss_aggregation", None, {f"{ACTOR}.loss_agg_mode": mode}, "")
        for mode in ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean")
    ],
    *[
        (
            "importance",
            {"replay.importance": mode, "algorithm.rollout_correction.bypass_mode": True},
            {"replay.importance": mode, "algorithm.rollout_correction.rollout_is": "token"},
            "Set replay.importance=behavior",
        )
        for mode in ("proximal", "decoupled")
    ],
    ("importance", None, {"replay.importance": "behavior", "algorithm.rollout_correction.bypass_mode": True}, ""),
    (
        "rollout_log_probs",
        {"replay.importance": "decoupled", "actor_rollout_ref.rollout.calculate_log_probs": False},
        {"replay.importance": "proximal", "actor_rollout_ref.rollout.calculate_log_probs": False},
        "Set actor_rollout_ref.rollout.calculate_log_probs=true, or replay.importance=behavior",
    ),
    *[
        ("rollout_log_probs", {key: value, "actor_rollout_ref.rollout.calculate_log_probs": False}, {key: value}, key)
        for key, value in {
            "algorithm.rollout_correction.bypass_mode": True,
            "algorithm.rollout_correction.rollout_is": "token",
        }.items()
    ],
    (
        "router_replay",
        {"actor_rollout_ref.rollout.enable_rollout_routing_replay": True},
        {},
        "Set it to false",
    ),
    (
        "remote_checkpoints",
        {"trainer.default_hdfs_dir": "hdfs://somewhere"},
        {"trainer.default_hdfs_dir": "hdfs://somewhere", "replay.ratio": 0},  # no buffer to lose
        "Set trainer.default_hdfs_dir=null",
    ),
    ("distillation", {"distillation.enabled": True}, {"distillation.enabled": False}, "Set distillation.enabled=false"),
]


def faults_of(config: DictConfig) -> list[str]:
    try:
        check_config(config)
    except ReplayConfigError as error:
        return error.faults
    return []


@pytest.mark.parametrize(("check", "refused", "accepted", "remedy"), RULES)
def test_each_rule_refuses_and_accepts(config, check, refused, accepted, remedy):
    assert check in [rule.__name__ for rule in CHECKS]
    assert faults_of(set_all(copy.deepcopy(config), **accepted)) == []
    if refused is None:
        return
    (fault,) = faults_of(set_all(config, **refused))
    assert remedy in fault
    for key, value in refused.items():
        assert key in fault
        assert str(value).lower() in fault.lower()  # "got true"


def test_every_loss_of_verl_is_accepted_or_refused_for_a_reason():
    assert set(RATIO_LOSSES) | set(_OTHER_LOSSES) == set(POLICY_LOSS_REGISTRY)


@pytest.mark.parametrize("name", [estimator.value for estimator in AdvantageEstimator])
def test_of_verls_estimators_those_relative_to_a_group_are_accepted(config, name):
    set_all(config, **{"algorithm.adv_estimator": name})
    relative = {"grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo"}
    assert [fault.split()[0] for fault in faults_of(config)] == (
        [] if name in relative else ["algorithm.adv_estimator"]
    )


def test_every_rule_is_tested():
    assert {rule.__name__ for rule in CHECKS} == {check for check, refused, *_ in RULES if refused}


def test_all_faults_are_told_at_once(config):
    set_all(config, **{"algorithm.adv_estimator": "gae", "actor_rollout_ref.rollout.n": 1, f"{ACTOR}.shuffle": True})
    with pytest.raises(ReplayConfigError) as error:
        check_config(config)
    assert [fault.split()[0] for fault in error.value.faults] == [
        "algorithm.adv_estimator",
        "actor_rollout_ref.rollout.n",
        f"{ACTOR}.shuffle",
    ]
    assert str(error.value) == "\n".join(error.value.faults)


def test_a_wrong_option_is_told_before_verls_keys_are_looked_at(config):
    set_all(config, **{"replay.ratio": -1, "algorithm.adv_estimator": "gae"})
    (fault,) = faults_of(config)
    assert fault.startswith("replay.ratio must be")


def test_off_checks_nothing_of_verls():
    """I1: with replay=off verl's own rules apply alone, composed as a user would."""
    config = composed(
        "replay=off", "algorithm.adv_estimator=gae", "actor_rollout_ref.rollout.n=1", f"{ACTOR}.shuffle=true"
    )
    for _, refused, _, _ in RULES:
        set_all(config, **(refused or {}))
    assert check_config(config).enabled is False


def test_off_still_checks_its_own_options(config):
    set_all(config, **{"replay.enabled": False, "replay.max_age": -1})
    (fault,) = faults_of(config)
    assert fault.startswith("replay.max_age")


def test_overrides_of_a_command_line_reach_the_options():
    options = check_config(
        composed(*ACCEPTED, "replay=pooled", "replay.max_age=20", "replay.ratio=1", "trainer.nnodes=2")
    )
    assert (options.composition, options.max_age, options.ratio) == ("pooled", 20, 1)
    config = composed(*ACCEPTED, "+replay.alpha=0.3", "replay.priority=td")
    assert [fault.split()[0] for fault in faults_of(config)] == ["replay.alpha", "replay.priority"]


def test_a_config_without_the_node_is_refused(config):
    with open_dict(config):
        del config["replay"]
    (fault,) = faults_of(config)
    assert "no `replay` node" in fault and "config/replay_trainer.yaml" in fault


@pytest.mark.parametrize("node", ["off", False, True, "pooled", ["pooled"], 3])
def test_a_node_that_is_no_mapping_is_refused(config, node):
    """`replay: off` in a YAML file of one's own is the value false, not the preset off."""
    with open_dict(config):
        config.replay = node
    (fault,) = faults_of(config)
    assert fault.startswith("replay must be") and repr(node) in fault and "replay=off" in fault


def test_the_config_is_left_as_it_was(config):
    before = copy.deepcopy(config)
    check_config(config)
    assert config == before
