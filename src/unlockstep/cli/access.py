"""Whom a command asks, trusts and shows what: flags and variables that commands share, and what they amount to.

Decides that a token comes from a file or from the environment, never from a command line, which everybody on a machine
can read; and that a syncer which others can reach has TLS and tokens unless ``--insecure`` says otherwise. Does not
decide what they protect (``net.access.security``).
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.core.errors import UsageError

if TYPE_CHECKING:
    from unlockstep.net.access.security import ClientSecurity, ServerSecurity
    from unlockstep.net.wire.listening import Endpoint

_log = logging.getLogger("unlockstep.cli")

TOKEN_VARIABLE = "UNLOCKSTEP_TOKEN"
CA_VARIABLE = "UNLOCKSTEP_CA"

CERT_FILE, KEY_FILE, TOKENS_FILE, CA_FILE = "syncer.pem", "syncer.key", "tokens.toml", "ca.pem"
"""In a folder of ``unlockstep certs``, what a syncer takes from it, and what its clients do."""

SyncerUrl = Annotated[str, typer.Argument(help="Address of the syncer; of several, with commas.", metavar="URL")]
RunName = Annotated[str | None, typer.Option("--run", help="Name of the run, if the syncer has several.")]

Ca = Annotated[
    Path | None, typer.Option("--ca", help=f"Certificate that vouches for the syncer's (PEM); or {CA_VARIABLE}.")
]
Cert = Annotated[Path | None, typer.Option("--cert", help="Certificate of this client (PEM), if the syncer wants one.")]
Key = Annotated[Path | None, typer.Option("--key", help="Its key.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help=f"File with the token to show; or {TOKEN_VARIABLE} holds the token.")
]

Secrets = Annotated[
    Path | None,
    typer.Option("--secrets", help="Folder of `unlockstep certs make`: certificate, key and tokens in one."),
]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="Certificate of the syncer (PEM).")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="Its key.")]
TokensFile = Annotated[Path | None, typer.Option("--tokens", help="File of the tokens it accepts (TOML).")]
ClientCa = Annotated[
    Path | None, typer.Option("--client-ca", help="Accept only clients with a certificate signed by this one (PEM).")
]


def client_security(ca: Path | None, cert: Path | None, key: Path | None, token_file: Path | None) -> ClientSecurity:
    """What a client was given, by flags or else by the environment. Raises UsageError if a file is of no use."""
    from unlockstep.net.access.security import ClientSecurity

    ca_text, token = os.environ.get(CA_VARIABLE, ""), os.environ.get(TOKEN_VARIABLE, "")
    if ca is None and ca_text:
        ca = Path(ca_text)
    if token_file is None and _is_path(token):
        _log.warning(
            "%s looks like the path of a file; it is to hold the token itself, and --token-file takes a path",
            TOKEN_VARIABLE,
        )
    return ClientSecurity.of(ca, cert, key, token_file if token_file is not None else token or None)


def _is_path(token: str) -> bool:
    """Whether somebody may have written down where a token is, in the place of the token."""
    with suppress(OSError, ValueError):
        return token.endswith(".token") or (token != "" and Path(token).is_file())
    return False


def server_security(
    secrets: Path | None, cert: Path | None, key: Path | None, tokens: Path | None, client_ca: Path | None
) -> ServerSecurity:
    """What a syncer was given. Raises UsageError if a file is of no use, or is given twice."""
    from unlockstep.net.access.security import ServerSecurity

    if secrets is not None:
        for option, given in (("--tls-cert", cert), ("--tls-key", key), ("--tokens", tokens)):
            if given is not None:
                raise UsageError(f"{option} is given beside --secrets, which holds one already; leave one of them out")
        if not secrets.is_dir():
            raise UsageError(f"--secrets is {secrets}, which is not a folder; make one with `unlockstep certs make`")
        cert, key, tokens = secrets / CERT_FILE, secrets / KEY_FILE, secrets / TOKENS_FILE
    return ServerSecurity(cert, key, tokens, client_ca)


def told_in_vain(cert: Path | None, told: Endpoint) -> tuple[str, ...]:
    """A sentence if a syncer with this certificate is not believed under the address that others are told."""
    from unlockstep.certificates import is_for, read_certificate

    if cert is None or is_for(read_certificate(cert).names, told.url_host):
        return ()
    return (
        f"others are told {told.url_host}, which the certificate {cert} is not for; tell them a name it has with "
        "--advertise, or make it for this one (`unlockstep certs renew --host`)",
    )


def require_secured(endpoint: Endpoint, insecure: bool, security: ServerSecurity) -> None:
    """Raises UsageError if strangers could reach a syncer that does not protect itself."""
    from unlockstep.net.wire.names import is_loopback

    if insecure or is_loopback(endpoint.host) or security.is_complete:
        return
    missing = "connections are neither encrypted nor authorised"
    if security.context is not None:
        missing = "no token is asked for"
    elif security.tokens is not None:
        missing = "connections are not encrypted"
    raise UsageError(
        f"--listen is {endpoint}, which others can reach, and {missing}; give --secrets DIR, made by "
        "`unlockstep certs make`, listen on 127.0.0.1, or say --insecure if the network is trusted"
    )
