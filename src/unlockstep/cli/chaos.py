"""``unlockstep chaos``: learners of its own that join a run, and are broken there as an event tape says.

Decides flags, what is asked before anything is started, and the exit code. What happens then is ``chaos.guests``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.cli.access import RunName, TokenFile
from unlockstep.cli.output import Plain
from unlockstep.cli.trust import Trust, require_trusted

if TYPE_CHECKING:
    from unlockstep.core.status import Status
    from unlockstep.launch.local import Outcome
    from unlockstep.tape import Tape


def chaos(
    url: Annotated[str, typer.Argument(help="Address of the run's syncer, http://host:port.", metavar="RUN_URL")],
    tape: Annotated[str, typer.Option(metavar="TAPE", help="What happens: a file, or a tape's name.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for logs, checkpoints and the tape as played; default runs/chaos-....")
    ] = None,
    run: RunName = None,
    trust_syncer: Trust = False,
    token_file: TokenFile = None,
    plain: Plain = False,
) -> int:
    """Join a run with learners of one's own, and break these on purpose. Nobody else is touched.

    The learners are started here and reach the syncer through proxies that this command can cut, slow down or have
    damage what they carry. It ends with the tape or the run; its learners then leave in order.
    """
    from unlockstep import config as run_config
    from unlockstep import tape as tapes
    from unlockstep.chaos.guests import require_playable
    from unlockstep.cli import exits
    from unlockstep.cli.access import client_security
    from unlockstep.cli.assembly import require_torch
    from unlockstep.cli.run_folder import RUNS_FOLDER, TAPE_FILE
    from unlockstep.core.errors import Unanswered, UsageError
    from unlockstep.launch.folders import new_folder
    from unlockstep.launch.local import Ending
    from unlockstep.net.access.roles import TRAINS
    from unlockstep.net.access.security import IF_TLS
    from unlockstep.net.clients.observer import read_about, read_config, read_status

    require_torch("chaos")
    played = tapes.read(tape)
    security = client_security(None, None, None, token_file)
    try:
        before = require_playable(played, url, lambda: read_status(url, run, security))
        role = read_about(url, security).role
    except Unanswered as error:  # To write https:// would be no way out.
        raise Unanswered(str(error).replace(IF_TLS, "if it speaks TLS, its links cannot be broken")) from None
    if role not in {each.value for each in TRAINS}:
        raise UsageError(f"the token shown has the role {role}, which does not train; give a learner's (--token-file)")
    # Every learner would refuse this by itself, when there is a folder and others have begun.
    config = run_config.loads(read_config(url, run, security), source=f"the configuration from {url}")
    require_trusted(config, trust_syncer)
    folder = out or Path(RUNS_FOLDER) / f"chaos-{played.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    options = ["--trust-syncer"] if trust_syncer else []
    options += ["--run", run] if run is not None else []
    options += ["--token-file", str(token_file)] if token_file is not None else []
    with new_folder(folder) as new:
        new.begun()  # From now on Ctrl-C leaves what there is.
        outcome = _play(played, url, folder, before, lambda url: read_status(url, run, security), options, plain)
        if outcome.ending is Ending.REFUSED:
            new.refused()
            raise UsageError(outcome.sentence)
    if outcome.ending is Ending.FAILED:
        raise exits.RunFailed(outcome.sentence)
    if (folder / TAPE_FILE).exists() and tapes.read(folder / TAPE_FILE).began_ns is not None:
        print(f"what was played is in {folder / TAPE_FILE}")
    return exits.SIGNALLED + outcome.signal if outcome.ending is Ending.INTERRUPTED else exits.DONE


def _play(
    tape: Tape,
    url: str,
    folder: Path,
    before: Status,
    read_status: Callable[[str], Status],
    options: list[str],
    plain: bool,
) -> Outcome:
    """From the first learner to the last, watched."""
    import sys

    from unlockstep.chaos.guests import Guests
    from unlockstep.cli.output import wide_console
    from unlockstep.cli.run_folder import TAPE_FILE
    from unlockstep.cli.view import LiveView, PlainView
    from unlockstep.launch.local import Ending

    console = wide_console()
    view = LiveView if console.is_terminal and not plain else PlainView
    with view(console, tape.cast, f"tape {tape.name} on {url}") as watcher:
        outcome = Guests(
            tape,
            url,
            folder,
            folder / TAPE_FILE,
            before=before,
            read_status=read_status,
            note=lambda text: watcher.note(text, time.monotonic_ns()),
            show=lambda status: watcher.show(status, time.monotonic_ns()),
            program=(sys.executable, "-m", "unlockstep"),
            options=options,
        ).run()
        if outcome.ending in (Ending.FINISHED, Ending.INTERRUPTED):
            watcher.note(outcome.sentence, time.monotonic_ns())
    return outcome
