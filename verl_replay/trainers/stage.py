"""ReplayStage: what the hooks of both trainer generations share. It decides and remembers; the hooks move the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig

from verl_replay import importance, metrics
from verl_replay.checkpoint import State
from verl_replay.layout import Layout, deal
from verl_replay.options import ReplayOptions
from verl_replay.ragged import Ragged, expand, offsets_of
from verl_replay.store import Rows
from verl_replay.table import RolloutTable
from verl_replay.trainers import columns
from verl_replay.transform import ReplayTransform, Selection

Read = Callable[[Sequence[str], np.ndarray], dict[str, Ragged]]  # (names, row numbers) -> columns of these rows


class Fresh(NamedTuple):
    """This step's rollouts, padding left out. Rows are numbered in canonical order.

    Attributes:
        keys: "{uid}_{session}_{trajectory}", one a row.
        ranges: (B + 1,) row offsets of the rollouts.
        lengths: (rows,) int64, tokens of each row, prompt and response.
        born: (B,) int64, t_b of each rollout.
        decided_on: the columns that the table is made of, one entry a row, as they came.
        order: (rows,) int64, where in `decided_on` each row is.
        read: reads other columns of some rows.
    """

    keys: list[str]
    ranges: np.ndarray
    lengths: np.ndarray
    born: np.ndarray
    decided_on: dict[str, Ragged]
    order: np.ndarray
    read: Read

    @staticmethod
    def none(names: Sequence[str]) -> Fresh:
        """No rollouts, of a batch that is empty or nothing but padding; `names` are the columns decided on."""
        nothing = np.empty(0, dtype=np.int64)
        start = np.zeros(1, dtype=np.int64)
        return Fresh([], start, nothing, nothing, columns.of_no_rows(names), nothing, lambda names, rows: {})

    def rows(self, rollouts: np.ndarray) -> np.ndarray:
        """Row numbers of the rollouts at `rollouts`."""
        return expand(self.ranges, rollouts)

    def columns(self, names: Sequence[str], rows: np.ndarray) -> dict[str, Ragged]:
        """The named columns of the rows at `rows`; what was read before is not read again."""
        if not len(rows):  # a pooled draw may leave out every fresh row; TransferQueue reads no less than one
            return columns.of_no_rows(names)
        known = {name: self.decided_on[name].take(self.order[rows]) for name in names if name in self.decided_on}
        known |= self.read([name for name in names if name not in known], rows)
        columns.check(known, checked=self.decided_on)
        return {name: known[name] for name in names}


class Plan(NamedTuple):
    """What one update trains on.

    Attributes:
        chosen: the decision behind it.
        fresh_rows: (F,) int64, fresh rows that are trained on; a draw with replacement may repeat one.
        fresh_weight: (F,) float64, importance-sampling weight of each.
        replayed_weight: (replayed rows,) float64.
        layout: their order, with null rows.
        untouched: the update is the stock update on the stock batch: nothing dropped, drawn or weighted.
        weighted: the update reads rollout_is_weights.
        rewritten: fresh rows cannot be sent as they are: they need a weight that verl's batch lacks, or stand in twice.
    """

    chosen: Selection
    fresh_rows: np.ndarray
    fresh_weight: np.ndarray
    replayed_weight: np.ndarray
    layout: Layout
    untouched: bool
    weighted: bool
    rewritten: bool

    @property
    def replayed(self) -> Rows:
        return self.chosen.replayed.rows

    def ages(self, step: int) -> np.ndarray:
        """(replayed rows,) int64, age of each."""
        return np.repeat(self.chosen.replayed.table.age(step), np.diff(self.replayed.rollouts))


class ReplayStage:
    """The stage between advantage and update: the transform with its buffer, and the columns of this configuration.

    Args:
        config: verl's composed config.
        options: the checked `replay` node.
        reward: the column of token-level rewards that the advantage was made of.
    """

    def __init__(self, config: DictConfig, options: ReplayOptions, *, reward: str) -> None:
        self.options = options
        self.transform = ReplayTransform(options)
        self.groups_seen = 0
        self.decision_columns = columns.decision_columns(config, options, reward=reward)
        self.stored_columns = columns.stored_columns(config, options)
        self.update_columns = columns.update_columns(config)
        self._reward = reward
        self._config = config
        self._actor = config.actor_rollout_ref.actor
        self._rows_of_mini_batch = self._actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
        self._weighted_by_verl = columns.weighted_by_verl(config)

    def plan(self, fresh: Fresh, log: dict[str, Any], *, step: int, batch_rows: int, ranks: int) -> Plan | None:
        """Filter, evict, draw, store and lay out.

        Args:
            fresh: this step's rollouts.
            log: gets the metrics.
            step: t, from 1.
            batch_rows: rows of verl's own batch, padding included.
            ranks: data-parallel size.

        Returns:
            None where no fresh rollout survives: the policy is not updated.
        """
        table = columns.tabulate(
            fresh.keys,
            fresh.ranges,
            fresh.decided_on,
            born=fresh.born,
            first_group=self.groups_seen,
            order=fresh.order,
            reward=self._reward,
        )
        filtered = self.transform.filter(table, step=step)
        rows_of_survivors = self._read_survivors(fresh, np.flatnonzero(filtered.keep))
        # everything is read and checked: a batch that is refused has changed nothing
        self.groups_seen += len(np.unique(table.group))
        chosen = self.transform.select(table, step=step, filtered=filtered)
        log.update(self._store(table.take(chosen.survivors), rows_of_survivors, step))
        log.update(metrics.selection(chosen, step=step, max_age=self.options.max_age))
        layout = self._layout(fresh, chosen, batch_rows, ranks)
        if layout is None:
            log.update(metrics.update(updates=0, null_rows=0, trained_tokens=0))
            return None
        plan = self._plan(fresh, chosen, layout, fresh.rows(chosen.trained), batch_rows)
        tokens = int(table.tokens[chosen.trained].sum() + chosen.replayed.table.tokens.sum())
        updates, nulls = (self._stock_updates(batch_rows), 0) if plan.untouched else (layout.updates, layout.null_rows)
        log.update(metrics.update(updates, null_rows=nulls, trained_tokens=tokens))
        return plan

    def _stock_updates(self, batch_rows: int) -> int:
        """U: optimizer steps an epoch that verl takes without replay; one where a batch is less than a mini-batch."""
        return max(batch_rows // self._rows_of_mini_batch, 1)

    def _layout(self, fresh: Fresh, chosen: Selection, batch_rows: int, ranks: int) -> Layout | None:
        """The order of the rows, or None where no fresh survivor or no row at all has a token with loss.

        Rows without one (answers cut off or rejected) are dealt last and by number alone, and a mini-batch of nothing
        else is not made: it would have no token to average over.
        """
        rows, replayed = fresh.rows(chosen.trained), chosen.replayed.rows
        of_fresh = columns.with_loss(fresh.decided_on[columns.MASK])[fresh.order]
        of_replayed = columns.with_loss(replayed.columns[columns.MASK]) if replayed.count else np.zeros(0, bool)
        loss = np.concatenate([of_fresh[rows], of_replayed, [False]])  # the last is any null row, -1
        survivors = np.count_nonzero(of_fresh[fresh.rows(chosen.survivors)])
        most = min(self._stock_updates(batch_rows), survivors, np.count_nonzero(loss))
        for updates in range(most, 0, -1):
            layout = deal(
                fresh.lengths[rows] * of_fresh[rows],
                columns.sequence_lengths(replayed) * of_replayed,
                updates=updates,
                ranks=ranks,
                multiple_of=1 if self._actor.use_dynamic_bsz else self._actor.ppo_micro_batch_size_per_gpu,
            )
            if loss[layout.order.reshape(ranks, updates, -1)].any(axis=(0, 2)).all():
                return layout
        return None

    def _read_survivors(self, fresh: Fresh, survivors: np.ndarray) -> Rows | None:
        """The rows to store, or None where nothing stored is ever drawn."""
        if not self.options.replays or not len(survivors):
            return None
        offsets = offsets_of(np.diff(fresh.ranges)[survivors])
        return Rows(fresh.columns(self.stored_columns, fresh.rows(survivors)), offsets)

    def _store(self, survivors: RolloutTable, rows: Rows | None, step: int) -> dict[str, float]:
        if rows is None:
            return metrics.buffer(self.transform.buffer, stored=0, evicted_capacity=0)
        evicted = self.transform.store(survivors, rows, step=step)
        return metrics.buffer(self.transform.buffer, stored=len(survivors), evicted_capacity=evicted)

    def _plan(self, fresh: Fresh, chosen: Selection, layout: Layout, rows: np.ndarray, batch_rows: int) -> Plan:
        fresh_weight = np.repeat(chosen.trained_weight, np.diff(fresh.ranges)[chosen.trained])
        replayed_weight = np.repeat(chosen.replayed_weight, np.diff(chosen.replayed.rows.rollouts))
        every_row_once = np.array_equal(np.sort(rows), np.arange(len(rows)))
        repeats = len(np.unique(rows)) < len(rows)
        reweighted = bool((fresh_weight != 1).any())
        ours = self.options.weighs and (len(replayed_weight) > 0 or reweighted)
        return Plan(
            chosen=chosen,
            fresh_rows=rows,
            fresh_weight=fresh_weight,
            replayed_weight=replayed_weight,
            layout=layout,
            untouched=(
                len(rows) == batch_rows
                and batch_rows % self._rows_of_mini_batch == 0  # verl itself refuses others
                and every_row_once
                and not len(replayed_weight)
                and not reweighted
            ),
            weighted=ours or self._weighted_by_verl,
            rewritten=repeats or reweighted or (ours and not self._weighted_by_verl),
        )

    # ---- state ------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The buffer and what else later steps depend on."""
        arrays, meta = self.transform.buffer.state()
        return State(arrays, {**meta, "groups_seen": self.groups_seen})

    def load(self, state: State) -> int:
        """Go on from a state. Returns how many rollouts the capacity evicted. Raises ValueError as the buffer does."""
        groups_seen = state.meta["groups_seen"]
        evicted = self.transform.buffer.load(state)
        self.groups_seen = groups_seen
        return evicted

    def fingerprint(self) -> dict[str, Any]:
        """What a run must have in common with another to use its rollouts: what their columns are and mean."""
        return {
            "columns": sorted(self.stored_columns),
            "temperature": float(self._config.actor_rollout_ref.rollout.temperature),
            "advantage": str(self._config.algorithm.adv_estimator),
            "advantage_by_std": bool(self._config.algorithm.get("norm_adv_by_std_in_grpo", True)),
            "reward": self._reward,
            "unit": self.options.unit,
        }

    # ---- rows to send ------------------------------------------------------------------------------------------------

    def fresh_rows(self, fresh: Fresh, plan: Plan) -> Rows:
        """The fresh rows that the update trains on, with their weights."""
        rows = Rows(fresh.columns(self.update_columns, plan.fresh_rows), np.arange(len(plan.fresh_rows) + 1))
        return self._with_weights(rows, plan.fresh_weight, plan)

    def drawn_rows(self, plan: Plan) -> Rows:
        """The drawn rows as they were born, with their weights."""
        names = self.update_columns
        rows = Rows({name: plan.replayed.columns[name] for name in names}, plan.replayed.rollouts)
        return self._with_weights(rows, plan.replayed_weight, plan)

    def _with_weights(self, rows: Rows, by_row: np.ndarray, plan: Plan) -> Rows:
        if not plan.weighted or (by_row == 1).all() and columns.WEIGHT in rows.columns:
            return rows
        born_with = rows.columns.get(columns.WEIGHT) or importance.ones_like(rows.columns[columns.LOG_PROB])
        return Rows({**rows.columns, columns.WEIGHT: importance.scaled(born_with, by_row)}, rows.rollouts)

    def null_rows(self, count: int, plan: Plan, token: int) -> Rows:
        """`count` rows without loss, with the columns of the others."""
        names = (*self.update_columns, *((columns.WEIGHT,) if plan.weighted else ()))
        return columns.null_rows(count, tuple(dict.fromkeys(names)), token)

    def recomputed(self, plan: Plan, now: Ragged) -> dict[str, Ragged]:
        """The columns of the drawn rows that modes proximal and decoupled change.

        Args:
            now: (replayed rows, response tokens) log-probs under the policy at the start of the step.
        """
        changed = {columns.LOG_PROB: now}
        if self.options.importance == "decoupled":
            birth = plan.replayed.columns[columns.ROLLOUT_LOG_PROB]
            weight = importance.truncated_ratio(now, birth, cap=self.options.importance_cap)
            changed[columns.WEIGHT] = importance.scaled(weight, plan.replayed_weight)
        return changed

    # ---- diagnostics -------------------------------------------------------------------------------------------------

    def diagnoses(self, step: int) -> bool:
        """Whether this step measures how far the policy is from the rows."""
        return self.options.diagnostics_every > 0 and step % self.options.diagnostics_every == 0

    def ratios(self, fresh: Fresh, plan: Plan, now: Ragged, *, step: int) -> dict[str, float]:
        """Ratios to birth of fresh and drawn rows before the update.

        Args:
            now: log-probs of the fresh rows (`plan.fresh_rows`), then of the drawn rows, response tokens of each.
        """
        names = (columns.LOG_PROB, columns.ADVANTAGE, columns.MASK)
        parts = [fresh.columns(names, plan.fresh_rows)]
        if plan.replayed.count:
            parts.append(plan.replayed.columns)
        birth, advantage, mask = (Ragged.concat([part[name] for part in parts]).values for name in names)
        ages = np.concatenate([np.full(len(plan.fresh_rows), -1), plan.ages(step)])
        clip = metrics.Clip(
            *(
                self._actor.clip_ratio if bound is None else bound
                for bound in (self._actor.clip_ratio_low, self._actor.clip_ratio_high)
            ),
            self._actor.clip_ratio_c,
        )
        age = np.repeat(ages, now.lengths)
        return metrics.ratios(now.values - birth, advantage, mask > 0, age, clip)


@contextmanager
def batch_sizes(worker_group: Any, layout: Layout, assign: Callable[..., Any]) -> Iterator[None]:
    """Have verl's own _update_actor send the sizes of this layout: it overwrites whatever is set before it runs.

    Args:
        worker_group: whose method update_actor(batch) is called meanwhile.
        assign: assign(batch, mini_batch_size=..., global_batch_size=...) sets them.
    """
    original = worker_group.update_actor
    shadowed = vars(worker_group).get("update_actor")

    def update_actor(batch: Any) -> Any:
        assign(batch, mini_batch_size=layout.mini_batch_size, global_batch_size=layout.global_batch_size)
        return original(batch)

    worker_group.update_actor = update_actor
    try:
        yield
    finally:
        if shadowed is None:
            del worker_group.update_actor
        else:
            worker_group.update_actor = shadowed
