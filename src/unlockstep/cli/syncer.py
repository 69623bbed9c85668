"""``unlockstep syncer``: the process that merges. Needs no torch.

Decides how a configuration, an address and a folder become a running syncer, and where it may listen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.cli.access import CERT_FILE, ClientCa, Secrets, TlsCert, TlsKey, TokensFile
from unlockstep.core.errors import UsageError
from unlockstep.core.words import counted

if TYPE_CHECKING:
    import asyncio

    from unlockstep.cli.exits import StopRequest
    from unlockstep.config import RunConfig
    from unlockstep.core.syncer import SyncerCore
    from unlockstep.keeper import Keeper, Taken
    from unlockstep.net.access.security import ServerSecurity
    from unlockstep.net.wire.listening import Endpoint
    from unlockstep.runlog import RunLogWriter
    from unlockstep.store.leadership import Beat
    from unlockstep.store.run_store import RunStore

LISTEN_DEFAULT = "127.0.0.1:7077"

_log = logging.getLogger("unlockstep.cli")


class RunOver(UsageError):
    """The run has finished: there is nothing to go on with."""


def syncer(
    config_file: Annotated[Path | None, typer.Option("--config", help="Configuration of the run (TOML).")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Replace a setting.")
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; no HOST: all addresses; PORT 0: a free one.")
    ] = LISTEN_DEFAULT,
    advertise: Annotated[
        str | None, typer.Option(metavar="URL", help="What others are told to connect to, if it is not that.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; one that holds a run is resumed. Default runs/NAME-DATE-TIME-PROCESS."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Where the run is saved: a folder or an fsspec URL; default RUN_DIR/store.")
    ] = None,
    standby: Annotated[bool, typer.Option(help="Wait until the run's syncer falls silent, then take over.")] = False,
    secrets: Secrets = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tokens: TokensFile = None,
    client_ca: ClientCa = None,
    insecure: Annotated[
        bool, typer.Option(help="Listen beyond this machine without TLS, without tokens or without both.")
    ] = False,
    parent_pid: Annotated[int | None, typer.Option(help="End when this process is no longer the parent.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when listening, one at the end.")
    ] = False,
) -> int:
    """Merge what learners contribute, until the run is over. Started again on its folder, go on with the run."""
    import asyncio

    from unlockstep.cli.access import require_secured, server_security, told_in_vain
    from unlockstep.cli.exits import stop_request
    from unlockstep.cli.memory import give_back_arrays
    from unlockstep.cli.output import log_to_stderr
    from unlockstep.cli.run_folder import STORE_FOLDER, default_run_folder
    from unlockstep.net.wire.listening import parse_listen, told_as
    from unlockstep.net.wire.packing import require

    log_to_stderr("syncer")
    give_back_arrays()
    security = server_security(secrets, tls_cert, tls_key, tokens, client_ca)
    endpoint = replace(parse_listen(listen), scheme=security.scheme)
    require_secured(endpoint, insecure, security)
    endpoint, notes = told_as(endpoint, advertise)
    notes += told_in_vain(tls_cert if secrets is None else secrets / CERT_FILE, endpoint)
    config = _settings(config_file, overrides or [], run_dir, standby)
    require(config.codec.upload_packing)
    folder = run_dir if run_dir is not None else default_run_folder(config.run.name)
    where = store if store is not None else str(folder / STORE_FOLDER)
    for note in notes:
        _log.info("%s", note)
    again = f"--run-dir {folder}" + ("" if store is None else f" --store {store}")
    with stop_request(parent_pid, on_hangup=lambda: _say_leaving(config.run.name, again)) as stop:
        serving = _serve(config, folder, where, standby, endpoint, security, stop, as_json)
        return 0 if asyncio.run(serving) else stop.exit_code


def _say_leaving(run: str, again: str) -> None:
    """All that there is to do: whatever was told of is saved, at any moment."""
    _log.info("SIGHUP: leaves run %s as it is, and learners train on; %s goes on with it", run, again)


def _settings(config_file: Path | None, overrides: list[str], run_dir: Path | None, standby: bool) -> RunConfig:
    """What was given; nothing was, and the folder holds a run: that run's.

    Raises:
        UsageError: what was given is not valid, or it takes the settings of a run, and they are not there.
    """
    from unlockstep import config as run_config
    from unlockstep.cli.run_folder import CONFIG_FILE, RUN_LOG_FILE

    if config_file is None and not overrides and run_dir is not None:
        if (run_dir / CONFIG_FILE).is_file():
            return run_config.load(run_dir / CONFIG_FILE)
        if (run_dir / RUN_LOG_FILE).exists():
            raise UsageError(
                f"{run_dir} holds a run but no {CONFIG_FILE}, without which nobody can go on with it: restore it, or "
                "give a copy of it with --config"
            )
    if config_file is None and not overrides and standby:
        raise UsageError(
            f"there is no run in {run_dir} whose settings a standby could take: start its syncer first, or give the "
            "settings with --config"
        )
    config = run_config.load(config_file) if config_file is not None else run_config.RunConfig()
    return run_config.apply(config, overrides)


async def _serve(
    config: RunConfig,
    folder: Path,
    where: str,
    standby: bool,
    endpoint: Endpoint,
    security: ServerSecurity,
    stop: StopRequest,
    as_json: bool,
) -> bool:
    """Serve until the run is over (True) or somebody asks to stop (False)."""
    import asyncio

    from unlockstep import config as run_config
    from unlockstep.keeper import Deposed, require_run
    from unlockstep.net.syncer.standby import refuse_leader, stand_by
    from unlockstep.net.wire.sockets import open_many_files
    from unlockstep.store.leadership import read_beat
    from unlockstep.store.place import open_place
    from unlockstep.store.run_store import RunStore

    open_many_files()
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    stop.then(lambda: loop.call_soon_threadsafe(asked.set))
    lease_s = config.durability.lease_s
    if not where:
        raise UsageError("--store is empty; give a folder or a URL, or leave it out to save the run in its folder")
    store = RunStore(open_place(where), max(config.durability.records_kept, config.protocol.fragments + 2))

    def look() -> tuple[Beat | None, int]:
        return read_beat(store.place), store.newest_number()

    def on_waiting(bound: Endpoint) -> None:
        nonlocal endpoint
        endpoint = bound  # It is where it is found later, too.
        _say_waiting(config, bound.url, as_json)

    while True:
        with _storing(folder):
            require_run(store, config.run.name, run_config.digest(config))
            if not standby:
                await refuse_leader(look, lease_s, asked)
            elif not await stand_by(look, lease_s, asked, endpoint, on_waiting, security):
                return False
        try:
            return await _lead(config, folder, store, endpoint, security, asked, as_json)
        except Deposed as deposed:
            if not standby:
                raise
            _log.warning("%s and stands by", deposed)
        except RunOver:
            if not standby:
                raise
            _log.info("run %r has finished; there is nothing to take over", config.run.name)
            return True


@contextmanager
def _storing(folder: Path) -> Iterator[None]:
    """Turns an error of the file system into a sentence about the folder."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"run folder {folder} cannot be written ({error.strerror or error}); choose a folder you may write to "
            "with --run-dir, or with --store another place to save the run"
        ) from None


@contextmanager
def _saving(store: RunStore, keeper: Keeper) -> Iterator[None]:
    """Turns what keeps the run from being saved into a sentence; a full disk has one already."""
    from unlockstep.cli.exits import RunFailed
    from unlockstep.files import DISK_FULL

    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        sentence = f"{store.place.describe('records')} cannot be written ({error.strerror or error})"
        if keeper.has_saved:
            raise RunFailed(f"{sentence}; when that is mended, start the syncer again on its folder") from error
        raise UsageError(f"{sentence}; choose with --store a place to save the run that you may write to") from error


def _say_waiting(config: RunConfig, url: str, as_json: bool) -> None:
    from unlockstep.cli.output import print_json

    if as_json:
        print_json({"run": config.run.name, "url": url, "standby": True})
    else:
        print(f"standby of run {config.run.name!r} waits at {url}", flush=True)


async def _lead(
    config: RunConfig,
    folder: Path,
    store: RunStore,
    endpoint: Endpoint,
    security: ServerSecurity,
    asked: asyncio.Event,
    as_json: bool,
) -> bool:
    """Take the run up, or begin it, and serve."""
    from unlockstep.cli.output import print_json
    from unlockstep.keeper import Deposed
    from unlockstep.net.access.audit import Audit
    from unlockstep.net.access.gate import Gate
    from unlockstep.net.syncer.service import SyncerService

    def on_listening(url: str) -> None:
        if as_json:
            print_json({"run": config.run.name, "url": url, "folder": str(folder)})
        else:
            print(f"syncer of run {config.run.name!r} listens on {url}, run log in {folder}", flush=True)

    with ExitStack() as stack:
        core, run_log, keeper, taken = _begin_or_resume(config, folder, store, stack)
        gate = Gate(security, Audit(folder))
        service = SyncerService(config, core, run_log, keeper=keeper, taken=taken, gate=gate)
        try:
            with _saving(store, keeper):
                await service.serve(endpoint, asked, on_listening)
        except Deposed:
            if not keeper.has_saved:
                run_log.withdraw()
            raise
        status = service.status()
    if as_json:
        print_json(status)
    else:
        how = "was stopped" if core.is_stopped else status.state
        commits = counted(status.rounds_committed, "commit")
        print(f"run {config.run.name!r} {how} at clock {status.clock} after {commits}")
    return not asked.is_set()


def _begin_or_resume(
    config: RunConfig, folder: Path, store: RunStore, stack: ExitStack
) -> tuple[SyncerCore, RunLogWriter, Keeper, Taken | None]:
    """A new run, or the one that is saved there.

    Raises:
        RunOver: the run that is there has finished.
        UsageError: what is there is another run, or cannot be used.
    """
    from unlockstep import config as run_config
    from unlockstep.cli.run_folder import new_run_log, resumed_run_log
    from unlockstep.core.syncer import SyncerCore
    from unlockstep.keeper import is_over, take_up

    run = config.run
    with _storing(folder):
        keeper, taken = take_up(store, run.name, run_config.digest(config))
    core = SyncerCore(
        run.name,
        config.protocol,
        run.steps,
        run.tokens,
        token_hex(8),
        dealing=config.data.dealing,
        rollback=config.rollback,
        codecs=config.codec.uploads,
    )
    if taken is None:
        return core, stack.enter_context(new_run_log(folder, config)), keeper, None
    saved = taken.snapshot.run
    if is_over(store, saved):
        raise RunOver(f"the run in {folder} has finished at clock {saved.clock}; choose another --run-dir")
    for sentence in taken.damaged:
        _log.warning("%s; an earlier save is used", sentence)
    log, keeper.life = resumed_run_log(folder, config, keeper.life, taken.snapshot.log)
    _log.info("resumes run %r at clock %d, life %d of its syncer", run.name, saved.clock, keeper.life)
    return core, stack.enter_context(log), keeper, taken
