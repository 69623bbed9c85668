"""Memory of a process that makes and drops large arrays all the time: what is dropped goes back to the system.

Decides from which size on. Does not decide what is kept (``storehouse``).
"""

from __future__ import annotations

import ctypes

ARRAY_BYTES_MIN = 1024 * 1024

HEAP_BYTES_KEPT = 16 * 1024 * 1024
"""What is not in use at the end of the heap, where what a connection brings comes and goes in pieces of 256 KiB: given
back and asked for again each time, it would have to be cleared each time."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's ``mallopt``."""


def give_back_arrays() -> bool:
    """From now on every array of ``ARRAY_BYTES_MIN`` or more has pages of its own, which go back when it is freed.

    glibc does that only at first: freeing such an array raises the size from which it does, up to 32 MiB, and smaller
    ones then leave gaps that stay. A syncer of 100 million parameters in 24 fragments took 11.2 bytes each at rest
    instead of 8.0 (``benchmarks/syncer_memory.py``).

    Returns:
        Whether this system's allocator can be told so; otherwise nothing has changed.
    """
    try:
        glibc = ctypes.CDLL(None)
        return bool(
            glibc.mallopt(_M_MMAP_THRESHOLD, ARRAY_BYTES_MIN) and glibc.mallopt(_M_TRIM_THRESHOLD, HEAP_BYTES_KEPT)
        )
    except (OSError, AttributeError, TypeError):  # No glibc.
        return False
