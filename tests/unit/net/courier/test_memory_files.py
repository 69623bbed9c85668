"""Memory that two processes see: the same bytes for both, nobody can take them away, and nothing of it stays."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from support.full_disk import files_of_at_most
from unlockstep.net.courier.memory_files import MemoryFile

LIMIT_BYTES = 64 * 1024


@pytest.fixture(params=["memfd", "file"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Both ways to have such memory."""
    if request.param == "memfd" and not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memfd_create")
    if request.param == "file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return str(request.param)


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/dev/fd"))


def test_what_one_end_writes_the_other_reads(kind: str) -> None:
    with MemoryFile(1000) as ours, MemoryFile.received(os.dup(ours.descriptor), 1000) as theirs:
        assert not ours.bytes.any()
        ours.bytes[:] = np.arange(1000, dtype=np.uint8)
        assert np.array_equal(theirs.bytes, ours.bytes)
        theirs.bytes[999] = 7
        assert ours.bytes[999] == 7


def test_a_part_of_it_may_be_all_that_is_shown(kind: str) -> None:
    with MemoryFile(1000) as ours, MemoryFile.received(os.dup(ours.descriptor), 10) as theirs:
        assert theirs.bytes.size == 10


def test_there_may_be_nothing_in_it(kind: str) -> None:
    with MemoryFile(0) as ours, MemoryFile.received(os.dup(ours.descriptor), 0) as theirs:
        assert ours.bytes.size == theirs.bytes.size == 0


def test_arrays_outlive_the_descriptor_and_the_object(kind: str) -> None:
    file = MemoryFile(4096)
    file.bytes[:] = 3
    view = file.bytes.view(np.float32)[1:]
    before = view.copy()
    file.close()
    file.close()
    del file
    gc.collect()
    assert np.array_equal(view, before)


def test_descriptors_are_closed_however_it_ends(kind: str) -> None:
    MemoryFile(16).close()  # Whatever is loaded once is loaded now.
    before = open_files()
    with MemoryFile(16):
        pass
    MemoryFile(16)
    with MemoryFile(16) as ours, pytest.raises(OSError, match="fewer than the 17 bytes"):
        MemoryFile.received(os.dup(ours.descriptor), 17)
    assert open_files() == before


def test_a_file_is_in_no_folder(kind: str, tmp_path: Path) -> None:
    with MemoryFile(16):
        assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only memory that is no file can be sealed")
def test_nobody_can_cut_it_short() -> None:
    with MemoryFile(4096) as ours, pytest.raises(PermissionError):
        os.ftruncate(ours.descriptor, 0)


def test_a_disk_that_is_full_is_an_error_before_anybody_touches_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = open_files()
    with files_of_at_most(LIMIT_BYTES), pytest.raises(OSError) as caught:
        MemoryFile(LIMIT_BYTES + 1)
    assert caught.value.errno == errno.EFBIG
    assert open_files() == before
