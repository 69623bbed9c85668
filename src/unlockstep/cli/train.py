"""``unlockstep train``: a whole run on this machine, watched from the first step to the summary.

Decides how flags become a configuration, what is printed where, and the exit code. What happens in between is
``launch.local``, or ``virtual`` in a run under virtual time; what it looks like is ``view``; what it amounted to is
``report``.

Precedence, the later wins: ``--recipe`` or ``--config``, flags, ``--set``. A run that is resumed has its settings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.cli.output import Plain

if TYPE_CHECKING:
    from rich.console import Console

    from unlockstep.cli.report_files import Reported
    from unlockstep.config import RunConfig
    from unlockstep.launch.breaker import Breaker
    from unlockstep.launch.local import Outcome
    from unlockstep.tape import Tape

Virtual = Annotated[
    bool, typer.Option("--virtual", help="All learners in this process, under virtual time (settings virtual.*).")
]
TapeName = Annotated[
    str | None, typer.Option(metavar="TAPE", help="What goes wrong, and when: a file, or a tape that comes along.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, everything else on stderr.")]


def train(
    learners: Annotated[int | None, typer.Option(help="Processes that train (local.learners).")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Length on the clock, and of the inner schedule (run.steps).")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Length in tokens of all (run.tokens); --steps, if not given, is set to match.")
    ] = None,
    quorum: Annotated[int | None, typer.Option(help="Learners a round needs (protocol.quorum).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of parameters and data (run.seed).")] = None,
    model: Annotated[
        str | None, typer.Option(help="A preset, a transformers config.json, or package.module:factory (model.spec).")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="stdlib, a folder, a text file, a .jsonl file or digits (data.source).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/NAME-DATE-TIME-PROCESS.")] = None,
    config_file: Annotated[Path | None, typer.Option("--config", help="Configuration to start from (TOML).")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Named configuration to start from instead: quick (the default) or paper.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Replace any setting.")
    ] = None,
    kill: Annotated[
        bool | None, typer.Option("--kill/--no-kill", help="Kill one learner on the way (the default).")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with the run in this folder, with its settings.")
    ] = None,
    virtual: Virtual = False,
    tape: TapeName = None,
    plain: Plain = False,
    as_json: AsJson = False,
) -> int:
    """Train a model on this machine. Its learners never wait for each other; one is killed and comes back."""
    from unlockstep.cli.assembly import require_torch
    from unlockstep.core.errors import UsageError

    require_torch("train")
    flags: dict[str, str | int | None] = {
        "local.learners": learners,
        "local.kill_share": 0 if kill is False else None,
        "virtual.enabled": True if virtual else None,
        "run.steps": steps,
        "run.tokens": tokens,
        "run.seed": seed,
        "protocol.quorum": quorum,
        "model.spec": model,
        "data.source": data,
    }
    if resume is not None:
        given = [*flags.values(), out, config_file, recipe, overrides, tape]
        if kill is not None or any(value is not None for value in given):
            raise UsageError(f"--resume goes on with the run in {resume} as it was begun; leave out all other settings")
        return _resume(resume, plain, as_json)
    if tape is not None and kill is not None:
        raise UsageError("--kill is the drill of a run without a tape; put what is to happen on the tape")
    return _begin(config_file, recipe, flags, overrides or [], tape, out, plain, as_json)


def _begin(
    config_file: Path | None,
    recipe: str | None,
    flags: dict[str, str | int | None],
    overrides: list[str],
    tape: str | None,
    out: Path | None,
    plain: bool,
    as_json: bool,
) -> int:
    """A new run; returns the exit code."""
    from unlockstep import config as run_config
    from unlockstep import recipes
    from unlockstep.cli.run_folder import default_run_folder

    base = run_config.load(config_file) if config_file is not None else recipes.recipe(recipe or "quick")
    played = None if tape is None else _tape(tape, flags["local.learners"])
    config = resolve(base, flags, overrides, played)
    return _train(config, out or default_run_folder(config.run.name), plain, as_json, played)


def _tape(name: str, learners: str | int | None) -> Tape:
    """The tape that is to be played. Raises UsageError for one that cannot be, or a flag that contradicts it."""
    from unlockstep import tape as tapes
    from unlockstep.config import RunConfig
    from unlockstep.launch.casting import cast

    played = tapes.read(name)
    cast(RunConfig(), played, learners if isinstance(learners, int) else None)
    return played


def _resume(folder: Path, plain: bool, as_json: bool) -> int:
    """Go on with the run in a folder.

    Raises:
        UsageError: there is none, or it goes on, or has finished, or it cannot be used.
    """
    from unlockstep.cli.output import wide_console
    from unlockstep.cli.run_folder import SUMMARY_FILE
    from unlockstep.launch.folders import old_run_folder

    with old_run_folder(folder):
        config = _left_run(folder)
        console = wide_console(stderr=as_json)

        def begun() -> None:  # The summary says how the run had ended, and that has not happened any more.
            (folder / SUMMARY_FILE).unlink(missing_ok=True)

        outcome = _run(config, folder, console, plain, begun, resumes=True)
        return _end(folder, outcome, console, as_json)


def _left_run(folder: Path) -> RunConfig:
    """Settings of the run in a folder. Raises UsageError if it is not one to go on with."""
    from unlockstep import config as run_config
    from unlockstep.cli.report_run import told_ending
    from unlockstep.cli.run_folder import CONFIG_FILE, MODEL_FOLDER, RUN_LOG_FILE
    from unlockstep.core.errors import UsageError
    from unlockstep.launch.local import Ending, from_log

    is_there, has_log = ((folder / name).is_file() for name in (CONFIG_FILE, RUN_LOG_FILE))
    config = run_config.load(folder / CONFIG_FILE) if is_there else None
    if config is None or not (has_log or config.virtual.enabled):
        raise UsageError(f"there is no run in {folder}; give the folder of one that was begun")
    if not config.virtual.enabled and _is_simulated(folder / RUN_LOG_FILE):
        raise UsageError(f"the run in {folder} was simulated and has no model; give the folder of one that was trained")
    told = told_ending(folder)
    if config.virtual.enabled and told is not None and told.ending == Ending.FAILED.value:
        raise UsageError(
            f"the run in {folder} has failed, and would again under virtual time ({told.sentence}); begin another one, "
            "with other settings or another tape"
        )
    if _has_finished(config, folder):
        is_whole = told is not None and told.ending not in (Ending.FAILED.value, Ending.INTERRUPTED.value)
        if config.local.evaluator and not is_whole and not (folder / MODEL_FOLDER).is_dir():
            raise UsageError(
                f"the run in {folder} has finished, and its final model was not written; {from_log(folder)}"
            )
        raise UsageError(f"the run in {folder} has finished; there is nothing to go on with")
    if not config.virtual.enabled and not _is_left(folder / RUN_LOG_FILE):
        raise UsageError(f"the run in {folder} goes on: its syncer is at work; end that run first")
    return config


def _is_left(run_log: Path) -> bool:
    """Whether nobody writes this log; a syncer whose ``train`` has been killed is given the time to notice and end."""
    import time

    from unlockstep import runlog
    from unlockstep.cli.exits import ENDING_S_MAX, PARENT_LOOK_S

    until_s = time.monotonic() + ENDING_S_MAX + PARENT_LOOK_S
    while runlog.is_at_work(run_log):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True


def _is_simulated(log_file: Path) -> bool:
    """Whether ``unlockstep simulate`` has written the log, so that there is nothing to train on with."""
    from unlockstep import runlog
    from unlockstep.core.errors import UsageError

    try:
        return runlog.read(log_file)[0].simulated
    except UsageError:  # Its syncer died at once.
        return False


def _has_finished(config: RunConfig, folder: Path) -> bool:
    """Whether the run that is saved in a folder has come to its own end."""
    from unlockstep.cli import virtual
    from unlockstep.cli.run_folder import STORE_FOLDER
    from unlockstep.core.errors import UsageError
    from unlockstep.keeper import is_over, newest_run
    from unlockstep.store.place import open_place
    from unlockstep.store.run_store import RunStore

    if config.virtual.enabled:
        return virtual.is_over(folder)
    try:
        store = RunStore(open_place(folder / STORE_FOLDER))
        saved = newest_run(store)
        return saved is not None and is_over(store, saved)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder / STORE_FOLDER} cannot be read ({error.strerror}); make it readable"
        ) from None


def _train(config: RunConfig, folder: Path, plain: bool, as_json: bool, tape: Tape | None) -> int:
    """The run, from the folder to the summary; returns the exit code."""
    from unlockstep.cli.output import wide_console
    from unlockstep.cli.run_folder import RUN_LOG_FILE
    from unlockstep.core.errors import UsageError
    from unlockstep.launch.folders import new_run_folder
    from unlockstep.launch.local import Ending

    console = wide_console(stderr=as_json)
    with new_run_folder(config, folder) as new:
        outcome = _run(config, folder, console, plain, new.begun, tape)
        if outcome.ending is Ending.REFUSED and not _has_trained(folder / RUN_LOG_FILE):
            new.refused()
            raise UsageError(outcome.sentence)
        if outcome.ending is Ending.INTERRUPTED and not (folder / RUN_LOG_FILE).exists():
            new.remove()
        new.begun()
        return _end(folder, outcome, console, as_json)


def _has_trained(log_file: Path) -> bool:
    """Whether a learner has told of a step: there is something to lose."""
    from unlockstep import runlog
    from unlockstep.core.errors import UsageError
    from unlockstep.core.events import StepReported

    try:
        _, events = runlog.read(log_file)
    except UsageError:  # There is none, or its syncer died at once.
        return False
    try:
        return any(isinstance(event, StepReported) for event in events)
    except UsageError:  # It is damaged: nobody can tell.
        return True


def _end(folder: Path, outcome: Outcome, console: Console, as_json: bool) -> int:
    """Sum up; returns the exit code."""
    import shlex

    from unlockstep.cli import exits, virtual
    from unlockstep.core.errors import UsageError
    from unlockstep.launch.local import Ending

    if outcome.ending is Ending.REFUSED:
        raise UsageError(outcome.sentence)
    reported = _summarise(folder, outcome)
    unwritten = None if reported is None else _keep(reported, folder)
    _show(reported, outcome, console, as_json)
    if unwritten is not None and outcome.ending is not Ending.FINISHED:
        console.print(f"  {unwritten}", markup=False, highlight=False, soft_wrap=True)
    if outcome.ending is not Ending.INTERRUPTED and unwritten is None:
        virtual.forget(folder)
    is_whole = outcome.ending is Ending.FINISHED and unwritten is None
    if not is_whole and reported is not None and not _has_finished(reported.found.config, folder):
        console.print(f"\n  go on with it: unlockstep train --resume {shlex.quote(str(folder))}", markup=False)
    if outcome.ending is not Ending.INTERRUPTED and not is_whole:
        if reported is None or outcome.ending is not Ending.FINISHED:
            raise exits.RunFailed(outcome.sentence)
        raise exits.RunFailed(f"{reported.summary.sentence}, but {unwritten}")
    return exits.SIGNALLED + outcome.signal if outcome.ending is Ending.INTERRUPTED else exits.DONE


def resolve(
    base: RunConfig, flags: dict[str, str | int | None], overrides: list[str], tape: Tape | None = None
) -> RunConfig:
    """The configuration of a run.

    Args:
        base: where to start from.
        flags: ``section.field`` and the value given; None if the flag was not. ``run.tokens`` without ``run.steps``
            sets both, so that the learning rate's schedule ends where the run does.
        overrides: ``section.field=value`` each; they win.
        tape: that is played: it says how many learners there are, and there is no drill beside it.

    Raises:
        ConfigError: as ``config.apply``.
    """
    from unlockstep import config as run_config
    from unlockstep.launch.casting import cast

    if tape is not None:
        flags = {**flags, "local.learners": len(tape.learners), "local.kill_share": 0}
    given = [f"{setting}={json.dumps(value)}" for setting, value in flags.items() if value is not None]
    tokens = flags.get("run.tokens")
    if isinstance(tokens, int) and flags.get("run.steps") is None:
        steps = math.ceil(tokens / _tokens_per_step(run_config.apply(base, [*given, *overrides])))
        given.append(f"run.steps={steps}")
    config = run_config.apply(base, [*given, *overrides])
    return config if tape is None else cast(config, tape)


def _tokens_per_step(config: RunConfig) -> int:
    """Tokens that all learners together train in one inner step each."""
    inner = config.inner
    return config.local.learners * inner.batch_size * inner.accumulation * config.data.sequence_length


def _run(
    config: RunConfig,
    folder: Path,
    console: Console,
    plain: bool,
    begun: Callable[[], None],
    tape: Tape | None = None,
    resumes: bool = False,
) -> Outcome:
    """Train. ``begun`` is called once nothing refuses to begin the run, or, if the folder holds one that ``resumes``,
    to go on with it: from then on there is something to lose."""
    from unlockstep import tape as tapes
    from unlockstep.chaos.supervisor import Supervisor
    from unlockstep.cli import virtual
    from unlockstep.cli.run_folder import TAPE_FILE
    from unlockstep.cli.view import LiveView, PlainView
    from unlockstep.launch.drill import Drill
    from unlockstep.launch.local import LocalRun
    from unlockstep.net.clients.observer import read_status

    if config.virtual.enabled:
        return virtual.run(config, tape, folder, console, plain, begun, resumes)
    played = folder / TAPE_FILE
    breaker: Breaker
    if tape is not None:
        breaker = Supervisor(tape, folder, played)
    else:  # A run that has had a tape goes on with the learners it began with.
        breaker = Drill(config, resumes, tapes.read(played).learners if resumes and played.exists() else ())
    view = LiveView if console.is_terminal and not plain else PlainView
    names = breaker.learners if tape is None else tape.cast
    with view(console, names, f"{config.model.spec} on {config.data.source}") as watcher:
        return LocalRun(
            config,
            folder,
            read_status=read_status,
            watcher=watcher,
            has_finished=lambda: _has_finished(config, folder),
            breaker=breaker,
            on_listening=begun,
        ).run()


def _summarise(folder: Path, outcome: Outcome) -> Reported | None:
    """The summary; None if the run did not get as far as a run log."""
    import msgspec

    from unlockstep.cli.report_files import Reported
    from unlockstep.cli.report_run import Told, find_run, stopped_early, sum_up
    from unlockstep.cli.run_folder import SUMMARY_FILE
    from unlockstep.core.errors import UsageError
    from unlockstep.launch.local import Ending

    try:
        found = find_run(folder)
        summed = sum_up(found, Told(outcome.ending.value, outcome.sentence, outcome.starting))
    except UsageError:
        return None
    if summed is None:
        return None
    summary, extent = summed
    stopped = stopped_early(summary.accounting, found.config) if outcome.ending is Ending.FINISHED else None
    if stopped is not None:
        summary = msgspec.structs.replace(summary, ending="stopped", sentence=stopped)
    files = msgspec.structs.replace(summary.files, summary=str(folder / SUMMARY_FILE))
    summary = msgspec.structs.replace(summary, files=files)
    return Reported(found, summary, extent)


def _keep(reported: Reported, folder: Path) -> str | None:
    """Write the summary into the run folder; a sentence if that cannot be, and then it names no file of its own."""
    import msgspec

    from unlockstep.cli.run_folder import SUMMARY_FILE
    from unlockstep.files import whole

    summary = reported.summary
    try:
        with whole(folder / SUMMARY_FILE) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
    except OSError as error:
        files = msgspec.structs.replace(summary.files, summary=None)
        reported.summary = msgspec.structs.replace(summary, files=files)
        return f"{folder / SUMMARY_FILE} cannot be written ({error.strerror}); free some space"
    return None


def _show(reported: Reported | None, outcome: Outcome, console: Console, as_json: bool) -> None:
    """The summary, and a page of the run beside it."""
    from unlockstep.cli.output import print_json
    from unlockstep.cli.report_files import PAGE_FILE, write_page
    from unlockstep.core.errors import UsageError
    from unlockstep.report.summary import table

    if reported is None:
        console.print(outcome.sentence, markup=False)
        return
    if as_json:
        print_json(reported.summary)
    else:
        console.print(table(reported.summary))
    path = reported.found.folder / PAGE_FILE
    try:
        write_page([reported], path)
        console.print(f"  page           {path}", markup=False, highlight=False, soft_wrap=True)
    except UsageError as error:
        console.print(f"  {error}", markup=False, highlight=False, soft_wrap=True)
