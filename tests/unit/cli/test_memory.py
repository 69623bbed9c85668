"""Arrays that are freed go back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import sys
from pathlib import Path
import numpy as np
from unlockstep.cli.memory import give_back_arrays

def resident_mib():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

if sys.argv[1] == "give back":
    assert give_back_arrays()
del_first = np.ones(3_000_000)
del del_first
before = resident_mib()
arrays, kept = [], []
for _ in range(4):
    arrays.append(np.ones(2_000_000))
    kept.append(bytearray(100_000))
del arrays
print(resident_mib() - before)
"""
"""Four arrays of 15 MiB, with something small that stays behind each."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators cannot be told")
@pytest.mark.parametrize(("mode", "gives_back"), [("give back", True), ("leave", False)])
def test_what_is_freed_between_things_that_stay_goes_back(mode: str, gives_back: bool) -> None:
    """By itself glibc keeps it: who does not see that has no use for this function."""
    done = subprocess.run([sys.executable, "-c", CODE, mode], capture_output=True, text=True, check=True)
    assert (float(done.stdout) < 8) is gives_back
