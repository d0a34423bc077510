"""The support matrix: what of a verl configuration replay accepts. Reads the composed config, starts nothing.

Each check is a function `(config, options) -> fault or None`; a fault is one line: the rule, the value and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf

from verl_replay.options import ReplayConfigError, ReplayOptions

# Estimators whose advantage is one number a rollout, relative to its group: what |A_i| and the filter mean.
GROUP_RELATIVE = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo")
# Losses of verl that take their ratio to old_log_probs, the log-probs at birth, and whose sum over rows does not depend
# on which rows share a micro-batch.
RATIO_LOSSES = ("vanilla", "gspo", "sapo", "cispo", "dro", "dppo_tv", "dppo_kl")
_OTHER_LOSSES = {
    "gpg": "it has no ratio to the log-probs at birth, so stale rollouts would count as fresh",
    "geo_mean": "it averages over the rows of a micro-batch, null rows included",
    "clip_cov": "it looks at the covariance within a micro-batch",
    "kl_cov": "it looks at the covariance within a micro-batch",
    "bypass_mode": "use loss_mode=vanilla with algorithm.rollout_correction.bypass_mode=true: the same clip",
}
MODES = ("sync", "colocate_async", "separate_async")

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


def trainer_mode(config: DictConfig, options: ReplayOptions) -> str | None:
    mode = _get(config, "trainer.v1.trainer_mode")
    if _get(config, "trainer.use_v1", True) and mode not in MODES:
        return (
            f"trainer.v1.trainer_mode must be one of {', '.join(MODES)}, got {mode!r}: replay has trainers for verl's "
            "own modes. Set trainer.v1.trainer_mode=sync, or replay=off, or put ReplayMixin before your trainer class."
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
    if not _get(config, "algorithm.filter_groups.enable", False):
        return None
    if options.filter != "none":
        return (
            f"algorithm.filter_groups.enable must be false with replay.filter={options.filter}, got true: verl already "
            "drops and refills zero-variance groups. Set replay.filter=none, or algorithm.filter_groups.enable=false."
        )
    if queue := _get(config, "trainer.v1.sampler.custom_sampler.name"):
        return (
            "algorithm.filter_groups.enable=true (with replay.filter=none) has no effect with "
            f"trainer.v1.sampler.custom_sampler.name={queue}: "
            "verl hands it to its own queue only. Remove the custom sampler, or set "
            "algorithm.filter_groups.enable=false and replay.filter=zero_variance."
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
        why = _OTHER_LOSSES.get(str(mode), "it is not known to take its ratio to the log-probs at birth")
        return (
            f"actor_rollout_ref.actor.policy_loss.loss_mode must be one of {', '.join(RATIO_LOSSES)}, got {mode!r}: "
            f"{why}. Set it to vanilla, or replay=off."
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


def importance(config: DictConfig, options: ReplayOptions) -> str | None:
    """Modes proximal and decoupled recompute log-probs, which bypass_mode is there to avoid."""
    if options.recomputes and _get(config, "algorithm.rollout_correction.bypass_mode", False):
        return (
            f"replay.importance={options.importance} recomputes log-probs at the start of the step, but "
            "algorithm.rollout_correction.bypass_mode=true takes the ratio to the engine that sampled the tokens. "
            "Set replay.importance=behavior, or algorithm.rollout_correction.bypass_mode=false."
        )
    return None


def rollout_log_probs(config: DictConfig, options: ReplayOptions) -> str | None:
    """What is taken to the log-probs of the engine that sampled the tokens needs them."""
    if _get(config, "actor_rollout_ref.rollout.calculate_log_probs", False):
        return None
    reasons = {
        "replay.importance=decoupled": (options.importance == "decoupled", "replay.importance=behavior"),
        "algorithm.rollout_correction.bypass_mode=true": (
            _get(config, "algorithm.rollout_correction.bypass_mode", False),
            "algorithm.rollout_correction.bypass_mode=false",
        ),
        "algorithm.rollout_correction.rollout_is": (
            _get(config, "algorithm.rollout_correction.rollout_is") is not None,
            "algorithm.rollout_correction.rollout_is=null",
        ),
    }
    for what, (wants, remedy) in reasons.items():
        if wants:
            return (
                "actor_rollout_ref.rollout.calculate_log_probs must be true, got false: "
                f"{what} compares with the log-probs of the engine that sampled the tokens. "
                f"Set actor_rollout_ref.rollout.calculate_log_probs=true, or {remedy}."
            )
    return None


def router_replay(config: DictConfig, options: ReplayOptions) -> str | None:
    if _get(config, "actor_rollout_ref.rollout.enable_rollout_routing_replay", False):
        return (
            "actor_rollout_ref.rollout.enable_rollout_routing_replay must be false, got true: the experts that a token "
            "was routed to are not stored. Set it to false, or replay=off."
        )
    return None


def prefix_grouper(config: DictConfig, options: ReplayOptions) -> str | None:
    if _get(config, "actor_rollout_ref.actor.use_prefix_grouper", False):
        return (
            "actor_rollout_ref.actor.use_prefix_grouper must be false, got true: it wants the rollouts of a prompt "
            "side by side, and the layout deals them out. Set actor_rollout_ref.actor.use_prefix_grouper=false, or "
            "replay=off."
        )
    return None


def distillation(config: DictConfig, options: ReplayOptions) -> str | None:
    if _get(config, "distillation.enabled", False):
        return (
            "distillation.enabled must be false, got true: teacher columns are not stored. "
            "Set distillation.enabled=false, or replay=off."
        )
    return None


def remote_checkpoints(config: DictConfig, options: ReplayOptions) -> str | None:
    folder = _get(config, "trainer.default_hdfs_dir")
    if folder is not None and options.replays:
        return (
            f"trainer.default_hdfs_dir must be null, got {folder!r}: the buffer is not copied there, and a run resumed "
            "from it would lack it. Set trainer.default_hdfs_dir=null, or replay=off."
        )
    return None


CHECKS: tuple[Check, ...] = (
    trainer_mode,
    estimator,
    group_size,
    filter_groups,
    shuffle,
    prefix_grouper,
    strategy,
    loss_mode,
    loss_aggregation,
    importance,
    rollout_log_probs,
    router_replay,
    distillation,
    remote_checkpoints,
)
