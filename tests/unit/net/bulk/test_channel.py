"""A connection in a process that has many files open."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from unlockstep.net.bulk.channel import Channel
from unlockstep.net.wire.names import Target
from unlockstep.net.wire.timeouts import derive

MANY = 1024
"""``select.select`` knows no file with a number as high."""


def test_an_early_answer_is_seen_whatever_the_number_of_the_file() -> None:
    resource = pytest.importorskip("resource", reason="this system has no limits of this kind")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] <= MANY:
        pytest.skip(f"this process may not have {MANY} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], MANY + 1), before[1]))
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            target = Target.of(f"http://127.0.0.1:{server.getsockname()[1]}")
            with closing(Channel(target, {}, derive())) as channel:
                channel.open(None)
                plain = channel._open_socket
                os.dup2(plain.fileno(), MANY)
                channel._socket = socket.socket(fileno=MANY)
                plain.close()
                accepted, _ = server.accept()
                with accepted:
                    assert not channel.is_answered()
                    accepted.sendall(b"HTTP/1.1 413 Too large")
                    channel._socket.recv(1, socket.MSG_PEEK)  # It is here.
                    assert channel.is_answered()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
