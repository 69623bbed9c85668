"""What a syncer keeps on disk: immutable fragment files, and numbered records, each naming one consistent set of them.

::

    layout.json
    fragments/017/0000000042-9f86d081884c.safetensors      a version of a fragment, with its outer state
    records/0000001234.json                                the commit point: which files, and the state of the protocol

A record is the only commit point: what no record names has not happened. Record n + 1 is created on condition that
there is none, so of all who try one succeeds; who finds the number taken has been succeeded and steps down. Clocks
decide nothing. A new leader writes a record before it publishes anything: that fences the one before it, and makes
durable whatever that one had only just written when it died.

Decides what is sound, what is kept and what goes. Does not decide when to commit, nor who may try to lead
(``leadership``). Only the leader prunes and sweeps; anybody may read, at any time.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from unlockstep.core.chunks import Float32
from unlockstep.core.errors import ConfigError, UsageError
from unlockstep.core.layout import Layout, LayoutMethod, TensorSpec, build_layout
from unlockstep.store.boot_time import BootTime
from unlockstep.store.fragment_files import (
    FOLDER,
    NAME,
    Damaged,
    FragmentFile,
    fragment_file,
    is_name,
    read_fragment_file,
)
from unlockstep.store.place import Place

SCHEMA = 1
"""Of records. A later program reads earlier ones; an earlier one refuses later ones and says so."""

LOOKS_MAX = 100
"""Times a reader looks again because files went while it read. What it has read it keeps, so each look gets further."""

_RECORD_NAME = re.compile(r"([0-9]{10,})\.json")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One commit: every fragment's file, and the state of the protocol that goes with them."""

    schema: int = SCHEMA
    number: int
    """From 1, each once."""
    epoch: int
    """Which leader wrote it: rises with every new one."""
    run: str
    run_id: str
    config_digest: str
    layout_digest: str
    written_at: float
    """Unix time in seconds."""
    written_up: BootTime | None = None
    """The same by the clock of the machine that wrote it; None: it has none, or an earlier program wrote it."""
    fragments: tuple[FragmentFile, ...]
    state: msgspec.Raw
    """JSON."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A record that is whole, with the arrays it names."""

    record: Record
    arrays: dict[int, tuple[Float32, Float32]]
    """Fragment -> values float32[n] and outer state float32[m], not to be written to."""
    damaged: tuple[str, ...]
    """One sentence for each file that is not what was written and because of which a later record was passed over."""


class _Seal(msgspec.Struct):
    """First line of a record's file."""

    sha256: str
    """Of all that follows the line."""
    writer: str
    """Random: tells the same record of two writers apart."""


class _StoredLayout(msgspec.Struct):
    """Content of ``layout.json``."""

    method: LayoutMethod
    fragment_count: int
    digest: str
    tensors: tuple[TensorSpec, ...]


class RunStore:
    """The store of one run.

    ``write_fragment``, ``read_fragment`` and ``pin`` may be called from any thread; the rest belongs to one.

    Args:
        place: where it is.
        records_kept: newest records that stay, at least 1. A fragment file goes when no record that stays names it, so
            more records than there are fragments leave a second version of every fragment to fall back on.
    """

    def __init__(self, place: Place, records_kept: int = 3) -> None:
        if records_kept < 1:
            raise UsageError(f"records_kept is {records_kept}; nothing would be left to resume from: keep at least 1")
        self.place = place
        self._records_kept = records_kept
        self._writer = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._files_of: dict[int, frozenset[str]] | None = None
        """Every record there is -> the fragment files it names, none if it is damaged. None until it is needed."""
        self._named = Counter[str]()
        """Fragment file -> records that name it."""
        self._unusable: set[int] = set()
        self._unnamed: set[str] = set()
        """Fragment files written here that no record names yet."""
        self._pins = Counter[int]()
        self._kept: frozenset[int] = frozenset()

    # --------------------------------------------------------------------------------------------------- layout

    def write_layout(self, layout: Layout) -> None:
        """Keep the layout, so that a syncer can resume before any learner has come."""
        stored = _StoredLayout(layout.method, layout.fragment_count, layout.digest, layout.specs())
        self.place.write(_LAYOUT_NAME, [msgspec.json.format(msgspec.json.encode(stored))])

    def read_layout(self) -> Layout | None:
        """The layout that was kept; None if there is none.

        Raises:
            UsageError: the file is damaged.
        """
        try:
            return self._stored_layout()
        except Damaged as error:
            raise self._layout_damaged(error) from error

    def require_layout(self, digest: str) -> Layout:
        """The layout that records with fragments go with.

        Raises:
            UsageError: the file is missing, damaged, or that of another model.
        """
        try:
            return self.sound_layout(digest)
        except Damaged as error:
            raise self._layout_damaged(error) from error

    def sound_layout(self, digest: str) -> Layout:
        """The same, for whoever does not go on with the run.

        Raises:
            Damaged: the file is missing, damaged, or that of another model.
        """
        layout = self._stored_layout()
        if layout is None:
            raise self._bad_layout("it is missing")
        if layout.digest != digest:
            raise self._bad_layout("its tensors are not those of the records")
        return layout

    def _stored_layout(self) -> Layout | None:
        try:
            stored = msgspec.json.decode(self.place.read(_LAYOUT_NAME), type=_StoredLayout)
            layout = build_layout(stored.tensors, stored.fragment_count, stored.method)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError) as error:
            raise self._bad_layout(str(error)) from error
        if layout.digest != stored.digest:
            raise self._bad_layout("its tensors do not have the digest it states")
        return layout

    def _bad_layout(self, why: str) -> Damaged:
        return Damaged(self.place.describe(_LAYOUT_NAME), f"is damaged ({why})")

    def _layout_damaged(self, error: Damaged) -> UsageError:
        return UsageError(f"{error}: put a copy of it back, or start a new run")

    # ------------------------------------------------------------------------------------------------ fragments

    def write_fragment(
        self, layout: Layout, fragment: int, version: int, digest: str, values: Float32, outer_state: Float32
    ) -> FragmentFile:
        """Make a version durable, for the next record to name: see ``fragment_file``."""
        file, parts = fragment_file(layout, fragment, version, digest, values, outer_state)
        with self._lock:
            self._unnamed.add(file.name)
        self.place.write(file.name, parts)
        return file

    def read_fragment(self, file: FragmentFile) -> tuple[Float32, Float32]:
        """Values and outer state with their exact bits. Raises ``Damaged``: see ``read_fragment_file``."""
        return read_fragment_file(self.place, file)

    # -------------------------------------------------------------------------------------------------- records

    def write_record(self, record: Record) -> bool:
        """Commit. False: somebody else has written this number or gone past it, and this writer is not the leader.

        An error leaves open whether the record is there: its number is not to be tried again. Load, and see.
        """
        body = msgspec.json.encode(record)
        msgspec.json.decode(body, type=_Schema)  # A state that is not JSON would make a record nobody can read.
        seal = _Seal(hashlib.sha256(body).hexdigest(), self._writer)
        if not self.place.create(_record_name(record.number), msgspec.json.encode(seal) + b"\n" + body):
            return False
        if self.newest_number() > record.number:
            # The number may have been free only because its record, another writer's, has been pruned since. What was
            # written now stays until the next leader prunes: somebody may have read it and gone on from it.
            return False
        with self._lock:
            files = frozenset(file.name for file in record.fragments)
            self._unnamed -= files
            if self._files_of is not None:
                self._note(self._files_of, record.number, files)
        return True

    def newest_number(self) -> int:
        """Highest number of any record, sound or not; 0 if there is none."""
        return max(self._numbers(), default=0)

    def newest_record(self) -> Record | None:
        """The newest record that is sound, whether or not its fragment files are; None if there is none.

        Raises:
            UsageError: it was written by a later version of this program.
        """
        for _ in range(LOOKS_MAX):
            numbers = self._numbers()
            for number in reversed(numbers):
                try:
                    return self._read_record(number)
                except Damaged:
                    continue
            if numbers == self._numbers():
                return None
        raise self._changes_too_fast()

    def load(self) -> Loaded | None:
        """The newest record that is whole and whose files are all whole; None if there is no record at all.

        Raises:
            UsageError: there are records, but none can be used; or one was written by a later version of this program.
        """
        sound: dict[FragmentFile, tuple[Float32, Float32]] = {}
        for _ in range(LOOKS_MAX):
            numbers = self._numbers()
            if not numbers:
                return None
            loaded, damaged = self._search(numbers, sound)
            # What is missing may have been deleted for its age while this was reading.
            if not damaged or numbers == self._numbers():
                break
        else:
            raise self._changes_too_fast()
        if loaded is None:
            more = f"; and {len(damaged) - 3} more" if len(damaged) > 3 else ""
            raise UsageError(
                f"{self.place.describe(_record_name(numbers[-1]))} cannot be used, nor can any record before it "
                f"({'; '.join(damaged[:3])}{more}): put copies of these files back, or move the store away to begin "
                "anew"
            )
        with self._lock:
            self._unusable = {number for number in numbers if number > loaded.record.number}
            self._files_of = None
        return loaded

    def read(self, number: int) -> Loaded:
        """One record with its arrays, as for going back to it.

        Raises:
            Damaged: the record or one of its files is missing or is not what was written.
            UsageError: it was written by a later version of this program.
        """
        record = self._read_record(number)
        return Loaded(record, {file.fragment: self.read_fragment(file) for file in record.fragments}, ())

    def _search(
        self, numbers: list[int], sound: dict[FragmentFile, tuple[Float32, Float32]]
    ) -> tuple[Loaded | None, list[str]]:
        """Newest first. Adds to ``sound`` what it has read; returns what it found, and what it had to pass over."""
        damage: dict[str, str] = {}
        for number in reversed(numbers):
            try:
                record = self._read_record(number)
            except Damaged as error:
                damage[error.name] = f"{error}"
                continue
            for file in record.fragments:
                if file not in sound and self.place.describe(file.name) not in damage:
                    try:
                        sound[file] = self.read_fragment(file)
                    except Damaged as error:
                        damage[error.name] = f"{error}, so record {number} cannot be used"
            if all(file in sound for file in record.fragments):
                arrays = {file.fragment: sound[file] for file in record.fragments}
                return Loaded(record, arrays, tuple(damage.values())), list(damage.values())
        return None, list(damage.values())

    def _numbers(self) -> list[int]:
        names = (_RECORD_NAME.fullmatch(name) for name in self.place.names(_RECORDS))
        return sorted(int(match[1]) for match in names if match)

    def _read_record(self, number: int) -> Record:
        file = _record_name(number)
        name = self.place.describe(file)
        try:
            head, _, body = self.place.read(file).partition(b"\n")
            seal = msgspec.json.decode(head, type=_Seal)
        except FileNotFoundError:
            raise Damaged(name, "is missing") from None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise Damaged(name, "does not begin with the SHA-256 of its content") from None
        if hashlib.sha256(body).hexdigest() != seal.sha256:
            raise Damaged(name, "does not have the SHA-256 it was written with")
        try:
            schema = msgspec.json.decode(body, type=_Schema).schema
            if schema > SCHEMA:
                raise UsageError(f"{name} has schema {schema}, this version reads up to {SCHEMA}: install a later one")
            record = msgspec.json.decode(body, type=Record)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Damaged(name, f"is not a record: {error}") from None
        if not all(is_name(file.name) for file in record.fragments):
            raise Damaged(name, "names files that are not of this store")
        return record

    def _changes_too_fast(self) -> UsageError:
        return UsageError(
            f"{self.place.describe(_RECORDS)} changed {LOOKS_MAX} times while it was read: keep more records, or read "
            "it when the run has ended"
        )

    # ------------------------------------------------------------------------------------------------ retention

    @contextmanager
    def pin(self, number: int) -> Iterator[None]:
        """While the block runs, ``prune`` of this store leaves the record and its files alone."""
        with self._lock:
            self._pins[number] += 1
        try:
            yield
        finally:
            with self._lock:
                self._pins[number] -= 1
                if not self._pins[number]:
                    del self._pins[number]

    def keep(self, numbers: Collection[int]) -> None:
        """From now on keep exactly these records besides the newest, as to go back to them.

        It is not written down: a new leader says it again, before it prunes.
        """
        with self._lock:
            self._kept = frozenset(numbers)

    def prune(self) -> None:
        """Delete the records that are neither among the newest, kept nor pinned, then the files that only they named.

        Records that ``load`` could not use do not count among the newest, and stay while they are newer than those.
        A fragment file no record has named yet is left alone. The work is that of what is deleted.
        """
        with self._lock:
            files_of = self._learn()
            usable = sorted(files_of.keys() - self._unusable)
            oldest = usable[-self._records_kept :][0] if usable else 0
            doomed = sorted(n for n in files_of if n < oldest and n not in self._kept and n not in self._pins)
            orphans: set[str] = set()
            for number in doomed:
                self.place.delete(_record_name(number))
                orphans |= self._forget(files_of, number)
            for name in sorted(orphans - self._unnamed):
                self.place.delete(name)

    def sweep(self) -> None:
        """Delete the fragment files that no record names, left by writers that died or lost the lead.

        For a new leader, after its first record, with which nobody else can name a file any more. Does nothing if no
        record is sound.
        """
        with self._lock:
            self._files_of = None
            self._learn()
            if not self._named:
                return
            for folder in self.place.names(FOLDER):
                for file in self.place.names(f"{FOLDER}/{folder}"):
                    name = f"{FOLDER}/{folder}/{file}"
                    if NAME.fullmatch(file) and name not in self._named and name not in self._unnamed:
                        self.place.delete(name)

    def _learn(self) -> dict[int, frozenset[str]]:
        """Read once which record names what; from then on it is remembered."""
        if self._files_of is None:
            files_of: dict[int, frozenset[str]] = {}
            self._named.clear()
            for number in self._numbers():
                try:
                    record = self._read_record(number)
                except Damaged:
                    self._unusable.add(number)
                    self._note(files_of, number, frozenset())
                else:
                    self._note(files_of, number, frozenset(file.name for file in record.fragments))
            self._files_of = files_of
        return self._files_of

    def _note(self, files_of: dict[int, frozenset[str]], number: int, files: frozenset[str]) -> None:
        files_of[number] = files
        self._named.update(files)

    def _forget(self, files_of: dict[int, frozenset[str]], number: int) -> set[str]:
        """Returns the files that no record names any more."""
        orphans = set()
        for name in files_of.pop(number):
            self._named[name] -= 1
            if not self._named[name]:
                del self._named[name]
                orphans.add(name)
        self._unusable.discard(number)
        return orphans


class _Schema(msgspec.Struct):
    schema: int = SCHEMA


_LAYOUT_NAME = "layout.json"
_RECORDS = "records"


def _record_name(number: int) -> str:
    return f"{_RECORDS}/{number:010}.json"
