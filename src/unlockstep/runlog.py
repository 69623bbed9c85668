"""The run log: what happened in a run, one JSON object a line, written as it happens and read back as events.

::

    {"schema":3,"run":"night","config_digest":"9f86d0..."}                          the header, once a file
    {"event":"RoundOpened","at_ns":5012000,"round":0,"fragment":0,"clock":1,...}    one line an event (``core.events``)

A long run has several files, ``run.jsonl`` and then ``run.LIFE-PART.jsonl``: each life of the syncer begins one of its
own, and another when it has grown long. The header of each says where it goes on: after how many bytes of which file.
What follows there was logged and never saved: it is void, as if it had not happened, and stays for the curious. Until
a life has saved anything, its file ends in ``.unsaved`` and is passed over: the life before may still be at work.

Decides the file format and what a damaged file is worth: a last line without its line break is a write that a crash cut
short, and counts for nothing; damage anywhere else is refused. Does not decide what is logged (``core.syncer``), and
reads no clock: an event carries its own time. Anything that reads JSON lines can read a run log.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from unlockstep.core.errors import UsageError
from unlockstep.core.events import Event, RunSeeded
from unlockstep.files import DISK_FULL, named

SCHEMA_VERSION = 3
SCHEMAS_READ = (1, 2, SCHEMA_VERSION)
"""Logs of the first schema have one file; those of the second do not hold what a replay needs."""

PART_BYTES_MAX = 64 * 1024 * 1024
"""A file longer than this is continued in another one."""

_TAIL_BYTES = 64 * 1024
"""How much of the end of a file is looked at in one go for its last line break."""

_PART_NAME = re.compile(r"(?P<stem>.+)\.(?P<life>[0-9]{4,})-(?P<part>[0-9]{4,})(?P<suffix>\.[^.]+)(\.unsaved)?")

_UNSAVED = ".unsaved"
"""Ends the name of a file of which nothing is saved yet, so that nothing in it has happened for all that is known."""


class Mark(msgspec.Struct, frozen=True):
    """A place in a run log."""

    file: str
    """Name of the file, without its folder."""
    bytes: int
    """From its beginning."""


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a file: which run this is, and under which settings."""

    schema: int = msgspec.field(default_factory=lambda: SCHEMA_VERSION)
    run: str
    config_digest: str
    """``config.digest`` of the run's configuration."""
    continues: Mark | None = None
    """Where it goes on; None for the first file."""
    simulated: bool = False
    """Time was virtual: nothing in this log says how fast a machine is."""


class LogExists(UsageError):
    """A file that was to be made is there already: another process has made it, now or earlier."""


_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(Header)
_event_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class RunLogWriter:
    """Writes events to a run log. While it lives it holds a lock on its file (``is_being_written``).

    Args:
        path: of its first file.
        header: which run this is.
        life: of the syncer that writes; 1 begins the log.
        continues: where an earlier life has left off; None: nowhere. If that file is not beside this one (it is where
            another syncer ran), this one becomes the first file here.
        reopens: ``continues`` is a place in what this very life has written, by a process that has ended since: it is
            gone on with there, in the same file, and what was written behind it is removed.

    Raises:
        LogExists: a file is there already.
        UsageError: it cannot be made, or was cut short.
    """

    def __init__(
        self, path: str | Path, header: Header, *, life: int = 1, continues: Mark | None = None, reopens: bool = False
    ) -> None:
        self._first = Path(path)
        self._header = header
        self._life = life
        self._part = 0
        self._is_confirmed = False
        if reopens and continues is not None:
            self._reopen(continues)
        else:
            self._begin(continues)

    def _reopen(self, mark: Mark) -> None:
        self._path = self._first.with_name(mark.file)
        match = _PART_NAME.fullmatch(mark.file)
        self._part = int(match["part"]) if match else 1
        self._is_confirmed, self._mark = True, mark
        try:
            self._file: BinaryIO = self._path.open("r+b")
            _hold(self._file)
            if (size := self._file.seek(0, os.SEEK_END)) < mark.bytes:
                self._file.close()
                raise UsageError(
                    f"run log {self._path} was cut short: it has {size} bytes, and is gone on with after {mark.bytes}; "
                    "restore it"
                )
            self._file.truncate(mark.bytes)
            self._file.seek(mark.bytes)
            for life, part, path in list(_files_after(self._first)):
                if (life, part) > (self._life, self._part):
                    path.unlink()
        except OSError as error:
            raise UsageError(f"run log {self._path} cannot be written ({error}); restore it") from None

    def _begin(self, continues: Mark | None) -> None:
        self._part += 1
        is_first = continues is None or _found(self._first, continues.file) is None
        name = self._first if is_first else part_path(self._first, self._life, self._part)
        self._is_confirmed = self._is_confirmed or is_first
        path = name if self._is_confirmed else _unsaved(name)
        line = _encoder.encode(msgspec.structs.replace(self._header, continues=continues)) + b"\n"
        try:
            self._file = path.open("xb")
            _hold(self._file)  # Before there is anything in it for which somebody could take it for an unused one.
            try:
                self._file.write(line)
                self._file.flush()
            except OSError:  # The disk is full: what has no header would only be in the way.
                path.unlink(missing_ok=True)
                with suppress(OSError):
                    self._file.close()
                raise
        except FileExistsError:
            raise LogExists(f"run log {path} is there already; choose another folder") from None
        except OSError as error:
            if error.errno in DISK_FULL and not is_first:
                raise  # The run goes on when there is room.
            raise UsageError(f"run log {path} cannot be written ({error}); choose a folder you may write to") from None
        self._path, self._mark = path, Mark(name.name, len(line))

    def write(self, events: Iterable[Event]) -> None:
        """Append events. They are in the file after ``flush`` or ``close``, or when the buffer is full."""
        size = self._mark.bytes
        with named(self._path):
            for event in events:
                size += self._file.write(_encoder.encode(event) + b"\n")
        self._mark = Mark(self._mark.file, size)
        if size > PART_BYTES_MAX:
            self.close()
            self._begin(self._mark)

    def confirm(self) -> None:
        """A save goes on from what is in the file: until then, whoever reads the log passes over it."""
        if not self._is_confirmed:
            self._is_confirmed = True
            self._path = self._path.rename(self._first.with_name(self._mark.file))

    def withdraw(self) -> None:
        """Take the file away: nothing in it has happened, since another syncer leads."""
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                self._path.unlink()
        self.close()

    @property
    def mark(self) -> Mark:
        """Behind the last event written."""
        return self._mark

    def flush(self) -> None:
        """Hand everything written so far to the operating system, where it outlives this process."""
        with named(self._path):
            self._file.flush()

    def close(self) -> None:
        """Flush and close; doing it again changes nothing."""
        with named(self._path):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _hold(file: BinaryIO) -> None:
    """Until the file is closed, by whatever end its process comes to. Where there are no locks nobody is held off."""
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)


def is_being_written(path: Path) -> bool:
    """Whether the process that writes this file lives, as far as the file system has locks."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def is_at_work(path: str | Path) -> bool:
    """Whether a syncer on this log lives, whichever of its lives that is (``is_being_written``).

    Args:
        path: of the log's first file.
    """
    first = Path(path)
    return any(is_being_written(file) for file in [first, *(file for _, _, file in _files_after(first))])


def remove_unused(path: Path) -> bool:
    """Remove the log of a run that has no parameters yet, unless its writer lives; whether it is gone.

    Its syncer died before it had saved anything: who has joined, if anybody has, was told nothing.
    """
    if is_being_written(path):
        return False
    try:
        with path.open("rb") as file:
            _hold(file)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()) or not _is_unused(path):
                return False
            path.unlink()
            return True
    except FileNotFoundError:
        return True


def _is_unused(path: Path) -> bool:
    try:
        return path.stat().st_size == 0 or not any(isinstance(event, RunSeeded) for event in read(path)[1])
    except UsageError:
        return False


def part_files(first: Path) -> list[Path]:
    """Every file of the log whose first file this is, whether or not it counts."""
    return [first, *(path for _, _, path in sorted(_files_after(first)))]


def is_of_log(name: str, first: Path) -> bool:
    """Whether a file beside the first of a log is a part of it by its name."""
    return name == first.name or _part_match(name, first) is not None


def part_path(first: Path, life: int, part: int) -> Path:
    """A file of the log whose first file this is."""
    return first.with_name(f"{first.stem}.{life:04}-{part:04}{first.suffix}")


def _unsaved(path: Path) -> Path:
    return path.with_name(path.name + _UNSAVED)


def _found(first: Path, name: str) -> Path | None:
    """The file of this name beside the first, whether or not its writer lived to say that it counts."""
    path = first.with_name(name)
    return next((each for each in (path, _unsaved(path)) if each.exists()), None)


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a run log, in the order they were written; each iteration reads the files from the beginning."""

    path: Path
    parts: tuple[tuple[Path, int | None], ...]
    """Each file, and how many bytes of it count; None: all."""
    torn_bytes: int
    """Length of a last line that was cut short, when the log was opened: 0 for a log that ends as it should."""

    def __iter__(self) -> Iterator[Event]:
        for path, bytes_max in self.parts:
            yield from _events_of(path, bytes_max)


def _events_of(path: Path, bytes_max: int | None) -> Iterator[Event]:
    with path.open("rb") as file:
        read = len(file.readline())
        for number, line in enumerate(file, start=2):
            read += len(line)
            if not line.endswith(b"\n") or (bytes_max is not None and read > bytes_max):
                return
            try:
                yield _decode_event(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise UsageError(
                    f"run log {path}, line {number} is not an event ({error}); the file is damaged: "
                    "restore it or remove what begins there"
                ) from None


def read(path: str | Path) -> tuple[Header, Events]:
    """Open a run log, of a run that has ended or goes on. ``events.torn_bytes`` tells of a last line cut short.

    Args:
        path: of its first file; the others are beside it.

    Raises:
        UsageError: now, if a file cannot be read, has no header or another schema; while iterating, if a line is not
            an event. It names the file and the line.
    """
    path = Path(path)
    try:
        header = _read_header(path)
        parts = _parts(path, header)
        return header, Events(path, parts, _torn_bytes(parts[-1][0]))
    except OSError as error:
        raise UsageError(f"run log {path} cannot be read ({error}); check the path") from None


def missing_end(path: str | Path, until: Mark) -> str | None:
    """A sentence if the log does not go as far as a place in it; None: it does, or its writer is about to say so.

    Args:
        path: of the log's first file.
        until: behind what was in it when the run was saved.
    """
    file = Path(path).with_name(until.file)
    unsaved = _unsaved(file)
    found = unsaved if unsaved.exists() else file  # In this order: it may be renamed meanwhile.
    if not found.exists():
        return (
            f"run log {file} is missing, and the run was saved when it had {until.bytes} bytes: put a copy of it back"
        )
    if (size := found.stat().st_size) < until.bytes:
        return (
            f"run log {found} was cut short: it has {size} bytes, and the run was saved when it had {until.bytes}; "
            "restore it"
        )
    if found == unsaved and not is_being_written(unsaved) and unsaved.exists():
        return (
            f"run log {unsaved} counts for nothing by its name, and the run was saved with {until.bytes} bytes of it: "
            f"its syncer was killed before it could call it {file.name}; do that"
        )
    return None


def newest_life(path: str | Path) -> int:
    """The highest life of the syncer that has a file of this log, whether or not it has saved anything; 0 if none has.

    Args:
        path: of the log's first file.
    """
    first = Path(path)
    lives = [life for life, _, _ in _files_after(first)]
    return max(lives, default=1 if first.exists() else 0)


def _files_after(first: Path) -> Iterator[tuple[int, int, Path]]:
    """(life, part, path) of every file but the first."""
    for path in first.parent.iterdir() if first.parent.is_dir() else ():
        if match := _part_match(path.name, first):
            yield int(match["life"]), int(match["part"]), path


def _part_match(name: str, first: Path) -> re.Match[str] | None:
    match = _PART_NAME.fullmatch(name)
    return match if match and (match["stem"], match["suffix"]) == (first.stem, first.suffix) else None


def _parts(first: Path, header: Header) -> tuple[tuple[Path, int | None], ...]:
    """The newest file of which anything is saved, and from there back to the first. What none of them goes on from is
    void.

    One whose header was cut short is the work of a syncer that died at once, or had no room to write it: it is void.
    """
    after = (path for _, _, path in sorted(_files_after(first), reverse=True) if not path.name.endswith(_UNSAVED))
    newest = next((path for path in after if not _has_no_line(path)), first)
    parts: list[tuple[Path, int | None]] = [(newest, None)]
    while (path := parts[-1][0]) != first:
        found_header = _read_header(path)
        mark = found_header.continues
        if (found_header.run, found_header.config_digest) != (header.run, header.config_digest) or mark is None:
            raise UsageError(f"run log {path} does not go on where {first} leaves off; remove it, or restore {first}")
        before = _found(first, mark.file) or first.with_name(mark.file)
        if (size := before.stat().st_size) < mark.bytes:
            raise UsageError(
                f"run log {before} was cut short: {path.name} goes on after {mark.bytes} bytes of it, and it has "
                f"{size}; restore it"
            )
        parts.append((before, mark.bytes))
        if len(parts) > len(set(parts)):
            raise UsageError(f"run log {path} goes on where it begins; restore it")
    return tuple(reversed(parts))


def _has_no_line(path: Path) -> bool:
    with path.open("rb") as file:
        return not file.readline().endswith(b"\n")


def _read_header(path: Path) -> Header:
    with path.open("rb") as file:
        line = file.readline()
    try:
        header = _header_decoder.decode(line if line.endswith(b"\n") else b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"run log {path}, line 1 is not a header ({error}); check that it is a run log") from None
    if header.schema not in SCHEMAS_READ:
        raise UsageError(
            f"run log {path} has schema {header.schema} but this version reads {SCHEMAS_READ[0]} to "
            f"{SCHEMAS_READ[-1]}; use the version that wrote it"
        )
    return header


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
