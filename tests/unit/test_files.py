"""A file is written whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from unlockstep.files import remove_partial, whole


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


def test_what_was_there_before_is_kept_if_asked_for(tmp_path: Path) -> None:
    path, previous = tmp_path / "a.txt", tmp_path / "a.txt.previous"
    for text in ("1", "2", "3"):
        with whole(path, previous) as partial:
            partial.write_text(text)
    assert (path.read_text(), previous.read_text()) == ("3", "2")
    assert sorted(tmp_path.iterdir()) == [path, previous]
    with pytest.raises(KeyboardInterrupt), whole(path, previous) as partial:
        raise KeyboardInterrupt
    assert (path.read_text(), previous.read_text()) == ("3", "2")


def test_what_killed_processes_have_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".a[1].5.part", ".a1.5.part", ".a[1].part", "a[1]"):
        (tmp_path / name).write_text("")
    (tmp_path / ".a[1].7.part-x").mkdir()
    (tmp_path / ".a[1].7.part-x" / ".tmp").write_text("")
    remove_partial(tmp_path / "a[1]")
    assert {path.name for path in tmp_path.iterdir()} == {".a1.5.part", ".a[1].part", "a[1]"}


@pytest.mark.parametrize("place", [".", "", "/"])
def test_a_folder_without_a_name_is_not_replaced_either(place: str) -> None:
    with pytest.raises(IsADirectoryError), whole(Path(place)):
        raise AssertionError("there is nothing to write to")


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    with pytest.raises(OSError, match="irectory"), whole(folder) as partial:
        partial.write_text("after")
    assert list(tmp_path.iterdir()) == [folder]
    assert folder.is_dir()
