"""One direction of an emulated link: what becomes of a frame, and when, as a pure object fed with frames and time.

::

    arrive ──> cut? lost? damaged? ──> queue (bytes_max) ──> sender (rate) ──> on its way (delay) ──> take

Decides which frames are lost, how long each takes, and who overtakes whom. Time is an argument and chance comes from a
seed, so the n-th frame of a cable always has the same fate. Does not read or write anything: ``link_forwarder`` does.
"""

from __future__ import annotations

import heapq
import random
from collections import deque

import msgspec

NEVER_NS = 2**62
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000

HEADERS_BYTES = 80
"""IPv4 and TCP headers with options: what lies behind them is payload."""


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one direction of a link is like. The default is one of no length and no limits."""

    delay_ms: float = 0.0
    """From the last bit sent to the last bit received."""
    rate_mbit: float = 0.0
    """Bits per microsecond; 0: no limit."""
    queue_bytes: int = 256 * 1024
    """What waits for the sender at most; a frame that finds no room is dropped."""
    loss: float = 0.0
    """Share of frames that vanish."""
    reorder: float = 0.0
    """Share of frames that take ``reorder_ms`` longer, and are overtaken by those behind them."""
    reorder_ms: float = 10.0
    damage: float = 0.0
    """Share of frames of which one bit is wrong, so that a checksum of TCP no longer holds."""
    is_cut: bool = False
    """Nothing arrives any more, neither what is sent nor what was on its way."""


class Counts(msgspec.Struct):
    """What has become of the frames of a cable."""

    delivered: int = 0
    delivered_bytes: int = 0
    lost: int = 0
    damaged: int = 0
    reordered: int = 0
    overflowed: int = 0
    """Found the queue full."""
    cut: int = 0
    """Met a link that was cut."""


class Cable:
    """A queue, a sender and a length of wire.

    Args:
        shape: to begin with.
        seed: of every chance this cable takes.
    """

    def __init__(self, shape: Shape, seed: int) -> None:
        self.counts = Counts()
        self.queued_bytes = 0
        self._random = random.Random(seed)
        self._queue: deque[bytes] = deque()
        self._sent_ns = NEVER_NS
        """When the last bit of the first frame in the queue is sent."""
        self._way: list[tuple[int, int, bytes]] = []
        """On their way: (arrival, number, frame), a heap."""
        self._number = 0
        self.shape = shape
        self.reshape(shape)

    def reshape(self, shape: Shape) -> None:
        """Be like this from now on. A frame that is being sent or on its way keeps its time; a cut takes them all."""
        self.shape = shape
        self._ns_per_byte = 8_000 / shape.rate_mbit if shape.rate_mbit else 0.0
        self._delay_ns = int(shape.delay_ms * MILLISECOND_NS)
        if shape.is_cut:
            self.counts.cut += len(self._queue) + len(self._way)
            self._queue.clear()
            self._way.clear()
            self.queued_bytes, self._sent_ns = 0, NEVER_NS

    def arrive(self, frame: bytes, now_ns: int) -> None:
        """A frame is to be sent."""
        shape = self.shape
        if shape.is_cut:
            self.counts.cut += 1
            return
        if shape.loss and self._random.random() < shape.loss:
            self.counts.lost += 1
            return
        self._send_until(now_ns)
        if self.queued_bytes + len(frame) > shape.queue_bytes and self._queue:
            self.counts.overflowed += 1
            return
        if shape.damage and len(frame) > HEADERS_BYTES and self._random.random() < shape.damage:
            frame = frame[:-1] + bytes((frame[-1] ^ 1,))
            self.counts.damaged += 1
        self._queue.append(frame)
        self.queued_bytes += len(frame)
        if len(self._queue) == 1:
            self._sent_ns = now_ns + self._sending_ns(frame)

    def next_ns(self) -> int:
        """When ``take`` has something to do."""
        return min(self._sent_ns, self._way[0][0]) if self._way else self._sent_ns

    def take(self, now_ns: int) -> list[bytes]:
        """The frames that have arrived by now, in that order."""
        self._send_until(now_ns)
        arrived = []
        while self._way and self._way[0][0] <= now_ns:
            frame = heapq.heappop(self._way)[2]
            self.counts.delivered += 1
            self.counts.delivered_bytes += len(frame)
            arrived.append(frame)
        return arrived

    def _send_until(self, now_ns: int) -> None:
        while self._sent_ns <= now_ns:
            self._send()

    def _send(self) -> None:
        """The last bit of the first frame in the queue is out."""
        frame, at_ns = self._queue.popleft(), self._sent_ns
        self.queued_bytes -= len(frame)
        self._sent_ns = at_ns + self._sending_ns(self._queue[0]) if self._queue else NEVER_NS
        arrival_ns = at_ns + self._delay_ns
        if self.shape.reorder and self._random.random() < self.shape.reorder:
            arrival_ns += int(self.shape.reorder_ms * MILLISECOND_NS)
            self.counts.reordered += 1
        self._number += 1
        heapq.heappush(self._way, (arrival_ns, self._number, frame))

    def _sending_ns(self, frame: bytes) -> int:
        return int(len(frame) * self._ns_per_byte)
