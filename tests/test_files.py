"""written_whole: the new file, or the old one as it was."""

from __future__ import annotations

import pytest

from verl_replay.files import written_whole


def test_a_file_is_new_or_as_it_was(tmp_path):
    path = tmp_path / "deep/er/table.csv"
    with written_whole(path) as unfinished:
        unfinished.write_text("1")
        assert unfinished.suffix == ".csv" and unfinished.parent == path.parent and not path.exists()
    assert path.read_text() == "1"
    with pytest.raises(KeyboardInterrupt), written_whole(path) as unfinished:
        unfinished.write_text("2")
        raise KeyboardInterrupt
    assert path.read_text() == "1"
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(FileNotFoundError), written_whole(path):
        pass  # nothing was written
    assert path.read_text() == "1"
