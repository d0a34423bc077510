"""The support matrix: what of a verl configuration replay accepts. Reads the composed config, starts nothing.

Each check is a function `(config, options) -> fault or None`; a fault is one line: the rule, the value and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf

from verl_replay.options import ReplayConfigError, ReplayOptions

# Estimators whose advantage is one number a rollout, relative to its group: what |A_i| and the filter mean.
GROUP_RELATIVE = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo")
# Losses that take their ratio to old_log_probs, the log-probs at birth.
RATIO_LOSSES = ("vanilla",)

Check = Callable[[DictConfig, ReplayOptions], str | None]


def check_config(config: DictConfig) -> ReplayOptions:
    """Check the whole configuration for training with replay.

    Args:
        config: verl's composed config with the `replay` node.

    Returns:
        The checked options. With replay.enabled=false verl's own rules apply alone and nothing else is checked.

    Raises:
        ReplayConfigError: every fault found, a line each.
    """
    node = OmegaConf.select(config, "replay")
    if node is None:
        raise ReplayConfigError(["the config has no `replay` node. Start from config/replay_trainer.yaml, or add it."])
    if not isinstance(node, DictConfig):
        raise ReplayConfigError([f"replay must be a node of options, got {node!r}. Choose a preset: replay=off, say."])
    options = ReplayOptions.from_config(OmegaConf.to_container(node, resolve=True))
    if options.enabled:
        faults = [fault for check in CHECKS if (fault := check(config, options))]
        if faults:
            raise ReplayConfigError(faults)
    return options


def _get(config: DictConfig, key: str, default: object = None) -> object:
    value = OmegaConf.select(config, key)
    return default if value is None else value


def trainer_generation(config: DictConfig, options: ReplayOptions) -> str | None:
    if not _get(config, "trainer.use_v1", True):
        return (
            "trainer.use_v1 must be true, got false: replay behind verl's V0 trainer is not supported yet. "
            "Remove trainer.use_v1=false, or set replay=off."
        )
    return None


def trainer_mode(config: DictConfig, options: ReplayOptions) -> str | None:
    mode = _get(config, "trainer.v1.trainer_mode")
    if mode != "sync":
        return (
            f"trainer.v1.trainer_mode must be sync, got {mode!r}: replay in the other modes is not supported yet. "
            "Set trainer.v1.trainer_mode=sync, or replay=off."
        )
    return None


def estimator(config: DictConfig, options: ReplayOptions) -> str | None:
    name = _get(config, "algorithm.adv_estimator")
    if name not in GROUP_RELATIVE:
        return (
            f"algorithm.adv_estimator must be group-relative ({', '.join(GROUP_RELATIVE)}), got {str(name)!r}: "
            "the filter and |A_i| are of a group. Set algorithm.adv_estimator=grpo, or replay=off."
        )
    return None


def group_size(config: DictConfig, options: ReplayOptions) -> str | None:
    n = _get(config, "actor_rollout_ref.rollout.n", 1)
    if not isinstance(n, int) or n < 2:
        return (
            f"actor_rollout_ref.rollout.n must be at least 2, got {n!r}: a group of one has no relative advantage. "
            "Set actor_rollout_ref.rollout.n=8, say."
        )
    return None


def filter_groups(config: DictConfig, options: ReplayOptions) -> str | None:
    if _get(config, "algorithm.filter_groups.enable", False) and options.filter != "none":
        return (
            f"algorithm.filter_groups.enable must be false with replay.filter={options.filter}, got true: verl already "
            "drops and refills zero-variance groups. Set replay.filter=none, or algorithm.filter_groups.enable=false."
        )
    return None


def shuffle(config: DictConfig, options: ReplayOptions) -> str | None:
    if _get(config, "actor_rollout_ref.actor.shuffle", False):
        return (
            "actor_rollout_ref.actor.shuffle must be false, got true: shuffling undoes the layout that gives every "
            "mini-batch its share of fresh rollouts. Set actor_rollout_ref.actor.shuffle=false."
        )
    return None


def strategy(config: DictConfig, options: ReplayOptions) -> str | None:
    name = _get(config, "actor_rollout_ref.actor.strategy")
    if name not in ("fsdp", "fsdp2"):
        return (
            f"actor_rollout_ref.actor.strategy must be fsdp or fsdp2, got {name!r}: other engines are not "
            "supported yet. Set actor_rollout_ref.actor.strategy=fsdp2, or replay=off."
        )
    return None


def loss_mode(config: DictConfig, options: ReplayOptions) -> str | None:
    mode = _get(config, "actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla")
    if mode not in RATIO_LOSSES:
        return (
            f"actor_rollout_ref.actor.policy_loss.loss_mode must be one of {', '.join(RATIO_LOSSES)}, got {mode!r}: "
            "other losses are not tested with replay yet. Set it to vanilla, or replay=off."
        )
    return None


def loss_aggregation(config: DictConfig, options: ReplayOptions) -> str | None:
    mode = _get(config, "actor_rollout_ref.actor.loss_agg_mode", "token-mean")
    if mode == "seq-mean-token-sum-norm" and _get(config, "actor_rollout_ref.actor.loss_scale_factor") is None:
        return (
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm needs loss_scale_factor, got null: verl "
            "then divides by the width of each micro-batch, which replay changes. Set "
            "actor_rollout_ref.actor.loss_scale_factor to the longest response, in tokens."
        )
    return None


def rollout_correction(config: DictConfig, options: ReplayOptions) -> str | None:
    if _get(config, "algorithm.rollout_correction.bypass_mode", False):
        return (
            "algorithm.rollout_correction.bypass_mode must be false, got true: it is not supported with replay yet. "
            "Set algorithm.rollout_correction.bypass_mode=false, or replay=off."
        )
    return None


def distillation(config: DictConfig, options: ReplayOptions) -> str | None:
    if _get(config, "distillation.enabled", False):
        return (
            "distillation.enabled must be false, got true: teacher columns are not stored. "
            "Set distillation.enabled=false, or replay=off."
        )
    return None


CHECKS: tuple[Check, ...] = (
    trainer_generation,
    trainer_mode,
    estimator,
    group_size,
    filter_groups,
    shuffle,
    strategy,
    loss_mode,
    loss_aggregation,
    rollout_correction,
    distillation,
)
