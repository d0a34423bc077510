"""The hook for verl's V0 trainer (RayPPOTrainer, trainer.use_v1=false), whose batch is a DataProto.

ReplayMixinV0 goes in front of RayPPOTrainer or of any trainer that calls its _update_actor(batch).
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer

from verl_replay.ragged import Ragged
from verl_replay.store import Rows
from verl_replay.support import check_config
from verl_replay.trainers import columns, padded
from verl_replay.trainers.resuming import ResumingMixin
from verl_replay.trainers.stage import Fresh, Plan, ReplayStage, batch_sizes

logger = logging.getLogger(__name__)

_ROW = "verl_replay_row"


class ReplayMixinV0(ResumingMixin):
    """Adds replay to a V0 trainer by overriding `_update_actor`. fit() keeps the fresh batch, as in V1."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        self._replay_options = check_config(config)
        super().__init__(config, *args, **kwargs)
        if self._replay_options.enabled:
            if self.processor is not None:
                raise ValueError(
                    "replay needs a text model, but this one has a processor for other modalities, whose inputs are "
                    "not stored. Use a text model, or set replay=off."
                )
            self.replay_stage = ReplayStage(self.config, self._replay_options, reward=columns.REWARD)
            self._generated_order: np.ndarray | None = None

    def _balance_batch(self, batch: DataProto, *args: Any, **kwargs: Any) -> Any:
        """verl's own, which reorders rows; remembers in which order they were generated."""
        if not self._replay_options.enabled:
            return super()._balance_batch(batch, *args, **kwargs)
        batch.non_tensor_batch[_ROW] = np.arange(len(batch))
        try:
            return super()._balance_batch(batch, *args, **kwargs)
        finally:
            self._generated_order = batch.non_tensor_batch.pop(_ROW)

    def _update_actor(self, batch: DataProto) -> DataProto:
        """Train on fresh survivors and drawn rollouts instead of on `batch`, which stays as it is."""
        if not self._replay_options.enabled:
            return super()._update_actor(batch)

        ours: dict[str, Any] = {}
        timing: dict[str, float] = {}
        with marked_timer("replay", timing, color="purple"):
            fresh = self._read_fresh(batch)
            ranks = self._get_dp_size(self.actor_rollout_wg, "actor")
            plan = self.replay_stage.plan(fresh, ours, step=self.global_steps, batch_rows=len(batch), ranks=ranks)
        if plan is None:
            logger.warning("verl_replay: step %d has no survivors; the policy is not updated", self.global_steps)
            output = DataProto(meta_info={"metrics": {}})
        elif plan.untouched:
            output = super()._update_actor(batch)
        else:
            composed = self._compose(batch, fresh, plan, ranks, ours, timing)
            with batch_sizes(self.actor_rollout_wg, plan.layout, tu.assign_non_tensor):
                output = super()._update_actor(composed)
        output.meta_info["metrics"] |= ours | {f"timing_s/{name}": seconds for name, seconds in timing.items()}
        return output

    def _read_fresh(self, batch: DataProto) -> Fresh:
        padded.check(batch, [*self.replay_stage.decision_columns, *self.replay_stage.stored_columns])
        keys, index = self._keys(batch), _index(batch)
        columns.check_keys(keys)
        every = np.arange(len(batch))
        prompts = None
        if columns.shared_index(keys, index):
            prompts = padded.read(batch, [columns.PROMPT], every)[columns.PROMPT]
        order = columns.canonical_order(keys, index, prompts)
        keys = [keys[row] for row in order.tolist()]

        def read(wanted: Sequence[str], rows: np.ndarray) -> dict[str, Ragged]:
            return padded.read(batch, wanted, order[rows])

        return Fresh(
            keys=keys,
            ranges=columns.rollout_ranges(keys),
            lengths=sum(padded.lengths(batch))[order],
            born=np.full(len(keys), self.global_steps),
            decided_on=padded.read(batch, self.replay_stage.decision_columns, every),
            order=order,
            read=read,
        )

    def _keys(self, batch: DataProto) -> list[str]:
        """A key of V1's form for every row. V0 has no session numbers: counted as the rollouts were generated."""
        groups = _groups(batch)
        generated = self._generated_order
        generated = np.arange(len(batch)) if generated is None or len(generated) != len(batch) else generated
        keys = [""] * len(batch)
        counts: dict[int, int] = {}
        for row in np.argsort(generated).tolist():
            counts[groups[row]] = counts.get(groups[row], -1) + 1
            keys[row] = f"{groups[row]}_{counts[groups[row]]}_0"
        return keys

    def _compose(
        self, batch: DataProto, fresh: Fresh, plan: Plan, ranks: int, log: dict[str, Any], timing: dict[str, float]
    ) -> DataProto:
        """The batch to train on: the same columns as verl's own, in the order of the layout."""
        stage = self.replay_stage
        drawn = stage.drawn_rows(plan) if plan.replayed.count else None
        with marked_timer("replay", timing, color="purple"):
            trained = stage.fresh_rows(fresh, plan)
        diagnose = stage.diagnoses(self.global_steps)
        if diagnose or (stage.options.recomputes and drawn):
            with marked_timer("replay_forward", timing, color="purple"):
                parts = [*([trained] if diagnose else []), *([drawn] if drawn else [])]
                now = self._log_probs(batch, Rows.concat(parts), plan, ranks)
            if diagnose:
                log.update(stage.ratios(fresh, plan, now, step=self.global_steps))
            if stage.options.recomputes and drawn:
                now = now.take(np.arange(len(now) - drawn.count, len(now)))
                drawn = Rows({**drawn.columns, **stage.recomputed(plan, now)}, drawn.rollouts)
        with marked_timer("replay", timing, color="purple"):
            null = stage.null_rows(plan.layout.null_rows, plan, self.tokenizer.pad_token_id)
            rows = Rows.concat([_row_by_row(part) for part in (trained, drawn, null) if part is not None])
            order = plan.layout.with_nulls_from(rows.count - null.count)
            return self._padded(batch, rows.take(order))

    def _padded(self, like: DataProto, rows: Rows) -> DataProto:
        return padded.to_dataproto(
            rows,
            prompt_width=like.batch[columns.PROMPT].shape[1],
            response_width=like.batch[columns.RESPONSE].shape[1],
            pad_token=self.tokenizer.pad_token_id,
            meta_info=like.meta_info,
        )

    def _log_probs(self, batch: DataProto, rows: Rows, plan: Plan, ranks: int) -> Ragged:
        """Log-probs of the rows under the policy as it is, response tokens of each: one forward pass of verl's own."""
        rollout = self.config.actor_rollout_ref.rollout
        micro_batch = 1 if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu
        null = self.replay_stage.null_rows(-rows.count % (ranks * micro_batch), plan, self.tokenizer.pad_token_id)
        composed = self._padded(batch, Rows.concat([rows, null]))
        output, _ = self._compute_old_log_prob(composed)
        composed.batch[columns.LOG_PROB] = output.batch["old_log_probs"]
        return padded.read(composed, [columns.LOG_PROB], np.arange(rows.count))[columns.LOG_PROB]


def _groups(batch: DataProto) -> list[int]:
    """The group of each row, numbered as they come: rows of equal uid, whatever a uid is, as verl's own advantage."""
    uids = batch.non_tensor_batch.get("uid")
    if uids is None or np.shape(uids) != (len(batch),) or not all(isinstance(uid, Hashable) for uid in uids):
        got = "none" if uids is None else f"{type(uids).__name__} {np.shape(uids)}"
        raise ValueError(
            f"verl's batch must have a uid a row, ({len(batch)},) in non_tensor_batch, got {got}. "
            "Look for the stage that should write it, or set replay=off."
        )
    seen: dict[Any, int] = {}
    return [seen.setdefault(uid, len(seen)) for uid in uids.tolist()]


def _index(batch: DataProto) -> list[int]:
    """Dataset index of each row's prompt; 0 where the batch has none, so that prompts order the groups."""
    index = batch.non_tensor_batch.get(columns.INDEX)
    if index is None:
        return [0] * len(batch)
    if np.shape(index) != (len(batch),):
        raise ValueError(
            f"the column index must have one entry a row, ({len(batch)},), got {np.shape(index)}. "
            "Look for the stage that writes it, or set replay=off."
        )
    return columns.whole_numbers(index.tolist())


def _row_by_row(rows: Rows) -> Rows:
    """The same rows, each by itself, so that `take` picks single rows."""
    return Rows(rows.columns, np.arange(rows.count + 1))


class ReplayRayPPOTrainer(ReplayMixinV0, RayPPOTrainer):
    """verl's V0 trainer with replay."""
