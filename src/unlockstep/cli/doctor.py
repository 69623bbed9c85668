"""``unlockstep doctor``: whether this machine, and the way from here to a syncer, will do for a run, and what to mend.

Decides how what was found is shown, and the exit code: 1 if anything keeps a run from working. What is looked at is in
``net.doctor.machine`` and ``net.doctor.examination``, what is wrong in ``net.doctor.diagnosis``.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unlockstep.cli.access import CERT_FILE, TOKENS_FILE, Ca, Cert, Key, RunName, Secrets, TokenFile, server_security
from unlockstep.core.errors import UsageError
from unlockstep.core.foreign_text import printable

if TYPE_CHECKING:
    from unlockstep.net.access.security import ClientSecurity
    from unlockstep.net.doctor.diagnosis import Finding
    from unlockstep.net.wire.listening import Endpoint
    from unlockstep.net.wire.timeouts import Timeouts

NAME_WIDTH = 16
TIMEOUTS_PER_LINE = 4


def doctor(
    url: Annotated[
        str | None, typer.Argument(help="Address of the syncer; of several, with commas. None: this machine.")
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Without URL: where a syncer would listen here.")
    ] = "127.0.0.1:7077",
    advertise: Annotated[
        str | None, typer.Option(metavar="URL", help="Without URL: what it would tell others.")
    ] = None,
    secrets: Secrets = None,
    run: RunName = None,
    rates: Annotated[
        bool, typer.Option("--rates/--no-rates", help="Load the link for some seconds to see what it carries.")
    ] = True,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    token_file: TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> int:
    """Examine this machine, or the way to a syncer; say what to mend."""
    from unlockstep.cli.access import client_security
    from unlockstep.net.doctor.diagnosis import State

    told = _Told(is_silent=as_json)
    if url is None:
        parts = [_shown(_machine(listen, advertise, secrets), told, as_json)]
        report: dict[str, Any] = {"machine": parts[0]}
    else:
        parts, links = _links(url, client_security(ca, cert, key, token_file), run, rates, told, as_json)
        report = {"links": links}
    has_failed = any(each.state is State.FAIL for part in parts for each in part)
    if as_json:
        from unlockstep.cli.output import print_json

        print_json(report | {"ok": not has_failed})
    return 1 if has_failed else 0


def _machine(listen: str, advertise: str | None, secrets: Path | None) -> Iterator[Finding]:
    """Of this machine, as one for a syncer with these secrets."""
    from unlockstep.certificates import read_certificate
    from unlockstep.net.access.tokens import read_tokens
    from unlockstep.net.doctor import diagnosis, machine
    from unlockstep.net.wire.listening import parse_listen, told_as

    endpoint = parse_listen(listen)
    if secrets is None:
        yield from machine.examine(endpoint, advertise)
        return
    folder, endpoint = secrets, replace(endpoint, scheme="https")

    def found(there: Endpoint) -> Finding:
        try:
            server_security(folder, None, None, None, None)  # As the syncer would: says what is wrong with the files.
            told, _ = told_as(there, advertise)
        except UsageError as error:
            sentence, _, fix = str(error).partition("; ")
            return diagnosis.fail("secrets", sentence, fix)
        certificate, tokens = read_certificate(folder / CERT_FILE), read_tokens(folder / TOKENS_FILE)
        return machine.secrets(certificate, tokens, told.url_host, datetime.datetime.now(datetime.UTC))

    yield from machine.examine(endpoint, advertise, found)


def _links(
    urls: str, security: ClientSecurity, run: str | None, rates: bool, told: _Told, as_json: bool
) -> tuple[list[list[Finding]], list[dict[str, Any]]]:
    from unlockstep.net.doctor.examination import Examination
    from unlockstep.net.wire.api import base_urls

    parts, links = [], []
    bases = base_urls(urls)
    for base in bases:
        if not as_json:
            print(base, flush=True)
        examination = Examination(base, security, run, rates, told)
        found = _shown(examination.findings(), told, as_json)
        timeouts = examination.timeouts(has_standby=len(bases) > 1)
        if not as_json and examination.measured.round_trip_s is not None:
            _print_timeouts(timeouts)
        parts.append(found)
        links.append(
            {
                "url": base,
                "findings": found,
                "measured": asdict(examination.measured),
                "timeouts": asdict(timeouts),
            }
        )
    return parts, links


def _shown(findings: Iterable[Finding], told: _Told, as_json: bool) -> list[Finding]:
    """All of them, each printed as it comes."""
    kept = []
    for found in findings:
        kept.append(found)
        if not as_json:
            told.forget()
            print(f"{found.state.value:5}{found.name:{NAME_WIDTH}}{printable(found.finding)}", flush=True)
            if found.fix:
                print(f"{'':{5 + NAME_WIDTH}}-> {printable(found.fix)}", flush=True)
    told.forget()
    return kept


def _print_timeouts(timeouts: Timeouts) -> None:
    """In columns; what each is stands in docs/operations.md."""
    cells = [f"{name:14}{round(value, 3):<8g}" for name, value in asdict(timeouts).items()]
    for start in range(0, len(cells), TIMEOUTS_PER_LINE):
        head = "timeouts" if start == 0 else ""
        print(f"{'':5}{head:{NAME_WIDTH}}{''.join(cells[start : start + TIMEOUTS_PER_LINE]).rstrip()}", flush=True)


class _Told:
    """What is done at the moment: one line on a terminal, gone when there is something to say."""

    def __init__(self, is_silent: bool) -> None:
        self._is_shown = not is_silent and sys.stderr.isatty()
        self._length = 0

    def __call__(self, sentence: str) -> None:
        if self._is_shown:
            self.forget()
            text = f"... {sentence}"
            print(text, end="", file=sys.stderr, flush=True)
            self._length = len(text)

    def forget(self) -> None:
        """Take it away."""
        if self._length:
            print(f"\r{' ' * self._length}\r", end="", file=sys.stderr, flush=True)
            self._length = 0
