"""Finding out what is at the other end of an address: connecting, asking one question, and asking it again and again.

Decides how a question is put so that every way in which it can fail is told from the others, and that none takes longer
than its deadline. Does not decide what an answer means (``diagnosis``). Blocking: each call is a few round trips.
"""

from __future__ import annotations

import errno
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from unlockstep.certificates import NotACertificate, parse_certificate
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net.access.security import ClientSecurity
from unlockstep.net.doctor.diagnosis import Answer, Attempt, Certificate, ClockSample, Door, Spoken
from unlockstep.net.wire import api, sockets
from unlockstep.net.wire.interfaces import Interface
from unlockstep.net.wire.names import Address, Target

ATTEMPT_S_MAX = 3.5
"""To connect: a first packet that is lost is sent again after one second, and after two more."""

ANSWER_BYTES_MAX = 64 * 1024
REPLY_BYTES_MAX = 64 * 1024 * 1024
"""Of a status or of settings."""

_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL)
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "PACKET_LENGTH")


# ------------------------------------------------------------------------------------------- connecting


def attempt(address: Address, port: int, known: Sequence[Interface], limit_s: float = ATTEMPT_S_MAX) -> Attempt:
    """Try to connect to one address."""
    began_s = time.monotonic()
    try:
        with socket.create_connection((str(address), port), timeout=limit_s) as connection:
            seconds = time.monotonic() - began_s
            local = str(connection.getsockname()[0])
    except TimeoutError:
        return Attempt(str(address), Door.SILENT, time.monotonic() - began_s)
    except OSError as error:
        door = Door.REFUSED if error.errno == errno.ECONNREFUSED else Door.UNREACHABLE
        return Attempt(str(address), door, time.monotonic() - began_s, error.strerror or str(error))
    own = next((each for each in known if ipaddress.ip_address(local) in each.addresses), Interface(""))
    return Attempt(str(address), Door.OPEN, seconds, "", local, own.name, own.mbit_per_s)


# ------------------------------------------------------------------------------------------- the first question


def ask(target: Target, security: ClientSecurity, limit_s: float) -> Answer:
    """What comes of ``GET /v1``; what is spoken there, if that is not what was expected."""
    try:
        with _connected(target, limit_s) as plain:
            if not target.is_tls:
                return _plain_answer(target, security, plain, limit_s)
            context = security.context(target.url)
            assert context is not None, "an address with https is spoken to with TLS"
            try:
                with context.wrap_socket(plain, server_hostname=target.host) as private:
                    answer = _heard(target, security, private)
                    return _with_tls(answer, private) if answer.spoken is Spoken.HTTP else answer
            except ssl.SSLCertVerificationError as error:
                shown = _shown_certificate(target, limit_s)
                return Answer(
                    Spoken.UNTRUSTED, sentence=error.verify_message, certificate=shown, verify_code=error.verify_code
                )
            except ssl.SSLError as error:
                return _no_tls(target, error, limit_s)
    except TimeoutError:
        return Answer(Spoken.NOTHING)
    except OSError as error:
        if target.is_tls and _speaks_http(target, limit_s):
            return Answer(Spoken.PLAIN_ON_TLS)
        return Answer(Spoken.HUNG_UP, sentence=error.strerror or str(error))


def _plain_answer(target: Target, security: ClientSecurity, connection: socket.socket, limit_s: float) -> Answer:
    try:
        answer = _heard(target, security, connection)
    except (ConnectionError, http.client.HTTPException):
        answer = Answer(Spoken.HUNG_UP)
    if answer.spoken is not Spoken.HTTP and _speaks_tls(target, limit_s):
        return Answer(Spoken.TLS_ON_PLAIN)
    return answer


def _no_tls(target: Target, error: ssl.SSLError, limit_s: float) -> Answer:
    reason = error.reason or ""
    if any(mark in reason for mark in _NOT_TLS) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        if _speaks_http(target, limit_s):
            return Answer(Spoken.PLAIN_ON_TLS)
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return Answer(Spoken.HUNG_UP)
    return Answer(Spoken.TLS_FAILED, sentence=reason.lower().replace("_", " ") or str(error))


def _heard(target: Target, security: ClientSecurity, connection: socket.socket) -> Answer:
    """Ask, and read the answer. Raises what the connection raises."""
    fields = {"Host": target.authority, "Connection": "close"} | security.headers(target.url)
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    connection.sendall(f"GET {api.ABOUT_ROUTE} HTTP/1.1\r\n{head}\r\n".encode())
    first = connection.recv(1, socket.MSG_PEEK) if not isinstance(connection, ssl.SSLSocket) else b"H"
    if not first:
        return Answer(Spoken.HUNG_UP)
    if first != b"H":
        said = connection.recv(64)
        return Answer(Spoken.OTHER, sentence=said.decode("latin-1").strip())
    response = http.client.HTTPResponse(connection)
    try:
        with sockets.over_after(connection, connection.gettimeout() or 0.0):
            response.begin()
            body = response.read(ANSWER_BYTES_MAX)
    except http.client.RemoteDisconnected:
        return Answer(Spoken.HUNG_UP)
    except http.client.HTTPException as error:
        return Answer(Spoken.OTHER, sentence=str(error)[:64].strip())
    finally:
        response.close()
    return Answer(Spoken.HTTP, response.status, _sentence(body, response.status), response.headers.get("Server", ""))


def _sentence(body: bytes, status: int) -> str:
    """What was said with a refusal; of what is accepted, the body itself."""
    if status == 200:
        return body.decode(errors="replace")
    with suppress(RemoteProtocolError, KeyError):
        return api.read_answer(body, dict[str, str])["error"]
    return ""


def _with_tls(answer: Answer, private: ssl.SSLSocket) -> Answer:
    cipher = private.cipher()
    return Answer(
        answer.spoken,
        answer.status,
        answer.sentence,
        answer.server,
        private.version() or "",
        cipher[0] if cipher else "",
        certificate(private.getpeercert()),
    )


def certificate(shown: object) -> Certificate | None:
    """Of what ``SSLSocket.getpeercert`` says of a certificate that was verified."""
    if not isinstance(shown, dict) or not shown:
        return None
    issuer = dict(entry[0] for entry in shown.get("issuer", ()))
    names = tuple(str(name) for _, name in shown.get("subjectAltName", ()))
    ends_s = float(ssl.cert_time_to_seconds(shown["notAfter"])) if "notAfter" in shown else None
    return Certificate(str(issuer.get("commonName") or issuer.get("organizationName") or "?"), names, ends_s)


@contextmanager
def _connected(target: Target, limit_s: float) -> Iterator[socket.socket]:
    with socket.create_connection((target.host, target.port), timeout=min(limit_s, ATTEMPT_S_MAX)) as connection:
        connection.settimeout(limit_s)
        yield connection


def _unchecked() -> ssl.SSLContext:
    """To look at a certificate, and at nothing else: nothing is said over such a connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _speaks_tls(target: Target, limit_s: float) -> bool:
    try:
        with (
            _connected(target, limit_s) as plain,
            _unchecked().wrap_socket(plain, server_hostname=target.host),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # It wants a certificate of ours, or something else of TLS.
    except OSError:
        return False


def _speaks_http(target: Target, limit_s: float) -> bool:
    try:
        with _connected(target, limit_s) as connection:
            connection.sendall(f"GET {api.ABOUT_ROUTE} HTTP/1.1\r\nHost: {target.authority}\r\n\r\n".encode())
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def _shown_certificate(target: Target, limit_s: float) -> Certificate | None:
    """What a peer shows that is not trusted."""
    try:
        with (
            _connected(target, limit_s) as plain,
            _unchecked().wrap_socket(plain, server_hostname=target.host) as private,
        ):
            shown = private.getpeercert(binary_form=True)
        found = None if shown is None else parse_certificate(shown)
    except (OSError, NotACertificate):
        return None
    return None if found is None else Certificate(found.issuer, found.names, found.ends_s)


# ------------------------------------------------------------------------------------------- the same one, often


class Line:
    """One connection that is kept, as an object with a ``with`` block.

    Args:
        target: whose.
        security: what is shown and checked.
        limit_s: for each answer.
    """

    def __init__(self, target: Target, security: ClientSecurity, limit_s: float) -> None:
        self._target = target
        self._security = security
        context = security.context(target.url)
        if context is None:
            self.connection = http.client.HTTPConnection(target.host, target.port, timeout=limit_s)
        else:
            self.connection = http.client.HTTPSConnection(target.host, target.port, timeout=limit_s, context=context)

    def __enter__(self) -> Line:
        self.connection.connect()
        self.connection.auto_open = 0  # What is measured is this connection, and whoever has closed it is done.
        self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. Raises OSError, ``http.client.HTTPException``."""
        self.connection.request("GET", path, headers=self._security.headers(self._target.url))
        response = self.connection.getresponse()
        return response.status, response.read(REPLY_BYTES_MAX)

    def ask_the_time(self) -> ClockSample | None:
        """One round trip; None if something else is answered."""
        asked_s, began_s = time.time(), time.perf_counter()
        status, body = self.get(api.ABOUT_ROUTE)
        seconds = time.perf_counter() - began_s
        with suppress(RemoteProtocolError):
            if status == 200:
                return ClockSample(asked_s, api.read_answer(body, api.About).now_ns / 1e9, asked_s + seconds)
        return None

    @property
    def round_trip_s(self) -> float | None:
        """As the system has measured it on this connection."""
        return sockets.round_trip_s(self.connection.sock) if self.connection.sock is not None else None
