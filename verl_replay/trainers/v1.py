"""The hook for verl's V1 trainers: one seam, between _compute_advantage and _update_actor.

ReplayMixin goes in front of any V1 trainer class of verl's (or of your own): `class Mine(ReplayMixin, PPOTrainerSync)`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer
from verl.workers.utils.padding import response_from_nested

from verl_replay import metrics as names
from verl_replay.ragged import Ragged
from verl_replay.store import Rows
from verl_replay.support import check_config
from verl_replay.trainers import columns
from verl_replay.trainers.resuming import ResumingMixin
from verl_replay.trainers.stage import Fresh, Plan, ReplayStage, batch_sizes

logger = logging.getLogger(__name__)


class ReplayMixin(ResumingMixin):
    """Adds replay to a V1 trainer by overriding `_update_actor`.

    fit() keeps the fresh batch: verl's critic/*, lengths and dumps describe fresh rollouts, actor/* the whole update.
    """

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        self._replay_options = check_config(config)
        super().__init__(config, *args, **kwargs)
        if self._replay_options.enabled:
            reward = columns.REWARD if config.algorithm.use_kl_in_reward else columns.SCORE
            self.replay_stage = ReplayStage(config, self._replay_options, reward=reward)

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()
        if self._replay_options.enabled and self.processor is not None:
            raise ValueError(
                "replay needs a text model, but this one has a processor for other modalities, whose inputs are not "
                "stored. Use a text model, or set replay=off."
            )

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Train on fresh survivors and drawn rollouts instead of on `batch`; return `batch` as verl made it."""
        if not self._replay_options.enabled:
            return super()._update_actor(batch, metrics)

        ours: dict[str, float] = {}
        with marked_timer("replay", self.timing_raw, color="purple"):
            fresh = self._read_fresh(batch)
            plan = self.replay_stage.plan(
                fresh, ours, step=self.global_steps, batch_rows=len(batch), ranks=self._ranks()
            )
        if plan is None:
            logger.warning("verl_replay: step %d has no survivors; the policy is not updated", self.global_steps)
        elif plan.untouched:
            super()._update_actor(batch, metrics)
        else:
            with self._composed(batch, fresh, plan, ours) as composed:
                with batch_sizes(self.actor_rollout_wg, plan.layout, _assign):
                    super()._update_actor(composed, metrics)
        metrics.update(names.summed(ours) if self.parameter_sync_step > 1 else ours)
        return batch

    def _read_fresh(self, batch: KVBatchMeta) -> Fresh:
        real = [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        keys, tags = [batch.keys[i] for i in real], [batch.tags[i] for i in real]
        wanted = self.replay_stage.decision_columns
        if not keys:
            return Fresh.none(wanted)
        columns.check_keys(keys)
        _check_tags(keys, tags, ["seq_len", *self._tags_of_birth])
        self._check_held(keys, batch.partition_id)
        data = self._get(keys, batch.partition_id, [*wanted, columns.INDEX])
        order = columns.canonical_order(keys, *self._ordered_by(keys, data, batch.partition_id))
        keys, tags = [keys[i] for i in order.tolist()], [tags[i] for i in order.tolist()]
        ranges = columns.rollout_ranges(keys)

        def read(wanted: Sequence[str], rows: np.ndarray) -> dict[str, Ragged]:
            once, where = np.unique(rows, return_inverse=True)  # a draw with replacement may repeat a row
            got = columns.read(self._get([keys[row] for row in once.tolist()], batch.partition_id, wanted), wanted)
            if np.array_equal(where, np.arange(len(once))):
                return got
            return {name: column.take(where) for name, column in got.items()}

        return Fresh(
            keys=keys,
            ranges=ranges,
            lengths=np.array([tag["seq_len"] for tag in tags], dtype=np.int64),
            born=np.array([self._born(tags[row]) for row in ranges[:-1].tolist()], dtype=np.int64),
            decided_on=columns.read(data, wanted),
            order=order,
            read=read,
        )

    def _check_held(self, keys: list[str], partition: str) -> None:
        """Raise ValueError where TransferQueue lacks a row, or a row a column that is read or sent; reads no data."""
        held = tq.get_client().kv_retrieve_meta(keys=keys, partition_id=partition, create=False)
        if held.size != len(keys):
            raise ValueError(
                f"TransferQueue must hold every row of verl's batch, got {held.size} of {len(keys)} in partition "
                f"{partition!r}. Clear rows only after the step that trains on them."
            )
        stage = self.replay_stage
        needed = {*stage.decision_columns, *stage.stored_columns, *stage.update_columns, *columns.DERIVED}
        columns.check_present(needed, held.field_names)

    def _get(self, keys: list[str], partition: str, wanted: Sequence[str]) -> TensorDict:
        return tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=list(wanted))

    def _ordered_by(self, keys: list[str], data: TensorDict, partition: str) -> tuple[list[int], Ragged | None]:
        """What puts rows in order: their dataset index, and their prompts where groups share an index."""
        index = columns.dataset_index(data)
        if not columns.shared_index(keys, index):
            return index, None
        wanted = [columns.PROMPT]
        return index, columns.read(self._get(keys, partition, wanted), wanted)[columns.PROMPT]

    _tags_of_birth: tuple[str, ...] = ()  # that _born reads

    def _born(self, tag: dict[str, Any]) -> int:
        """t_b, the step whose update a row is born into."""
        return self.global_steps

    def _ranks(self) -> int:
        return max(self.actor_rollout_wg._dispatch_info["actor"]) + 1  # filled by verl's _balance_batch

    @contextmanager
    def _composed(self, batch: KVBatchMeta, fresh: Fresh, plan: Plan, log: dict) -> Iterator[KVBatchMeta]:
        """The batch to train on: fresh rows under verl's keys if they can be, others under ours, cleared after."""
        stage, partition = self.replay_stage, batch.partition_id
        diagnose = stage.diagnoses(self.global_steps)
        recompute = stage.options.recomputes and plan.replayed.count > 0
        forward = plan.replayed.count * (diagnose or recompute) + len(plan.fresh_rows) * diagnose
        to_divide = -forward % self._inference_multiple() if forward else 0
        with marked_timer("replay", self.timing_raw, color="purple"):
            parts = {
                "fresh": stage.fresh_rows(fresh, plan) if plan.rewritten else None,
                "replayed": stage.drawn_rows(plan) if plan.replayed.count else None,
                "null": stage.null_rows(max(plan.layout.null_rows, to_divide), plan, self.tokenizer.eos_token_id),
            }
            written = self._put(parts, partition)
        try:
            trained = written["fresh"] or [fresh.keys[row] for row in plan.fresh_rows.tolist()]
            drawn, null = written["replayed"], written["null"]
            if forward:
                with marked_timer("replay_forward", self.timing_raw, color="purple"):
                    keys = [*(trained if diagnose else []), *drawn]
                    now = self._log_probs(keys, null[:to_divide], partition)
                if diagnose:
                    log.update(stage.ratios(fresh, plan, now, step=self.global_steps))
                if recompute:
                    changed = stage.recomputed(plan, now.take(np.arange(len(keys) - len(drawn), len(keys))))
                    fields = TensorDict(
                        {name: columns.to_nested(column) for name, column in changed.items()}, batch_size=len(drawn)
                    )
                    tq.kv_batch_put(keys=drawn, partition_id=partition, fields=fields)
            order = plan.layout.with_nulls_from(len(trained) + len(drawn))
            yield self._batch([*trained, *drawn, *null], order, partition, weighted=plan.weighted)
        finally:
            if ours := [key for keys in written.values() for key in keys]:
                tq.kv_clear(keys=ours, partition_id=partition)

    def _put(self, parts: dict[str, Rows | None], partition: str) -> dict[str, list[str]]:
        """Write rows to TransferQueue, kind by kind. Returns the keys of each kind, in order."""
        # verl reads a key as uid, session and trajectory: three fields, no underscore inside a uid
        keys = {
            kind: [f"{kind}-{self.global_steps}-{i}_0_0" for i in range(rows.count if rows else 0)]
            for kind, rows in parts.items()
        }
        rows = [rows for rows in parts.values() if rows is not None and rows.count]
        if rows:
            tags = [{"is_padding": kind == "null"} for kind, of_kind in keys.items() for _ in of_kind]
            fields = columns.to_fields(Rows.concat(rows))
            flat = [key for of_kind in keys.values() for key in of_kind]
            tq.kv_batch_put(keys=flat, partition_id=partition, fields=fields, tags=tags)
        return keys

    def _batch(self, keys: list[str], order: np.ndarray, partition: str, *, weighted: bool) -> KVBatchMeta:
        """The keys in `order`, restricted to the columns of the update."""
        fields = [*self.replay_stage.update_columns, *columns.DERIVED, *([columns.WEIGHT] if weighted else [])]
        return KVBatchMeta(
            keys=[keys[i] for i in order.tolist()],
            tags=[{} for _ in order],
            partition_id=partition,
            fields=list(dict.fromkeys(fields)),
            extra_info={},
        )

    def _inference_multiple(self) -> int:
        """Rows of a forward pass must divide by this."""
        rollout = self.config.actor_rollout_ref.rollout
        micro_batch = 1 if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu
        return self._ranks() * micro_batch

    def _log_probs(self, keys: list[str], padding: list[str], partition: str) -> Ragged:
        """Log-probs of the rows at `keys` under the policy as it is, response tokens of each: one forward pass.

        Args:
            padding: keys of as many null rows as make the number divide.
        """
        everything = [*keys, *padding]
        batch = self._batch(everything, np.arange(len(everything)), partition, weighted=False)
        batch.extra_info.update(
            calculate_entropy=False,
            compute_loss=False,
            temperature=self.config.actor_rollout_ref.rollout.temperature,
        )
        self.actor_rollout_wg.compute_log_prob(batch)
        data = self._get(keys, partition, ["log_probs", columns.MASK])
        return columns.to_ragged(response_from_nested(data["log_probs"], data[columns.MASK]))


class ReplayTrainerSync(ReplayMixin, PPOTrainerSync):
    """verl's synchronous trainer with replay."""


class _BornAhead(ReplayMixin):
    """For modes in which rollouts run ahead: a rollout is born into the update after the weights that began it."""

    _tags_of_birth = ("min_global_steps",)

    def _born(self, tag: dict[str, Any]) -> int:
        return int(tag["min_global_steps"]) + 1  # min_global_steps is the version of the weights, 0 for step 1


class ReplayTrainerColocateAsync(_BornAhead, PPOTrainerColocateAsync):
    """verl's asynchronous trainer on the GPUs of the rollout, with replay."""


class ReplayTrainerSeparateAsync(_BornAhead, PPOTrainerSeparateAsync):
    """verl's asynchronous trainer on GPUs of its own, with replay."""


TRAINERS = {  # by trainer.v1.trainer_mode
    "sync": ReplayTrainerSync,
    "colocate_async": ReplayTrainerColocateAsync,
    "separate_async": ReplayTrainerSeparateAsync,
}


def _check_tags(keys: Sequence[str], tags: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    for key, tag in zip(keys, tags, strict=True):
        for name in names:
            if not isinstance(number := tag.get(name), Integral) or number < 0:
                raise ValueError(
                    f"tag {name} of every row must be a whole number >= 0, as verl's agent loop writes it, got "
                    f"{number!r} of {key!r}. Look for what wrote the row, or set replay=off."
                )


def _assign(batch: KVBatchMeta, **sizes: Any) -> None:
    batch.extra_info.update(sizes)
