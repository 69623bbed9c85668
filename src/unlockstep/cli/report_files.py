"""What ``unlockstep report`` writes: the page, the trace, the scalars.

Decides where they go, that a file is written whole or not at all, and what is said if that cannot be. What is in them
is ``report``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unlockstep.core.errors import UsageError

if TYPE_CHECKING:
    from unlockstep.cli.report_run import FoundRun
    from unlockstep.report.run_view import Extent
    from unlockstep.report.summary import Summary

PAGE_FILE = "report.html"
"""In the run folder; of several runs, in the folder one is in."""


GOODPUT_WINDOWS = 100
"""Parts of a run of which a trace shows the goodput."""


class Reported:
    """A run that is summed up."""

    def __init__(self, found: FoundRun, summary: Summary, extent: Extent) -> None:
        self.found, self.summary, self.extent = found, summary, extent


def check_targets(logs: Sequence[Path], targets: Mapping[str, Path | None]) -> None:
    """Nothing is written over what a run has left, nor two things into one file.

    Args:
        logs: the first file of each run's log.
        targets: where something goes, by flag; None: it was not asked for.

    Raises:
        UsageError: that would happen.
    """
    from unlockstep.cli.run_folder import KEPT, RUN_LOG_FILE, real_place, run_around
    from unlockstep.runlog import is_of_log

    taken: dict[Path, str] = {}
    for flag, target in targets.items():
        if target is None:
            continue
        place = real_place(target)
        around = run_around(place)
        of_others = () if around is None else (around / RUN_LOG_FILE,)
        for log in (*logs, *of_others):
            folder = real_place(log.parent)
            name = place.relative_to(folder).parts[0] if folder in place.parents else ""
            if is_of_log(name, log) or name in KEPT:
                raise UsageError(f"{flag} {target} would overwrite a file of the run; choose another place")
        if place in taken:
            raise UsageError(f"{taken[place]} and {flag} are both {target}; name two files")
        taken[place] = flag


def write_page(runs: Sequence[Reported], path: Path) -> None:
    """The page of one run, or of several beside each other.

    Raises:
        UsageError: the file cannot be written.
    """
    from unlockstep.cli.report_run import view_of
    from unlockstep.files import whole
    from unlockstep.report.comparison import comparison
    from unlockstep.report.page import page

    labels = labels_of([run.found.folder for run in runs])
    views = [view_of(run.found, run.summary, run.extent, label) for run, label in zip(runs, labels, strict=True)]
    written = page(views[0]) if len(views) == 1 else comparison(views)
    try:
        with whole(path) as partial:
            partial.write_text(written, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error, "--html") from None


def write_trace(run: Reported, path: Path) -> None:
    """A run for ui.perfetto.dev.

    Raises:
        UsageError: the file cannot be written.
    """
    from unlockstep.files import whole
    from unlockstep.report.trace import Possible, write

    found, accounting = run.found, run.summary.accounting
    tokens_per_s = sum(learner.goodput.tokens_per_s for learner in accounting.learners if learner.goodput is not None)
    window_ns = max(1, accounting.duration_ns // GOODPUT_WINDOWS)
    possible = Possible(tokens_per_s, found.config.protocol.fragments, window_ns) if tokens_per_s else None
    try:
        with whole(path) as partial, partial.open("w", encoding="utf-8") as file:
            write(found.events, file, found.header.run, found.tape, possible, simulated=found.simulated)
    except OSError as error:
        raise _unwritable(path, error, "--trace") from None


def write_scalars(runs: Sequence[Reported], folder: Path) -> None:
    """Scalars for TensorBoard; of several runs, each in a folder of its own.

    Raises:
        UsageError: TensorBoard is not installed, or the folder cannot be written.
    """
    from unlockstep.report.scalars import write

    labels = labels_of([run.found.folder for run in runs])
    try:
        for run, label in zip(runs, labels, strict=True):
            write(run.found.events, folder if len(runs) == 1 else folder / label.replace("/", "-"))
    except ImportError:
        raise UsageError(
            "--tensorboard needs the package tensorboard; install unlockstep with the extra of that name "
            '(pip install "unlockstep[tensorboard]"), or leave the flag out'
        ) from None
    except OSError as error:
        raise _unwritable(folder, error, "--tensorboard") from None


def _unwritable(path: Path, error: OSError, flag: str) -> UsageError:
    reason = error.strerror or str(error)
    return UsageError(f"{path} cannot be written ({reason}); choose a place you may write to with {flag}")


def labels_of(folders: Sequence[Path]) -> list[str]:
    """A name for each run: its folder's, with as much of the way to it as tells it from the others."""
    whole = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, whole)) + 1):
        labels = ["/".join(parts[-length:]) for parts in whole]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{number}: {'/'.join(parts[-1:])}" for number, parts in enumerate(whole, start=1)]
