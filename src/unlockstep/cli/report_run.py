"""One run as ``unlockstep report`` finds it: its folder, its log, its settings, the tape that was played on it.

Decides which files are read, and what is said of a log that contradicts itself. What it amounts to is ``report``'s;
what is printed and written is up to the commands ``report`` and ``train``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from unlockstep.cli.output import Every

if TYPE_CHECKING:
    from unlockstep.config import RunConfig
    from unlockstep.core.events import Event
    from unlockstep.report.accounting import Accounting
    from unlockstep.report.run_view import Extent, RunView
    from unlockstep.report.summary import Files, Summary
    from unlockstep.runlog import Events, Header
    from unlockstep.tape import Tape

LOOK_EVERY = 4096
"""Events between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """What is in a run's folder."""

    folder: Path
    header: Header
    events: Events
    config: RunConfig
    tape: Tape | None

    @property
    def simulated(self) -> bool:
        """Whether its time was virtual."""
        return self.header.simulated


@dataclass(frozen=True, slots=True)
class Told:
    """How a run ended, by whoever watched it."""

    ending: str
    sentence: str
    """Why."""
    starting: tuple[str, ...] = ()
    """Learners that were starting again then."""


def find_run(run: Path) -> FoundRun:
    """Open a run.

    Args:
        run: its folder, or the first file of its log.

    Raises:
        UsageError: one of its files is not there, cannot be read, or is another run's.
    """
    from unlockstep import config as run_config
    from unlockstep import runlog
    from unlockstep import tape as tapes
    from unlockstep.cli.run_folder import CONFIG_FILE, RUN_LOG_FILE, TAPE_FILE
    from unlockstep.core.errors import UsageError
    from unlockstep.core.words import counted

    folder, log_file = (run, run / RUN_LOG_FILE) if run.is_dir() else (run.parent, run)
    if not log_file.is_file():
        inside = sorted(entry.parent for entry in run.glob(f"*/{RUN_LOG_FILE}")) if run.is_dir() else []
        if inside:
            raise UsageError(
                f"{run} is a folder of {counted(len(inside), 'run')}, and no run; name a run itself, such as "
                f"{inside[0]}"
            )
        raise UsageError(f"there is no run log {log_file}; give the folder of a run, or the {RUN_LOG_FILE} in it")
    header, events = runlog.read(log_file)
    config_file = folder / CONFIG_FILE
    if not config_file.is_file():
        raise UsageError(
            f"there is no {config_file}, and without the run's settings its log cannot be judged; restore it"
        )
    config = run_config.load(config_file)
    if run_config.digest(config) != header.config_digest:
        raise UsageError(f"{config_file} is not the configuration that {log_file} was written under; restore it")
    tape = tapes.read(folder / TAPE_FILE) if (folder / TAPE_FILE).is_file() else None
    return FoundRun(folder, header, events, config, tape)


def missing_end(found: FoundRun) -> str | None:
    """A sentence if the store in the folder shows that the log had more in it; None: it has all, or nobody can tell.

    Raises:
        UsageError: a later version of this program has written the store.
    """
    from unlockstep import runlog
    from unlockstep.cli.run_folder import STORE_FOLDER
    from unlockstep.keeper import newest_mark
    from unlockstep.store.place import open_place
    from unlockstep.store.run_store import RunStore

    store, first = found.folder / STORE_FOLDER, found.events.path
    try:
        newest = newest_mark(RunStore(open_place(store))) if store.is_dir() else None
    except OSError:  # Not everybody who may read the log may read the store.
        newest = None
    if newest is None:
        return None
    life, mark = newest
    if life > 1 and mark.file == first.name and found.header.continues is None:
        # Where that life has led there was no other file. Beside the beginning of the run it has the name of its life.
        mark = runlog.Mark(runlog.part_path(first, life, 1).name, mark.bytes)
    return runlog.missing_end(first, mark)


def sum_up(found: FoundRun, told: Told | None = None) -> tuple[Summary, Extent] | None:
    """What the run amounts to, and from when to when; None if its log contradicts itself so badly that nobody can tell.

    Args:
        told: how it ended, by whoever watched it; None: as the folder has it.
    """
    from unlockstep.report.accounting import account
    from unlockstep.report.run_view import Extent
    from unlockstep.report.summary import Summary

    extent = Extent()
    try:
        events = extent.through(_passing(found.events, None))
        accounting = account(events, found.config.protocol, found.tape, simulated=found.simulated)
    except LookupError:
        return None
    told = told or _ending(found.folder, accounting, found.config)
    files = _files(found.folder, found.events.path)
    summary = Summary(found.header.run, told.ending, told.sentence, accounting, files, told.starting)
    return summary, extent


def view_of(found: FoundRun, summary: Summary, extent: Extent, label: str) -> RunView:
    """What is to be drawn of a run."""
    from unlockstep.report.accounting import account
    from unlockstep.report.run_view import read_view

    def until(at_ns: int) -> Accounting:
        events = takewhile(lambda event: event.at_ns <= at_ns, found.events)
        return account(events, found.config.protocol, found.tape, simulated=found.simulated)

    return read_view(
        _passing(found.events, extent.count),
        summary,
        extent,
        label=label,
        simulated=found.simulated,
        tape=found.tape,
        settings=settings_of(found),
        until=until,
    )


def settings_of(found: FoundRun) -> tuple[tuple[str, str], ...]:
    """The main settings of a run, for people; and what has written this report."""
    from unlockstep import __version__
    from unlockstep import tape as tapes

    config = found.config
    protocol, outer, codec = config.protocol, config.outer, config.codec
    length = f"{config.run.tokens:,} tokens" if config.run.tokens else f"{config.run.steps:,} steps"
    momentum = f", momentum {outer.momentum:g}" if outer.momentum else ""
    blend = f", alpha = {config.adoption.blend_alpha:g}" if config.adoption.mode.value == "blend" else ""
    up = codec.upload.value + (f", {codec.upload_packing.value}" if codec.upload_packing.value != "none" else "")
    batch = config.inner.batch_size * config.inner.accumulation
    learners = len(found.tape.learners) if found.tape is not None else config.local.learners
    rows = [
        ("model", config.model.spec),
        ("data", f"{config.data.source}, {config.data.tokenizer}, {config.data.sequence_length:,} tokens a sequence"),
        ("seed", f"{config.run.seed}"),
        ("length", length),
        ("learners at the start", f"{learners}"),
        ("fragments (P)", f"{protocol.fragments}"),
        ("interval (H)", f"{protocol.interval_steps} steps"),
        ("overlap (tau)", f"{protocol.overlap_steps} steps"),
        ("quorum (K)", f"{protocol.quorum}"),
        ("grace window", f"{protocol.grace_factor:g} of the slack"),
        ("merge", outer.merge.value),
        ("outer optimizer", f"{outer.optimizer}, rate {outer.learning_rate:g}{momentum}"),
        ("inner steps", f"rate {config.inner.learning_rate:g}, batch {batch}, {config.inner.schedule}"),
        ("adoption", f"{config.adoption.mode.value}{blend}"),
        ("codec", f"{up} up, {codec.download.value} down"),
    ]
    if found.simulated:
        rows.append(("virtual step, start", f"{config.virtual.step_s:g} s, {config.virtual.start_s:g} s"))
    if found.tape is not None:
        rows.append(("tape", f"{found.tape.name}, {tapes.fingerprint(found.tape)}"))
    rows.append(("report written by", f"unlockstep {__version__}"))
    return tuple(rows)


def stopped_early(accounting: Accounting, config: RunConfig) -> str | None:
    """A sentence, if the run had not come as far as its settings say; None: it had, or that cannot be told."""
    from unlockstep.core.run_states import how_ended

    steps_max, tokens_max = config.run.steps, config.run.tokens
    if tokens_max:
        trained = round(accounting.ledger.trained)
        return f"the run was stopped at {trained} of {tokens_max} tokens" if trained < tokens_max else None
    if config.data.epochs or 0 < steps_max <= accounting.clock:
        return None
    return how_ended(True, accounting.clock, steps_max)


def _passing(events: Iterable[Event], count: int | None) -> Iterator[Event]:
    """The same events; how far they are read is said now and then, and how long it takes if their count is known."""
    every, began_s = Every(), time.monotonic()
    for number, event in enumerate(events, start=1):
        if number % LOOK_EVERY == 0 and every.due():
            said = f"read {number:,} events"
            if count:
                left_s = (time.monotonic() - began_s) * (count - number) / number
                said += f" of {count:,}, {left_s:.0f} s left"
            print(said, file=sys.stderr)
        yield event


def told_ending(folder: Path) -> Told | None:
    """How the run ended, in the words of whoever watched it; None: nobody has said so, or it goes on."""
    import msgspec

    from unlockstep.cli.run_folder import SUMMARY_FILE

    try:
        return msgspec.json.decode((folder / SUMMARY_FILE).read_bytes(), type=Told)
    except (OSError, msgspec.DecodeError):
        return None


def _ending(folder: Path, accounting: Accounting, config: RunConfig) -> Told:
    """How the run ended: in the words of whoever watched it, or as the log has it."""
    if (told := told_ending(folder)) is not None:
        return told
    if accounting.ended and (stopped := stopped_early(accounting, config)) is not None:
        return Told("stopped", stopped)
    if accounting.ended:
        return Told("finished", "the run has finished")
    return Told("unfinished", "its log ends before the run does: it goes on, or was cut short")


def _files(folder: Path, log_file: Path) -> Files:
    from unlockstep.cli.run_folder import CONFIG_FILE, LOG_FOLDER, MODEL_FOLDER, SUMMARY_FILE
    from unlockstep.report.summary import Files

    def there(name: str) -> str | None:
        return str(folder / name) if (folder / name).exists() else None

    return Files(
        config=str(folder / CONFIG_FILE),
        run_log=str(log_file),
        logs=there(LOG_FOLDER),
        summary=there(SUMMARY_FILE),
        model=there(MODEL_FOLDER),
    )
