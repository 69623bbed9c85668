"""The learner's end of a courier in a process of its own: a child that carries bulk for as long as the learner lives.

::

    learner ── jobs, with their memory ──> child (process)                  one Unix socket pair; at its end the child
            <── results ─────────────────                                   ends, whatever has ended the learner

Decides how the child is started, that it outlives neither its learner nor a ``close``, that signals meant for the
learner do not reach it, when it is started again, and when threads do its work instead. Does not decide what a job is
made of (``porter``).

The child is in the learner's process group, so that it is stopped and killed with it; but what asks a process to end
politely is blocked in it from its first instruction on, because the learner is asked too and has yet to hand over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import numpy as np

from unlockstep.core.chunks import Float32
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.messages import HandedOver
from unlockstep.net.courier.courier import CarrierDied, Parcel, ThreadCarrier, own_memory
from unlockstep.net.courier.jobs import (
    Forget,
    FrameReader,
    Job,
    Order,
    Ping,
    Pong,
    Ready,
    Report,
    Result,
    Setting,
    SetUp,
    TurnTo,
    read_report,
    send_frame,
)
from unlockstep.net.courier.memory_files import MemoryFile

START_S_MAX = 60.0
"""From its start until the child is ready; on a busy machine with a slow disk."""

STARTS_MAX = 3
"""Starts in a row of which none gets so far, before threads do the work."""

BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 5.0
"""Pause before the child is started again: doubled every time, until one has lasted longer."""

PING_S = 5.0
"""How often a child is asked whether it takes what it is told."""

PINGS_MAX = 12
"""Pings in a row without an answer, a minute of the learner's own, after which it counts as dead. It answers at once,
however long its jobs take. They are counted, and not the time, since a learner stands still and goes on together with
its child."""

ENDING_S_MAX = 1.0
"""Given to a child that has hung up, to end by itself."""

SPARES_MAX = 2
"""Memory files kept for the jobs to come. The system takes its time to make new ones: 20 ms for 32 MB, where writing to
one that was used before takes 2."""

_BOOT = (
    "'the courier of an unlockstep learner'; import sys; sys.path[:] = sys.argv[2:]; "
    "from unlockstep.net.courier.process import main; main(int(sys.argv[1]))"
)
"""Whatever is imported in the child is what would be imported here. The first words are for who lists processes."""

_PROGRAM = (sys.executable, "-c", _BOOT)

_log = logging.getLogger(__name__)


def is_available() -> bool:
    """Whether this system and this interpreter can have such a child."""
    return hasattr(socket, "send_fds") and bool(sys.executable) and not getattr(sys, "frozen", False)


class ChildCarrier:
    """A ``Carrier``: jobs in a child process, which is started again when it dies.

    Args:
        setting: the run, the model and the syncer.
        token: what is shown to the syncer.
        memory_bytes: of the parcels that are kept for the next job; larger ones are made and given back every time.
        program: how the child is started; it is given a descriptor, and where to import from.
    """

    def __init__(
        self,
        setting: Setting,
        token: str | None,
        memory_bytes: int,
        program: tuple[str, ...] = _PROGRAM,
    ) -> None:
        self._setting = setting
        self._token = token
        self._memory_bytes = memory_bytes
        self._program = program
        self._child: _Child | None = None
        self._latest: _Child | None = None
        """The same, or the one before it, which may not be gone yet."""
        self._instead: ThreadCarrier | None = None
        """Who carries when there is no child, or no memory that a child can see."""
        self._has_given_up = False
        self._is_closed = False
        self._able = asyncio.Event()
        """Jobs need not wait for a child: it is ready, or there will be none."""
        self._keeping: asyncio.Task[None] | None = None
        self._spares: list[MemoryFile] = []
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Of the child, if there is one."""
        return None if self._child is None else self._child.pid

    async def open(self) -> None:
        """See ``Carrier``. The child gets ready while others go on."""
        self._keeping = asyncio.create_task(self._keep())

    async def ready(self) -> None:
        """Wait until jobs need not wait for a child."""
        while not (self._able.is_set() or self._is_closed):
            await self._able.wait()

    async def close(self) -> None:
        """See ``Carrier``. The child is gone when this returns."""
        self._is_closed = True
        self._able.set()
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        if self._latest is not None:
            await self._latest.end()
        if self._instead is not None:
            await self._instead.close()
        with self._lock:
            self._spares.clear()

    # ------------------------------------------------------------------------------------------- jobs

    async def carry(self, job: Job, parcel: Parcel) -> Result:
        """See ``Carrier``. While the child is started again, jobs wait for it."""
        await self.ready()
        if self._is_closed:
            raise CarrierDied("the courier has been closed")
        if self._has_given_up or parcel.file is None:
            return await self._threads().carry(job, parcel)
        assert self._child is not None, "jobs are carried when there is a child"
        return await self._child.carry(job, parcel.file)

    def forget(self, handed_over: HandedOver) -> None:
        """See ``Carrier``."""
        if self._instead is not None:
            self._instead.forget(handed_over)
        if self._child is not None:
            self._child.say(Forget(handed_over))

    def turn_to(self, url: str) -> None:
        """See ``Carrier``."""
        self._setting = msgspec.structs.replace(self._setting, url=url)
        if self._instead is not None:
            self._instead.turn_to(url)
        if self._child is not None:
            self._child.say(TurnTo(url))

    def _threads(self) -> ThreadCarrier:
        if self._instead is None:
            self._instead = ThreadCarrier(self._setting, self._token)
        return self._instead

    # ------------------------------------------------------------------------------------------- memory

    def pack(self, size: int) -> Parcel:
        """See ``Carrier``. Where there is no room for memory that another process can see, threads do the job."""
        with self._lock:
            file = self._spares.pop() if size <= self._memory_bytes and self._spares else None
        try:
            file = file or MemoryFile(max(size, self._memory_bytes))
        except OSError as error:
            _log.warning("there is no room for memory to share with the courier (%s); a thread does its job", error)
            return own_memory(size)
        return Parcel(file.bytes[:size], file)

    def unpack(self, parcel: Parcel, offset: int, count: int) -> Float32:
        """See ``Carrier``. Copied, so that the memory can be used again and nobody holds a part of it for long."""
        if parcel.file is None:
            return parcel.floats(count, offset)
        values = parcel.floats(count, offset).copy()
        self.take_back(parcel)
        return values

    def take_back(self, parcel: Parcel) -> None:
        """See ``Carrier``."""
        file, parcel.file, parcel.bytes = parcel.file, None, np.empty(0, np.uint8)
        if file is not None and file.bytes.size == self._memory_bytes:
            with self._lock:
                if len(self._spares) < SPARES_MAX:
                    self._spares.append(file)

    # ------------------------------------------------------------------------------------------- the child

    async def _keep(self) -> None:
        """Have a child, for as long as starting one leads to anything."""
        pause_s, starts, why, clock_s = BACKOFF_S_MIN, 0, "", asyncio.get_running_loop().time
        try:
            while True:
                began_s = clock_s()
                was_ready, why = await self._live()
                starts = 0 if was_ready else starts + 1
                if starts == STARTS_MAX:
                    break
                if clock_s() - began_s > BACKOFF_S_MAX:
                    pause_s = BACKOFF_S_MIN
                _log.warning("the courier of this learner has ended (%s); it is started again", why)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_S_MAX)
            _log.warning(
                "no courier can be started (%s): its work is done by threads of this process, which compete with "
                "training for the interpreter lock",
                why,
            )
        finally:
            self._has_given_up = True
            self._able.set()

    async def _live(self) -> tuple[bool, str]:
        """One life of a child: whether it was ever ready, and how it has ended."""
        try:
            child = self._child = self._latest = _Child(self._setting, self._token, self._program, self._lose)
        except OSError as error:
            return False, str(error)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(START_S_MAX):
                    await child.begun.wait()
            if child.is_ready and not child.gone.is_set():
                self._able.set()
                await child.watch()
        finally:
            stands = child.stands
            why = await child.end()
        return child.is_ready, f"it has not answered {PINGS_MAX} times" if stands else why

    def _lose(self) -> None:
        """There is no child just now."""
        self._child = None
        if not self._is_closed:
            self._able.clear()


class _Child:
    """One process, from its start to its end. Used in the event loop.

    Args:
        setting, token, program: see ``ChildCarrier``.
        lost: called as soon as nothing more is heard of it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, setting: Setting, token: str | None, program: tuple[str, ...], lost: Callable[[], None]) -> None:
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self.is_ready = False
        """Whether jobs may come, or might have."""
        self.begun = asyncio.Event()
        """It is ready, or gone."""
        self.gone = asyncio.Event()
        self.stands = False
        """It lives and answers no more: somebody has stopped it."""
        self._has_answered = False
        self._results: dict[int, asyncio.Future[Result]] = {}
        body = msgspec.msgpack.encode(setting)
        # Kept until it has been read: a descriptor must not be closed on its way everywhere (macOS).
        self._setting = MemoryFile(len(body))
        self._setting.bytes[:] = np.frombuffer(body, np.uint8)
        self._end, self._process = _start(program)
        self._end.setblocking(False)
        self._reader = FrameReader(self._end)
        self._loop.add_reader(self._end, self._read)
        self.say(SetUp(len(body), token), self._setting)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def carry(self, job: Job, memory: MemoryFile) -> Result:
        """See ``Carrier.carry``."""
        result = self._results[job.number] = self._loop.create_future()
        try:
            self.say(job, memory)
            return await result
        finally:
            del self._results[job.number]

    def say(self, order: Order, memory: MemoryFile | None = None) -> None:
        """One that does not even read what it is told is as good as dead."""
        try:
            send_frame(self._end, order, None if memory is None else memory.descriptor)
        except OSError:
            self._lose()

    async def watch(self) -> None:
        """Until it is gone, or stands."""
        unanswered = 0
        while not (self.gone.is_set() or self.stands):
            self._has_answered = False
            self.say(Ping())
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_S):
                    await self.gone.wait()
            unanswered = 0 if self._has_answered else unanswered + 1
            self.stands = unanswered == PINGS_MAX and not self.gone.is_set()

    async def end(self) -> str:
        """End it, if it has not ended yet, however often this is called; says how it has. In its memory is nothing that
        anybody needs."""
        is_asked = not self.gone.is_set()
        self._lose()
        return await asyncio.to_thread(self._reap, is_asked)

    def _reap(self, is_asked: bool) -> str:
        try:
            if not is_asked:  # It has ended by itself, or is about to: then it says why.
                self._process.wait(ENDING_S_MAX)
        except subprocess.TimeoutExpired:
            pass
        self._process.kill()
        status = self._process.wait()
        return f"exit code {status}" if status >= 0 else f"signal {-status}"

    def _read(self) -> None:
        try:
            is_open = self._reader.read()
            for body, _ in self._reader.frames():
                self._hear(read_report(body))
        except BlockingIOError:
            return
        except (OSError, LocalProtocolError) as error:
            _log.warning("the courier of this learner cannot be understood: %s", error)
            is_open = False
        if not is_open:
            self._lose()

    def _hear(self, report: Report) -> None:
        if isinstance(report, Ready):
            self.is_ready = True
            self.begun.set()
            self._setting.close()
        elif isinstance(report, Pong):
            self._has_answered = True
        elif (result := self._results.get(report.number)) is not None and not result.done():
            result.set_result(report)

    def _lose(self) -> None:
        """Nothing more is heard of it: its jobs have failed."""
        if not self.gone.is_set():
            self.gone.set()
            self.begun.set()
            self._lost()
            self._setting.close()
            self._loop.remove_reader(self._end)
            self._reader.close()
            _forked_away.discard(self._end)
            self._end.close()
        for result in self._results.values():
            if not result.done():
                result.set_exception(CarrierDied("the courier has died"))


# ---------------------------------------------------------------------------------------------- starting a process

_forked_away: set[socket.socket] = set()
"""Ends that a forked process (a worker that loads data) closes at once. As long as it had one, a child would not notice
that its learner is gone."""


def _close_in_fork() -> None:
    while _forked_away:
        _forked_away.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)


def _start(program: tuple[str, ...]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Our end of a socket pair, and a process that has the other."""
    ours, theirs = socket.socketpair()
    _forked_away.update((ours, theirs))
    try:
        with _polite_signals_blocked():
            process = subprocess.Popen(
                [*program, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
    except BaseException:
        _forked_away.discard(ours)
        ours.close()
        raise
    finally:
        _forked_away.discard(theirs)
        theirs.close()
    return ours, process


@contextmanager
def _polite_signals_blocked() -> Iterator[None]:
    """In this thread, and for ever in the process it starts meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
