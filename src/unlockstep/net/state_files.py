"""States of learners on their way to others, as the syncer keeps them: in files, not in memory, and never looked into.

Decides how a body becomes a file and is read again, and that nothing is left of it. Does not decide whose state is
taken, by whom, or how long it is kept (``core.donation``).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net.api import STREAM_BUFFER_BYTES
from unlockstep.net.timeouts import ProgressWatch, Timeouts

Moved = Callable[[], None]
"""A piece has passed. Raises what ends the transfer."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """One that is here whole."""

    path: Path
    digest: str
    size_bytes: int


class StateFiles:
    """By ticket. They are in the folder for temporary files (``TMPDIR``), and gone with the process.

    Args:
        timeouts: when a transfer has stalled.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._folder: TemporaryDirectory[str] | None = None
        self._files: dict[int, StateFile] = {}
        self._coming: set[int] = set()

    def find(self, ticket: int) -> StateFile | None:
        """The file, if it is here whole."""
        return self._files.get(ticket)

    def forget(self, ticket: int) -> None:
        """It is not needed. Who is reading it reads on."""
        found = self._files.pop(ticket, None)
        if found is not None:
            found.path.unlink(missing_ok=True)

    def close(self) -> None:
        """All of them are gone."""
        self._files.clear()
        if self._folder is not None:
            self._folder.cleanup()

    async def receive(
        self, ticket: int, stream: aiohttp.StreamReader, size: int, digest: str, moved: Moved
    ) -> StateFile:
        """Write a body of exactly ``size`` bytes, piece by piece.

        Raises:
            RemoteProtocolError: it is longer or shorter, is not what ``digest`` says, or is coming already.
            TimeoutError: it has stalled. aiohttp's own errors pass through, as does OSError of a
                disk that is full.
        """
        if ticket in self._coming or ticket in self._files:
            raise RemoteProtocolError("this state is coming, or here, already")
        self._coming.add(ticket)
        path = self._path(ticket)
        try:
            found = await self._write(path, stream, size, moved)
            if found != digest:
                raise RemoteProtocolError("the state that came is not the one that was sent: its digest is another")
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            self._coming.discard(ticket)
        kept = self._files[ticket] = StateFile(path, digest, size)
        return kept

    async def _write(self, path: Path, stream: aiohttp.StreamReader, size: int, moved: Moved) -> str:
        hashed, filled = hashlib.sha256(), 0
        now_s = asyncio.get_running_loop().time
        watch = ProgressWatch(self._timeouts, now_s())
        with path.open("wb") as file:
            while True:
                async with asyncio.timeout_at(watch.until_s):
                    piece = await stream.readany()
                watch.moved(len(piece), now_s())
                if not piece:
                    break
                filled += len(piece)
                if filled > size:
                    raise RemoteProtocolError(f"the state is longer than the {size} bytes announced")
                await asyncio.to_thread(_put, file.write, hashed.update, piece)
                moved()
        if filled < size:
            raise RemoteProtocolError(f"the state ended after {filled} of {size} bytes")
        return hashed.hexdigest()

    async def pieces(self, file: StateFile, moved: Moved) -> AsyncIterator[bytes]:
        """What is in it, to be sent."""
        with file.path.open("rb") as opened:
            while piece := await asyncio.to_thread(opened.read, STREAM_BUFFER_BYTES):
                yield piece
                moved()

    def _path(self, ticket: int) -> Path:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="unlockstep-states-")
        return Path(self._folder.name) / str(ticket)


def _put(write: Callable[[bytes], int], update: Callable[[bytes], None], piece: bytes) -> None:
    write(piece)
    update(piece)
