"""Which memory a courier looks at again: that of a file it knows, and no more of it than a few files."""

from __future__ import annotations

import gc
import os

import pytest

from unlockstep.core.errors import LocalProtocolError
from unlockstep.net.courier.memory_files import MemoryFile
from unlockstep.net.courier.process import MAPPINGS_MAX, Mappings


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/dev/fd"))


def test_memory_that_comes_again_is_the_same_memory() -> None:
    mappings = Mappings()
    with MemoryFile(1000) as file, MemoryFile(1000) as other:
        first = mappings.find(1000, os.dup(file.descriptor))
        again = mappings.find(10, os.dup(file.descriptor))
        file.bytes[3] = 7
        assert again.size == 10 and again[3] == 7
        assert again.__array_interface__["data"] == first.__array_interface__["data"]
        assert mappings.find(1000, os.dup(other.descriptor))[3] == 0


def test_descriptors_are_closed_and_only_a_few_files_stay_mapped() -> None:
    mappings = Mappings()
    before = open_files()
    for number in range(3 * MAPPINGS_MAX):
        with MemoryFile(10) as file:
            file.bytes[:] = number
            for _ in range(2):
                assert mappings.find(10, os.dup(file.descriptor))[0] == number
    assert open_files() == before
    assert len(mappings) == MAPPINGS_MAX


def test_a_job_without_memory_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        Mappings().find(10, None)
