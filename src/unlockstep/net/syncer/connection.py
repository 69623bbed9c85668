"""The syncer's end of one control connection: a bounded queue in front of a socket.

Decides that nobody waits for a peer that does not read: sending never blocks, and a queue that overflows costs the peer
its connection. Does not decide what is sent, and knows neither messages nor the core.
"""

from __future__ import annotations

import asyncio
from collections import deque

from aiohttp import WSCloseCode, web

from unlockstep.net.access.audit import Peer
from unlockstep.net.wire.api import OUTBOX_MESSAGES_MAX

_CLOSE_TEXT_BYTES_MAX = 120
"""A closing frame holds 123 bytes of text (RFC 6455, 5.5)."""


class Connection:
    """One connected learner or observer.

    Args:
        socket: an open WebSocket.
        transport: what it runs over, to cut it without ceremony.
        name: of the peer, for logs.
        peer: where it is, and with which token.
        messages_max: messages that may wait for the peer to read.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse,
        transport: asyncio.Transport,
        name: str,
        peer: Peer,
        messages_max: int = OUTBOX_MESSAGES_MAX,
    ) -> None:
        self.name = name
        self.peer = peer
        self.incarnation = 0
        """Set by the syncer's ``Welcome``."""
        self._socket = socket
        self._transport = transport
        self._messages_max = messages_max
        self._frames: deque[bytes] = deque()
        self._work = asyncio.Event()
        self._closing: tuple[int, bytes] | None = None

    @property
    def is_closing(self) -> bool:
        """True once nothing more is sent, and nothing that is said counts."""
        return self._closing is not None

    def send(self, frame: bytes) -> None:
        """Queue a frame; cuts the connection if the peer has left too many unread."""
        if self.is_closing:
            return
        if len(self._frames) >= self._messages_max:
            self.cut()
            return
        self._frames.append(frame)
        self._work.set()

    def close(self, sentence: str = "", code: int = WSCloseCode.OK) -> None:
        """Send what is queued, then close with a sentence for the peer."""
        if not self.is_closing:
            self._closing = code, sentence.encode()[:_CLOSE_TEXT_BYTES_MAX].decode(errors="ignore").encode()
            self._work.set()

    def cut(self) -> None:
        """Close at once; what is queued is lost."""
        self._closing = WSCloseCode.GOING_AWAY, b""
        self._frames.clear()
        self._transport.abort()

    async def pump(self) -> None:
        """Write queued frames until the connection is closed; runs as a task of its own."""
        try:
            while self._frames or not self.is_closing:
                while self._frames:
                    await self._socket.send_bytes(self._frames.popleft())
                if not self.is_closing:
                    self._work.clear()
                    await self._work.wait()
            if self._closing is not None:
                await self._socket.close(code=self._closing[0], message=self._closing[1])
        except (ConnectionError, RuntimeError):  # aiohttp: "Cannot write to closing transport"
            self.cut()
