"""Certificates and tokens of a test: the folder that ``unlockstep certs`` makes, and others that are wrong on purpose.

Decides what is wrong with each. Keys are new in every test; none is in the repository.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from unlockstep.certificates import Pair, issue, new_authority
from unlockstep.cli.certs import make
from unlockstep.net.access.security import ClientSecurity, ServerSecurity

HOST = "127.0.0.1"
NOW = datetime.datetime.now(datetime.UTC)
LONG_AGO = NOW - datetime.timedelta(days=400)


@dataclass(frozen=True)
class Secrets:
    """One folder, and what is taken from it."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def token(self, name: str) -> str:
        return (self.folder / f"{name}.token").read_text().strip()

    def server(self, *, mutual: bool = False) -> ServerSecurity:
        """What a syncer takes from it."""
        return ServerSecurity(
            self.folder / "syncer.pem",
            self.folder / "syncer.key",
            self.folder / "tokens.toml",
            self.ca if mutual else None,
        )

    def client(self, token: str | None = "learner", cert: str | None = None) -> ClientSecurity:
        """A client with this token, by name, and this certificate."""
        pair = [None, None] if cert is None else [self.folder / f"{cert}.pem", self.folder / f"{cert}.key"]
        return ClientSecurity.of(self.ca, *pair, token=None if token is None else self.folder / f"{token}.token")

    def add_client(self, name: str, *, expired: bool = False, authority: Pair | None = None) -> None:
        """A client's certificate; of another authority, or one that has expired, if asked for."""
        ca = authority or Pair(self.ca.read_bytes(), (self.folder / "ca.key").read_bytes())
        write_pair(self.folder, name, issue(ca, name, (), LONG_AGO if expired else NOW, 30))

    def replace_syncer(self, hosts: tuple[str, ...] = (HOST,), *, expired: bool = False) -> None:
        """The syncer's certificate and key by new ones."""
        ca = Pair(self.ca.read_bytes(), (self.folder / "ca.key").read_bytes())
        write_pair(self.folder, "syncer", issue(ca, "syncer", hosts, LONG_AGO if expired else NOW, 30))


def secrets_in(folder: Path, *hosts: str) -> Secrets:
    """A new folder of secrets for a syncer on loopback."""
    make(folder, list(hosts or (HOST,)), 30)
    return Secrets(folder)


def other_authority() -> Pair:
    """Somebody else's, of the same name."""
    return new_authority("unlockstep authority", LONG_AGO)


def write_pair(folder: Path, name: str, pair: Pair) -> None:
    """``NAME.pem`` and ``NAME.key``."""
    (folder / f"{name}.pem").write_bytes(pair.cert)
    (folder / f"{name}.key").touch(0o600)
    (folder / f"{name}.key").write_bytes(pair.key)
