"""Run a command that starts Ray and vLLM so that nothing of it is left behind, whatever ends it.

`python -m verl_replay.guard [--timeout SECONDS] -- COMMAND ...`

Ray's and vLLM's processes leave the command's process group, and vLLM, when killed, leaves its shared-memory segments
in /dev/shm (several hundred MB a run, also after a run that ends well). Every process of the command carries a mark in
its environment, so they are found and ended by id, and the segments they had mapped are removed by name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

MARK = "VERL_REPLAY_GUARD"
TIMED_OUT = 124  # exit status of a command that ran past its time, as of coreutils' timeout
_SHM = Path("/dev/shm")
_LOOK_EVERY = 5.0  # seconds between two looks at what is mapped, which costs 60 ms for Ray's and vLLM's processes
_GRACE = 15.0  # seconds between asking the command to end and ending it


def run_guarded(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    timeout: float | None = None,
    tick: Callable[[list[int]], None] = lambda pids: None,
    interval: float = 1.0,
) -> int:
    """Run `command` to its end and leave no process and no shared memory of it.

    Args:
        command: program and arguments.
        env: its whole environment; this process's own by default.
        output: where its stdout and stderr go; to this process's own by default.
        timeout: seconds after which it is ended.
        tick: called every `interval` seconds with the processes that run for it, to show progress or to measure.

    Returns:
        Its exit status; 124 if it ran past the timeout; 128 + n if this process was asked to end by signal n.
    """
    mark = uuid.uuid4().hex
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    handlers = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    segments: set[Path] = set()
    try:
        child = subprocess.Popen(
            command,
            env=with_mark(os.environ if env is None else env, mark),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,  # a Ctrl-C reaches this process alone, which ends the others in order
        )
        end = None if timeout is None else time.monotonic() + timeout
        status, looked = None, -_LOOK_EVERY
        try:
            while status is None and not asked and (end is None or time.monotonic() < end):
                pids = _marked(mark)
                if time.monotonic() - looked > _LOOK_EVERY:
                    looked = time.monotonic()
                    segments |= shared_memory_of(pids)
                tick(pids)
                try:
                    status = child.wait(interval)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            segments |= shared_memory_of(_marked(mark))
            if child.poll() is None:
                _ask_to_end(child)
            _end(mark)
            child.wait()
            _remove(segments)
        if asked:
            return 128 + asked[0]
        return TIMED_OUT if status is None else status
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def memory_of(pids: Sequence[int]) -> int:
    """Bytes these processes hold together now, shared pages divided among their sharers (proportional set size)."""
    total = 0
    for pid in pids:
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue  # it has ended
    return total


def shared_memory_of(pids: Sequence[int]) -> set[Path]:
    """Files of /dev/shm that these processes have mapped now."""
    found = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            path = line.partition(f" {_SHM}/")[2]
            if path:
                found.add(_SHM / path.removesuffix(" (deleted)"))
    return found


def with_mark(env: Mapping[str, str], mark: str) -> dict[str, str]:
    """A guard inside a guard adds its mark to the outer one's, which must find everything too."""
    return {**env, MARK: ",".join(filter(None, (env.get(MARK), mark)))}


def _marked(mark: str) -> list[int]:
    """Processes that carry the mark, the oldest first."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environ = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended, or is another user's
            if any(entry.startswith(f"{MARK}=".encode()) and mark.encode() in entry for entry in environ):
                found.append(int(folder.name))
    return sorted(found)


def _ask_to_end(child: subprocess.Popen[bytes]) -> None:
    """An interrupt lets Ray take its cluster down; who does not listen is ended afterwards."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        pass  # _end ends it


def _end(mark: str) -> None:
    """End every process that carries the mark."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
        end = time.monotonic() + patience
        while (pids := _alive(_marked(mark))) and time.monotonic() < end:
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            time.sleep(0.2)


def _alive(pids: Sequence[int]) -> list[int]:
    """Without those that have ended and only wait for their parent to ask."""
    alive = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            alive.append(pid)
    return alive


def _remove(segments: set[Path]) -> None:
    """Remove segments that nobody has mapped any more."""
    everyone = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    for segment in segments - shared_memory_of(everyone):
        segment.unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    timeout = None
    arguments = list(arguments)
    if arguments[:1] == ["--timeout"]:
        timeout, arguments = float(arguments[1]), arguments[2:]
    if arguments[:1] != ["--"] or len(arguments) < 2:
        print(
            f"usage: python -m verl_replay.guard [--timeout SECONDS] -- COMMAND ..., got {arguments}", file=sys.stderr
        )
        return 2
    return run_guarded(arguments[1:], timeout=timeout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
