"""A folder of whole files, on this machine or behind a URL: the little a store needs from wherever it is.

Two ways to write, both whole or not at all and durable when they return: ``write`` replaces what has the name,
``create`` succeeds for one process only. All order between processes comes from ``create``; nothing here reads a clock
to decide who may do what.

Decides how bytes get there and survive. Does not decide what the files mean (``run_store``).
"""

from __future__ import annotations

import errno
import inspect
import itertools
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol, TypeAlias

from unlockstep.core.errors import UsageError

Part: TypeAlias = bytes | memoryview

ABANDONED_AFTER_S = 3600.0
"""Age at which a temporary file is nobody's any more. If its writer lives after all, that one gets an error."""


def _process_space() -> str:
    """Within it a number names one process: containers may share a host's name and still count on their own."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


HOST = sha256(f"{socket.gethostname()} {_process_space()}".encode()).hexdigest()[:8]
"""Where the number of a process says which one it is."""
_LIFE = secrets.token_hex(4)
"""Tells this process from an earlier one of the same number, as in a container, where every process has number 1."""
_COUNT = itertools.count()
_TEMPORARY = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-(?P<pid>[0-9]+)-(?P<life>[0-9a-f]{8})-[0-9]+\.part")

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class Place(Protocol):
    """Names are relative, with forward slashes: ``records/0000000001.json``."""

    def read(self, name: str) -> bytes:
        """All bytes of a file. Raises FileNotFoundError if there is none."""
        ...

    def write(self, name: str, parts: Sequence[Part]) -> None:
        """Put the bytes of ``parts``, one after the other, under ``name``, in place of what was there."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Put ``data`` under ``name`` unless the name is taken; True for exactly one of all who try.

        An error leaves open whether the name has been taken. Raises UsageError if this place cannot do it.
        """
        ...

    def names(self, folder: str) -> list[str]:
        """What is directly in ``folder``, sorted, without its path; files being written are left out."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file, if it is there. Not durable: it may be back after a loss of power."""
        ...

    def describe(self, name: str) -> str:
        """What a person calls the file: its full path or its URL."""
        ...


def open_place(where: str | Path) -> Place:
    """A folder of this machine, or whatever fsspec knows by its URL (``s3://bucket/run``).

    Raises:
        UsageError: no file system of this installation answers to the URL.
    """
    if isinstance(where, str) and "://" in where:
        scheme, path = where.split("://", 1)
        if scheme not in ("file", "local"):
            return RemotePlace(where)
        where = path
    return LocalPlace(Path(where))


# -------------------------------------------------------------------------------------------------- this machine


class Disk:
    """The calls to the operating system by which a ``LocalPlace`` changes something: each can be made to fail."""

    def open(self, path: str) -> int:
        """A new file, to be written; returns its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, data: Part) -> int:
        """Write the first bytes of ``data``; returns how many."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Give the descriptor back."""
        os.close(descriptor)

    def replace(self, source: str, target: str) -> None:
        """Give ``source`` the name ``target``, whoever had it."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Give ``source`` a second name. Raises FileExistsError if it is taken."""
        os.link(source, target)

    def unlink(self, path: str) -> None:
        """Take a name away."""
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        """Make a folder. Raises FileExistsError if there is one."""
        os.mkdir(path)

    def fsync_folder(self, path: str) -> None:
        """Wait until the names in a folder are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class LocalPlace:
    """A folder of this machine, or one that is mounted. It is made when the first file is written.

    A file gets its name when all its bytes are on the disk: by renaming, or, to create, by a hard link, which two
    processes cannot both make. Temporary files that dead processes have left are removed on opening.
    """

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._root = os.path.abspath(path)
        self._disk = disk or Disk()
        self._durable_folders: set[str] = set()
        self._remove_leftovers()

    def read(self, name: str) -> bytes:
        """See ``Place``."""
        with open(self.describe(name), "rb", buffering=0) as file:
            return file.readall()

    def write(self, name: str, parts: Sequence[Part]) -> None:
        """See ``Place``."""
        target = self.describe(name)
        temporary = self._write_temporary(target, parts)
        try:
            self._disk.replace(temporary, target)
        except OSError:
            self._unlink_if_there(temporary)
            raise
        self._disk.fsync_folder(os.path.dirname(target))

    def create(self, name: str, data: bytes) -> bool:
        """See ``Place``."""
        target = self.describe(name)
        temporary = self._write_temporary(target, [data])
        try:
            created = self._link(temporary, target)
        finally:
            self._unlink_if_there(temporary)
        if created:
            self._disk.fsync_folder(os.path.dirname(target))
        return created

    def names(self, folder: str) -> list[str]:
        """See ``Place``."""
        try:
            found = os.listdir(self.describe(folder))
        except (FileNotFoundError, NotADirectoryError):  # The latter: a file of somebody else's among our folders.
            return []
        return sorted(name for name in found if not _TEMPORARY.fullmatch(name))

    def delete(self, name: str) -> None:
        """See ``Place``."""
        self._unlink_if_there(self.describe(name))

    def describe(self, name: str) -> str:
        """See ``Place``."""
        return os.path.join(self._root, *name.split("/"))

    def _write_temporary(self, target: str, parts: Sequence[Part]) -> str:
        folder, name = os.path.split(target)
        self._make_durable(folder)
        temporary = os.path.join(folder, f".{name}.{HOST}-{os.getpid()}-{_LIFE}-{next(_COUNT)}.part")
        descriptor = self._disk.open(temporary)
        try:
            for part in parts:
                rest = memoryview(part)
                while rest.nbytes:
                    rest = rest[self._disk.write(descriptor, rest) :]
            self._disk.fsync(descriptor)
        except OSError as error:
            if error.errno is not None and error.filename is None:
                error.filename = target
            self._unlink_if_there(temporary)
            raise
        finally:
            self._disk.close(descriptor)
        return temporary

    def _link(self, temporary: str, target: str) -> bool:
        try:
            self._disk.link(temporary, target)
        except FileExistsError:
            # A network file system may repeat a call whose answer was lost, and then meet its own first try.
            with suppress(FileNotFoundError):
                return os.path.samefile(temporary, target)
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise UsageError(
                    f"{self._root} is on a file system without hard links, which keep two syncers from writing the "
                    "same record: choose a folder on another one"
                ) from error
            raise
        return True

    def _make_durable(self, folder: str) -> None:
        """Make a folder and those above it; wait until they are on the disk, even if an earlier process made them."""
        if folder in self._durable_folders:
            return
        parent = os.path.dirname(folder)
        if len(folder) > len(self._root) or not os.path.isdir(parent):
            self._make_durable(parent)
        with suppress(FileExistsError):
            self._disk.mkdir(folder)
        # Above the root there may be folders that this process may pass through but not open.
        with suppress(PermissionError):
            self._disk.fsync_folder(parent)
        self._durable_folders.add(folder)

    def _unlink_if_there(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._disk.unlink(path)

    def _remove_leftovers(self) -> None:
        for folder, _, files in os.walk(self._root):
            for name in files:
                match = _TEMPORARY.fullmatch(name)
                path = os.path.join(folder, name)
                if match and _is_abandoned(path, match["host"], int(match["pid"]), match["life"]):
                    # Whoever only reads may have no right to.
                    with suppress(OSError):
                        self._disk.unlink(path)


def _is_abandoned(path: str, host: str, pid: int, life: str) -> bool:
    if host == HOST and pid == os.getpid():
        return life != _LIFE
    if host == HOST and not _is_alive(pid):
        return True
    try:
        return time.time() - os.stat(path).st_mtime > ABANDONED_AFTER_S
    except FileNotFoundError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


# ------------------------------------------------------------------------------------------------ behind a URL


class RemotePlace:
    """An object store, or another file system fsspec knows. An object store's PUT is whole and durable by nature.

    What is created is created on condition that the name is free: by ``pipe_file(mode="create")`` where the file system
    has its own, which is a conditional PUT, else by opening exclusively. Whether the service obeys the condition is
    tried out before it is relied on, because some that speak S3 take no notice of it.
    """

    def __init__(self, url: str) -> None:
        """
        Raises:
            UsageError: no file system of this installation answers to the URL.
        """
        import fsspec

        self._url = re.sub(r"//([^/:@]*):[^/@]*@", r"//\1:***@", url).rstrip("/")
        try:
            self._files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"{self._url} cannot be opened: {error}; install what it asks for, or use a path"
            ) from error
        self._root = root.rstrip("/")
        self._obeys_conditions: bool | None = None

    def read(self, name: str) -> bytes:
        """See ``Place``."""
        return bytes(self._files.cat_file(self._path(name)))

    def write(self, name: str, parts: Sequence[Part]) -> None:
        """See ``Place``."""
        path, data = self._path(name), b"".join(parts)
        self._put(path, lambda: self._files.pipe_file(path, data))

    def create(self, name: str, data: bytes) -> bool:
        """See ``Place``."""
        if self._obeys_conditions is None:
            self._obeys_conditions = self._try_condition()
        if not self._obeys_conditions:
            raise UsageError(
                f"{self._url} has no conditional writes, without which two syncers could write the same record: "
                "use a store that has them, such as S3, Google Cloud Storage or Azure, or a path"
            )
        return self._create(name, data)

    def names(self, folder: str) -> list[str]:
        """See ``Place``."""
        path = self._path(folder)
        self._files.invalidate_cache(path)
        try:
            found = self._files.ls(path, detail=False)
        except FileNotFoundError:
            return []
        return sorted({entry.rstrip("/").rsplit("/", 1)[-1] for entry in found if entry.strip("/") != path.strip("/")})

    def delete(self, name: str) -> None:
        """See ``Place``."""
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def describe(self, name: str) -> str:
        """See ``Place``. Without the password, if the URL has one."""
        return f"{self._url}/{name}"

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _create(self, name: str, data: bytes) -> bool:
        try:
            self._put_new(self._path(name), data)
        except OSError:
            # Services refuse in different words. And a library may repeat a request whose answer was lost, and meet its
            # own first try. What is there now answers both.
            try:
                return self.read(name) == data
            except FileNotFoundError:
                pass
            raise
        return True

    def _put(self, path: str, put: Callable[[], object]) -> None:
        try:
            put()
        except FileNotFoundError:
            # Unlike an object store, it has folders.
            self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            put()

    def _put_new(self, path: str, data: bytes) -> None:
        def exclusively() -> None:
            with self._files.open(path, "xb") as file:
                file.write(data)

        def on_condition() -> None:
            self._files.pipe_file(path, data, mode="create")

        self._put(path, on_condition if self._has_conditional_put() else exclusively)

    def _has_conditional_put(self) -> bool:
        import fsspec

        # What a file system inherits looks first and writes then: two can do that at once.
        inherited = fsspec.AbstractFileSystem.pipe_file
        kind = type(self._files)
        own = getattr(kind, "_pipe_file", None) or kind.pipe_file
        return own is not inherited and "mode" in inspect.signature(own).parameters

    def _try_condition(self) -> bool:
        name = f"condition-{secrets.token_hex(8)}"
        try:
            return self._create(name, b"first") and not self._create(name, b"second")
        except (NotImplementedError, ValueError, TypeError):
            return False
        finally:
            with suppress(OSError, NotImplementedError):
                self.delete(name)
