"""What the system is told of a connection that carries messages, and of one that carries bodies."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from unlockstep.net.wire.sockets import NOT_SENT_BYTES, carry_bulk, carry_messages


@pytest.mark.skipif(not hasattr(socket, "IP_TOS"), reason="this system knows no type of service")
@pytest.mark.parametrize(
    ("family", "level", "name"),
    [
        (socket.AF_INET, "IPPROTO_IP", "IP_TOS"),
        pytest.param(
            socket.AF_INET6,
            "IPPROTO_IPV6",
            "IPV6_TCLASS",
            marks=pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6"),
        ),
    ],
)
def test_messages_go_before_bodies(family: socket.AddressFamily, level: str, name: str) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as messages, socket.socket(family, socket.SOCK_STREAM) as bodies:
        carry_messages(messages)
        carry_bulk(bodies)
        found = [each.getsockopt(getattr(socket, level), getattr(socket, name)) for each in (messages, bodies)]
        assert found == [0x10, 0x08]
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            assert bodies.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == NOT_SENT_BYTES


def test_what_a_socket_does_not_know_is_left_out() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        carry_messages(ours)
        carry_bulk(theirs)


def test_a_syncer_may_have_as_many_files_open_as_it_may_let_itself_have() -> None:
    resource = pytest.importorskip("resource", reason="this system has no limits of this kind")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = (
        "import resource; from unlockstep.net.wire import sockets\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))\n"
        "sockets.open_many_files()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(hard), str(hard)]
