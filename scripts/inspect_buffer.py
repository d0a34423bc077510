"""What the replay buffer of a checkpoint holds: ages, advantages, uses, and the rollouts that stand out.

    python -m scripts.inspect_buffer checkpoints/global_step_40
    python -m scripts.inspect_buffer checkpoints --tokenizer models/Qwen3-0.6B --plot buffer.png --json buffer.json

PATH is a global_step_N folder, its replay/, or the folder of all checkpoints (then the newest). Nothing there is
changed; the files are checked as a resumed run would check them. Exit code 1 where they cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from scripts.inspecting.reading import find_buffer, read_buffer
from scripts.inspecting.show import show
from scripts.inspecting.summary import summarize
from scripts.inspecting.texts import decoder, visible


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="folder of the model's tokenizer; without it token ids")
    parser.add_argument("--top", type=int, default=10, help="rollouts to show of the largest |A|, and of the most uses")
    parser.add_argument("--plot", type=Path, help="file for a picture (PNG)")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    given = parser.parse_args(arguments)
    if given.top < 0:
        parser.error(f"--top must be at least 0, got {given.top}")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character must not end this
    try:
        inspect(given)
    except (ValueError, OSError) as error:
        Console(stderr=True, soft_wrap=True).print(Text(f"inspect_buffer: {visible(str(error))}"))
        return 1
    return 0


def inspect(given: argparse.Namespace) -> None:
    """Read, print and write what was asked for.

    Raises:
        ValueError: there is no buffer, or one that cannot be used (CheckpointError).
        OSError: a file cannot be read or written.
    """
    decode = decoder(given.tokenizer)
    stored = read_buffer(find_buffer(given.path))
    summary = summarize(stored, decode, top=given.top)
    show(summary, Console())
    if given.json:
        given.json.write_text(json.dumps(summary, indent=2) + "\n")
    if given.plot:
        from scripts.inspecting.plot import plot_buffer

        plot_buffer(stored, given.plot)


if __name__ == "__main__":
    sys.exit(main())
