"""The run log: what happened in a run, one JSON object a line, written as it happens and read back as events.

::

    {"schema":1,"run":"night","config_digest":"9f86d0..."}                          the header, once
    {"event":"RoundOpened","at_ns":5012000,"round":0,"fragment":0,"clock":1,...}    one line an event (``core.events``)

Decides the file format and what a damaged file is worth: a last line without its line break is a write that a crash cut
short, and counts for nothing; damage anywhere else is refused. Does not decide what is logged (``core.syncer``), and
reads no clock: an event carries its own time. Anything that reads JSON lines can read a run log.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from unlockstep.core.errors import UsageError
from unlockstep.core.events import Event

SCHEMA_VERSION = 1

_TAIL_BYTES = 64 * 1024
"""How much of the end of a file is looked at in one go for its last line break."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: which run this is, and under which settings."""

    schema: int = SCHEMA_VERSION
    run: str
    config_digest: str
    """``config.digest`` of the run's configuration."""


_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(Header)
_event_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class RunLogWriter:
    """Appends events to a run log. One that exists is continued: a syncer that starts again goes on in its file.

    Raises:
        UsageError: the file cannot be opened, is no run log, or is the log of another run or of other settings.
    """

    def __init__(self, path: str | Path, header: Header) -> None:
        path = Path(path)
        try:
            if path.exists() and path.stat().st_size > 0:
                _check_same_run(path, header)
                os.truncate(path, path.stat().st_size - _torn_bytes(path))
            else:
                path.write_bytes(_encoder.encode(header) + b"\n")
            self._file = path.open("ab")
        except OSError as error:
            raise UsageError(f"run log {path} cannot be written ({error}); choose a folder you may write to") from None

    def write(self, events: Iterable[Event]) -> None:
        """Append events. They are in the file after ``flush`` or ``close``, or when the buffer is full."""
        for event in events:
            self._file.write(_encoder.encode(event) + b"\n")

    def flush(self) -> None:
        """Hand everything written so far to the operating system, where it outlives this process."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close; doing it again changes nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a run log, in the order they were written; each iteration reads the file from its beginning."""

    path: Path
    torn_bytes: int
    """Length of a last line that was cut short, when the log was opened: 0 for a log that ends as it should."""

    def __iter__(self) -> Iterator[Event]:
        with self.path.open("rb") as file:
            file.readline()
            for number, line in enumerate(file, start=2):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield _decode_event(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise UsageError(
                        f"run log {self.path}, line {number} is not an event ({error}); the file is damaged: "
                        "restore it or remove what begins there"
                    ) from None


def read(path: str | Path) -> tuple[Header, Events]:
    """Open a run log, of a run that has ended or goes on. ``events.torn_bytes`` tells of a last line cut short.

    Raises:
        UsageError: now, if the file cannot be read, has no header or another schema; while iterating, if a line is not
            an event. It names the file and the line.
    """
    path = Path(path)
    try:
        header = _read_header(path)
        return header, Events(path, _torn_bytes(path))
    except OSError as error:
        raise UsageError(f"run log {path} cannot be read ({error}); check the path") from None


def _read_header(path: Path) -> Header:
    with path.open("rb") as file:
        line = file.readline()
    try:
        header = _header_decoder.decode(line if line.endswith(b"\n") else b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"run log {path}, line 1 is not a header ({error}); check that it is a run log") from None
    if header.schema != SCHEMA_VERSION:
        raise UsageError(
            f"run log {path} has schema {header.schema} but this version reads schema {SCHEMA_VERSION}; "
            "use the version that wrote it"
        )
    return header


def _check_same_run(path: Path, header: Header) -> None:
    found = _read_header(path)
    if found != header:
        raise UsageError(
            f"run log {path} belongs to run {found.run!r} with configuration {found.config_digest[:12]}, not to "
            f"{header.run!r} with {header.config_digest[:12]}; choose another run folder"
        )


def _decode_event(line: bytes) -> Event:
    """JSON has no NaN and no infinity: such a number (a diverged learner's loss) is written as null and read as NaN."""
    try:
        return _event_decoder.decode(line)
    except msgspec.ValidationError:
        if b"null" not in line:
            raise
        fields = msgspec.json.decode(line, type=dict[str, object])
        numbers = {name: math.nan if value is None else value for name, value in fields.items()}
        event: Event = msgspec.convert(numbers, Event)
        return event


def _torn_bytes(path: Path) -> int:
    """Bytes behind the last line break of a file."""
    with path.open("rb") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - _TAIL_BYTES)
            file.seek(begin)
            line_break = file.read(end - begin).rfind(b"\n")
            if line_break >= 0:
                return size - (begin + line_break + 1)
            end = begin
        return size
