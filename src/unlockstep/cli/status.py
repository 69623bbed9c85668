"""``unlockstep status``: one look at a running syncer."""

from __future__ import annotations

from typing import Annotated

import typer

from unlockstep.cli.access import Ca, Cert, Key, RunName, SyncerUrl, TokenFile


def status(
    url: SyncerUrl = "http://127.0.0.1:7077",
    run: RunName = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    token_file: TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as one JSON object.")] = False,
) -> None:
    """Show the state of a run, and why."""
    from unlockstep.cli.access import client_security
    from unlockstep.cli.output import print_json
    from unlockstep.net.clients.observer import read_status

    state = read_status(url, run, client_security(ca, cert, key, token_file))
    if as_json:
        print_json(state)
        return
    from unlockstep.cli.output import wide_console
    from unlockstep.cli.view import picture

    console = wide_console(markup=False)  # A stranger may have written it.
    console.print(
        picture(state, title=url, names=(), left_ns=None, elapsed_ns=state.at_ns, notes=(), width=console.width)
    )
