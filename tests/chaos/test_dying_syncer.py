"""A syncer's process that dies at any one of its writes: the next goes on with what was told, to the bit.

One learner by hand gives to every version of every fragment a value of its own, so that the values and the momentum of
a version are the same in every run, however often its syncer has died. A run without a death says what they are.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from support import dying_syncer
from support.dying_syncer import DIED
from support.live_run import WAIT_S, Puppet, small_config
from support.stores import FailingDisk
from unlockstep import config as run_config
from unlockstep.config import DurabilitySection, OuterSection, RunConfig, RunSection
from unlockstep.core.codec import body_digest
from unlockstep.core.messages import Published, Pull, VersionNotice
from unlockstep.net.wire import api
from unlockstep.store.place import LocalPlace
from unlockstep.store.run_store import RunStore

pytestmark = pytest.mark.chaos

COMMITS = 12
"""In a whole run, of both fragments together."""

TESTS = Path(__file__).parents[1]


def settings(records_kept: int = 3) -> RunConfig:
    """No sign of life but the first is on the disk, so that writes come in an order of their own."""
    return small_config(
        run=RunSection(name="small", steps=1_000_000),
        outer=OuterSection(optimizer="nesterov", learning_rate=0.7, momentum=0.9),
        durability=DurabilitySection(records_kept=records_kept, lease_s=3600.0),
    )


Stored = dict[tuple[int, int], tuple[str, str]]
"""Fragment and version -> digest of what was published, and SHA-256 of the file: of values and momentum."""


@contextmanager
def syncer(folder: Path, fatal: int = 0, moment: str = "before") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and its URL; empty if it has died before it could say that."""
    arguments = [
        "--config",
        str(folder / "run.toml"),
        "--listen",
        "127.0.0.1:0",
        "--run-dir",
        str(folder / "run"),
        "--json",
    ]
    path = os.pathsep.join([str(TESTS), *sys.path])
    command = [sys.executable, dying_syncer.__file__, str(fatal), moment, *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield process, json.loads(line)["url"] if line else ""
    finally:
        process.kill()
        process.communicate()


async def learn(
    url: str, config: RunConfig, told: list[VersionNotice], served: list[VersionNotice], commits: int
) -> None:
    """Be its learner until there are so many commits or it is gone. What it says goes to ``told``, what it says first
    to ``served``, too, if it can be fetched."""
    async with aiohttp.ClientSession() as session:
        puppet = Puppet(url, config, session, "a")
        puppet.run_id = ""
        await puppet.connect()
        try:
            await _learn(puppet, session, url, config, told, served, commits)
        finally:
            await puppet.socket.close()


async def _learn(
    puppet: Puppet,
    session: aiohttp.ClientSession,
    url: str,
    config: RunConfig,
    told: list[VersionNotice],
    served: list[VersionNotice],
    commits: int,
) -> None:
    welcome = await puppet.introduce()
    puppet.steps_taken = welcome.clock
    for notice in welcome.versions:
        path = url + api.version_path(config.run.name, notice.fragment, notice.version)
        async with session.get(path) as response:
            assert body_digest(await response.read()) == notice.digest
    told += welcome.versions
    served += welcome.versions
    if welcome.seed:
        await puppet.seed(0.5)
    newest = {notice.fragment: notice.version for notice in welcome.versions}
    for _ in range(config.protocol.interval_steps):
        await puppet.step()
    while sum(newest.values()) < commits:
        message = await puppet.next_message()
        if isinstance(message, Published):
            told.append(message.notice)
            newest[message.notice.fragment] = message.notice.version
            await puppet.step()
        elif isinstance(message, Pull):
            base = newest[message.fragment]
            body = puppet.body(message.fragment, 0.01 * (1 + base + message.fragment))
            await puppet.contribute(message, body, base_version=base)


def a_life(
    folder: Path, config: RunConfig, told: list[VersionNotice], fatal: int, moment: str, commits: int = COMMITS
) -> list[VersionNotice]:
    """One process of the syncer, until it dies or there are enough commits; returns what it went on from."""
    served: list[VersionNotice] = []
    with syncer(folder, fatal, moment) as (process, url):
        if url:
            try:
                asyncio.run(asyncio.wait_for(learn(url, config, told, served, commits), WAIT_S))
            except (aiohttp.ClientError, ConnectionError, TypeError) as error:  # TypeError: the end of a WebSocket.
                assert process.wait(WAIT_S) == DIED, repr(error)
        elif fatal:
            assert process.wait(WAIT_S) == DIED
        else:
            raise AssertionError(process.communicate()[1])
    return served


def stored(folder: Path) -> Stored:
    """What the newest sound record names."""
    loaded = RunStore(LocalPlace(folder / "run" / "store")).load()
    files = () if loaded is None else loaded.record.fragments
    return {(file.fragment, file.version): (file.digest, file.sha256) for file in files}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Every version of a run without a death: more than a run can come to that is watched until it has enough."""
    folder = tmp_path_factory.mktemp("calm")
    config = settings(records_kept=1000)
    (folder / "run.toml").write_text(run_config.dumps(config))
    a_life(folder, config, [], 0, "before", 2 * COMMITS)
    store = RunStore(LocalPlace(folder / "run" / "store"))
    files = [file for n in range(1, store.newest_number() + 1) for file in store.read(n).record.fragments]
    return {(file.fragment, file.version): (file.digest, file.sha256) for file in files}


def check_death(folder: Path, calm: Stored, fatal: int, moment: str) -> bool:
    """A run whose syncer dies so, and the one that goes on with it; returns whether anything was told before."""
    folder.mkdir()
    config = settings()
    (folder / "run.toml").write_text(run_config.dumps(config))
    told: list[VersionNotice] = []
    a_life(folder, config, told, fatal, moment)
    left = stored(folder)
    assert left.items() <= calm.items(), "values or momentum are not those of the version"
    before = list(told)
    served = a_life(folder, config, told, 0, moment)
    assert {(notice.fragment, notice.version): notice.digest for notice in served} == {
        key: digest for key, (digest, _) in left.items()
    }
    versions = {notice.fragment: notice.version for notice in served}
    assert all(versions[notice.fragment] >= notice.version for notice in before), "what was told is lost"
    assert all(calm[notice.fragment, notice.version][0] == notice.digest for notice in told)
    end = stored(folder)
    assert end.items() <= calm.items() and sum(version for _, version in end) >= COMMITS
    return bool(before)


@pytest.mark.parametrize(
    ("fatal", "moment"),
    [(2, "after"), (12, "half-way"), (33, "before"), (47, "after"), (60, "half-way"), (111, "before")],
)
def test_a_syncer_that_dies_at_a_write_loses_nothing_that_was_told(
    fatal: int, moment: str, tmp_path: Path, calm: Stored
) -> None:
    """C28: there is the old version or the new one, never a mix."""
    assert check_death(tmp_path / "death", calm, fatal, moment) or fatal < 111


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("moment", FailingDisk.MOMENTS)
def test_a_syncer_that_dies_at_any_of_its_first_writes_loses_nothing_that_was_told(
    moment: str, tmp_path: Path, calm: Stored
) -> None:
    told = 0
    for fatal in range(1, 61):
        told += check_death(tmp_path / str(fatal), calm, fatal, moment)
        print(f"death {moment} write {fatal}: {told} of them had told anything", flush=True)
    assert 0 < told < 60
