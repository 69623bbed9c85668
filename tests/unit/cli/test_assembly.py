"""What is decided before a framework is loaded."""

from __future__ import annotations

import sys
import tempfile

import pytest

from unlockstep.cli.assembly import name_a_temporary_folder


@pytest.mark.skipif(sys.platform != "linux", reason="files are limited as on Linux")
def test_where_no_file_can_be_written_there_is_a_folder_for_them_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", "/somewhere")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        name_a_temporary_folder()
        assert tempfile.gettempdir() == "/somewhere"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
