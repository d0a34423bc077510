"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` when the block ends well, and is gone when it does not.

    Makes the folder. For results, which can be made again: a power cut may lose what was written last (checkpoint.py
    and evaluations flush their own).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{os.getpid()}.{path.name}")  # the ending stays: writers of pictures look at it
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
