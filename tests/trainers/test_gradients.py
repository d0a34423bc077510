"""I3, I6: the gradient of every optimizer step against a plain reference that knows nothing of verl's batching.

A bigram policy is trained through the hook and verl's own loss, mini-batches, ranks and micro-batches. The reference
takes the rows of each mini-batch as they were born, works out what each must be weighed and compared with, and sums the
loss row by row from its formula. It would differ if a null row carried loss, a denominator were wrong, a ratio were
taken to other log-probs than the mode says, or a weight were lost.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.policy_workers import PolicyWorkers, log_probs
from tests.verl_batch import compose_config, rollout_rows
from tests.verl_batch_v0 import make_trainer_v0, to_dataproto, train_step_v0

LOW, HIGH, C = 0.2, 0.28, 3.0
SCALE = 16  # loss_scale_factor
DELTA_LOW, DELTA_HIGH = LOW, HIGH  # dppo reads the clip as a bound on the divergence
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


# ---- the losses, from their papers, one row each ---------------------------------------------------------------------


def token_losses(mode: str, now: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor):
    """(tokens,) loss of each token of one row; every argument (tokens,)."""
    ratio = torch.exp(now - old)
    if mode == "vanilla":  # PPO clip with dual clip
        clipped = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - LOW, 1 + HIGH))
        return torch.where(advantage < 0, torch.minimum(clipped, -advantage * C), clipped)
    if mode == "gspo":  # one ratio a sequence, its gradient through each token
        mean = ((now - old) * mask).sum() / mask.sum()
        s = torch.exp(mean.detach() + now - now.detach())
        return torch.maximum(-advantage * s, -advantage * s.clamp(1 - LOW, 1 + HIGH))
    if mode == "sapo":  # a soft gate instead of a clip; temperatures 1 and 1.05
        tau = torch.where(advantage > 0, 1.0, 1.05)
        return -advantage * torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    if mode == "cispo":
        return -ratio.clamp(1 - LOW, 1 + HIGH).detach() * advantage * now
    if mode == "dro":  # quadratic in the log ratio, beta 1
        return -(now * advantage - 0.5 * (now - old) ** 2)
    p, q = torch.exp(now), torch.exp(old)
    if mode == "dppo_tv":
        kept = torch.where(advantage > 0, p - q <= DELTA_HIGH, p - q >= -DELTA_LOW)
    else:  # dppo_kl: binary KL of the token against all others
        kl = q * (old - now) + (1 - q) * torch.log((1 - q + 1e-8) / (1 - p + 1e-8))
        kept = torch.where(advantage > 0, (kl <= DELTA_HIGH) | (p <= q), (kl <= DELTA_LOW) | (p >= q))
    return -advantage * ratio.clamp(max=C).detach() * now * kept.detach()


def reference(rows: list[SimpleNamespace], policy: torch.Tensor, loss_mode: str, agg: str, rows_of_step: float):
    """Gradient of one mini-batch to the policy."""
    leaf = policy.clone().requires_grad_()
    agg = "seq-mean-token-mean" if loss_mode == "sapo" else agg
    tokens = sum(int(row.mask.sum()) for row in rows)
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        now = log_probs(leaf, row.ids)[row.prompt - 1 : -1]
        advantage = torch.full_like(now, row.advantage)
        loss = token_losses(loss_mode, now, row.old, advantage, row.mask) * row.weight * row.mask
        total = (
            total
            + {
                "token-mean": loss.sum() / tokens,
                "token-sum": loss.sum(),
                "seq-mean-token-sum": loss.sum() / rows_of_step,
                "seq-mean-token-mean": loss.sum() / row.mask.sum() / rows_of_step,
                "seq-mean-token-sum-norm": loss.sum() / rows_of_step / SCALE,
            }[agg]
        )
    total.backward()
    return leaf.grad


# ---- training through verl -------------------------------------------------------------------------------------------


def train(config, *, ranks: int, steps: int = 3):
    """Train, and yield each step's (rows as born and as they must count, optimizer steps, metrics)."""
    workers = PolicyWorkers(config, ranks)
    trainer = make_trainer_v0(config, ranks=ranks, workers=workers)
    decisions = record_decisions(trainer)
    rng = np.random.default_rng(11)
    born: dict[tuple[int, ...], SimpleNamespace] = {}
    for step in range(1, steps + 1):
        rewards = [[1, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [0.5, 1, 0, 0]]
        keys, rows = rollout_rows(rewards, step=step, rng=rng, turns=True)
        start = workers.table.clone()
        for row in rows:
            row["old_log_probs"] = _response(log_probs(start, row["input_ids"]), len(row["prompts"])).float()
            noise = torch.from_numpy(rng.normal(0, 0.05, len(row["responses"])))
            row["rollout_log_probs"] = (row["old_log_probs"].double() + noise).float()  # an engine that differs a bit
        first = len(workers.steps)
        metrics = train_step_v0(trainer, to_dataproto(keys, rows), step)
        data = trainer.trained_on
        attention = data.batch["attention_mask"].bool()
        fresh = set()
        for i in range(len(data)):
            ids = data.batch["input_ids"][i][attention[i]]
            length = int(attention[i][data.batch["prompts"].shape[1] :].sum())
            mask = data.batch["response_mask"][i][:length]
            where = torch.nonzero(mask)[0, 0]
            weights = data.batch.get("rollout_is_weights")
            fresh.add(tuple(ids.tolist()))
            born[tuple(ids.tolist())] = SimpleNamespace(
                ids=ids,
                prompt=len(ids) - length,
                mask=mask.double(),
                advantage=float(data.batch["advantages"][i][where]),
                old=data.batch["old_log_probs"][i][:length].double(),
                engine=data.batch["rollout_log_probs"][i][:length].double(),
                weight=torch.ones(length) if weights is None else weights[i][:length].double(),
            )
        yield SimpleNamespace(
            born=born, fresh=fresh, start=start, metrics=metrics, steps=workers.steps[first:], chosen=decisions[-1]
        )


def record_decisions(trainer) -> list:
    transform, decisions = trainer.replay_stage.transform, []
    select = transform.select

    def recorded(*args, **kwargs):
        decisions.append(select(*args, **kwargs))
        return decisions[-1]

    transform.select = recorded
    return decisions


def _response(values: torch.Tensor, prompt: int) -> torch.Tensor:
    return values[prompt - 1 : -1]


def rows_of(step, cells) -> list[tuple[int, ...]]:
    ids = [row for cell in cells for row in cell["input_ids"].unbind()]
    masks = [row for cell in cells for row in cell["response_mask"]]
    return [tuple(row.tolist()) for row, mask in zip(ids, masks, strict=True) if mask.sum() > 0]


def as_it_must_count(row: SimpleNamespace, importance: str, replayed: bool, start: torch.Tensor, cap: float):
    """What METHOD's three modes say of one row: ratio to what, and which weight."""
    if importance == "behavior" or not replayed:
        return row
    now = _response(log_probs(start, row.ids), row.prompt).float().double()
    counted = SimpleNamespace(**vars(row))
    counted.old = now
    if importance == "decoupled":
        counted.weight = torch.exp(now - row.engine).clamp(max=cap)
    return counted


def check_every_gradient(config, *, ranks: int, loss_mode: str, agg: str, importance: str, weight_of=None) -> None:
    drawn = nulls = 0
    for step in train(config, ranks=ranks):
        total = sum(len(rows_of(step, s.cells)) for s in step.steps)
        assert total == step.metrics["replay/fresh/rollouts"] + step.metrics["replay/draw/rollouts"]
        drawn += step.metrics["replay/draw/rollouts"]
        nulls += step.metrics["replay/null_rows"]
        for s in step.steps:
            rows = []
            for ids in rows_of(step, s.cells):
                replayed = ids not in step.fresh
                row = as_it_must_count(step.born[ids], importance, replayed, step.start, config.replay.importance_cap)
                if weight_of is not None:
                    row = SimpleNamespace(**vars(row))
                    row.weight = row.weight * weight_of(step, ids, replayed)
                rows.append(row)
            expected = reference(rows, s.policy, loss_mode, agg, total / len(step.steps))
            assert expected.abs().max() > 0
            torch.testing.assert_close(s.gradient, expected, rtol=1e-4, atol=1e-7)
    assert drawn > 0 and nulls > 0  # the numbers of rows are such that cells must be filled up


def config_of(*options: str, loss_mode: str = "vanilla", agg: str = "token-mean", dynamic: bool = True):
    actor = "actor_rollout_ref.actor"
    return compose_config(
        f"{actor}.policy_loss.loss_mode={loss_mode}",
        f"{actor}.loss_agg_mode={agg}",
        f"{actor}.loss_scale_factor={SCALE}",
        f"{actor}.clip_ratio_low={LOW}",
        f"{actor}.clip_ratio_high={HIGH}",
        f"{actor}.clip_ratio_c={C}",
        f"{actor}.policy_loss.dro_beta=1.0",
        f"{actor}.use_dynamic_bsz={dynamic}",
        "replay.ratio=0.4",  # 12 + 5 rows, which neither two mini-batches nor ranks divide
        *([] if dynamic else [f"{actor}.ppo_micro_batch_size_per_gpu=2"]),
        *options,
        prompts=4,
        mini_batch=2,
    )


@pytest.mark.parametrize("agg", MODES)
@pytest.mark.parametrize("loss_mode", ["vanilla", "gspo", "sapo", "cispo", "dro", "dppo_tv", "dppo_kl"])
def test_every_loss_in_every_aggregation(loss_mode, agg):
    config = config_of(loss_mode=loss_mode, agg=agg)
    check_every_gradient(config, ranks=2, loss_mode=loss_mode, agg=agg, importance="behavior")


@pytest.mark.parametrize("agg", MODES)
@pytest.mark.parametrize("correction", ["null", "token"])
@pytest.mark.parametrize("importance", ["behavior", "proximal", "decoupled"])
def test_every_importance_mode_with_and_without_rollout_correction(importance, correction, agg):
    options = [f"replay.importance={importance}", f"algorithm.rollout_correction.rollout_is={correction}"]
    check_every_gradient(config_of(*options, agg=agg), ranks=1, loss_mode="vanilla", agg=agg, importance=importance)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("composition", ["fresh_anchored", "pooled"])
def test_at_any_rank_count_with_and_without_dynamic_batch_sizes(ranks, dynamic, composition):
    config = config_of(f"replay.composition={composition}", agg="seq-mean-token-mean", dynamic=dynamic)
    check_every_gradient(config, ranks=ranks, loss_mode="vanilla", agg="seq-mean-token-mean", importance="behavior")


@pytest.mark.parametrize("correction", ["null", "token"])
@pytest.mark.parametrize("importance", ["behavior", "decoupled"])
def test_weights_of_prioritized_replay_multiply_those_of_the_mode(importance, correction):
    """PER's (N P)^-beta on drawn rows, on top of rollout correction's and the mode's own weights; 1 on fresh rows."""
    seen = []

    def weight_of(step, ids, replayed):
        if not replayed:
            return 1.0
        drawn = step.chosen.replayed.rows.columns
        stored = [
            (*drawn["prompts"].row(i).tolist(), *drawn["responses"].row(i).tolist())
            for i in range(step.chosen.replayed.rows.count)
        ]
        seen.append(step.chosen.replayed_weight[stored.index(ids)])
        return seen[-1]

    config = config_of(
        "replay.importance_sampling_exponent=0.7",
        "replay.priority_exponent=1.0",
        f"replay.importance={importance}",
        f"algorithm.rollout_correction.rollout_is={correction}",
    )
    check_every_gradient(
        config, ranks=2, loss_mode="vanilla", agg="token-mean", importance=importance, weight_of=weight_of
    )
    assert len(set(seen)) > 2 and max(seen) == 1
