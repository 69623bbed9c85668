"""What is found at the other end of an address, with real sockets: every way in which it can be wrong is told apart."""

from __future__ import annotations

import datetime
import re
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest

from support.live_run import WAIT_S, small_config
from support.peers import DAY, NOW, answering, authority, greeting, hanging_up, http, mute, peer, private
from support.syncer_thread import syncer_thread
from unlockstep import __version__
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net.access.security import NO_SECURITY
from unlockstep.net.doctor import link_rates
from unlockstep.net.doctor.diagnosis import Door, Spoken
from unlockstep.net.doctor.link_check import Line, ask, attempt
from unlockstep.net.wire.interfaces import interfaces
from unlockstep.net.wire.names import Target

LOOPBACK = ip_address("127.0.0.1")
LIMIT_S = 10.0
BRIEF_S = 0.2
"""For a peer that says nothing."""

CONFIG = small_config()


@dataclass(frozen=True)
class Trusting:
    """Checks certificates against one authority."""

    ca: Path

    def context(self, url: str) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.ca) if url.startswith("https") else None

    def headers(self, url: str) -> dict[str, str]:
        return {}


# ------------------------------------------------------------------------------------------------- ports


def test_an_open_port_is_told_with_the_way_there() -> None:
    with peer(mute) as port:
        found = attempt(LOOPBACK, port, interfaces())
    assert (found.door, found.local_address) == (Door.OPEN, "127.0.0.1")
    assert found.interface in ("lo", "lo0", "")


def test_a_refused_port_is_told_from_one_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert attempt(LOOPBACK, port, ()).door is Door.REFUSED
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        callers = [socket.socket() for _ in range(4)]
        try:
            for caller in callers:
                caller.setblocking(False)
                caller.connect_ex(full.getsockname())
            assert attempt(LOOPBACK, full.getsockname()[1], (), BRIEF_S).door is Door.SILENT
        finally:
            for caller in callers:
                caller.close()


def test_an_address_without_a_way_there_is_unreachable() -> None:
    found = attempt(ip_address("fe80::1"), 7077, (), BRIEF_S)  # Which link it is on nobody says.
    assert found.door is Door.UNREACHABLE and found.detail


# ------------------------------------------------------------------------------------------------- who answers


@pytest.mark.parametrize(
    ("serve", "spoken", "said"),
    [
        (answering(http("404 Not Found", b"<html>")), Spoken.HTTP, ""),
        (answering(http("503 Service Unavailable", b'{"error":"stands by"}')), Spoken.HTTP, "stands by"),
        (answering(http("503 Service Unavailable", b'{"error"')), Spoken.HTTP, ""),
        (answering(b"HTTP/1.1 what\r\n\r\n"), Spoken.OTHER, "HTTP/1.1 what"),
        (answering(b"220 mail.example.org\r\n"), Spoken.OTHER, "220 mail.example.org"),
        (greeting(b"SSH-2.0-OpenSSH_9.9\r\n"), Spoken.OTHER, "SSH-2.0-OpenSSH_9.9"),
        (answering(b""), Spoken.HUNG_UP, ""),
        (hanging_up, Spoken.HUNG_UP, ""),
    ],
)
def test_what_a_peer_says_is_told(serve: Callable[[socket.socket], None], spoken: Spoken, said: str) -> None:
    with peer(serve) as port:
        answer = ask(Target.of(f"http://127.0.0.1:{port}"), NO_SECURITY, LIMIT_S)
    assert (answer.spoken, answer.sentence) == (spoken, said)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_peer_that_says_nothing_is_not_waited_for(scheme: str) -> None:
    with peer(mute) as port:
        assert ask(Target.of(f"{scheme}://127.0.0.1:{port}"), NO_SECURITY, BRIEF_S).spoken is Spoken.NOTHING


def test_a_syncer_answers(tmp_path: Path) -> None:
    with syncer_thread(CONFIG, tmp_path) as syncer:
        answer = ask(Target.of(syncer.url), NO_SECURITY, LIMIT_S)
    assert (answer.spoken, answer.status) == (Spoken.HTTP, 200)
    assert __version__ in answer.sentence and "aiohttp" in answer.server


# ------------------------------------------------------------------------------------------------- TLS


def test_what_is_private_and_trusted_is_described(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    with peer(private(ca.server(), answering(http("200 OK", b"{}")))) as port:
        answer = ask(Target.of(f"https://127.0.0.1:{port}"), Trusting(ca.path), LIMIT_S)
    assert (answer.spoken, answer.status, answer.tls_version) == (Spoken.HTTP, 200, "TLSv1.3")
    assert answer.cipher and answer.certificate is not None
    assert (answer.certificate.issuer, answer.certificate.names) == ("somebody", ("127.0.0.1",))
    assert answer.certificate.ends_s == pytest.approx((NOW + 90 * DAY).timestamp(), abs=1)


@pytest.mark.parametrize(
    ("hosts", "begins", "code"),
    [
        (("127.0.0.1",), NOW - 91 * DAY, 10),
        (("127.0.0.1",), NOW + DAY, 9),
        (("one.example.org",), NOW, 64),
    ],
    ids=["expired", "not yet valid", "another name"],
)
def test_a_certificate_that_does_not_convince_is_shown_all_the_same(
    hosts: tuple[str, ...], begins: datetime.datetime, code: int, tmp_path: Path
) -> None:
    ca = authority(tmp_path)
    with peer(private(ca.server(hosts, begins), answering(http("200 OK", b"{}")))) as port:
        answer = ask(Target.of(f"https://127.0.0.1:{port}"), Trusting(ca.path), LIMIT_S)
    assert (answer.spoken, answer.verify_code) == (Spoken.UNTRUSTED, code)
    assert answer.certificate is not None
    assert (answer.certificate.issuer, answer.certificate.names) == ("somebody", hosts)


def test_a_certificate_of_another_authority_is_told(tmp_path: Path) -> None:
    ca, other = authority(tmp_path), authority(tmp_path, "other")
    with peer(private(other.server(), answering(http("200 OK", b"{}")))) as port:
        answer = ask(Target.of(f"https://127.0.0.1:{port}"), Trusting(ca.path), LIMIT_S)
    assert answer.spoken is Spoken.UNTRUSTED and answer.verify_code in (18, 19, 20, 21)
    assert answer.certificate is not None and answer.certificate.issuer == "other"


def test_plain_http_on_a_port_that_speaks_tls_and_the_reverse_are_told(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    with peer(private(ca.server(), answering(http("200 OK", b"{}")))) as port:
        assert ask(Target.of(f"http://127.0.0.1:{port}"), NO_SECURITY, LIMIT_S).spoken is Spoken.TLS_ON_PLAIN
    with peer(answering(http("400 Bad Request", b""))) as port:
        assert ask(Target.of(f"https://127.0.0.1:{port}"), NO_SECURITY, LIMIT_S).spoken is Spoken.PLAIN_ON_TLS


def test_a_syncer_without_tls_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    with syncer_thread(CONFIG, tmp_path) as syncer:
        target = Target.of(syncer.url.replace("http", "https"))
        assert ask(target, NO_SECURITY, LIMIT_S).spoken is Spoken.PLAIN_ON_TLS


@pytest.mark.parametrize("serve", [hanging_up, answering(b""), answering(b"what?\r\n")])
def test_no_tls_at_all_is_told(serve: Callable[[socket.socket], None]) -> None:
    with peer(serve) as port:
        spoken = ask(Target.of(f"https://127.0.0.1:{port}"), NO_SECURITY, LIMIT_S).spoken
    assert spoken in (Spoken.HUNG_UP, Spoken.TLS_FAILED)


# ------------------------------------------------------------------------------------------------- measuring


@pytest.fixture(autouse=True)
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback there is no slow start to wait for."""
    monkeypatch.setattr(link_rates, "SETTLE_S", 0.01)
    monkeypatch.setattr(link_rates, "WINDOW_S", 0.05)


def test_the_time_is_asked_on_one_connection(tmp_path: Path) -> None:
    with syncer_thread(CONFIG, tmp_path) as syncer, Line(Target.of(syncer.url), NO_SECURITY, LIMIT_S) as line:
        samples = [line.ask_the_time() for _ in range(3)]
        assert all(each is not None and 0 < each.round_trip_s < LIMIT_S for each in samples)
        assert all(each is not None and abs(each.offset_s) <= each.round_trip_s / 2 for each in samples)
        assert line.get("/v1/nothing")[0] == 404
        assert line.ask_the_time() is not None


@pytest.mark.parametrize("way", ["up", "down"])
def test_rates_are_measured_with_as_many_streams_as_pay(way: link_rates.Way, tmp_path: Path) -> None:
    told: list[str] = []
    with syncer_thread(CONFIG, tmp_path) as syncer:
        rates = link_rates.measure(way, Target.of(syncer.url), NO_SECURITY, LIMIT_S, told.append)
    assert list(rates.by_streams)[:2] == [1, 2] and all(rate > 0 for rate in rates.by_streams.values())
    assert told[:2] == [f"measures the rate {way}, 1 stream", f"measures the rate {way}, 2 streams"]
    assert len(told) == len(rates.by_streams)


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_peer_that_takes_no_probes_is_told(way: link_rates.Way) -> None:
    with peer(answering(http("403 Forbidden", b""))) as port, pytest.raises(RemoteProtocolError, match="status 403"):
        link_rates.measure(way, Target.of(f"http://127.0.0.1:{port}"), NO_SECURITY, LIMIT_S, lambda sentence: None)


def test_ctrl_c_does_not_wait_for_streams_that_wait_themselves() -> None:
    later, once = threading.Event(), threading.Lock()

    def serve(connection: socket.socket) -> None:
        """The first stream is answered at length; the next one never is."""
        while asked := re.search(rb"bytes=(\d+)", connection.recv(65536)):
            if later.is_set():
                if once.acquire(blocking=False):
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                size = int(asked[1])
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode() + bytes(size))

    def told(sentence: str) -> None:
        if "2 streams" in sentence:
            later.set()

    with peer(serve) as port, pytest.raises(KeyboardInterrupt):
        link_rates.measure("down", Target.of(f"http://127.0.0.1:{port}"), NO_SECURITY, WAIT_S, told)


def test_a_probe_that_does_not_move_ends_in_time() -> None:
    with peer(mute) as port, pytest.raises(TimeoutError):
        link_rates.measure("down", Target.of(f"http://127.0.0.1:{port}"), NO_SECURITY, BRIEF_S, lambda sentence: None)
