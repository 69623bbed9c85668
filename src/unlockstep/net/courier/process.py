"""The process of a courier: takes jobs from its learner's socket, has them carried out, and ends when that socket does.

Decides that it takes what is left of the processor (``NICENESS``), that every job has a thread, which memory it looks
at again, and that it outlives its learner by nothing: the end of the socket is the end of the process, whatever is
under way. Does not decide what a job is made of (``porter``). Loads no framework: it is some 40 MB, and what its jobs
need.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from unlockstep.core.errors import LocalProtocolError, UnlockstepError
from unlockstep.net.courier.jobs import (
    Forget,
    FrameReader,
    GiveState,
    Job,
    Ping,
    Pong,
    Ready,
    Report,
    Setting,
    SetUp,
    TakeState,
    TurnTo,
    read_order,
    send_frame,
)
from unlockstep.net.courier.memory_files import Bytes, MemoryFile
from unlockstep.net.courier.porter import Porter, connector
from unlockstep.orphans import wake_at_parents_end

NICENESS = 10
"""Training goes first where there are fewer processors than work. Bulk still gets on: on a busy machine it has a tenth
of a processor."""

THREADS_MAX = 16
"""Jobs at once. The learner asks for fewer; more of them wait."""

MAPPINGS_MAX = 4
"""Memory of earlier jobs that stays mapped: the learner uses it again, and to map it takes longer than to copy it."""


def main(descriptor: int) -> None:
    """Serve the learner at the other end of this socket. Does not return."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    wake_at_parents_end()  # It is stopped with its learner, and then does not see the socket end.
    with socket.socket(fileno=descriptor) as end:
        try:
            _serve(end)
        except ConnectionError:
            pass  # The learner is gone.
        except UnlockstepError as error:
            os.write(2, f"the courier of a learner has failed: {error}\n".encode())
            os._exit(1)
    # At once: threads may be in the middle of a transfer, which is of no use to anybody now.
    os._exit(0)


def _serve(end: socket.socket) -> None:
    office: _Office | None = None
    reader, mappings = FrameReader(end), Mappings()
    while reader.read():
        for body, descriptor in reader.frames():
            order = read_order(body)
            match order:
                case SetUp():
                    setting = _setting(order.size, descriptor)
                    office = _Office(end, Porter(setting, connector(setting, order.token)))
                case _ if office is None:
                    raise LocalProtocolError("it was given a job before it was set up")
                case TurnTo():
                    office.porter.turn_to(order.url)
                case Forget():
                    office.forget(order)
                case Ping():
                    office.say(Pong())
                case GiveState() | TakeState():  # Large, and for once.
                    office.begin(order, _memory(order.size, descriptor))
                case _:
                    office.begin(order, mappings.find(order.size, descriptor))


class _Office:
    """Where jobs are done."""

    def __init__(self, end: socket.socket, porter: Porter) -> None:
        self._end = end
        self._lock = threading.Lock()
        """Of the socket: reports are written one after the other."""
        self._threads = ThreadPoolExecutor(THREADS_MAX, "unlockstep-job")
        self.porter = porter
        self.say(Ready())

    def begin(self, job: Job, memory: Bytes) -> None:
        """Have a job carried out."""
        self._threads.submit(self._carry_out, job, [memory])

    def forget(self, order: Forget) -> None:
        """In a thread: it may have to wait for one that encodes."""
        self._threads.submit(self.porter.forget, order.handed_over)

    def say(self, report: Report) -> None:
        """To the learner. If it is gone, whoever reads from the socket sees it too."""
        with self._lock, suppress(OSError):
            send_frame(self._end, report)

    def _carry_out(self, job: Job, memory: list[Bytes]) -> None:
        result = self.porter.carry_out(job, memory.pop())
        # Nobody works with the memory any more: the learner may use it again, or give it back to the system.
        self.say(result)


class Mappings:
    """Memory that is used for one job after the other, known by the file that it is."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int], Bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, size: int, descriptor: int | None) -> Bytes:
        """The first bytes of the file. The descriptor is closed. Raises as ``MemoryFile`` does."""
        if descriptor is None:
            raise LocalProtocolError("it was given a job without its memory")
        file = os.fstat(descriptor)
        # As long as it is mapped no other file has its number.
        known = self._known.pop((file.st_dev, file.st_ino), None)
        if known is None:
            known = _memory(file.st_size, descriptor)
        else:
            os.close(descriptor)
        self._known[file.st_dev, file.st_ino] = known
        if len(self._known) > MAPPINGS_MAX:
            self._known.popitem(last=False)
        return known[:size]


def _setting(size: int, descriptor: int | None) -> Setting:
    return msgspec.msgpack.decode(_memory(size, descriptor).tobytes(), type=Setting)


def _memory(size: int, descriptor: int | None) -> Bytes:
    if descriptor is None:
        raise LocalProtocolError("it was given a job without its memory")
    with MemoryFile.received(descriptor, size) as file:
        return file.bytes
