"""A process that stands still is woken when its parent ends, and then finds itself alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the parent's death is told of on Linux only")

CHILD = """
import os, signal
from unlockstep.orphans import wake_at_parents_end
wake_at_parents_end()
print("ready", os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
print("woken", flush=True)
"""

PARENT = f"""
import signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", {CHILD!r}])
signal.pause()
"""


def test_a_stopped_child_of_a_killed_parent_goes_on() -> None:
    parent = subprocess.Popen((sys.executable, "-c", PARENT), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    said, pid = parent.stdout.readline().split()
    assert said == "ready"
    while "T (stopped)" not in Path(f"/proc/{pid}/status").read_text():
        pass
    parent.kill()
    parent.wait()
    assert parent.stdout.read() == "woken\n"  # to the end: the child has it open, too
    parent.stdout.close()
