"""``unlockstep syncer``: the process that merges. Needs no torch.

Decides how a configuration, an address and a folder become a running syncer, and where it may listen.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from unlockstep.cli.exits import StopRequest
    from unlockstep.config import RunConfig

DEFAULT_PORT = 7077


def syncer(
    config_file: Annotated[Path | None, typer.Option("--config", help="Configuration of the run (TOML).")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Replace a setting.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = DEFAULT_PORT,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for the run log; default runs/NAME-DATE-TIME-PROCESS.")
    ] = None,
    insecure: Annotated[bool, typer.Option(help="Listen beyond this machine, unencrypted and open to all.")] = False,
    parent_pid: Annotated[int | None, typer.Option(help="End when this process is no longer the parent.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when listening, one at the end.")
    ] = False,
) -> int:
    """Merge what learners contribute, until the run is over."""
    import asyncio

    from unlockstep import config as run_config
    from unlockstep.cli.exits import stop_request
    from unlockstep.cli.output import log_to_stderr
    from unlockstep.cli.run_folder import default_run_folder

    log_to_stderr("syncer")
    config = run_config.load(config_file) if config_file is not None else run_config.RunConfig()
    config = run_config.apply(config, overrides or ())
    _require_allowed(host, insecure)
    folder = run_dir if run_dir is not None else default_run_folder(config.run.name)
    with stop_request(parent_pid) as stop:
        ended = asyncio.run(_serve(config, folder, host, port, stop, as_json))
        return 0 if ended else stop.exit_code


async def _serve(config: RunConfig, folder: Path, host: str, port: int, stop: StopRequest, as_json: bool) -> bool:
    """Serve until the run is over (True) or somebody asks to stop (False)."""
    import asyncio

    from unlockstep.cli.output import print_json
    from unlockstep.cli.run_folder import new_run_log
    from unlockstep.core.syncer import SyncerCore
    from unlockstep.net.syncer_service import SyncerService

    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    stop.then(lambda: loop.call_soon_threadsafe(asked.set))

    def on_listening(url: str) -> None:
        if as_json:
            print_json({"run": config.run.name, "url": url, "folder": str(folder)})
        else:
            print(f"syncer of run {config.run.name} listens on {url}, run log in {folder}", flush=True)

    with new_run_log(folder, config) as run_log:
        run = config.run
        core = SyncerCore(run.name, config.protocol, run.steps, run.tokens, run_id=secrets.token_hex(8))
        service = SyncerService(config, core, run_log)
        await service.serve(host, port, asked, on_listening)
        status = service.status()
    if as_json:
        print_json(status)
    else:
        print(f"run {config.run.name} {status.state} at clock {status.clock} after {status.rounds_committed} commits")
    return not stop.asked.is_set()


def _require_allowed(host: str, insecure: bool) -> None:
    from unlockstep.core.errors import UsageError

    if not insecure and not _is_loopback(host):
        raise UsageError(
            f"--host is {host}, which others can reach, and connections are neither encrypted nor authorised; "
            "listen on 127.0.0.1, or say --insecure if the network is trusted"
        )


def _is_loopback(host: str) -> bool:
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
