"""verl_replay.checkpoint and the locks and counts around it: real files, real processes, real kills.

It is a process that is killed, never a machine that loses power: what fsync is for is not shown here.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tests.checkpoint_process import FINGERPRINT, STEP, contents, go_on, load, number_of, numbered, save
from tests.factories import id_rows, make_rows, make_table, repeatable
from verl_replay import checkpoint
from verl_replay.buffer import RolloutBuffer
from verl_replay.checkpoint import MANIFEST, CheckpointError
from verl_replay.trainers.resuming import LOCK, TRACKER, check_tracker, lock, prune

ROOT = Path(__file__).parent.parent
REMEDY = "replay.resume=fresh"


def command(task: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.checkpoint_process", task, *map(str, arguments)]


def in_a_new_process(task: str, *arguments: object) -> Any:
    done = subprocess.run(command(task, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def random_buffer(rng: np.random.Generator, *, capacity: int, whole_groups: bool) -> RolloutBuffer:
    """After twelve random operations: adds of several groups, of no rollout, of rows of no token; evictions; draws."""
    buffer, groups = RolloutBuffer(capacity=capacity, seed=int(rng.integers(100)), whole_groups=whole_groups), 0
    for step in range(1, 13):
        operation = rng.choice(["add", "add", "add many", "age", "keep", "draw"])
        if operation.startswith("add"):
            sizes = rng.integers(1, 6, size=20 if operation == "add many" else rng.integers(0, 4)).tolist()
            table = make_table([[1.0] + [0.0] * (size - 1) for size in sizes], born=step, first_group=groups)
            groups += len(sizes)
            buffer.add(table.stored(step), make_rows(rng, len(table), max_tokens=int(rng.choice([0, 3, 9]))))
        elif operation == "age":
            buffer.keep(buffer.table.age(step) <= 6)
        elif operation == "keep":
            buffer.keep(rng.random(len(buffer)) < 0.99)
        elif len(buffer):
            buffer.draw(rng.integers(0, len(buffer), size=5))
    return buffer


def loaded(folder: Path, *, capacity: int = 1000, whole_groups: bool = False) -> RolloutBuffer:
    buffer = RolloutBuffer(capacity=capacity, seed=99, whole_groups=whole_groups)
    buffer.load(load(folder))
    assert buffer.check_valid() == (True, "")
    return buffer


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / f"global_step_{STEP}" / "replay"


# ---- there and back --------------------------------------------------------------------------------------------------


@repeatable
@given(st.integers(0, 2**32 - 1), st.sampled_from([9, 40, 1000]), st.booleans())
def test_a_loaded_buffer_goes_on_as_the_one_it_was_taken_from(tmp_path_factory, seed, capacity, whole_groups):
    """I9. Any bits, rows of no token, several rows a rollout, dead rollouts, an empty buffer: three steps of eviction,
    draws and adds see the same numbers, hold the same bytes and leave the same random state."""
    folder = tmp_path_factory.mktemp("step") / "replay"
    buffer = random_buffer(np.random.default_rng(seed), capacity=capacity, whole_groups=whole_groups)
    save(folder, buffer.state())
    other = loaded(folder, capacity=capacity, whole_groups=whole_groups)
    assert go_on(other, step=13) == go_on(buffer, step=13)


def test_and_so_does_one_in_a_new_process(tmp_path):
    folders, expected = [], []
    for seed in range(6):
        buffer = random_buffer(np.random.default_rng(seed), capacity=40, whole_groups=True)
        folders.append(tmp_path / f"with a space {seed}")
        save(folders[-1], buffer.state())
        expected.append(go_on(buffer, step=13))
    assert sum(len(step["positions"]) for history in expected for step in history) > 30
    told = in_a_new_process("go_on_in_a_new_process", 13, 40, True, *folders)
    assert told == json.loads(json.dumps(expected))


def test_dead_rollouts_and_arrays_kept_once_stay_as_they_are(folder):
    """Two of 100 evicted lie dead in the one segment. Its mask is kept once with the loss mask."""
    rng = np.random.default_rng(0)
    rows = make_rows(rng, 100)
    rows.columns["loss_mask"] = rows.columns["response_mask"]
    buffer = RolloutBuffer(capacity=100, seed=0)
    buffer.add(make_table([[1, 0, 0, 0]] * 25), rows)
    buffer.keep(~np.isin(np.arange(100), [7, 50]))
    save(folder, buffer.state())
    other = loaded(folder)
    (segment,), (expected,) = other._store._segments, buffer._store._segments
    assert (
        (len(segment.rollouts) - 1, len(segment.live)) == (len(expected.rollouts) - 1, len(expected.live)) == (100, 98)
    )
    assert segment.columns["loss_mask"].values is segment.columns["response_mask"].values
    assert segment.columns["loss_mask"].offsets is segment.columns["advantages"].offsets
    assert other.nbytes == buffer.nbytes


def test_an_empty_buffer(folder):
    """With its random state: three numbers drawn, the fourth is the next of both."""
    buffer = RolloutBuffer(capacity=3, seed=5)
    buffer.rng.random(3)
    save(folder, buffer.state())
    other = loaded(folder)
    assert len(other) == 0
    assert other.rng.random() == buffer.rng.random()
    other.add(make_table([[1, 0]]), id_rows([1, 2]))  # any columns: nothing stored contradicts them
    assert len(other) == 2


@pytest.mark.parametrize(
    ("capacity", "whole_groups", "left"),
    [
        (8, False, [0, 1, 2, 3, 4, 5, 6, 7]),
        (9, True, [0, 1, 2, 3, 4, 5, 6, 7]),
        (5, False, [3, 4, 5, 6, 7]),
        (4, False, [4, 5, 6, 7]),
        (4, True, [5, 6, 7]),  # the group of 3, 4 would stay in part
        (2, True, []),
    ],
)
def test_a_smaller_capacity_evicts_the_oldest(folder, capacity, whole_groups, left):
    """Groups of 3, 2 and 3 rollouts, stored as 3 and 5."""
    buffer = RolloutBuffer(capacity=8, seed=0)
    buffer.add(make_table([[1, 0, 0]]), id_rows([0, 1, 2]))
    buffer.add(make_table([[1, 0], [1, 0, 0]], first_group=1), id_rows([3, 4, 5, 6, 7]))
    save(folder, buffer.state())
    other = RolloutBuffer(capacity=capacity, seed=99, whole_groups=whole_groups)
    assert other.load(load(folder)) == 8 - len(left)
    assert other.check_valid() == (True, "")
    drawn = other.draw(np.arange(len(left)))
    assert (drawn.rows.columns["id"].values.tolist() if left else []) == left


def test_the_files_are_safetensors_and_json_and_nothing_else(folder):
    """I9: no pickle. Both are read by the libraries alone; arrays are of plain numbers; and others of a team may read
    them as they may verl's."""
    buffer = random_buffer(np.random.default_rng(1), capacity=100, whole_groups=False)
    state = buffer.state()
    written = save(folder, state)
    manifest = json.loads((folder / MANIFEST).read_text())["payload"]
    assert sorted(contents(folder)) == sorted([MANIFEST, manifest["arrays"]["file"]])
    assert written == sum(map(len, contents(folder).values()))
    arrays = load_file(folder / manifest["arrays"]["file"])
    assert arrays.keys() == state.arrays.keys() and len(buffer) == manifest["buffer"]["rollouts"] > 0
    for name, array in arrays.items():
        assert array.dtype.kind in "iufb"
        assert array.tobytes() == state.arrays[name].tobytes()
    plain = folder / "plain"
    plain.write_text("")
    assert {path.stat().st_mode for path in folder.glob("*")} == {plain.stat().st_mode}


# ---- saving again ----------------------------------------------------------------------------------------------------


def test_a_later_state_takes_the_place_of_an_earlier_one(folder):
    for number in (1, 2, 2, 1):  # the same state twice has the same file name
        save(folder, numbered(number, 10))
        assert number_of_small(folder) == number
        assert len(contents(folder)) == 2


def number_of_small(folder: Path) -> int:
    return int(load(folder).arrays["table/stored_at"][0])


def test_a_relative_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (Path("replay"), Path("a folder/global_step_7/replay")):
        save(folder, numbered(1, 2, 2))
        assert number_of_small(folder) == number_of_small(folder.absolute()) == 1


def test_what_is_named_is_on_the_disk_before_and_what_is_not_goes_after(folder):
    """Should the power fail. The arrays, their name, the manifest, its name and the folder's are forced to the disk in
    this order; only then does the earlier state go."""
    save(folder, numbered(1, 10))
    calls = []

    def look(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in ("serialize_file", "fsync", "replace", "unlink"):
            calls.append(function.__name__)

    profile = sys.getprofile()
    sys.setprofile(look)
    try:
        save(folder, numbered(2, 10))
    finally:
        sys.setprofile(profile)
    arrays, manifest = ["serialize_file", "fsync", "replace", "fsync"], ["fsync", "replace", "fsync", "fsync"]
    assert calls == [*arrays, *manifest, "unlink"]


LEFTOVERS = [".tmpA1b2C3", "rollouts.safetensors.tmp", "manifest.json.tmp", "rollouts-0123.safetensors"]


def test_what_was_left_by_a_killed_save_goes_with_the_next(folder):
    save(folder, numbered(1, 10))
    for name in LEFTOVERS:
        (folder / name).write_bytes(b"begun")
    assert number_of_small(folder) == 1
    save(folder, numbered(2, 10))
    assert number_of_small(folder) == 2 and len(contents(folder)) == 2


@pytest.mark.parametrize("left", [[], *([name] for name in LEFTOVERS)])
def test_a_folder_whose_first_save_was_killed_is_refused(folder, left):
    """Not taken for a checkpoint without replay: of that there is no folder."""
    assert load(folder) is None
    folder.mkdir(parents=True)
    for name in left:
        (folder / name).write_bytes(b"begun")
    refused(folder, MANIFEST)
    save(folder, numbered(3, 10))
    assert number_of_small(folder) == 3 and len(contents(folder)) == 2


# ---- kills -----------------------------------------------------------------------------------------------------------


class Saver:
    """A process whose children save until they are killed."""

    def __enter__(self) -> Saver:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command("save_when_told"), cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()

    def start(self, **order: Any) -> int:
        """Returns the child's process id."""
        self.process.stdin.write(json.dumps({**order, "folder": str(order["folder"])}) + "\n")
        self.process.stdin.flush()
        return int(self.said("pid"))

    def said(self, what: str) -> str:
        word, said = self.process.stdout.readline().split()
        assert word == what
        return said

    def end(self) -> tuple[list[int], list[int], int]:
        """Wait for its end: the states whose save began, those whose save was done, how it ended."""
        started, done = [], []
        while True:
            word, number = self.process.stdout.readline().split()
            if word == "ended":
                return started, done, int(number)
            (started if word == "start" else done).append(int(number))


def found(folder: Path) -> int | None:
    """The number of the state there, which is whole; None where none was ever complete."""
    try:
        state = load(folder)
    except CheckpointError as error:
        assert MANIFEST in str(error) and REMEDY in str(error)
        assert not (folder / MANIFEST).exists()
        return None
    return None if state is None else number_of(state)


@pytest.mark.slow
def test_200_kills_at_random_instants_leave_the_last_complete_state(tmp_path):
    """The last that was complete, or the one after it if its manifest was put in place just before the kill."""
    rng, kills, folders = np.random.default_rng(0), 200, 10
    amid, leftovers, newer = 0, 0, 0
    with Saver() as saver:
        duration = seconds_a_save(saver, tmp_path / "measured")
        for i in range(folders):
            folder, complete = tmp_path / str(i) / "replay", None
            for _ in range(kills // folders):
                child = saver.start(folder=folder, first=(complete or 0) + 1)
                started = [int(saver.said("start"))]
                time.sleep(rng.uniform(0, 2 * duration))
                os.kill(child, signal.SIGKILL)
                more, done, status = saver.end()
                assert status == signal.SIGKILL
                last_started, complete = max(started + more), max([complete, *done], key=lambda n: n or 0)
                amid += last_started != complete
                leftovers += bool([name for name in files(folder) if name != MANIFEST][1:])
                state = found(folder)
                assert state == complete or state == last_started == (complete or 0) + 1
                newer += state != complete
                complete = state
            save(folder, numbered(1000 + i))
            assert found(folder) == 1000 + i and len(files(folder)) == 2
    print(f"{kills} kills: {amid} during a save, {leftovers} left files, {newer} after the manifest was in place")
    assert amid >= kills / 2 and leftovers >= kills / 10


def seconds_a_save(saver: Saver, folder: Path) -> float:
    child = saver.start(folder=folder, first=1)
    saver.said("start")
    begun = time.perf_counter()
    for _ in range(5):
        saver.said("done")
        saver.said("start")
    seconds = (time.perf_counter() - begun) / 5
    os.kill(child, signal.SIGKILL)
    saver.end()
    return seconds


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


@pytest.mark.parametrize("earlier", [True, False])
def test_a_kill_before_each_call_that_touches_a_file(tmp_path, earlier):
    """Every instant between what Python does to files, in turn: up to one of them the earlier state, then the later."""
    seen = []
    with Saver() as saver:
        for call in range(200):
            folder = tmp_path / str(call) / "replay"
            if earlier:
                save(folder, numbered(1))
            saver.start(folder=folder, first=2, die_before=call)
            _, done, status = saver.end()
            seen.append(found(folder))
            if not status:
                assert done == [2] and len(files(folder)) == 2
                break
            assert (done, status) == ([], signal.SIGKILL)
            save(folder, numbered(3))
            assert number_of(load(folder)) == 3 and len(files(folder)) == 2
            shutil.rmtree(folder)
    turn = seen.index(2)
    assert seen == [1 if earlier else None] * turn + [2] * (len(seen) - turn)
    print(f"{len(seen) - 1} kills, {turn} of them before the manifest was in place")
    assert turn >= 15 and len(seen) - turn >= 8


# ---- damage ----------------------------------------------------------------------------------------------------------


def refused(folder: Path, name: str) -> str:
    """Loading says which file and what to do. Returns the message."""
    with pytest.raises(CheckpointError) as error:
        load(folder)
    told = str(error.value)
    assert isinstance(error.value, ValueError)
    assert str(folder / name) in told and REMEDY in told and "trainer.resume_from_path" in told
    return told


def small(folder: Path) -> tuple[Path, Path]:
    """Its manifest and its arrays: five rollouts of any bits."""
    buffer = RolloutBuffer(capacity=5, seed=0)
    buffer.add(make_table([[1, 0], [1, 0, 0]]), make_rows(np.random.default_rng(0), 5))
    save(folder, buffer.state())
    (arrays,) = folder.glob("*.safetensors")
    return folder / MANIFEST, arrays


def check_damage(path: Path, damaged: bytes) -> str:
    content = path.read_bytes()
    assert damaged != content
    overwrite(path, damaged)
    told = refused(path.parent, path.name)
    overwrite(path, content)
    return told


def overwrite(path: Path, content: bytes) -> None:
    """In place: many times faster than a new file of the name."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def with_byte(content: bytes, at: int, change: int) -> bytes:
    return content[:at] + bytes([content[at] ^ change]) + content[at + 1 :]


@pytest.mark.parametrize("which", [0, 1], ids=["manifest", "arrays"])
def test_any_damaged_byte_and_any_damaged_bit_is_noticed(folder, rng, which):
    """Every byte of a small checkpoint: one bit of it, and any other value."""
    path = small(folder)[which]
    content = path.read_bytes()
    for at in range(len(content)):
        for change in (1 << int(rng.integers(8)), int(rng.integers(1, 256))):
            check_damage(path, with_byte(content, at, change))
    load(folder)


@pytest.mark.parametrize("which", [0, 1], ids=["manifest", "arrays"])
def test_any_truncation_is_noticed_and_so_is_what_was_appended(folder, which):
    path = small(folder)[which]
    content = path.read_bytes()
    for length in range(len(content)):
        told = check_damage(path, content[:length])
        assert which == 0 or f"has {length} bytes, {len(content)} were written" in told
    for more in (b"\n", b" ", b"\0", b"\0" * 4096, content):
        check_damage(path, content + more)
    load(folder)


def test_damage_anywhere_in_a_larger_file_is_noticed(folder, rng):
    save(folder, numbered(1, 10))
    (arrays,) = folder.glob("*.safetensors")
    size = arrays.stat().st_size
    assert size > 600_000
    with arrays.open("r+b") as file:
        for at in [0, size - 1, *rng.integers(0, size, size=100).tolist()]:
            file.seek(at)
            (byte,) = file.read(1)
            for written in (byte ^ int(rng.integers(1, 256)), byte):
                file.seek(at)
                file.write(bytes([written]))
                file.flush()
                if written != byte:
                    assert "checksum" in refused(folder, arrays.name)
    load(folder)


def test_a_block_of_zeros_is_noticed(folder):
    """As some file systems leave it where the power fails."""
    save(folder, numbered(1, 10))
    (arrays,) = folder.glob("*.safetensors")
    content = arrays.read_bytes()
    check_damage(arrays, content[:8192] + bytes(4096) + content[8192 + 4096 :])
    check_damage(arrays, bytes(len(content)))


@pytest.fixture
def two(tmp_path) -> tuple[Path, Path]:
    """Two checkpoints of equal sizes, of this step and of the one before, as if by the same run."""
    before, now = (tmp_path / f"global_step_{step}" / "replay" for step in (STEP - 1, STEP))
    checkpoint.save(before, numbered(1, 10), step=STEP - 1, fingerprint=FINGERPRINT)
    save(now, numbered(2, 10))
    return before, now


def arrays_of(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def test_the_arrays_of_another_step_are_noticed(two):
    before, now = two
    assert arrays_of(before).stat().st_size == arrays_of(now).stat().st_size
    shutil.copy(arrays_of(before), arrays_of(now))
    assert "checksum" in refused(now, arrays_of(now).name)


def test_the_manifest_of_another_step_is_noticed(two):
    before, now = two
    shutil.copy(before / MANIFEST, now / MANIFEST)
    assert "of step 6, its folder of step 7" in refused(now, MANIFEST)


def test_the_whole_folder_of_another_step_is_noticed(two):
    before, now = two
    shutil.rmtree(now)
    shutil.copytree(before, now)
    assert "of step 6, its folder of step 7" in refused(now, MANIFEST)


def test_a_manifest_of_the_same_step_with_other_arrays_is_noticed(two, tmp_path):
    """As where one file was copied from another run."""
    _, now = two
    save(tmp_path / "other", numbered(3, 10))
    name = arrays_of(now).name
    shutil.copy(tmp_path / "other" / MANIFEST, now / MANIFEST)
    refused(now, arrays_of(tmp_path / "other").name)
    assert (now / name).exists()


def test_missing_files_are_noticed(folder):
    manifest, arrays = small(folder)
    content = arrays.read_bytes()
    arrays.unlink()
    assert "No such file" in refused(folder, arrays.name)
    arrays.write_bytes(content)
    manifest.unlink()
    assert "No such file" in refused(folder, MANIFEST)


@pytest.mark.parametrize("which", [0, 1], ids=["manifest", "arrays"])
def test_a_folder_in_place_of_a_file_is_noticed(folder, which):
    path = small(folder)[which]
    path.unlink()
    path.mkdir()
    refused(folder, path.name)


def test_a_file_in_place_of_the_folder_is_noticed_by_both(folder):
    folder.parent.mkdir()
    folder.write_text("")
    assert "Not a directory" in refused(folder, MANIFEST)
    with pytest.raises(CheckpointError, match="Mend what is wrong there"):
        save(folder, numbered(1, 2, 2))
    assert folder.read_text() == ""


def resigned(manifest: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The manifest changed and its checksum with it, as another version would write it."""
    payload = json.loads(manifest.read_text())["payload"]
    change(payload)
    manifest.write_text(checkpoint._manifest_text(payload))


def test_a_format_of_the_future_is_refused_by_its_number(folder):
    manifest, _ = small(folder)
    resigned(manifest, lambda payload: None)
    load(folder)
    resigned(manifest, lambda payload: payload.update(format=2))
    assert "has format 2, this version reads 1" in refused(folder, MANIFEST)


@pytest.mark.parametrize(
    "text", ["[]", "{}", "1", '{"payload": {}}', '{"payload": 1, "xxh3_128": ""}', "9" * 5000, "é"]
)
def test_json_that_is_no_manifest_is_noticed(folder, text):
    manifest, _ = small(folder)
    manifest.write_text(text)
    assert "damaged" in refused(folder, MANIFEST)


def test_what_is_no_safetensors_file_is_refused_though_its_checksum_matches(folder):
    manifest, arrays = small(folder)
    arrays.write_bytes(b"")
    resigned(manifest, lambda p: p["arrays"].update(bytes=0, xxh3_128=checkpoint._checksum(arrays)))
    refused(folder, arrays.name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("which", [0, 1], ids=["manifest", "arrays"])
def test_a_file_that_may_not_be_read_is_refused(folder, which):
    path = small(folder)[which]
    path.chmod(0)
    assert "Permission denied" in refused(folder, path.name)


# ---- another run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({**FINGERPRINT, "temperature": 0.7}, "temperature: stored 1.0, now 0.7"),
        ({**FINGERPRINT, "unit": "group"}, "unit: stored None, now 'group'"),
        ({"columns": FINGERPRINT["columns"]}, "temperature: stored 1.0, now None"),
        ({"columns": [], "temperature": 2.0}, "columns: stored ['responses', 'old_log_probs'], now []; temperature: "),
    ],
)
def test_rollouts_that_mean_something_else_are_refused_by_name(folder, now, told):
    small(folder)
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(folder, step=STEP, fingerprint=now)
    assert told in str(error.value) and str(folder) in str(error.value) and REMEDY in str(error.value)


# ---- a save that fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("earlier", [1, 0])
@pytest.mark.parametrize("task", ["fail_in_the_arrays", "fail_in_the_manifest"])
def test_a_save_that_fails_leaves_what_was_there(folder, task, earlier):
    """A limit on the size of files, so that writing stops amid the arrays, or in the manifest with the arrays whole."""
    told = in_a_new_process(task, folder, earlier)
    assert "could not be written" in told["told"] and "File too large" in told["told"]
    assert str(folder) in told["told"] and "trainer.save_freq=-1" in told["told"]
    assert told["unchanged"] and len(told["files"]) == 2 * earlier and told["number"] == (earlier or None)
    save(folder, numbered(3, 10))
    assert number_of_small(folder) == 3 and len(contents(folder)) == 2


def test_a_full_disk_leaves_what_was_there(tmp_path):
    """A file system of 1.5 MB in memory, in a mount namespace of its own."""
    mount = f"mount -t tmpfs -o size=1500k none '{tmp_path}'"
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*unshare, mount], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs unshare, and to be let mount a tmpfs")
    task = command("fail_on_a_full_disk", tmp_path / "global_step_7" / "replay")
    done = subprocess.run(
        [*unshare, f'{mount} && exec "$@"', "sh", *task], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "No space left" in told["told"] and "Free space there" in told["told"]
    assert told["unchanged"] and len(told["files"]) == 2 and told["number"] == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_leaves_what_was_there(folder):
    save(folder, numbered(1, 10))
    folder.chmod(0o555)
    try:
        with pytest.raises(CheckpointError, match="Permission denied.*Mend what is wrong there"):
            save(folder, numbered(2, 10))
    finally:
        folder.chmod(0o755)
    assert number_of_small(folder) == 1 and len(contents(folder)) == 2


def test_saving_needs_no_second_copy(tmp_path):
    """I9, DESIGN 3. 128 MB held; at its peak the process has at most a tenth of that more."""
    told = in_a_new_process("measure_memory", tmp_path)
    print(told)
    assert told["buffer"] > 100e6 and told["written"] > 0.99 * told["buffer"]
    assert told["grown"] <= 0.1 * told["buffer"]


# ---- one run a folder ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forks", [False, True])
def test_a_folder_is_locked_while_a_run_lives_and_not_longer(tmp_path, forks):
    """Killed, with a child of it that lives on or without."""
    pipe = subprocess.PIPE
    holder = subprocess.Popen(command("hold_lock", tmp_path, forks), cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        for _ in range(2):
            with pytest.raises(CheckpointError, match=rf"another run \(process {holder.pid}\).*default_local_dir"):
                lock(tmp_path)
        holder.kill()
        holder.wait()
        held = lock(tmp_path)
        assert (tmp_path / LOCK).read_text() == str(os.getpid())
        held.close()
    finally:
        holder.kill()
        holder.communicate()


def test_a_lock_that_nobody_holds_any_more_is_released(tmp_path):
    held = lock(tmp_path)
    with pytest.raises(CheckpointError, match=rf"process {os.getpid()}\)"):
        lock(tmp_path)
    del held
    gc.collect()
    lock(tmp_path).close()


# ---- as many as verl keeps -------------------------------------------------------------------------------------------


def with_steps(folder: Path, *steps: int, tracker: str | None = None, actor: bool = False) -> Path:
    for step in steps:
        (folder / f"global_step_{step}" / "replay").mkdir(parents=True)
        (folder / f"global_step_{step}" / "replay" / MANIFEST).write_text("{}")
        if actor:
            (folder / f"global_step_{step}" / "actor").mkdir()
            (folder / f"global_step_{step}" / "data.pt").write_text("")
    if tracker is not None:
        (folder / TRACKER).write_bytes(tracker.encode())
    return folder


@pytest.mark.parametrize(
    ("keep", "current", "tracker", "left"),
    [
        (2, 10, "10", [9, 10]),  # 10 is newer than 9: by number, not by name
        (1, 10, "10", [10]),
        (9, 10, "10", [1, 2, 9, 10]),
        (None, 10, "10", [1, 2, 9, 10]),
        (0, 10, "10", [1, 2, 9, 10]),
        (-1, 10, "10", [1, 2, 9, 10]),
        (1, 10, "2", [2, 10]),  # latest names an older one: verl resumes from it
        (1, 10, "2\n", [2, 10]),
        (1, 1, "1", [1, 10]),  # a run that went back to an earlier step and saves there
        (1, 1, "", [1, 10]),
        (1, 10, "", [10]),
        (1, 10, "no number", [10]),
        (1, 10, None, [10]),
    ],
)
def test_prune_keeps_the_newest_the_tracked_and_the_current(tmp_path, keep, current, tracker, left):
    with_steps(tmp_path, 1, 2, 9, 10, tracker=tracker, actor=True)
    (tmp_path / "global_step_3" / "actor").mkdir(parents=True)  # without replay
    (tmp_path / "global_step_4_old" / "replay").mkdir(parents=True)  # not verl's
    removed = prune(tmp_path, keep=keep, current=current)
    kept = [step for step in (1, 2, 9, 10) if (tmp_path / f"global_step_{step}" / "replay").exists()]
    assert kept == left
    gone = sorted({1, 2, 9, 10} - set(left), reverse=True)
    assert removed == [tmp_path / f"global_step_{step}" / "replay" for step in gone]
    for step in (1, 2, 3, 9, 10):
        assert (tmp_path / f"global_step_{step}" / "actor").exists()  # verl's own are verl's
    assert (tmp_path / "global_step_4_old" / "replay").exists()


# ---- verl's tracker file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tracker", [None, "9", "10", "10\n", " 10\r\n", "010"])
def test_a_tracker_that_verl_can_read_is_left_to_verl(tmp_path, tracker):
    """verl writes str(step) and reads with int(): the newline that an editor leaves is no damage."""
    assert tracker is None or int(tracker) in (9, 10)
    check_tracker(with_steps(tmp_path, 9, 10, tracker=tracker, actor=True))


GARBLED = [
    "",
    " ",
    "\n",
    "-10",
    "+10",
    "1 0",
    "10.0",
    "1_0",
    "ten",
    "\0\0",
    "global_step_10",
    "8",
    "100",
    "9" * 5000,
    "１０",
]


@pytest.mark.parametrize("tracker", GARBLED)
def test_an_empty_or_garbled_tracker_is_refused_naming_the_newest_complete_folder(tmp_path, tracker):
    """Saved whole: 2 and 10. 11 has no data.pt, and 12 no actor: their saves were killed."""
    with_steps(tmp_path, 2, 10, tracker=tracker, actor=True)
    (tmp_path / "global_step_11" / "actor").mkdir(parents=True)
    (tmp_path / "global_step_12").mkdir()
    (tmp_path / "global_step_12" / "data.pt").write_text("")
    with pytest.raises(CheckpointError) as error:
        check_tracker(tmp_path)
    told = str(error.value)
    assert str(tmp_path / TRACKER) in told and repr(tracker.encode()[:40]) in told
    assert f"trainer.resume_mode=resume_path trainer.resume_from_path={tmp_path / 'global_step_10'}." in told


@pytest.mark.parametrize("tracker", ["", "3"])
def test_where_no_folder_is_complete_the_remedy_is_to_start_anew(tmp_path, tracker):
    with_steps(tmp_path, 2, tracker=tracker)
    with pytest.raises(CheckpointError, match="No checkpoint there is complete.*trainer.resume_mode=disable"):
        check_tracker(tmp_path)
