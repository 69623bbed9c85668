"""A clock that all processes of one machine share and nobody sets: how long its kernel has been up, asleep or not.

Decides when two of its readings can be compared. Where they cannot (another machine, a restart in between, no Linux)
there is only the wall clock, which people and programs set as they like; what is done then is up to the caller.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec


class BootTime(msgspec.Struct, frozen=True):
    """One reading."""

    boot: str
    """Random, new at every start of the kernel; with it the time namespace, since containers may shift this clock."""
    ns: int
    """Since that start."""


def boot_time() -> BootTime | None:
    """What the clock shows now; None: this machine has none that says which start it counts from."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    with suppress(OSError):  # A kernel from before there were time namespaces.
        boot += " " + os.readlink("/proc/self/ns/time")
    return BootTime(boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME))


def elapsed_ns(then: BootTime | None, now: BootTime | None) -> int | None:
    """From one reading to the other, never below 0; None: they cannot be compared."""
    if then is None or now is None or then.boot != now.boot:
        return None
    return max(0, now.ns - then.ns)
