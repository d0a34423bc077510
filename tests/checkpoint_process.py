"""What the tests of the checkpoint let another process do: go on from a state, save until killed, fail, hold a lock.

    python -m tests.checkpoint_process <task> <arguments>

Imports neither torch nor verl, so it starts at once.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmark.timing import peak_resident, resident
from verl_replay import checkpoint
from verl_replay.buffer import Drawn, RolloutBuffer
from verl_replay.checkpoint import CheckpointError, State
from verl_replay.drawing import without_replacement
from verl_replay.eviction import age
from verl_replay.priorities import abs_advantage
from verl_replay.ragged import Ragged, offsets_of
from verl_replay.samplers import proportional
from verl_replay.store import Rows
from verl_replay.table import RolloutTable
from verl_replay.trainers.resuming import lock

FINGERPRINT = {"columns": ["responses", "old_log_probs"], "temperature": 1.0}
STEP = 7


def load(folder: Path) -> State | None:
    return checkpoint.load(folder, step=STEP, fingerprint=FINGERPRINT)


def save(folder: Path, state: State) -> int:
    return checkpoint.save(folder, state, step=STEP, fingerprint=FINGERPRINT)


# ---- going on from a state -------------------------------------------------------------------------------------------


def bits(drawn: Drawn) -> dict[str, Any]:
    """Every number of the drawn rollouts, bit for bit, as JSON has it."""
    arrays = {f"table/{name}": column for name, column in vars(drawn.table).items()}
    arrays |= {f"{name}/values": column.values for name, column in drawn.rows.columns.items()}
    arrays |= {f"{name}/offsets": column.offsets for name, column in drawn.rows.columns.items()}
    arrays["rollouts"] = drawn.rows.rollouts
    return {name: [str(array.dtype), array.tobytes().hex()] for name, array in arrays.items()}


def go_on(buffer: RolloutBuffer, *, step: int) -> list[dict[str, Any]]:
    """Three training steps: evict by age, draw by advantage, store what was drawn once more. All that they saw."""
    seen = []
    for now in range(step, step + 3):
        evicted = buffer.keep(age(buffer.table, step=now, max_age=5))
        log_weight = proportional(abs_advantage(buffer.table), priority_exponent=0.5, priority_eps=1e-6)
        positions = without_replacement(log_weight, min(6, len(buffer)), buffer.rng)
        drawn = buffer.draw(positions)
        pushed_out = buffer.add(drawn.table.stored(now), drawn.rows) if len(positions) else 0
        seen.append(
            {
                "evicted": [evicted, pushed_out],
                "positions": positions.tolist(),
                "drawn": bits(drawn),
                "held": bits(Drawn(buffer.table, buffer._store.gather(np.arange(len(buffer))))),
                "bytes": buffer.nbytes,
                "random": buffer.rng.bit_generator.state,
            }
        )
    return seen


def go_on_in_a_new_process(step: str, capacity: str, whole_groups: str, *folders: str) -> None:
    histories = []
    for folder in folders:
        buffer = RolloutBuffer(capacity=int(capacity), seed=99, whole_groups=whole_groups == "True")
        buffer.load(load(Path(folder)))
        histories.append(go_on(buffer, step=int(step)))
    print(json.dumps(histories))


# ---- states that are known by a number -------------------------------------------------------------------------------


def numbered(number: int, rollouts: int = 100, tokens: int = 8_000) -> State:
    """A buffer whose every array and whose random state follow from the number. 100 * 8,000 * (4 + 4) bytes: 6.4 MB."""
    buffer = RolloutBuffer(capacity=rollouts, seed=number)
    ids = np.arange(rollouts) + number
    table = RolloutTable(*[ids] * 6, stored_at=np.full(rollouts, number), tokens=ids, uses=ids, finite=ids >= 0)
    offsets = offsets_of(np.full(rollouts, tokens))
    values = np.arange(rollouts * tokens, dtype=np.int64) + number
    columns = {"responses": Ragged(values, offsets), "old_log_probs": Ragged(values.astype(np.float32), offsets)}
    buffer.add(table, Rows(columns, np.arange(rollouts + 1)))
    return buffer.state()


def number_of(state: State) -> int:
    """The number of the state, which must be that state and no mixture."""
    number = int(state.arrays["table/stored_at"][0])
    expected = numbered(number)
    assert state.meta == expected.meta
    assert state.arrays.keys() == expected.arrays.keys()
    for name, array in state.arrays.items():
        assert array.dtype == expected.arrays[name].dtype and np.array_equal(array, expected.arrays[name]), name
    return number


# ---- saving until killed ---------------------------------------------------------------------------------------------


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # at once and whole: a kill comes before it or after it


def save_when_told() -> None:
    """For every line of input, fork a child that saves; say its process id, what it does, and how it ended."""
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            signal.alarm(60)  # nobody is left to kill it
            try:
                save_numbered(Path(order["folder"]), first=order["first"], die_before=order.get("die_before"))
            finally:
                os._exit(0)
        say(f"pid {child}")
        say(f"ended {os.waitpid(child, 0)[1]}")


def save_numbered(folder: Path, *, first: int, die_before: int | None) -> None:
    """Save the states `first`, `first` + 1, ...; or `first` alone, and die before so many calls that touch files."""
    for number in [first] if die_before is not None else count_from(first):
        state = numbered(number)
        say(f"start {number}")
        if die_before is not None:
            die_before_call(die_before)
        save(folder, state)
        sys.setprofile(None)
        say(f"done {number}")


def count_from(first: int) -> Iterator[int]:
    while True:
        yield first
        first += 1


TOUCH_FILES = ("mkdir", "open", "write", "close", "chmod", "fsync", "replace", "unlink", "serialize_file")


def die_before_call(number: int) -> None:
    """Kill this process when Python is about to make or write or rename ... a file for the `number`th time."""
    left = number

    def look(frame: Any, event: str, function: Any) -> None:
        nonlocal left
        if event == "c_call" and function.__name__ in TOUCH_FILES:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.setprofile(look)


# ---- failing ---------------------------------------------------------------------------------------------------------


def fail(folder: Path, states: list[State], fingerprint: dict[str, Any], limit: int | None) -> None:
    """Save all states but the last, then the last with no file longer than the limit. Print what came of it."""
    for state in states[:-1]:
        save(folder, state)
    before = contents(folder)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        checkpoint.save(folder, states[-1], step=STEP, fingerprint=fingerprint)
    except CheckpointError as error:
        told = str(error)
    else:
        told = ""
    after = contents(folder)
    state = load(folder)
    number = None if state is None else int(state.arrays["table/stored_at"][0])
    print(json.dumps({"told": told, "unchanged": before == after, "files": sorted(after), "number": number}))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*")}


def fail_in_the_arrays(folder: str, earlier: str) -> None:
    states = [numbered(1, 10)] * int(earlier) + [numbered(2, 10)]
    fail(Path(folder), states, FINGERPRINT, limit=300_000)  # of 640,000


def fail_in_the_manifest(folder: str, earlier: str) -> None:
    states = [numbered(1, 10, 80)] * int(earlier) + [numbered(2, 10, 80)]
    fail(Path(folder), states, {**FINGERPRINT, "long": 100_000 * "x"}, limit=50_000)  # of 100,000; the arrays: 10,000


def fail_on_a_full_disk(folder: str) -> None:
    fail(Path(folder), [numbered(1, 10), numbered(2, 30)], FINGERPRINT, limit=None)  # 0.64 MB of 1.5, then 1.9


# ---- memory, locks ---------------------------------------------------------------------------------------------------


def measure_memory(folder: str) -> None:
    """Bytes of a buffer, bytes written, and by how much the resident memory grew meanwhile."""
    buffer = RolloutBuffer(capacity=10_000, seed=0)
    for number in range(8):  # 8 * 200 * 10,000 * (4 + 4) bytes
        loaded = RolloutBuffer(capacity=10_000, seed=0)
        loaded.load(numbered(number, 200, 10_000))
        drawn = loaded.draw(np.arange(200))
        buffer.add(drawn.table, drawn.rows)
    del loaded, drawn
    save(Path(folder) / "first", numbered(0, 1, 1))  # what is loaded once, with the first save
    before = resident()
    with peak_resident() as peak:
        written = save(Path(folder) / "buffer", buffer.state())
    print(json.dumps({"buffer": buffer.nbytes, "written": written, "grown": peak[0] - before}))


def hold_lock(folder: str, forks: str) -> None:
    """Until killed; with a child, as a data loader has them, that lives until its input ends."""
    held = lock(Path(folder))
    if forks == "False":
        say("held")
    elif not os.fork():
        say("held")
        sys.stdin.read()
        os._exit(0)
    signal.pause()
    held.close()


TASKS = {
    task.__name__: task
    for task in (
        go_on_in_a_new_process,
        save_when_told,
        fail_in_the_arrays,
        fail_in_the_manifest,
        fail_on_a_full_disk,
        measure_memory,
        hold_lock,
    )
}

if __name__ == "__main__":
    TASKS[sys.argv[1]](*sys.argv[2:])
