"""Whoever may be at the other end of an address and is no syncer: servers of one answer, with TLS and without.

Decides that each listens on loopback, in a thread of its own, and is gone with its block. Certificates and their keys
are made anew by every test.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support.live_run import WAIT_S

Serve = Callable[[socket.socket], None]


@contextmanager
def peer(serve: Serve) -> Iterator[int]:
    """The port at which every connection is served so, one after the other, and then closed."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    if over.is_set():
                        return
                    connection.settimeout(WAIT_S)
                    with suppress(OSError):
                        serve(connection)

        thread = threading.Thread(target=run, name="test-peer")
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            with suppress(OSError):
                socket.create_connection(listener.getsockname()).close()
            thread.join(WAIT_S)
            assert not thread.is_alive(), "the peer does not end"


def answering(said: bytes) -> Serve:
    """Hears something, and answers so."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(said)

    return serve


def greeting(said: bytes) -> Serve:
    """Speaks first, as a mail or shell server does."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(said)
        connection.recv(65536)

    return serve


def hanging_up(connection: socket.socket) -> None:
    """Says nothing, and is gone."""


def mute(connection: socket.socket) -> None:
    """Says nothing, and stays until the other end goes."""
    while connection.recv(65536):
        pass


def private(context: ssl.SSLContext, serve: Serve) -> Serve:
    """The same behind TLS; whoever does not speak it is hung up on."""

    def wrapped(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as inside:
            serve(inside)

    return wrapped


def http(status: str, body: bytes, server: str = "nginx") -> bytes:
    """One answer."""
    head = f"HTTP/1.1 {status}\r\nServer: {server}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


# ------------------------------------------------------------------------------------------------- certificates

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """One that signs certificates of servers; its own is in a file."""

    folder: Path
    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def server(
        self,
        hosts: Sequence[str] = ("127.0.0.1",),
        begins: datetime.datetime = NOW - DAY,
        ends: datetime.datetime = NOW + 90 * DAY,
    ) -> ssl.SSLContext:
        """What a server with such a certificate speaks TLS with."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_general(host) for host in hosts])
        made = _certificate("server", self.name, key, self.key, begins, ends, names)
        path = self.folder / f"{made.serial_number}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + made.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


def authority(folder: Path, name: str = "somebody") -> Authority:
    """A new one."""
    key = ec.generate_private_key(ec.SECP256R1())
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    made = _certificate(name, name, key, key, NOW - 999 * DAY, NOW + 999 * DAY, constraints)
    found = Authority(folder, name, key, made)
    found.path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return found


def _certificate(
    subject: str,
    issuer: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    begins: datetime.datetime,
    ends: datetime.datetime,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        .sign(signer, hashes.SHA256())
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
