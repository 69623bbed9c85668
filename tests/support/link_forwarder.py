"""A link as a process: moves IP packets between two network interfaces of its own, each direction a ``Cable``.

    python link_forwarder.py NAME_A NAME_B SEED

The interfaces are TUN devices: what a network stack sends into one of them comes out here as one packet, cut to its MTU
and with its checksum filled in, and what is written here is received there. Whoever starts this moves each into a
network namespace; they vanish with the process. Says ``ready`` when both are there. Then every line of stdin, a
``Command``, is carried out and answered by a line, ``Report``; the end of stdin ends the process.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time

import msgspec

from support.link_cable import NEVER_NS, SECOND_NS, Cable, Counts, Shape

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000

FRAME_BYTES_MAX = 65536
FRAMES_AT_ONCE_MAX = 64
"""Read from one interface before the other one has its turn, and what is due is delivered."""


class Command(msgspec.Struct, omit_defaults=True):
    """New shapes; None: as before."""

    up: Shape | None = None
    """From A to B."""
    down: Shape | None = None


class Report(msgspec.Struct):
    """What has become of all that was sent so far, and how late a frame was delivered at most since the last report."""

    up: Counts
    down: Counts
    late_ns_max: int


def tun(name: str) -> int:
    """A new TUN device; returns its descriptor, which reads and writes whole packets and never blocks."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return descriptor


class Forwarder:
    """The loop around two cables."""

    def __init__(self, a: int, b: int, seed: int) -> None:
        self._up, self._down = Cable(Shape(), seed), Cable(Shape(), seed + 1)
        self._directions = ((a, b, self._up), (b, a, self._down))
        self._late_ns_max = 0

    def run(self) -> None:
        """Forward until stdin ends."""
        readers = [direction[0] for direction in self._directions]
        commands = sys.stdin.buffer
        while True:
            due_ns = min(self._up.next_ns(), self._down.next_ns())
            pause_s = None if due_ns == NEVER_NS else max(0, due_ns - time.monotonic_ns()) / SECOND_NS
            ready = select.select([*readers, commands], [], [], pause_s)[0]
            for source, target, cable in self._directions:
                if source in ready:
                    self._read(source, cable)
                self._deliver(target, cable)
            if commands in ready:
                line = commands.readline()
                if not line:
                    return
                self._obey(msgspec.json.decode(line, type=Command))

    def _read(self, source: int, cable: Cable) -> None:
        try:
            for _ in range(FRAMES_AT_ONCE_MAX):
                cable.arrive(os.read(source, FRAME_BYTES_MAX), time.monotonic_ns())
        except OSError:  # Nothing more is waiting, or the interface is down.
            return

    def _deliver(self, target: int, cable: Cable) -> None:
        now_ns = time.monotonic_ns()
        due_ns = cable.next_ns()
        if due_ns > now_ns:
            return
        self._late_ns_max = max(self._late_ns_max, now_ns - due_ns)
        for frame in cable.take(now_ns):
            try:
                os.write(target, frame)
            except OSError:  # The interface is down, or its receiver has no room: as any wire, it does not care.
                continue

    def _obey(self, command: Command) -> None:
        for cable, shape in ((self._up, command.up), (self._down, command.down)):
            if shape is not None:
                cable.reshape(shape)
        report = Report(self._up.counts, self._down.counts, self._late_ns_max)
        self._late_ns_max = 0
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()


def main(name_a: str, name_b: str, seed: str) -> None:
    forwarder = Forwarder(tun(name_a), tun(name_b), int(seed))
    print("ready", flush=True)
    forwarder.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
