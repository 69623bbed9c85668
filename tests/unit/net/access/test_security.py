"""Certificates and tokens at both ends: what is refused before anything is sent, and the sentence that says so.

Handshakes are between two TLS objects in memory, without a socket.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from support.secret_files import NOW, Secrets, other_authority, secrets_in, write_pair
from unlockstep.certificates import issue
from unlockstep.core.errors import UsageError
from unlockstep.net.access.roles import Role
from unlockstep.net.access.security import NO_SECURITY, OPEN, ClientSecurity, ServerSecurity, TokenRefused
from unlockstep.net.access.tls import explained_to_syncer
from unlockstep.net.access.tokens import EVERYBODY

URL = "https://127.0.0.1:7077"


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    return secrets_in(tmp_path / "secrets")


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1"
) -> tuple[ssl.SSLError | None, ssl.SSLError | None]:
    """What each end raises, the server first; None: nothing."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [server.wrap_bio(up, down, server_side=True), client.wrap_bio(down, up, server_hostname=host)]
    errors: list[ssl.SSLError | None] = [None, None]
    for _ in range(10):
        for index, end in enumerate(ends):
            if errors[index] is None:
                try:
                    end.do_handshake()
                    end.read(1)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError as error:
                    errors[index] = error
    return errors[0], errors[1]


def context_of(security: ServerSecurity) -> ssl.SSLContext:
    assert security.context is not None
    return security.context


def client_context(security: ClientSecurity) -> ssl.SSLContext:
    context = security.context(URL)
    assert context is not None
    return context


# ------------------------------------------------------------------------------------------------- TLS


def test_a_client_that_has_the_authority_and_a_syncer_agree(secrets: Secrets) -> None:
    server = context_of(secrets.server())
    assert handshake(server, client_context(secrets.client())) == (None, None)
    assert handshake(server, client_context(secrets.client()), "localhost") == (None, None)


@pytest.mark.parametrize(("version", "agrees"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_nothing_below_tls_1_2_is_spoken(version: str, agrees: bool, secrets: Secrets) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(secrets.ca)
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    server_error, _ = handshake(context_of(secrets.server()), client)
    assert (server_error is None) is agrees
    assert server_error is None or explained_to_syncer(server_error) == "the client speaks TLS older than 1.2"


FAULTS: dict[str, tuple[Callable[[Secrets], object], str, str]] = {
    "expired": (lambda s: s.replace_syncer(expired=True), "127.0.0.1", "has expired; have it renewed"),
    "other name": (lambda s: s.replace_syncer(("syncer.example",)), "127.0.0.1", "is for another name; use a name it"),
    "other host": (lambda s: s.replace_syncer(), "syncer.example", "is for another name; use a name it"),
    "foreign": (
        lambda s: write_pair(s.folder, "syncer", issue(other_authority(), "syncer", ["127.0.0.1"], NOW, 30)),
        "127.0.0.1",
        "ca.pem does not vouch for the syncer at",
    ),
    "a client's": (lambda s: (s.add_client("syncer"), None), "127.0.0.1", "is not one for a syncer"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_syncer_with_a_wrong_certificate_is_told_from_the_right_one(fault: str, secrets: Secrets) -> None:
    spoil, host, sentence = FAULTS[fault]
    client = secrets.client()
    spoil(secrets)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(secrets.folder / "syncer.pem", secrets.folder / "syncer.key")
    _, error = handshake(server, client_context(client), host)
    assert error is not None
    refused = client.refused(error, URL)
    assert refused is not None and sentence in refused and URL in refused


def test_a_certificate_that_nobody_here_knows_asks_for_the_authority(secrets: Secrets) -> None:
    trusting_the_system = ClientSecurity()
    _, error = handshake(context_of(secrets.server()), client_context(trusting_the_system))
    assert error is not None
    sentence = "give the ca.pem of its `unlockstep certs` with --ca (in Python: ca=)"
    assert sentence in str(trusting_the_system.refused(error, URL))


CLIENTS: dict[str, tuple[Callable[[Secrets], object], str | None, str, str]] = {
    "sound": (lambda s: s.add_client("c"), "c", "", ""),
    "none": (lambda s: None, None, "the client has no certificate", "asks for a certificate; give --cert and --key"),
    "expired": (lambda s: s.add_client("c", expired=True), "c", "has expired", "the certificate shown has expired"),
    "foreign": (
        lambda s: s.add_client("c", authority=other_authority()),
        "c",
        "is not one of ours",
        "does not accept the certificate shown",
    ),
}


@pytest.mark.parametrize("case", CLIENTS)
def test_a_syncer_that_asks_for_certificates_knows_its_clients(case: str, secrets: Secrets) -> None:
    prepare, cert, at_syncer, at_client = CLIENTS[case]
    prepare(secrets)
    client = secrets.client(cert=cert)
    server_error, client_error = handshake(context_of(secrets.server(mutual=True)), client_context(client))
    if not at_syncer:
        assert (server_error, client_error) == (None, None)
        return
    assert server_error is not None and at_syncer in (explained_to_syncer(server_error) or "")
    assert client_error is not None and at_client in str(client.refused(client_error, URL))


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no certificate": (lambda f: (f / "syncer.pem").unlink(), r"certificate .*syncer\.pem does not exist"),
    "no key": (lambda f: (f / "syncer.key").unlink(), r"key .*syncer\.key does not exist"),
    "no tokens": (lambda f: (f / "tokens.toml").unlink(), r"token file .*tokens\.toml does not exist"),
    "not PEM": (lambda f: (f / "syncer.pem").write_text("hello"), r"syncer\.pem is none .*; give a PEM file"),
    "key not PEM": (lambda f: (f / "syncer.key").write_text("hello"), "cannot be used .*; give PEM files"),
    "other key": (lambda f: (f / "syncer.key").write_bytes((f / "ca.key").read_bytes()), "is not that of certificate"),
    "key for all": (lambda f: (f / "syncer.key").chmod(0o604), "may be read by everybody .*; chmod 600"),
    "key with a password": (lambda f: lock(f / "syncer.key"), "is locked with a password; unlock it"),
    "a folder": (lambda f: ((f / "syncer.pem").unlink(), (f / "syncer.pem").mkdir()), "cannot be read"),
    "expired": (lambda f: Secrets(f).replace_syncer(expired=True), "has expired on .*; make a new one"),
    "CA not PEM": (lambda f: (f / "ca.pem").write_text("hello"), "--client-ca file .* holds no certificate"),
}


def lock(key: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    key.write_bytes(loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))


@pytest.mark.parametrize("case", FILES)
def test_a_syncer_does_not_start_with_a_wrong_file(case: str, secrets: Secrets) -> None:
    spoil, sentence = FILES[case]
    spoil(secrets.folder)
    with pytest.raises(UsageError, match=sentence) as error:
        secrets.server(mutual=True)
    assert "\n" not in str(error.value)


def test_a_syncer_needs_both_of_a_pair(secrets: Secrets) -> None:
    for arguments, sentence in (
        ({"cert": secrets.folder / "syncer.pem"}, "--tls-cert is given without --tls-key"),
        ({"key": secrets.folder / "syncer.key"}, "--tls-key is given without --tls-cert"),
        ({"client_ca": secrets.ca}, "--client-ca is given without --tls-cert"),
    ):
        with pytest.raises(UsageError, match=sentence):
            ServerSecurity(**arguments)


def test_a_client_says_what_is_wrong_with_its_files_before_it_connects(secrets: Secrets, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--ca file .*gone does not exist"):
        ClientSecurity.of(tmp_path / "gone")
    with pytest.raises(UsageError, match="--cert is given without --key"):
        ClientSecurity.of(secrets.ca, secrets.ca)
    with pytest.raises(UsageError, match="--key is given without --cert"):
        ClientSecurity.of(secrets.ca, None, secrets.folder / "syncer.key")
    with pytest.raises(UsageError, match=r"token file .* does not exist"):
        ClientSecurity.of(token=tmp_path / "gone")


def test_a_renewed_certificate_is_used_without_a_restart(secrets: Secrets, caplog: pytest.LogCaptureFixture) -> None:
    security = secrets.server()
    server, client = context_of(security), client_context(secrets.client())
    assert handshake(server, client, "other.example")[1] is not None
    secrets.replace_syncer(("other.example",))
    security.refresh()
    assert handshake(server, client, "other.example") == (None, None)
    (secrets.folder / "syncer.key").write_text("spoilt")
    security.refresh()
    assert handshake(server, client, "other.example") == (None, None)
    assert caplog.messages[-1].endswith("the certificate stays as it was")


# ------------------------------------------------------------------------------------------------- tokens


def test_a_token_is_shown_over_tls_or_to_this_machine_only(secrets: Secrets) -> None:
    client = secrets.client("learner")
    shown = {"Authorization": f"Bearer {secrets.token('learner')}"}
    for url in (URL, "https://syncer.example:7077", "http://127.0.0.1:7077", "http://localhost:1", "http://[::1]:7077"):
        assert client.headers(url) == shown
    for url in (
        "http://10.0.0.1:7077",
        "http://syncer.example",
        "http://localhost.example:1",
        "http://127.0.0.1.nip.io",
    ):
        with pytest.raises(UsageError, match="the token would travel in the clear; write https://"):
            client.headers(url)
        assert NO_SECURITY.headers(url) == {}


def test_a_token_in_a_file_is_read_anew(secrets: Secrets) -> None:
    client = secrets.client("learner")
    (secrets.folder / "learner.token").write_text("another")
    assert client.headers(URL) == {"Authorization": "Bearer another"}


def test_a_token_is_in_no_text_about_it(secrets: Secrets) -> None:
    client = ClientSecurity(token="hunter2")
    assert "hunter2" not in repr(client) + str(client)
    with pytest.raises(UsageError) as error:
        client.headers("http://10.0.0.1:7077")
    assert "hunter2" not in str(error.value)
    with pytest.raises(UsageError) as error:
        ClientSecurity(token="hunter2 and more")
    assert "hunter2" not in str(error.value)


def test_whoever_asks_an_open_syncer_is_an_admin() -> None:
    assert OPEN.identify(None) is EVERYBODY and OPEN.identify("Bearer what") is EVERYBODY
    assert OPEN.is_valid(EVERYBODY) and not OPEN.is_complete


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (None, "asks for a token; give one with --token-file"),
        ("", "asks for a bearer token"),
        ("Basic YTpi", "asks for a bearer token"),
        ("Bearer ", "not one of this syncer's"),
        ("Bearer wrong", "not one of this syncer's"),
    ],
)
def test_a_syncer_with_tokens_wants_one(header: str | None, sentence: str, secrets: Secrets) -> None:
    security = secrets.server()
    assert security.is_complete
    assert security.identify(f"Bearer {secrets.token('observer')}").role is Role.OBSERVER
    with pytest.raises(TokenRefused, match=sentence):
        security.identify(header)


# ------------------------------------------------------------------------------------------------ what a client is told


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(401, "does not accept the token"), (403, "of another role"), (421, "to this name"), (500, None), (503, None)],
)
def test_an_answer_that_refuses_is_one_sentence(status: int, sentence: str | None) -> None:
    error = aiohttp.ClientResponseError(None, (), status=status)  # type: ignore[arg-type]
    refused = NO_SECURITY.refused(error, URL)
    assert refused is None if sentence is None else sentence in str(refused)


def test_an_outage_is_not_taken_for_a_refusal() -> None:
    for error in (ConnectionResetError(), TimeoutError(), OSError(111, "refused"), ssl.SSLEOFError(8, "EOF")):
        assert NO_SECURITY.refused(error, URL) is None
    assert NO_SECURITY.hung_up(TimeoutError(), URL) is None


def test_who_hangs_up_without_a_word_may_have_meant_something() -> None:
    hung_up = http.client.RemoteDisconnected("no answer")
    assert NO_SECURITY.refused(hung_up, URL) is None
    assert "if it speaks TLS, write https://" in str(NO_SECURITY.hung_up(hung_up, "http://10.0.0.1:1"))
    assert "if it asks for certificates" in str(NO_SECURITY.hung_up(hung_up, URL))
    with_cert = ClientSecurity(cert=Path("c"), key=Path("k"))
    assert "does not accept the certificate shown" in str(with_cert.hung_up(ConnectionResetError(), URL))
