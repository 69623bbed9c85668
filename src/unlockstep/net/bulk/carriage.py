"""A transfer's threads: each carries one chunk after the other over a connection of its own, until all are done.

::

    run ── serve ── next chunk ── place in the lane ── carry it ── next chunk ...      the caller's thread
             └───── serve ── next chunk ── ...                                         more, as the lane has places

Decides how many threads there are, what is tried again and when, when an attempt is given up (too little passes for too
long), and when all is: attempts fail one after the other, and nothing gets through. What a chunk is, and how it is
carried, is a ``Work``'s.
"""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Callable
from typing import Protocol

from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.bulk.channel import Channel
from unlockstep.net.bulk.lane import LOOK_S, Lane
from unlockstep.net.bulk.pace import Bucket
from unlockstep.net.wire.timeouts import ProgressWatch, Timeouts

FAILURES_MAX = 20
"""Attempts in a row in which nothing got through, after which a transfer is given up, however fast they failed."""

FAILURES_MIN = 3
"""... and before which it is not, however long they took."""


class Again(Exception):
    """The other end cannot just now, or what came is damaged: the chunk may be tried again over the same connection."""


class Attempt:
    """To carry one chunk, by one thread.

    Args:
        timeouts: what is too slow.
        moved: told of every byte.
        over: set when the transfer is.
    """

    def __init__(self, timeouts: Timeouts, moved: Callable[[int], None], over: threading.Event) -> None:
        self._watch = ProgressWatch(timeouts, time.monotonic())
        self._told = moved
        self._over = over

    def moved(self, count: int) -> None:
        """So many bytes have passed. Raises OSError if that is too few by now."""
        self._told(count)
        now_s = time.monotonic()
        self._watch.moved(count, now_s)
        if self._watch.has_stalled(now_s):
            raise TimeoutError("too little of the body passed for too long")

    def rest(self, bucket: Bucket, count: int) -> None:
        """So many bytes have passed under a cap: wait until more may."""
        pause_s = bucket.take(count, time.monotonic_ns()) / NANOSECONDS_PER_SECOND
        if pause_s:
            self._over.wait(pause_s)
            self._watch.excuse(pause_s)


class Work(Protocol):
    """What is carried. All but ``carry`` is called by one thread at a time."""

    @property
    def waiting(self) -> int:
        """Chunks that nobody carries yet."""

    @property
    def is_done(self) -> bool: ...

    def take(self) -> int | None:
        """One of them, to be carried; None if there is none."""

    def give_back(self, index: int) -> None:
        """It was taken, and is not done."""

    def carry(self, channel: Channel, index: int, attempt: Attempt) -> None:
        """Raises OSError or ``Again`` if it is to be tried again, RemoteProtocolError if all is in vain."""


class Carriage:
    """Of one transfer.

    Args:
        lane: places and connections.
        drop: what becomes of a connection that is of no use.
        timeouts: deadlines.
        cancelled: set by who wants it to end.
        moved: told of every byte.
    """

    def __init__(
        self,
        lane: Lane,
        drop: Callable[[Channel], None],
        timeouts: Timeouts,
        cancelled: threading.Event,
        moved: Callable[[int], None],
    ) -> None:
        self.lock = threading.Lock()
        """Whoever changes what several threads of the transfer know holds it."""
        self._lane = lane
        self._drop = drop
        self._cancelled = cancelled
        self._told = moved
        self._timeouts = timeouts
        self._in_use: set[Channel] = set()
        self._serving = 0
        self._failures = 0
        """In a row."""
        self._through_s = time.monotonic()
        """When something got through last."""
        self._over = threading.Event()
        self._failure: BaseException | None = None

    def run(self, work: Work) -> None:
        """Return when all is done.

        Raises:
            OSError: nothing gets through any more, or it was cancelled.
            RemoteProtocolError: the other end does not have, or want, what is carried.
        """
        self._work = work
        self._threads: list[threading.Thread] = []
        while not self._over.is_set() and not work.is_done:
            self._serving += 1
            self._serve()
            for thread in self._threads:
                thread.join()
            if not work.is_done and not work.waiting:
                self.end(OSError("the syncer has all of it, and does not say what becomes of it"))
        del self._work  # It holds this: together they would hold the body until the collector comes by.
        if self._failure is not None:
            raise self._failure

    def end(self, failure: BaseException | None = None) -> None:
        """Nothing more is to be carried; who is in the middle of it is cut off."""
        with self.lock:
            if self._over.is_set():
                return
            self._failure = failure
            self._over.set()
            for channel in self._in_use:
                channel.cut()

    def got_through(self) -> None:
        """Something has: what fails now begins to fail."""
        with self.lock:
            self._failures, self._through_s = 0, time.monotonic()

    def _moved(self, count: int) -> None:
        self._lane.moved(count)
        if self._lane.has_room:  # There are to be more streams than there were: no chunk need end for that.
            self._call_others()
        with self.lock:
            self._told(count)

    # ------------------------------------------------------------------------------------------- one thread

    def _serve(self) -> None:
        channel: Channel | None = None
        try:
            while (index := self._take()) is not None:
                if not self._lane.enter(lambda index=index: self._may_wait(index)):  # type: ignore[misc]
                    return
                try:
                    self._call_others()
                    channel, pause_s = self._attempt(channel, index)
                finally:
                    self._lane.leave()
                if pause_s:
                    self._over.wait(pause_s)
        except BaseException as error:
            self.end(error)
        finally:
            if channel is not None:
                self._lane.keep(channel)

    def _take(self) -> int | None:
        with self.lock:
            index = None if self._over.is_set() else self._work.take()
            if index is None:
                self._serving -= 1
            return index

    def _may_wait(self, index: int) -> bool:
        """There is no place in the lane: one thread waits for it, the others go home."""
        with self.lock:
            if not self._over.is_set() and not self._cancelled.is_set() and self._serving == 1:
                self._through_s += LOOK_S
                return True
            self._work.give_back(index)
            self._serving -= 1
            return False

    def _call_others(self) -> None:
        with self.lock:
            more = min(self._lane.places - self._serving, self._work.waiting)
            self._serving += max(0, more)
        for _ in range(more):
            thread = threading.Thread(target=self._serve, name="unlockstep-stream", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _attempt(self, channel: Channel | None, index: int) -> tuple[Channel | None, float]:
        """Carry a chunk; returns the channel if it is of further use, and how long to wait before another attempt."""
        try:
            if channel is None:
                channel = self._lane.channel()
            self._use(channel)
            self._work.carry(channel, index, Attempt(self._timeouts, self._moved, self._over))
        except (Again, OSError) as error:
            pause_s = self._failed(index, error, channel)
        except (RemoteProtocolError, UsageError) as error:
            self.end(error)
            pause_s = 0.0
        else:
            self.got_through()
            pause_s = 0.0
        if channel is not None:
            with self.lock:
                self._in_use.discard(channel)
            if not channel.is_reusable:
                self._drop(channel)
                channel = None
        return channel, pause_s

    def _use(self, channel: Channel) -> None:
        with self.lock:
            self._in_use.add(channel)
            if self._over.is_set():
                channel.cut()

    def _failed(self, index: int, error: Exception, channel: Channel | None) -> float:
        """How long to wait before another attempt."""
        is_stale = isinstance(error, ConnectionError) and channel is not None and not channel.is_fresh
        with self.lock:
            self._work.give_back(index)
            self._failures += not is_stale
            failures, waited_s = self._failures, time.monotonic() - self._through_s
        if self._cancelled.is_set():
            self.end(ConnectionAbortedError("cancelled"))
        elif (
            isinstance(error, ssl.SSLCertVerificationError)
            or failures >= FAILURES_MAX
            or (failures >= FAILURES_MIN and waited_s >= self._timeouts.stall_s)
        ):
            self.end(error if isinstance(error, OSError) else OSError(str(error)))
        elif not is_stale:
            return self._timeouts.backoff_s_after(failures) * random.uniform(0.5, 1.0)
        return 0.0
