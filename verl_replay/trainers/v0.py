"""The hook for verl's V0 trainer (RayPPOTrainer, trainer.use_v1=false), whose batch is a DataProto.

ReplayMixinV0 goes in front of RayPPOTrainer or of any trainer that calls its _update_actor(batch).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
from verl_replay.trainers.stage import Fresh, Plan, ReplayStage, batch_sizes

logger = logging.getLogger(__name__)

_ROW = "verl_replay_row"


class ReplayMixinV0:
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

    def _load_checkpoint(self) -> Any:
        loaded = super()._load_checkpoint()
        if self.global_steps and self._replay_options.enabled and self._replay_options.replays:
            logger.warning(
                "verl_replay: resumed at step %d with an EMPTY buffer: the buffer is not part of the checkpoint yet. "
                "Nothing is replayed until it has filled again.",
                self.global_steps,
            )
        return loaded

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
        generated = self._generated_order
        generated = np.arange(len(batch)) if generated is None else generated
        uids = batch.non_tensor_batch["uid"].tolist()
        keys = [""] * len(batch)
        counts: dict[str, int] = {}
        for row in np.argsort(generated).tolist():  # V0 has no session numbers: counted as the rollouts were generated
            counts[uids[row]] = counts.get(uids[row], -1) + 1
            keys[row] = f"{uids[row]}_{counts[uids[row]]}_0"
        every = np.arange(len(batch))
        index = [int(i) for i in batch.non_tensor_batch.get(columns.INDEX, np.zeros(len(batch)))]
        prompts = padded.read(batch, [columns.PROMPT], every)[columns.PROMPT]
        order = columns.canonical_order(keys, index, prompts if columns.shared_index(keys, index) else None)
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


def _row_by_row(rows: Rows) -> Rows:
    """The same rows, each by itself, so that `take` picks single rows."""
    return Rows(rows.columns, np.arange(rows.count + 1))


class ReplayRayPPOTrainer(ReplayMixinV0, RayPPOTrainer):
    """verl's V0 trainer with replay."""
