"""Runs over TLS with tokens, and what becomes of a learner that is not accepted, before it is a member and after.

Real sockets on loopback; in the last tests real processes, through the command line.
"""

from __future__ import annotations

import asyncio
import functools
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.commands import COMMAND_S_MAX, Start, commands, ended, until, url_of
from support.gates import Secured, audited, on_loop, refusals, secured
from support.live_run import WAIT_S, learner, live_syncer, small_config, train
from support.secret_files import NOW, Secrets, other_authority, secrets_in, write_pair
from support.toy_site import toy_site
from unlockstep import config as run_config
from unlockstep.certificates import issue
from unlockstep.cli import certs, exits
from unlockstep.config import DurabilitySection, RunSection
from unlockstep.core.errors import UsageError
from unlockstep.core.events import Event, LearnerAway, LearnerJoined, StepReported
from unlockstep.core.options import ProtocolOptions
from unlockstep.learners.toy import ToyBackend
from unlockstep.net.access.limits import Limits
from unlockstep.net.access.roles import Role
from unlockstep.net.access.security import ClientSecurity
from unlockstep.net.clients import control_line
from unlockstep.net.clients.observer import read_status

ENDLESS = small_config(run=RunSection(name="small", steps=10**6))


@on_loop
async def test_learners_with_certificates_and_tokens_train_to_the_end(tmp_path: Path) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    config = small_config(protocol=ProtocolOptions(fragments=2, interval_steps=2, grace_factor=0.0, quorum=2))
    for name in ("l0", "l1"):
        secrets.add_client(name)
    async with live_syncer(config, tmp_path, security=secrets.server(mutual=True)) as syncer:
        trained = await asyncio.gather(
            *(
                asyncio.to_thread(train, syncer, name, ToyBackend(), security=secrets.client("learner", name))
                for name in ("l0", "l1")
            )
        )
        assert [loop.done.failed for loop in trained if loop.done] == [False, False]
        assert syncer.service.status().ledger.in_flight == 0
        told = audited(tmp_path)
        assert [line["learner"] for line in told if line["what"] == "joined"] in (["l0", "l1"], ["l1", "l0"])
        assert not [line for line in told if line["what"] == "refused"]


# ----------------------------------------------------------------------------------------------- before it is a member

REFUSED: dict[str, tuple[Callable[[Secrets], ClientSecurity], str]] = {
    "wrong token": (lambda s: ClientSecurity.of(s.ca, token="wrong"), "does not accept the token"),
    "no token": (lambda s: s.client(None), "does not accept the token"),
    "another role": (lambda s: s.client("observer"), "give one of another role"),
    "foreign certificate": (lambda s: foreign(s), "does not vouch for the syncer"),
    "nobody to trust": (lambda s: ClientSecurity(token="x"), "give the ca.pem of its"),
}


def foreign(secrets: Secrets) -> ClientSecurity:
    path = secrets.folder / "other.pem"
    path.write_bytes(other_authority().cert)
    return ClientSecurity.of(path, token=secrets.token("learner"))


@pytest.mark.parametrize("case", REFUSED)
def test_a_learner_that_is_not_accepted_says_so_and_ends(case: str, tmp_path: Path) -> None:
    of, sentence = REFUSED[case]

    async def run() -> None:
        async with secured(tmp_path) as at:
            loop = await asyncio.to_thread(train, at.syncer, "l0", ToyBackend(), security=of(at.secrets))
            assert loop.done is not None and loop.done.failed and sentence in loop.done.reason

    asyncio.run(run())


def test_a_learner_of_a_syncer_whose_certificate_has_expired_says_so_and_ends(tmp_path: Path) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    security = secrets.server()
    secrets.replace_syncer(expired=True)
    assert security.context is not None  # It has expired while the syncer ran.
    security.context.load_cert_chain(secrets.folder / "syncer.pem", secrets.folder / "syncer.key")

    async def run() -> None:
        async with live_syncer(small_config(), tmp_path, security=security) as syncer:
            loop = await asyncio.to_thread(train, syncer, "l0", ToyBackend(), security=secrets.client())
            assert loop.done is not None and loop.done.failed and "has expired; have it renewed" in loop.done.reason

    asyncio.run(run())


def test_a_token_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    client, loop = learner("http://192.0.2.1:7077", ENDLESS, "l0", ToyBackend(), security=ClientSecurity(token="mine"))
    client.start(loop)
    try:
        while loop.done is None:
            loop.wait_until_may_step(0.1)
        assert loop.done.failed and "over which the token would travel in the clear" in loop.done.reason
        assert "mine" not in loop.done.reason
    finally:
        client.close()


# ------------------------------------------------------------------------------------------------- after


class Member:
    """A learner that trains in a thread for as long as a test wants."""

    def __init__(self, at: Secured) -> None:
        self._at = at
        self._backend = ToyBackend()
        self._client, self.loop = learner(
            at.syncer.url, at.syncer.config, "l0", self._backend, security=at.secrets.client("learner")
        )
        self._client.start(self.loop)

    async def trains_until(self, kind: type[Event], count: int) -> None:
        """Until there are so many events of a kind."""
        await asyncio.to_thread(self._train, kind, count)

    def _train(self, kind: type[Event], count: int) -> None:
        while sum(isinstance(event, kind) for event in self._at.syncer.log.events) < count:
            assert self.loop.wait_until_may_step(WAIT_S) and self.loop.done is None
            self.loop.finish_step(self._backend.inner_step(self.loop.clock))

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)


async def trains_through(
    at: Secured,
    spoil: Callable[[], None],
    mend: Callable[[], None],
    is_refused: Callable[[], bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A member that is no longer accepted trains on, is one again when that is mended, and says so."""
    member = Member(at)
    try:
        await member.trains_until(LearnerJoined, 1)
        spoil()
        await member.trains_until(LearnerAway, 1)
        while not is_refused():
            await asyncio.sleep(0)
        mend()
        await member.trains_until(LearnerJoined, 2)
        reports = sum(isinstance(event, StepReported) for event in at.syncer.log.events)
        await member.trains_until(StepReported, reports + 1)
        assert len(re.findall(r"connected again after [\d.e-]+ s", caplog.text)) == 1, caplog.text
    finally:
        await member.close()


def test_a_member_whose_token_is_replaced_trains_on_and_returns_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control_line, "REFUSED_S", 0.05)

    async def run() -> None:
        async with secured(tmp_path, Limits(sweep_s=0.02), ENDLESS) as at:
            folder = at.secrets.folder
            renew = functools.partial(certs.token, folder, "learner", "learner")

            def is_refused() -> bool:
                return "wrong_token" in (reason for reason, _ in refusals(at.secrets.folder.parent))

            await trains_through(at, lambda: certs.revoke(folder, "learner"), renew, is_refused, caplog)

    asyncio.run(run())


def test_a_member_whose_syncer_shows_another_certificate_trains_on_until_it_is_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control_line, "REFUSED_S", 0.05)

    async def run() -> None:
        async with secured(tmp_path, config=ENDLESS) as at:
            folder, context = at.secrets.folder, at.security.context
            assert context is not None

            def spoil() -> None:
                write_pair(tmp_path, "other", issue(other_authority(), "other", ["127.0.0.1"], NOW, 30))
                context.load_cert_chain(tmp_path / "other.pem", tmp_path / "other.key")
                for line in at.syncer.gate.guard:
                    line.cut()

            def mend() -> None:
                context.load_cert_chain(folder / "syncer.pem", folder / "syncer.key")

            # The syncer hears no more than that somebody hung up, as everybody does who only looks.
            await trains_through(at, spoil, mend, lambda: "does not vouch for the syncer" in caplog.text, caplog)

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------- processes


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ``unlockstep`` with the arguments given; none outlives the test."""
    with commands() as run:
        yield run


def settings(folder: Path, **sections: Any) -> Path:
    """A file of settings of an endless run."""
    path = folder / "given.toml"
    path.write_text(run_config.dumps(msgspec.structs.replace(ENDLESS, **sections)))
    return path


def test_a_run_between_processes_is_secured_and_no_token_is_written_anywhere(start: Start, tmp_path: Path) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    given, run_dir = settings(tmp_path), tmp_path / "run"
    arguments = ("--listen", "127.0.0.1:0", "--secrets", str(secrets.folder), "--run-dir", str(run_dir))
    syncer = start("syncer", "--config", str(given), *arguments)
    url = url_of(syncer)
    assert url.startswith("https://")
    admin = secrets.client("admin")
    said = []
    with toy_site(url, ENDLESS, 2, secrets.client("learner")):
        until(url, lambda status: status.rounds_committed >= 3, security=admin)
        for token in ("observer", "admin"):
            access = ("--ca", str(secrets.ca), "--token-file", str(secrets.folder / f"{token}.token"))
            shown = start("status", url, "--json", *access)
            assert ended(shown)[0] == exits.DONE
            asked = start("stop", url, *access)
            code, err = ended(asked)
            assert code == (exits.DONE if token == "admin" else exits.USAGE)
            said.append(err)
        out, err = syncer.communicate(timeout=COMMAND_S_MAX)
        assert syncer.returncode == exits.DONE and "was stopped" in out
    assert "has the role observer, which may not do this" in said[0]
    everything = [out, err, *said] + [path.read_text(errors="replace") for path in run_dir.rglob("*") if path.is_file()]
    for role in Role:
        assert not any(secrets.token(role.value) in text for text in everything)
    told = audited(run_dir)
    assert {line["learner"] for line in told if line["what"] == "joined"} == {"toy-0", "toy-1"}
    assert [line["token"] for line in told if line["what"] == "ended"] == ["admin"]
    assert oct((run_dir / "audit.jsonl").stat().st_mode & 0o777) == "0o640"


def test_status_metrics_and_the_page_hold_no_token(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path) as at, at.session("admin") as session:
            await at.syncer.puppet(session, "l0").start()
            for path in ("/", "/metrics", "/v1", "/v1/runs/small", "/v1/runs/small/config"):
                async with session.get(at.syncer.url + path) as response:
                    text = await response.text() + str(response.headers)
                    assert response.status == 200
                    assert not any(at.secrets.token(role.value) in text for role in Role)

    asyncio.run(run())


def test_a_standby_answers_only_who_may_ask(start: Start, tmp_path: Path) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    given = settings(tmp_path, durability=DurabilitySection(lease_s=0.5))
    arguments = ("--listen", "127.0.0.1:0", "--secrets", str(secrets.folder), "--run-dir", str(tmp_path / "run"))
    leader = start("syncer", "--config", str(given), *arguments)
    first = url_of(leader)
    second = url_of(start("syncer", "--standby", *arguments))
    with pytest.raises(UsageError, match="asks for a token"):
        read_status(second, "small", secrets.client(None))
    with pytest.raises(UsageError, match="this syncer stands by"):
        read_status(second, "small", secrets.client("observer"))
    with toy_site(f"{first},{second}", ENDLESS, 2, secrets.client("learner")):
        until(first, lambda status: status.rounds_committed >= 3, security=secrets.client("admin"))
        leader.send_signal(signal.SIGKILL)
        until(second, lambda status: status.rounds_committed >= 6, security=secrets.client("admin"))
