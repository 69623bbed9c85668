"""What a syncer saves and takes up again: the core's record, the arrays that belong to it, its place in the run log.

Decides what a save consists of, in which order it goes to the store, and that a syncer which has been succeeded saves
nothing more. Does not decide when to save (``promises``) or how files are written and kept (``store``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from unlockstep.core.errors import UnlockstepError, UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.layout import Layout
from unlockstep.core.outer_gradient import Norms
from unlockstep.core.run_states import RunState
from unlockstep.core.saved import SavedRun
from unlockstep.runlog import Mark
from unlockstep.store.boot_time import BootTime, boot_time, elapsed_ns
from unlockstep.store.fragment_files import FragmentFile
from unlockstep.store.leadership import Beat, forget_beat, read_beat, this_holder, write_beat
from unlockstep.store.run_store import Loaded, Record, RunStore
from unlockstep.storehouse import Kept


class Deposed(UnlockstepError):
    """Another syncer has taken this run over: this one must not say anything more in its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a save holds, as of one moment. The arrays are never written to."""

    run: SavedRun
    layout: Layout | None
    kept: dict[int, Kept]
    norms: Norms
    log: Mark


class _State(msgspec.Struct, frozen=True):
    """``Record.state``."""

    run: SavedRun
    norms: Norms
    log: Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What an earlier life of the syncer has left."""

    snapshot: Snapshot
    now_ns: int
    """Time of the run now: what has gone by since is the time without a syncer."""
    damaged: tuple[str, ...]
    """One sentence for each file that had to be passed over."""


class Keeper:
    """One life's hand on the store. All methods block; they belong to one thread.

    Args:
        store: of the run.
        run: its name.
        config_digest: of its settings.
        life: which start of the syncer this is, higher than any before.
        number: of the newest record there is.
        files: of the fragments that are in the store as they are.
    """

    def __init__(
        self, store: RunStore, run: str, config_digest: str, life: int, number: int, files: dict[int, FragmentFile]
    ) -> None:
        self.life = life
        self._store = store
        self._run = run
        self._config_digest = config_digest
        self._number = number
        self._files = dict(files)
        self._layout_digest = ""
        self._beats = 0
        self.has_saved = False
        """This life has written a record: what it says happens."""

    # ------------------------------------------------------------------------------------------- saving

    def save(self, snapshot: Snapshot) -> int:
        """Make it durable: first the fragments that have changed, then the record that names them all.

        Returns:
            Number of the record. Those the run may go back to are kept with it.

        Raises:
            Deposed: another syncer has written a record since this one's last.
            OSError: the store cannot be written to. Nobody knows whether this was saved.
        """
        layout = snapshot.layout
        if layout is not None and snapshot.kept and layout.digest != self._layout_digest:
            self._store.write_layout(layout)
            self._layout_digest = layout.digest
        for fragment, kept in snapshot.kept.items():
            there = self._files.get(fragment)
            if there is None or (there.version, there.digest) != (kept.version, kept.digest):
                assert layout is not None, "fragments are of a layout"
                self._files[fragment] = self._store.write_fragment(
                    layout, fragment, kept.version, kept.digest, kept.values, kept.outer_state
                )
        self._number += 1
        record = Record(
            number=self._number,
            epoch=self.life,
            run=self._run,
            run_id=snapshot.run.run_id,
            config_digest=self._config_digest,
            layout_digest=self._layout_digest,
            written_at=time.time(),
            written_up=boot_time(),
            fragments=tuple(self._files[fragment] for fragment in sorted(snapshot.kept)),
            state=msgspec.Raw(msgspec.json.encode(_State(snapshot.run, snapshot.norms, snapshot.log))),
        )
        if not self._store.write_record(record):
            raise self._deposed()
        if not self.has_saved:
            self.has_saved = True
            self._store.sweep()
        self._store.keep({each.record for each in snapshot.run.evaluations})
        self._store.prune()
        return self._number

    def read(self, record: int) -> tuple[dict[int, Kept], Norms]:
        """The arrays of an earlier record, to go back to them.

        Raises:
            Damaged: the record, or one of its files, is missing or is not what was written.
        """
        loaded = self._store.read(record)
        state = msgspec.json.decode(loaded.record.state, type=_State)
        return _kept(loaded, {file.fragment: file for file in loaded.record.fragments}), state.norms

    # ------------------------------------------------------------------------------------------- leading

    def beat(self, url: str) -> None:
        """Leave a sign of life, and look whether somebody else leads.

        Raises:
            Deposed: somebody does.
        """
        if self._store.newest_number() > self._number:
            raise self._deposed()
        self._beats += 1
        write_beat(self._store.place, Beat(self.life, this_holder(), url, self._beats))

    def resign(self) -> None:
        """It leads no more, in order: whoever takes the run up need not wait."""
        if (leader := read_beat(self._store.place)) is not None and leader.epoch == self.life:
            forget_beat(self._store.place)

    def _deposed(self) -> Deposed:
        leader = read_beat(self._store.place)
        where = f" at {leader.url}" if leader is not None and leader.epoch > self.life else ""
        return Deposed(f"another syncer{where} has taken over run {self._run!r}; this one steps down")


def take_up(
    store: RunStore,
    run: str,
    config_digest: str,
    wall_clock: Callable[[], float] = time.time,
    up: Callable[[], BootTime | None] = boot_time,
) -> tuple[Keeper, Taken | None]:
    """Begin a life: take up what an earlier one has left, if there was one.

    How long the run was without a syncer is told by the clock of the machine, if it is the same one and was not started
    anew; else by the wall clock, which may have been set meanwhile.

    Raises:
        UsageError: the store is of another run or of other settings, or nothing in it can be used.
    """
    loaded = store.load()
    if loaded is None:
        return Keeper(store, run, config_digest, 1, 0, {}), None
    record = loaded.record
    _require_run(store, record, run, config_digest)
    try:
        state = msgspec.json.decode(record.state, type=_State)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{store.place.describe('records')} was written by another version of unlockstep ({error}); use the "
            "version that wrote it"
        ) from None
    layout = store.require_layout(record.layout_digest) if record.fragments else None
    files = {file.fragment: file for file in record.fragments}
    newest, leader = store.newest_number(), read_beat(store.place)
    # Whoever wrote a record that cannot be read was a life of its own, for all that anybody knows.
    life = max(record.epoch, 0 if leader is None else leader.epoch) + (newest - record.number) + 1
    keeper = Keeper(store, run, config_digest, life, newest, files)
    snapshot = Snapshot(run=state.run, layout=layout, kept=_kept(loaded, files), norms=state.norms, log=state.log)
    away_ns = elapsed_ns(record.written_up, up())
    if away_ns is None:
        away_ns = max(0, int((wall_clock() - record.written_at) * NANOSECONDS_PER_SECOND))
    return keeper, Taken(snapshot=snapshot, now_ns=state.run.at_ns + away_ns, damaged=loaded.damaged)


def require_run(store: RunStore, run: str, config_digest: str) -> None:
    """Raises UsageError if what is saved is another run, or was begun with other settings."""
    record = store.newest_record()
    if record is not None:
        _require_run(store, record, run, config_digest)


def require_settings(where: str, there: tuple[str, str], here: tuple[str, str]) -> None:
    """Raises UsageError if what is kept of a run is another run's, or was begun with other settings.

    Args:
        where: what a person calls the place.
        there: name and ``config.digest`` of the run that is kept there.
        here: the same of the run that is to go on.
    """
    if there != here:
        raise UsageError(
            f"{where} belongs to run {there[0]!r} with configuration {there[1][:12]}, not to {here[0]!r} with "
            f"{here[1][:12]}; leave out --config and --set to resume it (restore its config.toml if that has been "
            "changed), or choose another folder"
        )


def _require_run(store: RunStore, record: Record, run: str, config_digest: str) -> None:
    require_settings(store.place.describe("records"), (record.run, record.config_digest), (run, config_digest))


def is_over(store: RunStore, run: SavedRun) -> bool:
    """Whether a run that was saved so has come to its own end, and its syncer has said goodbye: one that died before
    that may have been the only one who had the last versions."""
    return run.state == RunState.FINISHED.value and not run.is_stopped and read_beat(store.place) is None


def newest_run(store: RunStore) -> SavedRun | None:
    """The run as it was saved last, whether or not its arrays are whole; None if nobody can tell."""
    record = store.newest_record()
    if record is None:
        return None
    try:
        return msgspec.json.decode(record.state, type=_State).run
    except msgspec.DecodeError:
        return None


def newest_mark(store: RunStore) -> tuple[int, Mark] | None:
    """Which life of the syncer has saved last, and where its log ended; None if nobody can tell."""
    record = store.newest_record()
    if record is None:
        return None
    try:
        return record.epoch, msgspec.json.decode(record.state, type=_Logged).log
    except msgspec.DecodeError:
        return None


class _Logged(msgspec.Struct):
    """Of ``_State``, what does not depend on the version that wrote it."""

    log: Mark


def _kept(loaded: Loaded, files: dict[int, FragmentFile]) -> dict[int, Kept]:
    return {
        fragment: Kept(files[fragment].version, files[fragment].digest, values, outer_state)
        for fragment, (values, outer_state) in loaded.arrays.items()
    }
