"""Namespaces and links are what they claim to be, and nothing of them is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.commands import processes
from support.link_cable import Shape
from support.links import NAMESPACES, PREFIX, Link, Star, inside, set_congestion_control, star, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

SAID = bytes(range(256)) * 4096
"""One megabyte."""


@contextmanager
def connection(site: Star, learner: int = 0) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A learner's end and the syncer's."""
    with inside(site.syncer):
        server = socket.create_server((site.address(learner), 0))
    with server:
        with inside(site.learners[learner]):
            ours = socket.create_connection(server.getsockname(), timeout=20)
        with ours:
            theirs, _ = server.accept()
            theirs.settimeout(20)
            with theirs:
                yield ours, theirs


def heard(site: Star) -> bytes:
    """What the syncer's end receives of ``SAID``."""
    with connection(site) as (ours, theirs):

        def say() -> None:
            ours.sendall(SAID)
            ours.shutdown(socket.SHUT_WR)

        saying = threading.Thread(target=say)
        saying.start()
        received = b"".join(iter(lambda: theirs.recv(2**16), b""))
        saying.join()
        return received


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def test_a_connection_takes_a_round_trip() -> None:
    with star(1, Shape(delay_ms=50)) as site:
        began_s = time.monotonic()
        with connection(site):
            assert time.monotonic() - began_s >= 0.1


@pytest.mark.parametrize(
    ("shape", "counted"),
    [
        (Shape(loss=0.05), "lost"),
        (Shape(damage=0.05), "damaged"),
        (Shape(reorder=0.05, reorder_ms=2), "reordered"),
        (Shape(rate_mbit=100, queue_bytes=30_000), "overflowed"),
    ],
)
def test_tcp_repairs_what_a_link_does_to_packets(shape: Shape, counted: str) -> None:
    with star(1, shape) as site:
        assert heard(site) == SAID
        assert getattr(site.links[0].report().up, counted) > 0


def test_a_link_that_is_cut_one_way_still_carries_the_other() -> None:
    """Half open: what is said upwards is neither heard nor acknowledged."""
    with star(1) as site, connection(site) as (ours, theirs):
        site.links[0].cut(down=False)
        ours.sendall(b"up")
        theirs.sendall(b"down")
        assert ours.recv(16) == b"down"
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(16)
        theirs.settimeout(20)
        site.links[0].heal()
        assert theirs.recv(16) == b"up"


def test_a_site_reaches_the_others_by_its_link_alone() -> None:
    with star(2) as site:
        with inside(site.syncer):
            server = socket.create_server((site.address(1), 0))
        with server, inside(site.learners[0]), pytest.raises(OSError, match="unreachable"):
            socket.create_connection(server.getsockname(), timeout=20)


def test_congestion_control_is_a_matter_of_each_site() -> None:
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    before = allowed.read_text()
    with star(1) as site:
        set_congestion_control(site.learners[0], "reno")
        with inside(site.learners[0]), socket.socket() as own:
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
    assert allowed.read_text() == before


def test_a_star_leaves_nothing_behind() -> None:
    before = interfaces()
    with pytest.raises(KeyboardInterrupt), star(2) as site:
        process = site.start(site.learners[0], "sh", "-c", "echo ready; exec sleep 60")
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert len(list(NAMESPACES.glob(f"{PREFIX}-{os.getpid()}-*"))) == 3
        raise KeyboardInterrupt
    assert process.returncode == -signal.SIGKILL
    assert list(NAMESPACES.glob(f"{PREFIX}-{os.getpid()}-*")) == []
    assert interfaces() == before


def test_the_next_star_clears_away_what_a_killed_one_has_left() -> None:
    with processes() as launch:
        other = launch("cat")
        left = f"{PREFIX}-{other.pid}-syncer"
        subprocess.run(("ip", "netns", "add", left), check=True)
        with star(1):
            assert (NAMESPACES / left).exists(), "its process is alive"
        other.kill()
        other.wait()
    with star(1):
        assert not (NAMESPACES / left).exists()


def test_a_link_whose_forwarder_has_died_says_so() -> None:
    with processes() as launch, pytest.raises(EOFError, match="forwarder"):
        Link(launch("true")).report()
