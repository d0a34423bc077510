"""`python -m tests.forked_command MODULE FOLDER`: one command many times, without importing verl anew each time.

Reads lists of arguments as JSON, one a line. Each is run as `python -m MODULE ARGUMENTS` in a fork of this process,
which has imported what takes long. FOLDER gets N.out, N.err and N.status of line N.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Done = subprocess.CompletedProcess[str]


def run_forked(module: str, commands: Sequence[Sequence[str]], folder: Path, env: Mapping[str, str]) -> list[Done]:
    """Results of the commands, in their order."""
    lines = "".join(json.dumps(command) + "\n" for command in commands)
    here = [sys.executable, "-m", "tests.forked_command", module, str(folder)]
    subprocess.run(here, input=lines, text=True, env=env, cwd=ROOT, check=True, timeout=900)

    def read(number: int, kind: str) -> str:
        return (folder / f"{number}.{kind}").read_text()

    return [Done(command, int(read(i, "status")), read(i, "out"), read(i, "err")) for i, command in enumerate(commands)]


def fork(module: str, arguments: Sequence[str], path: Path) -> int:
    """Exit status of the command, whose output goes to `path`.out and .err."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for stream, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{path}.{kind}", os.O_WRONLY | os.O_CREAT, 0o644), stream)
    sys.argv = [module, *arguments]
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:  # as the interpreter ends with it
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # to take down what was imported takes longer than the command


if __name__ == "__main__":
    from verl_replay.platforms.cpu_environment import fill_environment

    fill_environment(os.environ)  # verl reads it as it is imported
    import verl.trainer.main_ppo  # noqa: F401

    import verl_replay.task_runner  # noqa: F401

    gc.freeze()
    name, target = sys.argv[1:]
    for index, line in enumerate(sys.stdin.read().splitlines()):
        (Path(target) / f"{index}.status").write_text(str(fork(name, json.loads(line), Path(target) / str(index))))
