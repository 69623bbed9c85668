"""A file is written whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from unlockstep.files import whole


def test_what_was_written_takes_the_place(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    with whole(path) as partial:
        partial.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("before", [None, "before"])
def test_an_error_leaves_what_was_there_and_nothing_beside_it(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "a.txt"
    if before is not None:
        path.write_text(before)
    with pytest.raises(KeyboardInterrupt), whole(path) as partial:
        partial.write_text("af")
        raise KeyboardInterrupt
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ([] if before is None else [before])


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    with pytest.raises(OSError, match="irectory"), whole(folder) as partial:
        partial.write_text("after")
    assert list(tmp_path.iterdir()) == [folder]
    assert folder.is_dir()
