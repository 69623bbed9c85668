"""A run under virtual time in a file: taken up again, it goes on to the bit as if it had never stopped.

Decides the file format and when a file is refused. Does not decide what is kept (any object) nor when (``run``).

::

    {"format":1,"digest":"9f86d0...","versions":{"torch":"2.13.0",...}}        a line: who wrote it, and of what
    (the object, as torch.save writes it)

What happens next in such a run is a heap of functions, each with what it refers to. ``cloudpickle`` writes functions of
any kind, torch its tensors, so that tied and shared ones stay that. Here are the rest: locks, memory that arrays share,
and *constants*, which are not written but named: what is large and never changes, or must be what it is in the process
that reads.

Reading runs what the file says, as starting a program does: one that belongs to another user is refused, and nobody
should take up a folder from somebody they do not trust. No other part of this package reads such files.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import platform
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

import unlockstep
from unlockstep.core.codec import body_digest
from unlockstep.core.digests import DIGEST_BYTES, Buffer, hasher
from unlockstep.core.errors import UsageError
from unlockstep.files import whole

FORMAT = 1

_HEADER_BYTES_MAX = 64 * 1024
_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())
_found: ContextVar[Mapping[str, object]] = ContextVar("constants of the checkpoint that is being read")


class Header(msgspec.Struct, frozen=True):
    """Who wrote it, and of what."""

    format: int
    digest: str
    """BLAKE3 of what follows, hexadecimal."""
    versions: dict[str, str]
    """Of everything that decides what the bytes mean, and which bits come next."""


def versions() -> dict[str, str]:
    """What must be equal where a checkpoint is written and where it is read."""
    import torch

    return {
        "unlockstep": unlockstep.__version__,
        "the source of unlockstep": _source_digest(),
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
    }


def _source_digest() -> str:
    """SHA-256 of every module of this package, shortened."""
    folder, digest = Path(unlockstep.__file__).parent, hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def write(path: Path, state: object, constants: Mapping[str, object]) -> None:
    """Write ``state`` to a file: whole or not at all.

    Args:
        path: the file; one that is there is replaced.
        state: whatever it refers to is written too.
        constants: by name: objects that ``state`` may refer to, and that are not written. ``read`` is given those of
            the same names. Of an array this holds for views of it, too.

    Raises:
        OSError: it cannot be written.
    """
    import torch

    header = Header(FORMAT, "0" * 2 * DIGEST_BYTES, versions())
    with whole(path) as partial, partial.open("wb") as file:
        file.write(msgspec.json.encode(header) + b"\n")
        body = _Hashed(file)
        torch.save(
            state,
            cast(BinaryIO, body),  # It is only written to.
            pickle_module=_pickle_module(constants),
            pickle_protocol=pickle.HIGHEST_PROTOCOL,
        )
        file.seek(0)
        file.write(msgspec.json.encode(msgspec.structs.replace(header, digest=body.digest)))


class _Hashed:
    """A file that is written from here on, and what that is known by. A copy in memory would take as long again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hasher = file, hasher()

    def write(self, data: Buffer) -> int:
        self._hasher.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()


def read(path: Path, constants: Mapping[str, object]) -> Any:
    """What was written to a file.

    Raises:
        UsageError: it cannot be read, is damaged, is another user's, or was written by other versions.
    """
    import torch

    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise UsageError(
                    f"checkpoint {path} is another user's, and reading it may run any code; go on with the run as that "
                    "user, or remove the checkpoint: the run then begins anew"
                )
            line, body = file.readline(_HEADER_BYTES_MAX), file.read()
        header = msgspec.json.decode(line, type=Header)
    except OSError as error:
        raise UsageError(f"checkpoint {path} cannot be read ({error.strerror or error}); check the path") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _damaged(path) from None
    if body_digest(body) != header.digest:
        raise _damaged(path)
    here, there = versions(), {"format": str(header.format), **header.versions}
    for name, version in {"format": str(FORMAT), **here}.items():
        if there.get(name) != version:
            raise UsageError(
                f"checkpoint {path} was written under another version: {name} is {version} here and was "
                f"{there.get(name, 'unknown')}; go on with that one, or remove the checkpoint: the run then begins anew"
            )
    token = _found.set(constants)
    try:
        return torch.load(io.BytesIO(body), weights_only=False)
    finally:
        _found.reset(token)


def _damaged(path: Path) -> UsageError:
    return UsageError(f"checkpoint {path} is damaged; restore it, or remove it: the run then begins anew")


# ------------------------------------------------------------------------------------------------ what pickle needs


def _pickle_module(constants: Mapping[str, object]) -> ModuleType:
    """What ``torch.save`` calls a pickle module: the class of its pickler is derived from this one's."""
    import cloudpickle

    names = {id(constant): name for name, constant in constants.items()}

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if id(obj) in names:
                return _constant, (names[id(obj)],)
            if isinstance(obj, np.ndarray | memoryview) and (view := _as_view(obj, names)) is not None:
                return view
            if isinstance(obj, _RLOCK):
                return threading.RLock, ()
            if isinstance(obj, _LOCK):
                return threading.Lock, ()
            if isinstance(obj, threading.Condition):
                return threading.Condition, (obj._lock,)  # type: ignore[attr-defined]
            return super().reducer_override(obj)

    module = ModuleType("cloudpickle")
    module.Pickler = Pickler  # type: ignore[attr-defined]
    return module


def _constant(name: str) -> object:
    return _found.get()[name]


def _as_view(obj: NDArray[Any] | memoryview, names: Mapping[int, str]) -> tuple[Any, ...] | None:
    """How to make an array or a memory view on what owns its memory; None for what owns its own.

    What owns it is written once, so that what shared memory before shares it afterwards.
    """
    array = np.asarray(obj)
    owner = _owner(obj, names)
    if owner is obj or array.dtype.hasobject or not isinstance(owner, np.ndarray | bytes | bytearray):
        return None if isinstance(obj, np.ndarray) else (memoryview, (array.tobytes(),))
    if isinstance(owner, np.ndarray) and not owner.flags.c_contiguous:
        return None
    offset = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    place = (owner, offset, array.shape, array.strides, array.dtype)
    if isinstance(obj, memoryview):
        return _memory_on, (*place, obj.readonly)
    return _array_on, (*place, bool(obj.flags.writeable))


def _owner(obj: Any, names: Mapping[int, str]) -> Any:
    """Whose memory it is: the innermost constant, or what is at the end of the chain."""
    while id(obj) not in names:
        below = obj.obj if isinstance(obj, memoryview) else getattr(obj, "base", None)
        if below is None:
            break
        obj = below
    return obj


def _array_on(owner: Any, offset: int, shape: Any, strides: Any, dtype: Any, writeable: bool) -> NDArray[Any]:
    array: NDArray[Any] = np.ndarray(shape, dtype, buffer=owner, offset=offset, strides=strides)
    if not writeable:
        array.setflags(write=False)
    return array


def _memory_on(owner: Any, offset: int, shape: Any, strides: Any, dtype: Any, is_readonly: bool) -> memoryview:
    memory = _array_on(owner, offset, shape, strides, dtype, True).data
    return memory.toreadonly() if is_readonly else memory
