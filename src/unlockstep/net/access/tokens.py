"""The tokens a syncer accepts: a TOML file of names, roles and digests, never of the tokens themselves.

::

    [tokens.site-a]
    role = "learner"
    sha256 = "9f86d0..."                 # of the token, hexadecimal
    expires = 2027-01-01T00:00:00Z       # optional
    learners = "site-a"                  # optional: it may only speak for learners whose names begin so

Several tokens of a role are valid at once, so one is replaced by adding another, handing it out, and taking the first
away. The file is read again when it changes (``refresh``); one that cannot be read leaves the tokens as they are.

Decides how a token becomes an identity, in constant time. Does not decide what a role may do (``roles``).
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from unlockstep.core.errors import UsageError
from unlockstep.core.ids import is_learner_name
from unlockstep.net.access.roles import Role

TOKEN_CHARACTERS_MAX = 256
"""Longest token that is looked at."""

TOKENS_MAX = 10_000
"""Most entries of a token file: every one is compared at every request."""

FILE_BYTES_MAX = 4 * 1024 * 1024

_TOKEN = re.compile(r"[!-~]+")
"""Visible ASCII: what a header can carry."""

_log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token, as the file tells of it."""

    role: Role
    sha256: str
    expires: datetime.datetime | None = None
    learners: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who has shown a token."""

    token: str
    """The token's name; empty where nobody needs one."""
    role: Role
    learners: str = ""
    """Names of learners it may speak for begin so."""

    def may_speak_for(self, learner: str) -> bool:
        return learner.startswith(self.learners)


EVERYBODY = Identity("", Role.ADMIN)
"""Whoever asks a syncer that has no tokens."""


class TokenRefused(Exception):
    """Its text is a sentence, which never holds the token."""


def new_token() -> str:
    """256 random bits, as text for a header."""
    return secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """SHA-256, hexadecimal. Tokens are random and long: nothing slower is needed to keep them secret."""
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """The tokens of one file.

    Args:
        path: the file.
        now_s: seconds since 1970, for what expires.

    Raises:
        UsageError: it cannot be read, others may write to it, or it is not a token file.
    """

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now_s = now_s
        self._stamp = _stamp(path)
        self._entries = _by_digest(read_tokens(path))

    def identify(self, token: str) -> Identity:
        """Whose token this is. Every entry is compared, however early one fits.

        Raises:
            TokenRefused: nobody's, or it has expired.
        """
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise TokenRefused("the token is not one of this syncer's")
        shown = hashlib.sha256(token.encode(errors="replace")).digest()
        found: tuple[str, Entry] | None = None
        for digest, named in self._entries:
            if hmac.compare_digest(shown, digest):
                found = named
        if found is None:
            raise TokenRefused("the token is not one of this syncer's")
        name, entry = found
        if self._has_expired(entry):
            raise TokenRefused(f"the token {name!r} has expired; ask whoever runs the syncer for a new one")
        return Identity(name, entry.role, entry.learners)

    def is_valid(self, identity: Identity) -> bool:
        """Whether what was true when the token was shown is still so: it may have been taken away, or expired."""
        for _, (name, entry) in self._entries:
            if name == identity.token:
                same = (entry.role, entry.learners) == (identity.role, identity.learners)
                return same and not self._has_expired(entry)
        return False

    def refresh(self) -> None:
        """Read the file again if it has changed. A file that is not valid is a warning, and changes nothing."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._entries = _by_digest(read_tokens(self._path))
            _log.info("the tokens have changed: %d are valid from now on", len(self._entries))
        except UsageError as error:
            _log.warning("%s; the tokens stay as they were", error)

    def _has_expired(self, entry: Entry) -> bool:
        return entry.expires is not None and entry.expires.timestamp() <= self._now_s()


def read_tokens(path: Path) -> dict[str, Entry]:
    """What a token file holds, by name. Raises UsageError as ``Tokens`` does."""
    text = _text_of(path)
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"token file {path} is not TOML ({error}); correct it there") from None
    found = tables.pop("tokens", {})
    if tables or not isinstance(found, dict):
        unknown = next(iter(tables), "tokens")
        raise UsageError(f"token file {path} has {unknown!r}; it holds nothing but [tokens.NAME] sections")
    if len(found) > TOKENS_MAX:
        raise UsageError(f"token file {path} has {len(found)} tokens, {TOKENS_MAX} at most; remove some")
    entries = {name: _entry(path, name, table) for name, table in found.items()}
    names = {entry.sha256: name for name, entry in entries.items()}
    for name, entry in entries.items():
        if names[entry.sha256] != name:
            raise UsageError(f"token file {path}: {name!r} and {names[entry.sha256]!r} are one token; remove one")
    return entries


def _entry(path: Path, name: str, table: object) -> Entry:
    if not is_learner_name(name):
        raise UsageError(f"token file {path}: {name!r} is no name; use letters, digits, _ and - (64 at most)")
    where = f"token file {path}: [tokens.{name}]"
    try:
        entry = msgspec.convert(table, Entry)
        if entry.expires is not None:
            entry.expires.timestamp()
    except (msgspec.ValidationError, OverflowError) as error:
        raise UsageError(f"{where} is not valid ({error}); correct it") from None
    if not re.fullmatch("[0-9a-f]{64}", entry.sha256):
        raise UsageError(f"{where}: sha256 must be 64 hexadecimal digits; make tokens with `unlockstep certs token`")
    if entry.learners and not is_learner_name(entry.learners):
        raise UsageError(f"{where}: learners is {entry.learners!r}; give what the learners' names begin with")
    if entry.expires is not None and entry.expires.tzinfo is None:
        raise UsageError(f"{where}: expires is {entry.expires}; say the time zone, as in 2027-01-01T00:00:00Z")
    return entry


def _text_of(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise UsageError(f"token file {path} is not a file; give the tokens.toml that `unlockstep certs` made")
        if os.name == "posix" and mode & stat.S_IWOTH:
            raise UsageError(f"token file {path} may be written by everybody on this machine; chmod o-w {path}")
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UsageError(
            f"token file {path} does not exist; make one with `unlockstep certs make` or check the path"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"token file {path} cannot be read ({reason}); make it readable for the syncer") from None
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"token file {path} has more than {FILE_BYTES_MAX} bytes; remove what is not a token")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"token file {path} is not UTF-8 text; save it as UTF-8 TOML") from None


def _by_digest(entries: dict[str, Entry]) -> tuple[tuple[bytes, tuple[str, Entry]], ...]:
    return tuple((bytes.fromhex(entry.sha256), (name, entry)) for name, entry in entries.items())


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_token_file(path: Path) -> str:
    """The token that a file holds, for whoever shows it.

    Raises:
        UsageError: there is none, or everybody on this machine may read it.
    """
    try:
        mode = path.stat().st_mode
        if os.name == "posix" and mode & (stat.S_IROTH | stat.S_IWOTH):
            raise UsageError(f"token file {path} may be read by everybody on this machine; chmod 600 {path}")
        with path.open("rb") as file:
            text = file.read(2 * TOKEN_CHARACTERS_MAX).decode("ascii").strip()
    except FileNotFoundError:
        raise UsageError(
            f"token file {path} does not exist; ask whoever runs the syncer for one (`unlockstep certs token`)"
        ) from None
    except UnicodeDecodeError:
        text = ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"token file {path} cannot be read ({reason}); check path and permissions") from None
    return checked_token(text, f"token file {path}")


def checked_token(text: str, source: str) -> str:
    """A token that a header can carry. Raises UsageError, which never holds it; ``source`` is where it is from."""
    token = text.strip()
    if not _TOKEN.fullmatch(token) or len(token) > TOKEN_CHARACTERS_MAX:
        raise UsageError(
            f"{source} does not hold a token: one word of at most {TOKEN_CHARACTERS_MAX} letters, digits and marks; "
            "make one with `unlockstep certs token`"
        )
    return token
