"""The audit trail of a syncer: who joined, who left and who was refused, from where and with which token.

::

    {"at": "...", "what": "joined", "learner": "site-a", "incarnation": 1, "address": "...", "token": "...", ...}
    {"at": "...", "what": "refused", "reason": "wrong_token", "address": "...", "sentence": "..."}
    {"at": "...", "what": "refused_more", "reason": "wrong_token", "count": 871, "addresses": 12}

Decides what becomes of a flood: of every reason a few refusals are told one by one, the rest is counted, and the count
is told, so that neither the file (``FILE_BYTES_MAX``, ``FILES_KEPT`` of them) nor stderr grows with what strangers do.
A line never holds a token. Does not decide who is refused.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import msgspec

from unlockstep.core.foreign_text import printable
from unlockstep.core.words import counted
from unlockstep.net.access.tokens import EVERYBODY, Identity

AUDIT_FILE = "audit.jsonl"
FILE_BYTES_MAX = 8 * 1024 * 1024
FILES_KEPT = 3
"""The one that is written, and those before it: ``audit.jsonl.1`` is the last one that was full."""

TOLD_ONE_BY_ONE_MAX = 20
"""Refusals of one reason that are told in one period."""
PERIOD_S = 10.0
ADDRESSES_COUNTED_MAX = 1024
SENTENCE_CHARACTERS_MAX = 300

_log = logging.getLogger(__name__)


class Refused(Enum):
    """Why somebody was refused."""

    NO_TOKEN = "no_token"
    WRONG_TOKEN = "wrong_token"
    NOT_ALLOWED = "not_allowed"
    """The role does not permit it, or the name is another's."""
    FOREIGN_ORIGIN = "foreign_origin"
    """A page of another site has sent it."""
    FOREIGN_HOST = "foreign_host"
    """It was sent to a name that is not this machine's."""
    TLS = "tls"
    """There was no TLS connection: no certificate, a wrong one, or no TLS at all."""
    TOO_MANY_CONNECTIONS = "too_many_connections"
    TOO_MANY_REQUESTS = "too_many_requests"
    TOO_SLOW = "too_slow"
    """A head, a body or the reading of an answer that took too long."""
    MALFORMED = "malformed"
    """No HTTP, no message, no such path, nothing that could be read."""
    NOT_THERE = "not_there"
    """What is asked for is not there, not yet or no more: a learner in order may meet it, too."""
    TOO_LARGE = "too_large"
    UNSOUND = "unsound"
    """A body that was read and is not what it should be."""
    REPEATED = "repeated"
    """An upload that is known: it was answered as the first time, and had no effect."""
    TURNED_AWAY = "turned_away"
    """What the run does not let join."""


_USUAL = (Refused.REPEATED, Refused.NOT_THERE)
"""Not worth a line on stderr."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection."""

    address: str
    identity: Identity = EVERYBODY


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the file."""

    at: str
    what: str
    reason: str = ""
    learner: str = ""
    incarnation: int = 0
    address: str = ""
    token: str = ""
    role: str = ""
    sentence: str = ""
    count: int = 0
    addresses: int = 0


@dataclass(slots=True)
class _Flood:
    """Refusals of one reason in the period that runs."""

    told: int = 0
    untold: int = 0
    addresses: set[str] = field(default_factory=set)


class Audit:
    """Where it is written; and what is worth a line on stderr.

    Args:
        folder: of the run; None: nothing is written to a file. The file is made when there is something to write.
        now: the time, with a time zone.
        monotonic_s: for periods, whatever becomes of the time of day.
    """

    def __init__(
        self,
        folder: Path | None = None,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.fromtimestamp(time.time(), datetime.UTC),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = None if folder is None else folder / AUDIT_FILE
        self._now = now
        self._monotonic_s = monotonic_s
        self._period_ends_s = self._monotonic_s() + PERIOD_S
        self._floods: dict[Refused, _Flood] = {}
        self._has_failed = False

    def joined(self, learner: str, incarnation: int, peer: Peer) -> None:
        """A learner is a member, or is so again on a new connection."""
        self._write("joined", peer, learner=learner, incarnation=incarnation)

    def left(self, learner: str, incarnation: int, reason: str, peer: Peer) -> None:
        """It is one no more."""
        self._write("left", peer, learner=learner, incarnation=incarnation, reason=reason)

    def ended(self, peer: Peer) -> None:
        """An admin has ended the run from afar."""
        self._write("ended", peer)

    def refused(self, reason: Refused, peer: Peer, sentence: str) -> None:
        """Something was not done that somebody asked for."""
        self.look()
        flood = self._floods.setdefault(reason, _Flood())
        if flood.told < TOLD_ONE_BY_ONE_MAX:
            flood.told += 1
            sentence = shortened(sentence)
            self._write("refused", peer, reason=reason.value, sentence=sentence)
            if flood.told == 1 and reason not in _USUAL:
                who = f"token {peer.identity.token!r} at " if peer.identity.token else ""
                _log.warning("refused %s%s: %s", who, peer.address, sentence)
            return
        flood.untold += 1
        if len(flood.addresses) < ADDRESSES_COUNTED_MAX:
            flood.addresses.add(peer.address)

    def look(self) -> None:
        """To be called now and then: tells of a period that is over."""
        if self._monotonic_s() >= self._period_ends_s:
            self.flush()

    def flush(self) -> None:
        """Tell what was only counted."""
        self._period_ends_s = self._monotonic_s() + PERIOD_S
        floods, self._floods = self._floods, {}
        for reason, flood in floods.items():
            if flood.untold:
                many = "more than " if len(flood.addresses) >= ADDRESSES_COUNTED_MAX else ""
                line = Line(
                    self._at(), "refused_more", reason.value, count=flood.untold, addresses=len(flood.addresses)
                )
                self._append(line)
                if reason in _USUAL:
                    continue
                _log.warning(
                    "refused %d more (%s) from %s%s",
                    flood.untold,
                    reason.value.replace("_", " "),
                    many,
                    counted(len(flood.addresses), "address", "addresses"),
                )

    def _write(self, what: str, peer: Peer, **fields: object) -> None:
        identity = peer.identity
        role = identity.role.value if identity.token else ""
        line = Line(self._at(), what, address=peer.address, token=identity.token, role=role)
        self._append(msgspec.structs.replace(line, **fields))

    def _at(self) -> str:
        return self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _append(self, line: Line) -> None:
        if self._path is None:
            return
        try:
            self._make_room()
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            try:
                os.write(descriptor, msgspec.json.encode(line) + b"\n")
            finally:
                os.close(descriptor)
            self._has_failed = False
        except OSError as error:  # The run does not depend on it.
            if not self._has_failed:
                _log.warning("%s cannot be written (%s); the run goes on without", self._path, error.strerror or error)
            self._has_failed = True

    def _make_room(self) -> None:
        assert self._path is not None
        try:
            if self._path.stat().st_size < FILE_BYTES_MAX:
                return
        except FileNotFoundError:
            return
        names = [self._path, *(self._path.with_name(f"{AUDIT_FILE}.{number}") for number in range(1, FILES_KEPT))]
        for newer, older in reversed(list(itertools.pairwise(names))):
            if newer.exists():
                newer.replace(older)


def shortened(text: str) -> str:
    """What a stranger has said, for a line of a log: short, and without anything that moves a cursor."""
    shown = printable(text)
    return shown if len(shown) <= SENTENCE_CHARACTERS_MAX else shown[: SENTENCE_CHARACTERS_MAX - 1] + "…"
