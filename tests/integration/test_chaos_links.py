"""Links that are cut, slowed and delayed, with real sockets at both ends."""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from unlockstep.chaos.proxy import Links
from unlockstep.core.errors import UsageError

FAR_S = 30.0
"""Longer than any of this takes: what is waited for so long has failed."""


class Echo:
    """Says back what it hears, on every connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                pass

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as echo:
        yield echo


@pytest.fixture
def links(echo: Echo) -> Iterator[Links]:
    with closing(Links(echo.url)) as links:
        yield links


@contextmanager
def connected(links: Links, name: str = "a") -> Iterator[socket.socket]:
    parts = urlsplit(links[name].address)
    with socket.create_connection((parts.hostname or "", parts.port or 0), FAR_S) as connection:
        yield connection


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(1 << 16)
        assert piece, "the connection has ended"
        data += piece
    return data


def says_nothing(connection: socket.socket) -> bool:
    """Whether nothing comes for a tenth of a second."""
    connection.settimeout(0.1)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(FAR_S)
    return False


def test_a_whole_link_passes_everything_on_unchanged(links: Links) -> None:
    said = bytes(range(256)) * 8192
    with connected(links) as connection:
        threading.Thread(target=connection.sendall, args=(said,)).start()
        assert read(connection, len(said)) == said


@pytest.mark.parametrize("way", ["up", "down"])
def test_what_is_sent_into_a_cut_waits_and_arrives_in_order(links: Links, way: str) -> None:
    with connected(links) as connection:
        connection.sendall(b"1")
        assert read(connection, 1) == b"1"
        links.change("a", lambda link: link.cut((way,)))
        connection.sendall(b"2")
        connection.sendall(b"3")
        assert says_nothing(connection)
        links.change("a", lambda link: link.heal())
        assert read(connection, 2) == b"23"


@pytest.mark.parametrize("way", ["up", "down"])
def test_nobody_connects_through_a_cut_before_it_is_healed(links: Links, echo: Echo, way: str) -> None:
    links.change("a", lambda link: link.cut((way,)))
    with connected(links) as connection, connected(links, "b") as other:
        connection.sendall(b"1")
        other.sendall(b"2")
        assert read(other, 1) == b"2", "another link is whole"
        assert says_nothing(connection) and echo.connections == 1
        links.change("a", lambda link: link.heal())
        assert read(connection, 1) == b"1"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
def test_who_gives_up_during_a_cut_leaves_nothing_behind_and_nothing_of_it_arrives(links: Links, echo: Echo) -> None:
    links.change("a", lambda link: link.cut(("up", "down")))
    before = open_files()
    for _ in range(50):
        with connected(links) as connection:
            connection.sendall(b"too late")
    assert open_files() <= before + 1, "one may have been accepted when the link was cut"
    links.change("a", lambda link: link.heal())
    with connected(links) as connection:
        connection.sendall(b"1")
        assert read(connection, 1) == b"1" and echo.connections == 1
    assert links["a"].passed["up"] == 1


@contextmanager
def no_more_files() -> Iterator[None]:
    """Nothing can be opened meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_free = os.dup(0)
    os.close(next_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_connection_that_could_not_be_accepted_is_accepted_when_there_are_fewer_files(links: Links) -> None:
    links.change("a", lambda link: link.cut(("up", "down")))
    with connected(links), connected(links) as connection:  # The first is taken by the accept that was under way.
        connection.sendall(b"1")
        with no_more_files():
            links.change("a", lambda link: link.heal())
            assert says_nothing(connection)
        assert read(connection, 1) == b"1"


def test_a_rate_holds_for_all_connections_of_a_link_together(links: Links) -> None:
    """1 Mbit/s are 125 000 bytes a second: 2 x 25 000 of them take 0.4 s at least."""
    links.change("a", lambda link: link.throttle(1.0))
    began_s = time.monotonic()
    with connected(links) as one, connected(links) as other:
        for connection in (one, other):
            threading.Thread(target=connection.sendall, args=(bytes(25_000),)).start()
        for connection in (one, other):
            assert read(connection, 25_000) == bytes(25_000)
    assert time.monotonic() - began_s > 0.95 * 50_000 / 125_000


def test_a_lifted_rate_lets_go_at_once_what_it_would_have_held_for_hours(links: Links) -> None:
    links.change("a", lambda link: link.throttle(0.001))
    with connected(links) as connection:
        connection.sendall(bytes(1 << 20))
        links.change("a", lambda link: link.throttle(0))
        assert read(connection, 1 << 20) == bytes(1 << 20)


def test_a_delay_comes_twice_on_the_way_there_and_back_and_holds_up_nothing_behind(links: Links) -> None:
    """A thousand messages, sent at once, are back after two delays and not after two thousand."""
    links.change("a", lambda link: link.delay(0.15))
    with connected(links) as connection:
        connection.sendall(b"0")
        began_s = time.monotonic()
        for _ in range(1000):
            connection.sendall(b"x")
        assert read(connection, 1001)[-1:] == b"x"
        assert time.monotonic() - began_s > 0.29
        links.change("a", lambda link: link.delay(0))


def test_the_end_of_a_connection_passes_too_and_a_server_that_is_gone_is_seen(links: Links, echo: Echo) -> None:
    with connected(links) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    echo.close()
    with pytest.raises(ConnectionError), connected(links) as connection:
        if connection.recv(1) == b"":
            raise ConnectionError


def test_a_name_that_goes_to_another_process_has_a_link_of_its_own(links: Links) -> None:
    with connected(links) as old:
        links.rename("a", "a-old")
        links.change("a-old", lambda link: link.cut(("up", "down")))
        with connected(links) as new:
            new.sendall(b"1")
            old.sendall(b"2")
            assert read(new, 1) == b"1" and says_nothing(old)


def test_links_to_tls_cannot_be_broken() -> None:
    with pytest.raises(UsageError, match=r"^the run at https://host:7077 speaks TLS.* on a run without TLS$"):
        Links("https://host:7077")


@pytest.mark.parametrize("url", ["ftp://host:7077", "http://host", "host:7077", "", "http://[::1"])
def test_only_plain_http_leads_through_a_link(url: str) -> None:
    with pytest.raises(UsageError, match="give an address like that"):
        Links(url)
