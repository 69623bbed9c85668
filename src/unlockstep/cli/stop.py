"""``unlockstep stop``: end a run in order, from afar."""

from __future__ import annotations

from unlockstep.cli.access import Ca, Cert, Key, RunName, SyncerUrl, TokenFile


def stop(
    url: SyncerUrl = "http://127.0.0.1:7077",
    run: RunName = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    token_file: TokenFile = None,
) -> None:
    """End a run in order. Its last rounds are merged, everybody is told, and it can be resumed."""
    from unlockstep.cli.access import client_security
    from unlockstep.net.clients.observer import end_run

    name = end_run(url, run, client_security(ca, cert, key, token_file))
    print(f"run {name!r} is ending")
