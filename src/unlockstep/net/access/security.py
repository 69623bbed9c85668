"""What a client shows and checks, and what a syncer demands: certificates and tokens of one process, as one value.

::

    ClientSecurity   context() for https addresses, headers(url) with the token, refused(error, url)
    ServerSecurity   context for a port, identify(a header), refresh() when files have changed

Decides that a token never travels in the clear beyond this machine, and that neither end starts with files that are
missing, wrong or open to all. Does not decide what a role may do (``roles``) nor when (``gate``).
"""

from __future__ import annotations

import http.client
import logging
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from unlockstep.core.errors import UsageError
from unlockstep.net.access import tls
from unlockstep.net.access.roles import Role
from unlockstep.net.access.tokens import EVERYBODY, Identity, TokenRefused, Tokens, checked_token, read_token_file
from unlockstep.net.wire.names import is_loopback

__all__ = [
    "NO_SECURITY",
    "OPEN",
    "ClientSecurity",
    "Identity",
    "Role",
    "ServerSecurity",
    "TokenRefused",
]

_BEARER = "Bearer "

_log = logging.getLogger(__name__)


IF_TLS = "if it speaks TLS, write https://"
"""What may be the matter if what is at an address without TLS hangs up."""


@dataclass(frozen=True)
class ClientSecurity:
    """How a client knows its syncer, and the syncer the client.

    Args:
        ca: certificates that vouch for the syncer's; None: those this machine trusts.
        cert, key: its own certificate, where the syncer asks for one (mutual TLS).
        token: what it shows; a path is read anew whenever it is shown, so that a token can be replaced.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: str | Path | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.token, str):
            object.__setattr__(self, "token", checked_token(self.token, "the token given"))

    @classmethod
    def of(
        cls,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        token: str | os.PathLike[str] | None = None,
    ) -> Self:
        """From what a person gives. Raises UsageError at once if one of the files is of no use."""
        shown = token if token is None or isinstance(token, str) else Path(token)
        security = cls(_path(ca), _path(cert), _path(key), shown)
        if isinstance(shown, Path):
            read_token_file(shown)
        if (ca, cert, key) != (None, None, None):
            security.context("https://")  # Says now what is wrong with the files.
        return security

    def context(self, url: str) -> ssl.SSLContext | None:
        """What to speak TLS with at this address; None where it speaks none. Raises UsageError."""
        return self._context if url.startswith("https://") else None

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return tls.client_context(self.ca, self.cert, self.key)

    def headers(self, url: str) -> dict[str, str]:
        """What every request to ``url`` bears.

        Raises:
            UsageError: the token would travel in the clear, or its file is no longer of use.
        """
        if self.token is None:
            return {}
        parts = urlsplit(url)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise UsageError(
                f"the syncer's address is {url}, over which the token would travel in the clear; write https://, or "
                "leave the token out"
            )
        token = read_token_file(self.token) if isinstance(self.token, Path) else self.token
        return {"Authorization": _BEARER + token}

    def refused(self, error: BaseException, url: str) -> str | None:
        """One sentence if the two do not accept each other, which somebody has to mend; None: it was something else.

        Args:
            error: what an HTTP library has raised; a ``status`` it has is the syncer's answer.
            url: of the syncer.
        """
        status = getattr(error, "status", None)
        if status == 401:
            return (
                f"the syncer at {url} does not accept the token shown; give another with --token-file (in Python: "
                "token=)"
            )
        if status == 403:
            return f"the syncer at {url} does not allow this with the token shown; give one of another role"
        if status == 421:
            return f"the syncer at {url} does not answer to this name; write localhost or 127.0.0.1"
        found = tls.tls_error(error)
        if found is None or isinstance(found, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return None
        return tls.explained_to_client(found, url, self.ca)

    def hung_up(self, error: BaseException, url: str) -> str | None:
        """What a syncer may have meant, and what to do then, if what is at ``url`` hung up without a word; None: it did
        not. Mostly nobody meant anything: a proxy or a tunnel in between finds no syncer behind it just now."""
        is_cut = isinstance(error, ConnectionResetError | BrokenPipeError | http.client.RemoteDisconnected)
        if not is_cut and tls.tls_error(error) is None:
            return None
        if not url.startswith("https://"):
            return IF_TLS
        if self.cert is None:
            return "if it asks for certificates (--client-ca), give --cert and --key (in Python: cert= and key=)"
        return "if its audit.jsonl says that it does not accept the certificate shown, give another with --cert, --key"


NO_SECURITY = ClientSecurity()
"""Of a client that shows nothing; what speaks https is checked against whom this machine trusts."""


class ServerSecurity:
    """What one syncer demands.

    Args:
        cert, key: its certificate; None: it speaks no TLS.
        tokens: the token file; None: it asks for no tokens, and everybody is an admin.
        client_ca: who must have signed the certificates of its clients; None: they need none.
        now_s: seconds since 1970.

    Raises:
        UsageError: a file is of no use, or one is given without another that it needs.
    """

    def __init__(
        self,
        cert: Path | None = None,
        key: Path | None = None,
        tokens: Path | None = None,
        client_ca: Path | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        if (cert is None) != (key is None):
            given, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
            raise UsageError(f"{given} is given without {missing}; a certificate and its key are used together")
        if client_ca is not None and cert is None:
            raise UsageError(
                "--client-ca is given without --tls-cert and --tls-key; certificates are only shown over TLS"
            )
        self._now_s = now_s
        self._pair = (cert, key) if cert is not None and key is not None else None
        self._stamps = self._pair_stamps()
        self.context = None if self._pair is None else tls.server_context(*self._pair, client_ca, now_s())
        self.tokens = None if tokens is None else Tokens(tokens, now_s)

    @property
    def is_complete(self) -> bool:
        """Whether strangers may reach it: it speaks TLS and knows its clients."""
        return self.context is not None and self.tokens is not None

    @property
    def scheme(self) -> str:
        return "http" if self.context is None else "https"

    def identify(self, authorization: str | None) -> Identity:
        """Who sends this ``Authorization`` header. Raises TokenRefused, with a sentence for whoever asks."""
        if self.tokens is None:
            return EVERYBODY
        if authorization is None:
            raise TokenRefused(
                "this syncer asks for a token; give one with --token-file or UNLOCKSTEP_TOKEN (in Python: token=)"
            )
        if not authorization.startswith(_BEARER):
            raise TokenRefused("this syncer asks for a bearer token, 'Authorization: Bearer TOKEN'")
        return self.tokens.identify(authorization.removeprefix(_BEARER).strip())

    def is_valid(self, identity: Identity) -> bool:
        """Whether who was identified would be again."""
        return self.tokens is None or self.tokens.is_valid(identity)

    def refresh(self) -> None:
        """Use what has changed on the disk: tokens, and a certificate that was renewed. What is not valid changes
        nothing and is a warning."""
        if self.tokens is not None:
            self.tokens.refresh()
        stamps = self._pair_stamps()
        if self._pair is None or self.context is None or stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            # First into a context of its own: a pair that does not fit would spoil the one in use.
            tls.server_context(*self._pair, None, self._now_s())
            tls.load_pair(self.context, *self._pair)
            _log.info("the certificate %s is a new one and used from now on", self._pair[0])
        except UsageError as error:
            _log.warning("%s; the certificate stays as it was", error)

    def _pair_stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return () if self._pair is None else tuple(_stamp(path) for path in self._pair)


OPEN = ServerSecurity()
"""No TLS and no tokens: for a syncer that only this machine reaches."""


def _path(given: str | os.PathLike[str] | None) -> Path | None:
    return None if given is None else Path(given)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
