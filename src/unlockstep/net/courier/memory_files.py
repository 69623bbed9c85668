"""Memory that two processes see: files without a name, mapped by both, gone with the last who holds them.

::

    a = MemoryFile(size) ──descriptor, by send_fds──> b = MemoryFile.received(descriptor, size)
    a.bytes                    are the same pages                            b.bytes

Decides how such memory is had where there is no ``memfd_create``, that nobody can take it away under a reader, and that
a mapping lasts just as long as an array that shows it. Does not decide what is in it, nor when it is used again.

Python's own ``mmap`` holds the interpreter lock while the kernel takes pages back (measured: 5 ms for 32 MB, hence two
seconds for the state of a model of a billion parameters) and a training thread would stand still for as long. So the
system's calls are made here, which give it up.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_FILL_BYTES = 1024 * 1024
_MAP_FAILED = ctypes.c_void_p(-1).value


class MemoryFile:
    """Some bytes that may be given to another process, as an array and, until it is closed, as a descriptor.

    Args:
        size: in bytes, at least 0. They are zero.

    Raises:
        OSError: there is no room for it.

    Leaving it as a context closes the descriptor. The bytes stay for as long as an array shows them, in whichever
    process, and are given back when the last one is gone.
    """

    def __init__(self, size: int) -> None:
        self._take(_new_descriptor(size), size)

    @classmethod
    def received(cls, descriptor: int, size: int) -> Self:
        """The first bytes of one that another process has made. ``descriptor`` is this object's from now on, whatever
        happens."""
        file = cls.__new__(cls)
        file._take(descriptor, size)
        return file

    def _take(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._closing = weakref.finalize(self, os.close, descriptor)
        try:
            self.bytes: Bytes = _mapped(descriptor, size)
        except BaseException:
            self.close()
            raise

    @property
    def descriptor(self) -> int:
        """To be sent to another process. It stays this object's."""
        assert self._closing.alive, "a closed memory file is given to nobody"
        return self._descriptor

    def close(self) -> None:
        """Nobody else is going to be given it. Arrays stay. Also done when nobody has this object any more."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _new_descriptor(size: int) -> int:
    try:
        descriptor = os.memfd_create("unlockstep", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):  # Not Linux; or a sandbox in which it is not allowed.
        return _unlinked_file(size)
    try:
        os.ftruncate(descriptor, size)
        _seal_size(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _seal_size(descriptor: int) -> None:
    """Whoever cut it short would end its readers by SIGBUS."""
    import fcntl

    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _unlinked_file(size: int) -> int:
    """In the folder for temporary files. Written in full: if the disk is full that is an error here, and no SIGBUS for
    whoever touches a page later."""
    with tempfile.TemporaryFile(prefix="unlockstep-", buffering=0) as file:
        zeros = memoryview(bytes(min(size, _FILL_BYTES)))
        left = size
        while left:
            left -= file.write(zeros[:left])
        return os.dup(file.fileno())


class _Mapping:
    """An address range, given back when nothing shows it any more; numpy holds it through its arrays."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}
        # Not at the end of the process: threads may still be reading, and the system cleans up anyway.
        weakref.finalize(self, _system().munmap, address, size).atexit = False


def _mapped(descriptor: int, size: int) -> Bytes:
    if os.fstat(descriptor).st_size < size:
        raise OSError(f"the memory that was given has fewer than the {size} bytes announced")
    if size == 0:
        return np.empty(0, np.uint8)
    address = _system().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"{size} bytes of shared memory cannot be mapped: {os.strerror(number)}")
    return np.asarray(_Mapping(address, size))


_library: Any = None


def _system() -> Any:
    """The C library of this process; its functions run without the interpreter lock."""
    global _library
    if _library is None:
        library = ctypes.CDLL(None, use_errno=True)
        size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
        library.mmap.restype = pointer
        library.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
        library.munmap.argtypes = [pointer, size]
        _library = library
    return _library
