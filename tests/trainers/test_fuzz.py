"""Random and malformed batches through the stage alone and through both hooks: a right batch, or a ValueError that says
what to do and has changed nothing.

What is right is worked out from scratch in tests/fuzzing.py. The same cases every time; with VERL_REPLAY_FUZZ=N other
cases, N examples a test, whose seed is printed (VERL_REPLAY_FUZZ_SEED=seed repeats them).
"""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.utils.model import compute_position_id_with_mask
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from tests import fuzzing
from tests.factories import repeatable
from tests.fuzzing import Births, Cell, Expectation, Row
from tests.verl_batch import StubWorkers, compose_config, make_trainer
from tests.verl_batch_v0 import make_trainer_v0
from verl_replay.ragged import Ragged
from verl_replay.store import Rows
from verl_replay.trainers import columns
from verl_replay.trainers.stage import Fresh, ReplayStage

pytestmark = pytest.mark.slow

EXAMPLES = os.environ.get("VERL_REPLAY_FUZZ")
SEED = int(os.environ.get("VERL_REPLAY_FUZZ_SEED", secrets.randbits(32)))

MAX_AGE = 2
WRITTEN_BY_VERL = ("multi_turn", "temperature")  # into the meta_info of the batch that its own update is given
ARMS = {
    "anchored": [],
    "pooled": ["replay=pooled"],
    "per": ["replay=per"],
    "pooled_per": ["replay=per", "replay.composition=pooled"],
    "grouped": ["replay=grouped"],
    "unfiltered": ["replay=unfiltered"],
    "corrected": ["algorithm.rollout_correction.rollout_is=token"],
    "kl_loss": ["actor_rollout_ref.actor.use_kl_loss=true"],
    "kl_in_reward": ["algorithm.use_kl_in_reward=true"],
    "filtered": ["replay=filtered"],
    "capacity": ["replay.capacity=3"],
}
LARGE = ["actor_rollout_ref.actor.ppo_mini_batch_size=64", "data.train_batch_size=64"]
EVERY_COLUMN = ["actor_rollout_ref.actor.use_kl_loss=true", "algorithm.rollout_correction.rollout_is=token"]
FORWARD_ARMS = {  # these need a forward pass, whose log-probs stand in for those at birth
    "proximal": ["replay=proximal", "replay.diagnostics_every=1"],
    "decoupled": ["replay=decoupled"],
}
CHANGED = {
    "per": ["rollout_is_weights"],
    "pooled_per": ["rollout_is_weights"],
    "proximal": ["old_log_probs"],
    "decoupled": ["old_log_probs", "rollout_is_weights"],
}


def fuzzed(examples: int) -> Callable:
    """The same `examples` every time, or as many others as VERL_REPLAY_FUZZ says."""
    slow = settings(repeatable, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    if not EXAMPLES:
        return settings(slow, max_examples=examples)
    more = settings(slow, max_examples=int(EXAMPLES), derandomize=False, print_blob=True)
    return lambda test: hypothesis.seed(SEED)(more(test))


@pytest.fixture(autouse=True, scope="module")
def tell_seed():
    if EXAMPLES:
        print(f"VERL_REPLAY_FUZZ={EXAMPLES} VERL_REPLAY_FUZZ_SEED={SEED}")


@cache
def config_of(arm: str) -> Any:
    base = ["replay.ratio=1.0", f"replay.max_age={MAX_AGE}"]
    chosen = {**ARMS, **FORWARD_ARMS, "large": LARGE, "everything": EVERY_COLUMN}[arm]
    presets = [option for option in chosen if option.startswith("replay=")]
    others = [option for option in chosen if option not in presets]
    base = base[1:] if arm == "filtered" else base
    return compose_config(*presets, *base, *others, group_size=2, prompts=1)  # mini-batches of 2 rows


# ---- three ways in: the stage alone, V0, V1 --------------------------------------------------------------------------


class StageAlone:
    """ReplayStage on arrays: what a hook would send, without a trainer."""

    def __init__(self, arm: str, ranks: int) -> None:
        config = config_of(arm)
        reward = columns.REWARD if config.algorithm.use_kl_in_reward else columns.SCORE
        options = _options(config)
        self.stage, self.ranks = ReplayStage(config, options, reward=reward), ranks
        self.updates: list[list[Cell]] = []

    @property
    def sent(self) -> list[list[Cell]]:
        """The mini-batches of the updates since the last look."""
        updates, self.updates = self.updates, []
        return updates

    def step(self, rows: list[Row], step: int) -> dict[str, Any]:
        log: dict[str, Any] = {}
        fresh = self._fresh(rows, step)
        plan = self.stage.plan(fresh, log, step=step, batch_rows=len(rows), ranks=self.ranks)
        if plan is not None:
            parts = [self.stage.fresh_rows(fresh, plan)]
            parts += [self.stage.drawn_rows(plan)] if plan.replayed.count else []
            parts.append(self.stage.null_rows(plan.layout.null_rows, plan, 2))
            together = columns.with_derived(Rows.concat(parts)).columns
            order = plan.layout.with_nulls_from(sum(part.count for part in parts[:-1]))
            cells = (
                order.reshape(self.ranks, plan.layout.updates, -1).transpose(1, 0, 2).reshape(plan.layout.updates, -1)
            )
            log["replay/updates"] = plan.layout.updates  # where verl's own batch would do, it cuts that as it lies
            real = sum(part.count for part in parts[:-1])
            assert plan.layout.global_batch_size == real / plan.layout.updates
            self.updates.append(
                [Cell([{n: column.row(i) for n, column in together.items()} for i in cell]) for cell in cells.tolist()]
            )
        return log

    def _fresh(self, rows: list[Row], step: int) -> Fresh:
        made = {
            name: Ragged.from_rows([row[name] for row in rows], columns.dtype(name))
            for name in (*fuzzing.INTEGERS, *fuzzing.FLOATS)
        }
        keys, index = [fuzzing.key(row) for row in rows], columns.whole_numbers([row["index"] for row in rows])
        columns.check_keys(keys)
        order = columns.canonical_order(keys, index, made["prompts"] if columns.shared_index(keys, index) else None)
        keys = [keys[i] for i in order.tolist()]
        ranges = columns.rollout_ranges(keys)
        return Fresh(
            keys=keys,
            ranges=ranges,
            lengths=(made["prompts"].lengths + made["responses"].lengths)[order],
            born=np.full(len(ranges) - 1, step),
            decided_on={name: made[name] for name in self.stage.decision_columns},
            order=order,
            read=lambda names, at: {name: made[name].take(order[at]) for name in names},
        )


class V0:
    """The V0 hook with a DataProto, behind verl's own _update_actor."""

    def __init__(self, arm: str, ranks: int) -> None:
        self.trainer = _trainer(make_trainer_v0, arm, ranks)
        self.trainer._generated_order = None
        self.spoil: Callable[[DataProto], Any] = lambda batch: None
        self.stage, self.workers = self.trainer.replay_stage, self.trainer.actor_rollout_wg

    @property
    def sent(self) -> list[list[Cell]]:
        return _sent(self.workers, _rows_of_v0)

    def step(self, rows: list[Row], step: int, spoil: Callable[[DataProto], Any] | None = None) -> dict[str, Any]:
        batch = to_dataproto(rows)
        (spoil or self.spoil)(batch)
        before = frozen(batch)
        self.trainer.global_steps = step
        try:
            return self.trainer._update_actor(batch).meta_info["metrics"]
        finally:
            assert frozen(batch) == before, "verl's batch was changed"


class V1:
    """The V1 hook with rows in a real TransferQueue, behind verl's own _update_actor."""

    def __init__(self, arm: str, ranks: int) -> None:
        import transfer_queue

        self.tq = transfer_queue
        self.trainer = _trainer(make_trainer, arm, ranks)
        self.stage, self.workers = self.trainer.replay_stage, self.trainer.actor_rollout_wg

    @property
    def sent(self) -> list[list[Cell]]:
        return _sent(self.workers, _rows_of_v1)

    def step(self, rows: list[Row], step: int) -> dict[str, Any]:
        batch = self.put(rows, step)
        held = self._bits(batch.keys)
        try:
            log = self.update(batch, step)
            assert self._bits(batch.keys) == held, "verl's rows were changed"
            return log
        finally:
            self.clear()

    def _bits(self, keys: list[str]) -> dict[str, Any]:
        names = [*fuzzing.INTEGERS, *fuzzing.FLOATS, "input_ids", "position_ids"]
        data = self.tq.kv_batch_get(keys=keys, partition_id="train", select_fields=names)
        return {name: (bits_of(data[name].values()), data[name].offsets().tolist()) for name in names}

    def put(self, rows: list[Row], step: int) -> KVBatchMeta:
        keys, tags = [fuzzing.key(row) for row in rows], [tag_of(row, step) for row in rows]
        fields = [to_fields(row) for row in rows]
        self.tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags)
        return KVBatchMeta(keys=keys, tags=tags, partition_id="train")

    def update(self, batch: KVBatchMeta, step: int) -> dict[str, Any]:
        before, held = copy.deepcopy((batch.keys, batch.tags)), self._held()
        self.trainer.global_steps, self.trainer.timing_raw = step, {}
        log: dict[str, Any] = {}
        try:
            assert self.trainer._update_actor(batch, log) is batch
            return log
        finally:
            assert self._held() == held, "keys of ours were left in the partition"
            assert (batch.keys, batch.tags) == before, "verl's batch was changed"

    def _held(self) -> list[str]:
        return sorted((self.tq.kv_list("train") or {}).get("train", {}))

    def clear(self) -> None:
        if keys := self._held():
            self.tq.kv_clear(keys=keys, partition_id="train")


def _options(config: Any) -> Any:
    from verl_replay.support import check_config

    return check_config(config)


@cache
def _made(maker: Callable[..., Any], arm: str) -> Any:
    return maker(config_of(arm))


def _trainer(maker: Callable[..., Any], arm: str, ranks: int) -> Any:
    """A trainer as new: the real one, with a stage and workers of its own."""
    trainer = copy.copy(_made(maker, arm))
    stage = trainer.replay_stage
    trainer.replay_stage = ReplayStage(trainer.config, stage.options, reward=stage._reward)
    trainer.actor_rollout_wg = StubWorkers(ranks)
    return trainer


def to_dataproto(rows: Sequence[Row]) -> DataProto:
    """Padded as verl's V0 agent loop pads: prompts left, responses right."""
    prompt_width, width = (max(len(row[name]) for row in rows) + 1 for name in ("prompts", "responses"))

    def left(column):
        return np.concatenate([np.zeros(prompt_width - len(column), column.dtype), column])

    def right(column):
        return np.concatenate([column, np.zeros(width - len(column), column.dtype)])

    tensors = {"prompts": np.stack([left(row["prompts"]) for row in rows])}
    for name in ("responses", "response_mask", *fuzzing.FLOATS):
        tensors[name] = np.stack([right(row[name]) for row in rows])
    attention = [np.concatenate([left(0 * row["prompts"] + 1), right(0 * row["responses"] + 1)]) for row in rows]
    tensors["attention_mask"] = np.stack(attention)
    tensors["input_ids"] = np.concatenate([tensors["prompts"], tensors["responses"]], axis=1)
    tensors = {name: torch.from_numpy(column) for name, column in tensors.items()}
    tensors["position_ids"] = compute_position_id_with_mask(tensors["attention_mask"])
    objects = {name: objects_of([row[name] for row in rows]) for name in ("uid", "index")}
    meta_info = {"temperature": 1.0, "global_token_num": tensors["attention_mask"].sum(-1).tolist()}
    return DataProto.from_dict(tensors=tensors, non_tensors=objects, meta_info=meta_info)


def objects_of(values: Sequence[Any]) -> np.ndarray:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def frozen(batch: DataProto) -> tuple:
    tensors = {} if batch.batch is None else dict(batch.batch.items())
    bits = {name: (t.dtype, t.is_nested or (t.shape, bits_of(t))) for name, t in tensors.items()}
    meta_info = {name: value for name, value in batch.meta_info.items() if name not in WRITTEN_BY_VERL}
    return bits, {name: repr(c.tolist()) for name, c in batch.non_tensor_batch.items()}, repr(meta_info)


def bits_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def to_fields(row: Row) -> dict[str, Any]:
    fields = {name: torch.from_numpy(row[name]) for name in (*fuzzing.INTEGERS, *fuzzing.FLOATS)}
    sequence = np.concatenate([row["prompts"], row["responses"]])
    return {
        **fields,
        "input_ids": torch.from_numpy(sequence),
        "position_ids": torch.arange(len(sequence)),
        "index": row["index"],
        "raw_prompt": [{"role": "user", "content": "?"}] * (row["session"] % 3),
    }


def tag_of(row: Row, step: int) -> dict[str, Any]:
    length = len(row["prompts"]) + len(row["responses"])
    return {"seq_len": length, "min_global_steps": step - 1, "max_global_steps": step - 1}


def _sent(workers: StubWorkers, rows_of: Callable[[TensorDict], list[Row]]) -> list[list[Cell]]:
    """The mini-batches of the updates since the last look, the parts of all ranks together."""
    updates = workers.updates.copy()
    workers.updates.clear()
    sent = []
    for update in updates:
        by_mini_batch = zip(*update.mini_batches, strict=True)
        sent.append([Cell([row for cell in cells for row in rows_of(cell)]) for cells in by_mini_batch])
        real = sum(not fuzzing.is_null(row) for cell in sent[-1] for row in cell.rows)
        assert update.extra["global_batch_size"] == real / len(sent[-1])
    return sent


def _rows_of_v0(cell: TensorDict) -> list[Row]:
    width = cell["prompts"].shape[1]
    rows = []
    for i, mask in enumerate(cell["attention_mask"].bool()):
        row = {"prompts": cell["prompts"][i][mask[:width]]}
        for name in {*fuzzing.RESPONSE_COLUMNS} & set(cell.keys()):
            column = cell[name][i][mask[width:]]
            row[name] = column.long() if "mask" in name else column  # a mask may be of bools
        rows.append(row)
    return _with_sequences(rows, cell)


def _rows_of_v1(cell: TensorDict) -> list[Row]:
    names = [name for name in ("prompts", *fuzzing.RESPONSE_COLUMNS) if name in cell.keys()]
    unbound = {name: cell[name].unbind() for name in names}
    return _with_sequences([{name: unbound[name][i] for name in names} for i in range(len(cell))], cell)


def _with_sequences(rows: list[Row], cell: TensorDict) -> list[Row]:
    for name in ("input_ids", "position_ids"):
        for row, value in zip(rows, cell[name].unbind(), strict=True):
            row[name] = value
    return [{name: value.numpy() for name, value in row.items()} for row in rows]


# ---- one step, and what must hold of it ------------------------------------------------------------------------------


def snapshot(stage: ReplayStage) -> tuple:
    """Everything that later steps depend on, bit for bit."""
    arrays, meta = stage.state()
    return {name: array.tobytes() for name, array in arrays.items()}, repr(meta)


def check_step(hook: Any, arm: str, rows: list[Row], births: Births, step: int) -> dict[str, Any]:
    """Train on rows that are right, however odd, and check what is sent and stored."""
    read = [name for name in hook.stage.decision_columns if name in fuzzing.FLOATS]
    fresh = fuzzing.survivors(rows, read, filtered=arm != "unfiltered")
    births.add(rows, step)
    size = len(hook.stage.transform.buffer)
    log = hook.step(rows, step)
    with_loss = [row for row in rows if row["response_mask"].any()]
    with_loss = {fuzzing.number(row["prompts"], row["responses"]) for row in with_loss} & fresh
    new = hook.sent
    assert len(new) == (log["replay/updates"] > 0) and (with_loss or not new)
    if with_loss and "pooled" not in arm:
        assert new, "rows with a signal were not trained on"
    if not fresh:
        assert len(hook.stage.transform.buffer) <= size
    for cells in new:
        repeats = hook.stage.options.replacement
        stock = not log["replay/draw/rollouts"] and sum(len(cell.rows) for cell in cells) == len(rows)
        changed = CHANGED.get(arm, [])
        numbers = read if stock else [*read, *changed]
        expected = Expectation(step, fresh, MAX_AGE, "pooled" not in arm, repeats, stock, numbers, changed)
        fuzzing.check_update(cells, 1, log, births, expected)
    valid, wrong = hook.stage.transform.buffer.check_valid()
    assert valid, wrong
    return log


def check_refused(hook: Any, step: int, match: str, train: Callable[[], Any]) -> None:
    before = snapshot(hook.stage)
    with pytest.raises(ValueError, match=match) as error:
        train()
    assert type(error.value) is ValueError and str(error.value).rstrip().endswith(".")
    assert snapshot(hook.stage) == before, "a refused step changed the buffer"
    assert not hook.sent and "update_actor" not in vars(hook.workers)


seeds = st.integers(0, 2**32 - 1)
one_or_two = st.sampled_from([1, 2])
odd = st.lists(st.sampled_from(fuzzing.ODDITIES), max_size=3, unique=True)


def odd_rows(rng: np.random.Generator, oddities: Sequence[Any], step: int, groups: int | None = None) -> list[Row]:
    groups = int(rng.integers(1, 5)) if groups is None else groups
    return fuzzing.odd_rows(rng, fuzzing.groups_of_rewards(rng, groups), oddities, step=step)


def one_row_a_session(oddities: Sequence[Any]) -> list[Any]:
    """V0 knows no sessions of several rows."""
    return [change for change in oddities if change is not fuzzing.several_trajectories]


# ---- odd batches -----------------------------------------------------------------------------------------------------


@fuzzed(700)
@given(arm=st.sampled_from(list(ARMS)), ranks=one_or_two, steps=st.lists(odd, max_size=4), seed=seeds)
def test_the_stage_trains_on_odd_rows_rightly(arm, ranks, steps, seed):
    rng, births, hook = np.random.default_rng(seed), Births(), StageAlone(arm, ranks)
    for step, oddities in enumerate(steps, start=1):
        check_step(hook, arm, odd_rows(rng, oddities, step), births, step)


def extra_tensors(rng: np.random.Generator, batch: DataProto) -> None:
    batch.batch["more"] = torch.full((len(batch), 3), torch.nan)
    batch.batch["one"] = torch.zeros(len(batch), dtype=torch.float16)


def extra_objects(rng: np.random.Generator, batch: DataProto) -> None:
    """Lists of one length and of several, None, dicts, arrays."""
    for i in range(3):
        values = [[1, 2], [3, 4], [[5]], None, {"a": [1]}, np.zeros((2, 2)), "x", (1, 2)]
        some = [values[rng.integers(2) if i else rng.integers(len(values))] for _ in range(len(batch))]
        batch.non_tensor_batch[f"mine{i}"] = objects_of(some)


def odd_meta_info(rng: np.random.Generator, batch: DataProto) -> None:
    batch.meta_info |= {"timing": rng.random(), "mine": None, "images_seqlens": [], "names": {"a": "b"}}
    del batch.meta_info["global_token_num"]


def odd_uids(rng: np.random.Generator, batch: DataProto) -> None:
    """Numbers and others, two of which read alike."""
    kinds = [1, "1", None, (1, 2), 2.5, "a_0", "a_0_0"]
    uids = batch.non_tensor_batch["uid"].tolist()
    number = {uid: i for i, uid in enumerate(dict.fromkeys(uids))}
    batch.non_tensor_batch["uid"] = objects_of([kinds[number[uid]] for uid in uids])


def mask_of_another_dtype(rng: np.random.Generator, batch: DataProto) -> None:
    dtype = [torch.bool, torch.int32, torch.uint8][rng.integers(3)]
    batch.batch["response_mask"] = batch.batch["response_mask"].to(dtype)


def no_index(rng: np.random.Generator, batch: DataProto) -> None:
    del batch.non_tensor_batch["index"]


V0_ODDITIES = (extra_tensors, extra_objects, odd_meta_info, odd_uids, mask_of_another_dtype, no_index)


@fuzzed(250)
@given(
    arm=st.sampled_from([*ARMS, *FORWARD_ARMS]),
    ranks=one_or_two,
    steps=st.lists(odd, max_size=4),
    more=st.lists(st.sampled_from(V0_ODDITIES), max_size=2, unique=True),
    seed=seeds,
)
def test_v0_trains_on_odd_rows_rightly(arm, ranks, steps, more, seed):
    rng, births, hook = np.random.default_rng(seed), Births(), V0(arm, ranks)
    hook.spoil = lambda batch: [change(rng, batch) for change in more]
    for step, oddities in enumerate(steps, start=1):
        check_step(hook, arm, odd_rows(rng, one_row_a_session(oddities), step), births, step)


@pytest.mark.usefixtures("clear_partition")
@fuzzed(60)
@given(
    arm=st.sampled_from([*ARMS, *FORWARD_ARMS]),
    ranks=one_or_two,
    steps=st.lists(odd, max_size=4),
    seed=seeds,
)
@example(arm="pooled_per", ranks=1, steps=[[], [fuzzing.not_finite], []], seed=0)  # drawn rows alone, none fresh
def test_v1_trains_on_odd_rows_rightly(arm, ranks, steps, seed):
    rng, births, hook = np.random.default_rng(seed), Births(), V1(arm, ranks)
    for step, oddities in enumerate(steps, start=1):
        check_step(hook, arm, odd_rows(rng, oddities, step), births, step)


@pytest.mark.parametrize("hook", [StageAlone, V0])
def test_ten_thousand_rows(hook, rng):
    births, hook = Births(), hook("large", 2)
    for step in (1, 2):
        rewards = rng.integers(0, 2, (2500, 4)).astype(float).tolist()
        log = check_step(hook, "large", fuzzing.odd_rows(rng, rewards, [], step=step), births, step)
        assert log["replay/fresh/generated"] == 10_000
    assert log["replay/draw/rollouts"] > 7_000


@pytest.mark.usefixtures("clear_partition")
@fuzzed(40)
@given(ranks=one_or_two, steps=st.lists(odd, min_size=1, max_size=3), padding=st.integers(1, 3), seed=seeds)
def test_v1_never_looks_at_rows_of_padding(ranks, steps, padding, seed):
    """Full of NaN, of other lengths, in groups of their own or in those of others."""
    rng, births, hook = np.random.default_rng(seed), Births(), V1("anchored", ranks)
    put = hook.put

    def put_with_padding(rows: list[Row], step: int) -> KVBatchMeta:
        real = put(rows, step)
        more = odd_rows(rng, [], step=1000 + step, groups=padding)
        for row in more:
            row["uid"] = f"pad{row['uid']}"
            for name in fuzzing.FLOATS:
                row[name] = np.full(3, np.nan, np.float32)
        pad = put(more, step)
        tags = [{"is_padding": True, "seq_len": 3} for _ in more]
        return KVBatchMeta(keys=[*pad.keys, *real.keys], tags=[*tags, *real.tags], partition_id="train")

    hook.put = put_with_padding
    for step, oddities in enumerate(steps, start=1):
        check_step(hook, "anchored", odd_rows(rng, oddities, step), births, step)


def test_v0_a_batch_of_no_rows_is_a_step_without_an_update(rng):
    hook = V0("anchored", 1)
    check_step(hook, "anchored", fuzzing.odd_rows(rng, [[1.0, 0.0]], [], step=1), Births(), 1)
    before = snapshot(hook.stage)
    hook.trainer.global_steps = 2
    empty = to_dataproto(fuzzing.odd_rows(rng, [[1.0, 0.0]], [], step=2))[np.zeros(0, dtype=np.int64)]
    log = hook.trainer._update_actor(empty).meta_info["metrics"]
    assert (log["replay/updates"], log["replay/fresh/generated"], hook.sent) == (0, 0, [])
    assert snapshot(hook.stage) == before


@pytest.mark.usefixtures("clear_partition")
def test_v1_a_batch_of_nothing_but_padding_is_a_step_without_an_update(rng):
    hook = V1("anchored", 1)
    check_step(hook, "anchored", fuzzing.odd_rows(rng, [[1.0, 0.0]], [], step=1), Births(), 1)
    before = snapshot(hook.stage)
    batch = hook.put(fuzzing.odd_rows(rng, [[1.0, 0.0]], [], step=2), 2)
    for tag in batch.tags:
        tag["is_padding"] = True
    log = hook.update(batch, 2)
    assert (log["replay/updates"], log["replay/fresh/generated"], hook.sent) == (0, 0, [])
    assert snapshot(hook.stage) == before


# ---- malformed batches: V0 -------------------------------------------------------------------------------------------

ALL_READ = ("advantages", "old_log_probs", "token_level_rewards", "ref_log_prob", "rollout_is_weights")


def v0_lacks_a_column(rng: np.random.Generator, batch: DataProto) -> None:
    held = ("prompts", "responses", "response_mask", "attention_mask", "input_ids", "position_ids", *ALL_READ)
    del batch.batch[rng.choice(held)]


def v0_has_no_uid(rng: np.random.Generator, batch: DataProto) -> None:
    del batch.non_tensor_batch["uid"]


def v0_odd_uid(rng: np.random.Generator, batch: DataProto) -> None:
    uid = batch.non_tensor_batch["uid"]
    odd_ones = [objects_of([[1] for _ in uid]), objects_of([{} for _ in uid]), uid[:-1], np.stack([uid, uid])]
    batch.non_tensor_batch["uid"] = odd_ones[rng.integers(len(odd_ones))]


def v0_other_dtype(rng: np.random.Generator, batch: DataProto) -> None:
    name = rng.choice(["prompts", "responses", *ALL_READ])
    others = [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool]
    batch.batch[name] = batch.batch[name].to(others[rng.integers(len(others))])


def v0_mask_of_floats(rng: np.random.Generator, batch: DataProto) -> None:
    name = rng.choice(["response_mask", "attention_mask"])
    batch.batch[name] = batch.batch[name].float()


def v0_other_width(rng: np.random.Generator, batch: DataProto) -> None:
    name = rng.choice(["response_mask", "responses", *ALL_READ, "attention_mask", "input_ids", "position_ids"])
    column = batch.batch[name]
    batch.batch[name] = [column[:, :-1], torch.cat([column, column[:, :1]], dim=1)][rng.integers(2)]


def v0_other_rank(rng: np.random.Generator, batch: DataProto) -> None:
    name = rng.choice(["prompts", "responses", "response_mask", *ALL_READ, "position_ids"])
    column = batch.batch[name]
    nested = torch.nested.as_nested_tensor(list(column), layout=torch.jagged)
    batch.batch[name] = [column.unsqueeze(-1), column[:, 0], nested][rng.integers(3)]


def v0_objects(rng: np.random.Generator, batch: DataProto) -> None:
    """A column of tensors as a column of objects: lists, of one length or of several, dicts, None."""
    name = rng.choice(ALL_READ)
    values = [[1.0, 2.0], [[1.0]], None, {"a": 1}]
    del batch.batch[name]
    batch.non_tensor_batch[name] = objects_of([values[rng.integers(4)] for _ in range(len(batch))])


def v0_attention(rng: np.random.Generator, batch: DataProto) -> None:
    """A hole in a response, a token after the padding, a number that is neither 0 nor 1, a prompt padded right."""
    mask, width = batch.batch["attention_mask"], batch.batch["prompts"].shape[1]
    row = rng.integers(len(mask))
    kind = rng.integers(4)
    if kind == 0:
        mask[row, width : width + 2] = torch.tensor([0, 1])
    elif kind == 1:
        mask[row, -1], mask[row, -2] = 1, 0
    elif kind == 2:
        mask[row, width - 1] = int(rng.choice([2, -1]))
    else:
        mask[row, :width] = mask[row, :width].flip(0)


def v0_mask_values(rng: np.random.Generator, batch: DataProto) -> None:
    batch.batch["response_mask"][:, 0] = int(rng.choice([2, -1, 2**40]))


def v0_padding_with_loss(rng: np.random.Generator, batch: DataProto) -> None:
    batch.batch["response_mask"][rng.integers(len(batch)), -1] = 1


def v0_positions(rng: np.random.Generator, batch: DataProto) -> None:
    batch.batch["position_ids"] += int(rng.choice([-1, 1, 2**40]))


def v0_other_input_ids(rng: np.random.Generator, batch: DataProto) -> None:
    ids = batch.batch["input_ids"]
    ids[rng.integers(len(ids)), rng.integers(ids.shape[1])] += 1


def v0_index(rng: np.random.Generator, batch: DataProto) -> None:
    index = batch.non_tensor_batch["index"]
    odd_ones = [None, "x", "", float("nan"), float("inf"), 1.5, [1], {}, "1e3"]
    index[rng.integers(len(index))] = odd_ones[rng.integers(len(odd_ones))]


def v0_short_index(rng: np.random.Generator, batch: DataProto) -> None:
    batch.non_tensor_batch["index"] = batch.non_tensor_batch["index"][1:]


def v0_no_prompt(rng: np.random.Generator, batch: DataProto) -> None:
    row, width = rng.integers(len(batch)), batch.batch["prompts"].shape[1]
    batch.batch["attention_mask"][row, :width] = 0
    attention = batch.batch["attention_mask"]
    batch.batch["position_ids"] = compute_position_id_with_mask(attention)


V0_FAULTS = {
    v0_lacks_a_column: "lacks the columns",
    v0_has_no_uid: "uid a row",
    v0_odd_uid: "uid a row",
    v0_other_dtype: "must be (int64|float32), as verl writes it",
    v0_mask_of_floats: "must be int64, as verl writes it",
    v0_other_width: "as wide as",
    v0_other_rank: r"must be \(rows, tokens\)",
    v0_objects: "lacks the columns",
    v0_attention: "attention_mask must be 1 on a row's tokens",
    v0_mask_values: "response_mask must hold 0 and 1",
    v0_padding_with_loss: "response_mask must be 0 where attention_mask is 0",
    v0_positions: "position_ids must count",
    v0_other_input_ids: "input_ids must be prompts and responses",
    v0_index: "column index must number",
    v0_short_index: "index must have one entry a row",
    v0_no_prompt: "must have a token of prompt",
}


@fuzzed(250)
@given(
    faults=st.lists(st.sampled_from(list(V0_FAULTS)), min_size=1, max_size=3),
    ranks=one_or_two,
    oddities=odd,
    seed=seeds,
)
def test_v0_refuses_malformed_batches_and_goes_on(faults, ranks, oddities, seed):
    """Step 1 is good; each fault is refused at step 2, which then works with what it should have been given."""
    rng, births, hook = np.random.default_rng(seed), Births(), V0("everything", ranks)
    rewards = [[1.0, 0.0, 0.5, 1.0], *fuzzing.groups_of_rewards(rng, 2)]
    check_step(hook, "everything", fuzzing.odd_rows(rng, rewards, one_row_a_session(oddities), step=1), births, 1)
    rows = fuzzing.odd_rows(rng, rewards, [], step=2)
    for fault in faults:
        check_refused(
            hook, 2, V0_FAULTS[fault], lambda fault=fault: hook.step(rows, 2, spoil=lambda batch: fault(rng, batch))
        )
    check_step(hook, "everything", rows, births, 2)


# ---- malformed batches: V1 -------------------------------------------------------------------------------------------


class Malformed:
    """What goes into TransferQueue and into verl's batch, to be spoilt."""

    def __init__(self, hook: V1, rows: list[Row], step: int) -> None:
        self.keys, self.tags = [fuzzing.key(row) for row in rows], [tag_of(row, step) for row in rows]
        self.fields = [to_fields(row) for row in rows]
        self.after: Callable[[KVBatchMeta], Any] = lambda batch: None
        self.tq = hook.tq

    def put(self) -> KVBatchMeta:
        """Row by row, as agent loops do: what rows differ in stays different."""
        for one, fields, tag in zip(self.keys, self.fields, self.tags, strict=True):
            td = list_of_dict_to_tensordict([fields])
            self.tq.kv_batch_put(keys=[one], partition_id="train", fields=td, tags=[tag])
        batch = KVBatchMeta(keys=list(self.keys), tags=self.tags, partition_id="train")
        self.after(batch)
        return batch


def v1_lacks_a_column(rng: np.random.Generator, bad: Malformed) -> None:
    names = ("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids", "rm_scores")
    name = rng.choice([*names, "advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights"])
    for fields in _all_or_one(rng, bad.fields):
        del fields[name]


def _all_or_one(rng: np.random.Generator, rows: list[Any]) -> list[Any]:
    return rows if rng.random() < 0.5 else [rows[rng.integers(len(rows))]]


def v1_lacks_the_index(rng: np.random.Generator, bad: Malformed) -> None:
    for fields in _all_or_one(rng, bad.fields):
        del fields["index"]


def v1_index(rng: np.random.Generator, bad: Malformed) -> None:
    odd_ones = [None, "x", float("nan"), 1.5, {"a": 1}]
    value = odd_ones[rng.integers(len(odd_ones))]
    for fields in _all_or_one(rng, bad.fields):
        fields["index"] = value


def v1_other_dtype(rng: np.random.Generator, bad: Malformed) -> None:
    name = rng.choice(["prompts", "responses", "response_mask", "loss_mask", "rm_scores", *ALL_READ[:2], *ALL_READ[3:]])
    others = [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool]
    other = others[rng.integers(len(others))]
    for fields in _all_or_one(rng, bad.fields[:4]) if rng.random() < 0.5 else bad.fields:
        fields[name] = fields[name].to(other)


def v1_other_length(rng: np.random.Generator, bad: Malformed) -> None:
    name = rng.choice(["responses", "response_mask", "loss_mask", "rm_scores", *ALL_READ[:2], *ALL_READ[3:]])
    fields = bad.fields[rng.integers(4)]  # of the group that survives: others are not read
    column = fields[name]
    fields[name] = [column[:-1], torch.cat([column, column[:1]])][rng.integers(2)]


def v1_other_rank(rng: np.random.Generator, bad: Malformed) -> None:
    name = rng.choice(["responses", "response_mask", "loss_mask", "rm_scores", "advantages", "old_log_probs"])
    for fields in bad.fields:
        fields[name] = fields[name].unsqueeze(-1).repeat(1, 3)


def v1_objects(rng: np.random.Generator, bad: Malformed) -> None:
    name = rng.choice(["responses", "loss_mask", "rm_scores", "advantages", "old_log_probs"])
    values = [[1.0, 2.0], [[1.0]], None, {"a": 1}, "x"]
    for fields in bad.fields if rng.random() < 0.5 else bad.fields[:1]:
        fields[name] = values[rng.integers(len(values))]


def v1_mask_values(rng: np.random.Generator, bad: Malformed) -> None:
    column = bad.fields[rng.integers(4)][rng.choice(["response_mask", "loss_mask"])]
    column[rng.integers(len(column))] = int(rng.choice([2, -1, 2**40]))


def v1_no_prompt(rng: np.random.Generator, bad: Malformed) -> None:
    fields = bad.fields[rng.integers(4)]
    fields["prompts"] = fields["prompts"][:0]


def v1_key(rng: np.random.Generator, bad: Malformed) -> None:
    row = rng.integers(len(bad.keys))
    uid = bad.keys[row].split("_")[0]
    bad.keys[row] = rng.choice([f"{uid}_7", uid, f"{uid}_a_0", f"{uid}_0_b", f"{uid}__", f"{uid}_-1_0", f"{uid}_07_0"])


def v1_key_twice(rng: np.random.Generator, bad: Malformed) -> None:
    def twice(batch: KVBatchMeta) -> None:  # KVBatchMeta itself refuses such keys only as it is made
        batch.keys.append(batch.keys[0])
        batch.tags.append(batch.tags[0])

    bad.after = twice


def v1_tag(rng: np.random.Generator, bad: Malformed) -> None:
    tag = bad.tags[rng.integers(len(bad.tags))]
    odd_ones = [None, "9", -1, 2.5]
    tag["seq_len"] = odd_ones[rng.integers(4)]
    if rng.random() < 0.3:
        del tag["seq_len"]


def v1_row_is_gone(rng: np.random.Generator, bad: Malformed) -> None:
    gone = [bad.keys[rng.integers(len(bad.keys))]]
    bad.after = lambda batch: bad.tq.kv_clear(keys=gone, partition_id="train")


V1_FAULTS = {
    v1_lacks_a_column: "lacks the columns",
    v1_lacks_the_index: "lacks the column index",
    v1_index: "column index must number|lacks the column index",
    v1_other_dtype: "must be (int64|float32)",
    v1_other_length: "must have one number a token",
    v1_other_rank: "must be one number a token|must be (int64|float32) on every row",
    v1_objects: "must be (one number a token|int64|float32)",
    v1_mask_values: "must hold 0 and 1",
    v1_no_prompt: "must have a token of prompt",
    v1_key: "must be uid_session_trajectory",
    v1_key_twice: "stands in it twice",
    v1_tag: "tag seq_len of every row",
    v1_row_is_gone: "must hold every row",
}


@pytest.mark.usefixtures("clear_partition")
@fuzzed(70)
@given(fault=st.sampled_from(list(V1_FAULTS)), ranks=one_or_two, seed=seeds)
def test_v1_refuses_malformed_batches_and_goes_on(fault, ranks, seed):
    rng, births, hook = np.random.default_rng(seed), Births(), V1("everything", ranks)
    rewards = [[1.0, 0.0, 0.5, 1.0], *fuzzing.groups_of_rewards(rng, 1)]
    check_step(hook, "everything", fuzzing.odd_rows(rng, rewards, [], step=1), births, 1)
    rows = fuzzing.odd_rows(rng, rewards, [], step=2)
    for _ in range(2):
        bad = Malformed(hook, copy.deepcopy(rows), 2)
        fault(rng, bad)
        batch = bad.put()
        check_refused(hook, 2, V1_FAULTS[fault], lambda batch=batch: hook.update(batch, 2))
        hook.clear()
    check_step(hook, "everything", rows, births, 2)


@pytest.mark.usefixtures("clear_partition")
@pytest.mark.parametrize("value", [None, "1", -1, 0.5])
def test_where_rollouts_run_ahead_a_row_must_say_with_which_weights_it_began(rng, value):
    from verl_replay.trainers.v1 import TRAINERS

    hook = V1("anchored", 1)
    hook.trainer.__class__ = type("Ahead", (TRAINERS["colocate_async"],), {})
    batch = hook.put(fuzzing.odd_rows(rng, [[1.0, 0.0]], [], step=1), 1)
    batch.tags[0]["min_global_steps"] = value
    check_refused(hook, 1, "tag min_global_steps of every row", lambda: hook.update(batch, 1))
