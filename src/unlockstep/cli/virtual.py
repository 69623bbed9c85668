"""``unlockstep train --virtual``: a run in this process, from a configuration and a tape to the files of a run folder.

Decides what the parts of such a run are made of, how it is interrupted and when it may be gone on with. Flags, summary
and exit code are ``train``'s; what happens in between is ``unlockstep.virtual``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from unlockstep.cli.assembly import Text
    from unlockstep.config import RunConfig
    from unlockstep.launch.local import Outcome
    from unlockstep.learners.backend import Backend
    from unlockstep.tape import Tape
    from unlockstep.virtual.ring import MakeBackend
    from unlockstep.virtual.run import Files, Stage, VirtualRun

ENDING_S_MAX = 120.0
"""From the first signal until the process ends as it is: an inner step or an evaluation is brought to its end, and the
checkpoint is written."""


def run(
    config: RunConfig,
    tape: Tape | None,
    folder: Path,
    console: Console,
    plain: bool,
    begun: Callable[[], None],
    resumes: bool = False,
) -> Outcome:
    """Train in a folder that holds ``config.toml`` and nothing else, or go on with the run that is there.

    Args:
        tape: what happens; None: nothing but the drill. A run that is resumed has its own.
        begun: called once nothing refuses to begin, or to go on.
        resumes: from the checkpoint, or from the beginning where there is none yet: that comes to the same.

    Raises:
        UsageError: something has to be mended before the run can begin, or go on.
    """
    from unlockstep import tape as tapes
    from unlockstep.cli.run_folder import TAPE_FILE
    from unlockstep.virtual.ring import own_tape

    if not resumes:
        tapes.write(tape or own_tape(config), folder / TAPE_FILE)
    return _run(config, tapes.read(folder / TAPE_FILE), folder, console, plain, begun)


def is_over(folder: Path) -> bool:
    """Whether the run in a folder has come to an end of its own, good or bad: to go on would change nothing."""
    from unlockstep.cli.report_run import told_ending
    from unlockstep.launch.local import Ending

    told = told_ending(folder)
    return told is not None and told.ending != Ending.INTERRUPTED.value


def forget(folder: Path) -> None:
    """The run has come to an end of its own: nobody will go on with it."""
    from unlockstep.cli.run_folder import CHECKPOINT_FILE

    (folder / CHECKPOINT_FILE).unlink(missing_ok=True)


def _run(
    config: RunConfig, tape: Tape, folder: Path, console: Console, plain: bool, begun: Callable[[], None]
) -> Outcome:
    from unlockstep import config as run_config
    from unlockstep.cli.assembly import load_text, loading
    from unlockstep.cli.evaluator import Examiner
    from unlockstep.cli.exits import stop_request
    from unlockstep.cli.run_folder import CHECKPOINT_FILE, MODEL_FOLDER, RUN_LOG_FILE
    from unlockstep.cli.view import LiveView, PlainView
    from unlockstep.runlog import Header
    from unlockstep.virtual.run import Files, VirtualRun

    view = LiveView if console.is_terminal and not plain else PlainView
    title = f"{config.model.spec} on {config.data.source}, virtual time, tape {tape.name}"
    files = Files(folder / RUN_LOG_FILE, folder / CHECKPOINT_FILE, folder / MODEL_FOLDER)
    header = Header(run=config.run.name, config_digest=run_config.digest(config), simulated=True)
    with stop_request(ending_s=ENDING_S_MAX) as stop, view(console, tape.learners, title, virtual=True) as watcher:
        with loading(config):
            text = load_text(config)
            constants = {"text": text.training, "make": _maker(config, text)}
            examiner = Examiner(config, text) if config.local.evaluator else None
            stage = _stage(config, tape, files, constants)
        run = VirtualRun(
            stage,
            header,
            files,
            constants=constants,
            examiner=examiner,
            watcher=watcher,
            stop=lambda: stop.signal if stop.asked.is_set() else None,
        )
        begun()
        with _room_needed(folder):
            outcome = run.run()
    _say_how_long(run, console)
    return outcome


@contextmanager
def _room_needed(folder: Path) -> Iterator[None]:
    """Turns a full disk into a sentence that says what to do then: the run can be gone on with."""
    import shlex

    from unlockstep.cli.exits import RunFailed
    from unlockstep.files import DISK_FULL

    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise RunFailed(
            f"{error.filename or folder} cannot be written ({error.strerror}); free some space, then go on with the "
            f"run: unlockstep train --resume {shlex.quote(str(folder))}"
        ) from None


def _maker(config: RunConfig, text: Text) -> MakeBackend:
    def make(shard: int, shard_count: int) -> Backend:
        from unlockstep.cli.assembly import new_backend

        return new_backend(config, shard, shard_count, text, is_alone=False)

    return make


def _stage(config: RunConfig, tape: Tape, files: Files, constants: Mapping[str, Any]) -> Stage:
    """What the run goes on from. Nothing is removed before all of it is there.

    Raises:
        UsageError: it cannot be made, or the settings are not those that the run was begun with.
    """
    from unlockstep import config as run_config
    from unlockstep.keeper import require_settings
    from unlockstep.runlog import part_files
    from unlockstep.virtual import checkpoint
    from unlockstep.virtual.ring import Ring
    from unlockstep.virtual.run import Stage

    here = config.run.name, run_config.digest(config)
    if files.checkpoint.exists():
        stage: Stage = checkpoint.read(files.checkpoint, constants)
        begun = stage.ring.config
        require_settings(str(files.checkpoint), (begun.run.name, run_config.digest(begun)), here)
        return stage
    require_settings(str(files.run_log), _logged(files.run_log) or here, here)
    stage = Stage(Ring(config, tape, constants["make"]))
    for file in part_files(files.run_log):  # Of a process that was killed before it wrote a checkpoint.
        file.unlink(missing_ok=True)
    return stage


def _logged(run_log: Path) -> tuple[str, str] | None:
    """Name and settings of the run that a log is of; None: it has not come so far as to say so."""
    from unlockstep import runlog
    from unlockstep.core.errors import UsageError

    try:
        header, _ = runlog.read(run_log)
    except UsageError:
        return None
    return header.run, header.config_digest


def _say_how_long(run: VirtualRun, console: Console) -> None:
    from unlockstep.report.summary import duration

    text = f"\n  virtual time {duration(run.virtual_ns)}, computed in {duration(run.wall_ns)}"
    console.print(text, markup=False, highlight=False)
