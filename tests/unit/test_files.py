"""A file is written whole, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.full_disk import files_of_at_most
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


def test_a_link_stays_one_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, file = tmp_path / "link.txt", tmp_path / "there" / "file.txt"
    link.symlink_to(Path("there") / "file.txt")
    for text in ("1", "2"):  # The first time there is nothing yet where it leads to.
        with whole(link) as partial:
            partial.write_text(text)
        assert link.is_symlink() and file.read_text() == text
    assert list((tmp_path / "there").iterdir()) == [file]


def test_a_pipe_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with whole(pipe) as partial:
            partial.write_text("a page")
        assert os.read(reader, 100) == b"a page"
        with pytest.raises(KeyboardInterrupt), whole(pipe, tmp_path / "previous") as partial:
            partial.write_text("half")
            raise KeyboardInterrupt
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_what_the_process_prints_to_is_not_replaced(tmp_path: Path) -> None:
    """The shell has opened the file: whoever goes on printing would print into one that has no name any more."""
    program = (
        "import pathlib, sys; from unlockstep.files import whole\n"
        "print('before', flush=True)\n"
        f"with whole(pathlib.Path({str(tmp_path / 'out')!r})) as partial: partial.write_text('page\\n')\n"
        "print('after')"
    )
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert (tmp_path / "out").read_text().split() == ["before", "page", "after"]


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(OSError, match=r"File too large: '.*/a\.txt'"), files_of_at_most(10), whole(path) as partial:
        partial.write_text("x" * 100)
    assert list(tmp_path.iterdir()) == []
