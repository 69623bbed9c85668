"""The process of a courier: takes jobs from its learner's socket, has them carried out, and ends when that socket does.

Decides that it takes what is left of the processor (``NICENESS``), that every job has a thread, and that it outlives
its learner by nothing: the end of the socket is the end of the process, whatever is under way. Does not decide what a
job is made of (``porter``). Loads no framework: it is some 40 MB, and what its jobs need.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

import msgspec

from unlockstep.core.errors import LocalProtocolError, UnlockstepError
from unlockstep.net.jobs import Fetch, Forget, FrameReader, Job, Ready, Setting, SetUp, TurnTo, read_order, send_frame
from unlockstep.net.memory_files import Bytes, MemoryFile
from unlockstep.net.porter import Porter, connector

NICENESS = 10
"""Training goes first where there are fewer processors than work. Bulk still gets on: on a busy machine it has a tenth
of a processor."""


def main(descriptor: int) -> None:
    """Serve the learner at the other end of this socket. Does not return."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
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
    reader = FrameReader(end)
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
                    office.porter.forget(order.handed_over)
                case _:
                    office.begin(order, _memory(order.size, descriptor, is_written=isinstance(order, Fetch)))


class _Office:
    """Where jobs are done."""

    def __init__(self, end: socket.socket, porter: Porter) -> None:
        self._end = end
        self._lock = threading.Lock()
        """Of the socket: results are written one after the other."""
        self.porter = porter
        send_frame(end, Ready())

    def begin(self, job: Job, memory: Bytes) -> None:
        """Have a job carried out."""
        threading.Thread(target=self._carry_out, args=(job, [memory]), daemon=True).start()

    def _carry_out(self, job: Job, memory: list[Bytes]) -> None:
        result = self.porter.carry_out(job, memory.pop())
        # The memory is not shown here any more: the learner may use it again, or give it back to the system.
        with self._lock, suppress(OSError):  # If the learner is gone, whoever reads from the socket sees it too.
            send_frame(self._end, result)


def _setting(size: int, descriptor: int | None) -> Setting:
    return msgspec.msgpack.decode(_memory(size, descriptor).tobytes(), type=Setting)


def _memory(size: int, descriptor: int | None, is_written: bool = False) -> Bytes:
    if descriptor is None:
        raise LocalProtocolError("it was given a job without its memory")
    with MemoryFile.received(descriptor, size, is_written) as file:
        return file.bytes
