"""The hook for verl's V1 trainer: one seam, between _compute_advantage and _update_actor.

ReplayMixin goes in front of any V1 trainer class of verl's (or of your own): `class Mine(ReplayMixin, PPOTrainerSync)`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer
from verl.workers.utils.padding import response_from_nested

from verl_replay import metrics as names
from verl_replay.layout import Layout, deal
from verl_replay.ragged import Ragged, expand, offsets_of
from verl_replay.store import Rows
from verl_replay.support import check_config
from verl_replay.table import RolloutTable
from verl_replay.trainers import columns
from verl_replay.transform import ReplayTransform, Selection

logger = logging.getLogger(__name__)


class Fresh(NamedTuple):
    """This step's rollouts in canonical order, padding left out."""

    keys: list[str]  # one a row
    tags: list[dict[str, Any]]  # one a row
    ranges: np.ndarray  # (B + 1,) row offsets of the rollouts
    table: RolloutTable  # (B,)
    decided_on: dict[str, Ragged]  # the columns that the table was made of, one entry a row

    def rows(self, rollouts: np.ndarray) -> np.ndarray:
        """Row numbers of the rollouts at `rollouts`."""
        return expand(self.ranges, rollouts)


class ReplayMixin:
    """Adds replay to a V1 trainer by overriding `_update_actor`.

    fit() keeps the fresh batch: verl's critic/*, lengths and dumps describe fresh rollouts, actor/* the whole update.
    """

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        self._replay_options = check_config(config)
        super().__init__(config, *args, **kwargs)
        if self._replay_options.enabled:
            self.rollout_replay = ReplayTransform(self._replay_options)
            self._stored_columns = columns.stored_columns(config)
            self._decision_columns = columns.decision_columns(config)
            self._groups_seen = 0

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()
        if self._replay_options.enabled and self.processor is not None:
            raise ValueError(
                "replay needs a text model, but this one has a processor for other modalities, whose inputs are not "
                "stored. Use a text model, or set replay=off."
            )

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps and self._replay_options.enabled and self._replay_options.replays:
            logger.warning(
                "verl_replay: resumed at step %d with an EMPTY buffer: the buffer is not part of the checkpoint yet. "
                "Nothing is replayed until it has filled again.",
                self.global_steps,
            )

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Train on fresh survivors and drawn rollouts instead of on `batch`; return `batch` as verl made it."""
        if not self._replay_options.enabled:
            return super()._update_actor(batch, metrics)

        with marked_timer("replay", self.timing_raw, color="purple"):
            fresh = self._read_fresh(batch)
            chosen = self.rollout_replay.select(fresh.table, step=self.global_steps)
            self._store_survivors(fresh, chosen, batch.partition_id, metrics)
            layout = self._lay_out(batch, fresh, chosen)
            metrics.update(names.selection(chosen, step=self.global_steps))

        untouched = len(fresh.rows(chosen.trained)) == len(batch) and not len(chosen.replayed.table)
        if layout is None:
            logger.warning("verl_replay: step %d has no survivors; the policy is not updated", self.global_steps)
            metrics.update(names.update(updates=0, null_rows=0, trained_tokens=0))
            return batch

        tokens = int(fresh.table.tokens[chosen.trained].sum() + chosen.replayed.table.tokens.sum())
        nulls = 0 if untouched else layout.null_rows
        metrics.update(names.update(layout.updates, null_rows=nulls, trained_tokens=tokens))
        if untouched:  # nothing dropped, nothing padded, nothing drawn: the stock update on the stock batch
            super()._update_actor(batch, metrics)
        else:
            with self._composed(batch, fresh, chosen, layout, metrics) as composed:
                with _batch_sizes(self.actor_rollout_wg, layout):
                    super()._update_actor(composed, metrics)
        return batch

    def _read_fresh(self, batch: KVBatchMeta) -> Fresh:
        real = [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        keys, tags = [batch.keys[i] for i in real], [batch.tags[i] for i in real]
        wanted = [*self._decision_columns, columns.INDEX]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=wanted)
        order = columns.canonical_order(keys, *self._ordered_by(keys, data, batch.partition_id))
        decided_on = {name: column.take(order) for name, column in columns.read(data, self._decision_columns).items()}
        keys, tags = [keys[i] for i in order.tolist()], [tags[i] for i in order.tolist()]
        ranges = columns.rollout_ranges(keys)
        born = np.array([self._born(tags[row]) for row in ranges[:-1].tolist()], dtype=np.int64)
        table = columns.tabulate(keys, ranges, decided_on, born=born, first_group=self._groups_seen)
        self._groups_seen += len(np.unique(table.group))
        return Fresh(keys, tags, ranges, table, decided_on)

    def _ordered_by(self, keys: list[str], data: TensorDict, partition: str) -> tuple[list[int], Ragged | None]:
        """What puts rows in order: their dataset index, and their prompts where groups share an index."""
        index = columns.dataset_index(data)
        if not columns.shared_index(keys, index):
            return index, None
        wanted = [columns.PROMPT]
        prompts = tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=wanted)
        return index, columns.read(prompts, wanted)[columns.PROMPT]

    def _born(self, tag: dict[str, Any]) -> int:
        """t_b, the step whose update a row is born into."""
        return self.global_steps

    def _store_survivors(self, fresh: Fresh, chosen: Selection, partition: str, metrics: dict) -> None:
        stored = evicted = 0
        if self._replay_options.replays and len(chosen.survivors):
            rows = fresh.rows(chosen.survivors)
            known = {name: column.take(rows) for name, column in fresh.decided_on.items()}
            wanted = [name for name in self._stored_columns if name not in known]
            keys = [fresh.keys[row] for row in rows.tolist()]
            data = tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=wanted)
            known |= columns.read(data, wanted)
            survivors = Rows(
                {name: known[name] for name in self._stored_columns},
                offsets_of(np.diff(fresh.ranges)[chosen.survivors]),
            )
            stored = len(chosen.survivors)
            evicted = self.rollout_replay.store(fresh.table.take(chosen.survivors), survivors)
        metrics.update(names.buffer(self.rollout_replay.buffer, stored=stored, evicted_capacity=evicted))

    def _lay_out(self, batch: KVBatchMeta, fresh: Fresh, chosen: Selection) -> Layout | None:
        """Deal the rows over mini-batches and ranks; None where no fresh rollout survives."""
        actor = self.config.actor_rollout_ref.actor
        survivors = len(fresh.rows(chosen.survivors))
        lengths = [fresh.tags[row]["seq_len"] for row in fresh.rows(chosen.trained).tolist()]
        trained = len(lengths) + chosen.replayed.rows.count
        if not survivors or not trained:
            return None
        stock_updates = len(batch) // (actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n)
        return deal(
            np.array(lengths, dtype=np.int64),
            columns.sequence_lengths(chosen.replayed.rows),
            updates=min(stock_updates, survivors, trained),
            ranks=self._ranks(),
            multiple_of=1 if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu,
        )

    def _ranks(self) -> int:
        return max(self.actor_rollout_wg._dispatch_info["actor"]) + 1  # filled by verl's _balance_batch

    @contextmanager
    def _composed(
        self, batch: KVBatchMeta, fresh: Fresh, chosen: Selection, layout: Layout, metrics: dict
    ) -> Iterator[KVBatchMeta]:
        """The batch to train on: fresh rows under verl's keys, drawn and null rows under ours, cleared after."""
        replayed = chosen.replayed.rows
        diagnose = self._diagnoses() and len(chosen.replayed.table) > 0
        to_diagnose = -replayed.count % self._inference_multiple() if diagnose else 0
        with marked_timer("replay", self.timing_raw, color="purple"):
            drawn, null = self._put(replayed, max(layout.null_rows, to_diagnose), batch.partition_id)
        try:
            if diagnose:
                with marked_timer("replay_diagnostics", self.timing_raw, color="purple"):
                    keys = [*drawn, *null[:to_diagnose]]
                    metrics.update(self._log_ratio(keys, chosen, batch.partition_id))
            trained = [fresh.keys[row] for row in fresh.rows(chosen.trained).tolist()]
            yield self._batch([*trained, *drawn, *null], layout.with_nulls_from(len(trained) + len(drawn)), batch)
        finally:
            if drawn or null:
                tq.kv_clear(keys=[*drawn, *null], partition_id=batch.partition_id)

    def _put(self, replayed: Rows, nulls: int, partition: str) -> tuple[list[str], list[str]]:
        """Write drawn and null rows to TransferQueue. Returns their keys, in order."""
        parts = [replayed] if replayed.count else []
        if nulls:
            parts.append(columns.null_rows(nulls, self._stored_columns, self.tokenizer.eos_token_id))
        if not parts:
            return [], []
        joined = Rows.concat(parts)
        # verl reads a key as uid, session and trajectory: three fields, no underscore inside a uid
        drawn = [f"replayed-{self.global_steps}-{i}_0_0" for i in range(replayed.count)]
        null = [f"null-{self.global_steps}-{i}_0_0" for i in range(nulls)]
        tags = [{"is_padding": False}] * len(drawn) + [{"is_padding": True}] * nulls
        tq.kv_batch_put(keys=[*drawn, *null], partition_id=partition, fields=columns.to_fields(joined), tags=tags)
        return drawn, null

    def _batch(self, keys: list[str], order: np.ndarray, like: KVBatchMeta) -> KVBatchMeta:
        """The keys in `order`, restricted to the columns of the update."""
        return KVBatchMeta(
            keys=[keys[i] for i in order.tolist()],
            tags=[{} for _ in order],
            partition_id=like.partition_id,
            fields=[*self._stored_columns, *columns.DERIVED],
            extra_info={},
        )

    def _diagnoses(self) -> bool:
        every = self._replay_options.diagnostics_every
        return every > 0 and self.global_steps % every == 0

    def _inference_multiple(self) -> int:
        """Rows of a forward pass must divide by this."""
        rollout = self.config.actor_rollout_ref.rollout
        micro_batch = 1 if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu
        return self._ranks() * micro_batch

    def _log_ratio(self, keys: list[str], chosen: Selection, partition: str) -> dict[str, float]:
        """One forward pass of the drawn rows under the policy that the update starts from.

        Args:
            keys: of the drawn rows, then of as many null rows as make the number divide.
        """
        batch = self._batch(keys, np.arange(len(keys)), KVBatchMeta(partition_id=partition))
        batch.extra_info.update(
            calculate_entropy=False,
            compute_loss=False,
            temperature=self.config.actor_rollout_ref.rollout.temperature,
        )
        self.actor_rollout_wg.compute_log_prob(batch)
        replayed = chosen.replayed.rows
        data = tq.kv_batch_get(
            keys=keys[: replayed.count], partition_id=partition, select_fields=["log_probs", columns.MASK]
        )
        now = columns.to_ragged(response_from_nested(data["log_probs"], data[columns.MASK]))
        birth, mask = replayed.columns[columns.LOG_PROB], replayed.columns[columns.MASK]
        row_age = np.repeat(chosen.replayed.table.age(self.global_steps), np.diff(replayed.rollouts))
        return names.log_ratio_by_age(now.values - birth.values, mask.values > 0, np.repeat(row_age, mask.lengths))


class ReplayTrainerSync(ReplayMixin, PPOTrainerSync):
    """verl's synchronous trainer with replay."""


@contextmanager
def _batch_sizes(worker_group: Any, layout: Layout) -> Iterator[None]:
    """Have verl's own _update_actor send the sizes of this layout: it overwrites whatever is set before it runs."""
    original = worker_group.update_actor
    shadowed = vars(worker_group).get("update_actor")

    def update_actor(batch: KVBatchMeta) -> Any:
        batch.extra_info.update(mini_batch_size=layout.mini_batch_size, global_batch_size=layout.global_batch_size)
        return original(batch)

    worker_group.update_actor = update_actor
    try:
        yield
    finally:
        if shadowed is None:
            del worker_group.update_actor
        else:
            worker_group.update_actor = shadowed
