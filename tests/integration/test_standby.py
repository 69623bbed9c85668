"""A second syncer on the same store, with real processes: the first one freezes or dies, the second one goes on."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import commands
from support.commands import Start, url_of
from support.live_run import WAIT_S, layout_of, small_config
from support.toy_site import toy_site
from unlockstep import config as run_config
from unlockstep import runlog
from unlockstep.checkers import check
from unlockstep.cli import exits
from unlockstep.config import Durability, DurabilitySection, RunConfig, RunSection
from unlockstep.core.errors import UsageError
from unlockstep.core.events import FragmentCommitted, RunFinished, SyncerResumed
from unlockstep.core.status import Status
from unlockstep.learners.toy import ToyBackend
from unlockstep.net.clients.observer import Observer, read_status

LEASE_S = 0.5

until = functools.partial(commands.until, timeout_s=WAIT_S)
finished = functools.partial(commands.ended, timeout_s=WAIT_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``unlockstep syncer`` with these arguments; none of them outlives the test."""
    with commands.commands() as run:
        yield functools.partial(run, "syncer", "--run-dir", str(tmp_path / "run"))


def settings(folder: Path, durability: DurabilitySection | None = None, steps: int = 10**6) -> tuple[RunConfig, str]:
    durability = durability or DurabilitySection(lease_s=LEASE_S)
    config = small_config(run=RunSection(name="small", steps=steps), durability=durability)
    path = folder / "given.toml"
    path.write_text(run_config.dumps(config))
    return config, str(path)


@pytest.mark.parametrize("fate", [signal.SIGSTOP, signal.SIGKILL])
def test_a_standby_goes_on_when_the_leader_freezes_or_dies(start: Start, tmp_path: Path, fate: signal.Signals) -> None:
    config, given = settings(tmp_path)
    leader = start("--config", given, "--listen", "127.0.0.1:0")
    first = url_of(leader)
    standby = start("--standby", "--listen", "127.0.0.1:0")
    second = url_of(standby)
    with pytest.raises(UsageError, match=f"stands by; the syncer that leads is at {first}"):
        until_known(second)
    with toy_site(f"{first},{second}", config, 2) as learners:
        before = until(first, lambda status: status.rounds_committed >= 5)
        os.kill(leader.pid, fate)
        until(second, lambda status: status.rounds_committed >= before.rounds_committed + 10 and live(status) == 2)
        if fate is signal.SIGSTOP:
            os.kill(leader.pid, signal.SIGCONT)
            code, said = finished(leader)
            assert code == exits.FAILED
            assert f"another syncer at {second} has taken over run 'small'; this one steps down" in said
        after = read_status(second, "small")
        until(second, lambda status: status.rounds_committed >= after.rounds_committed + 5)
        assert all(learner.lives == {1, 2} for learner in learners)
        told = learners[0].told | learners[1].told
        standby.send_signal(signal.SIGTERM)
        assert finished(standby)[0] == exits.SIGNALLED + signal.SIGTERM

    _, events = runlog.read(tmp_path / "run" / "run.jsonl")
    assert check(events, config.protocol, timer_ns=10**9, transfer_ns=10**10) == []
    assert [event.life for event in events if isinstance(event, SyncerResumed)] == [2]
    committed = {(e.fragment, e.version): e.digest for e in events if isinstance(e, FragmentCommitted)}
    assert {key: digest for key, digest in told.items() if key[1] > 0}.items() <= committed.items()
    (end,) = [event for event in events if isinstance(event, RunFinished)]
    assert end.ledger is not None and end.ledger.in_flight == 0


def test_a_syncer_that_is_hung_up_on_leaves_the_run_to_whoever_goes_on_with_it(start: Start, tmp_path: Path) -> None:
    config, given = settings(tmp_path)
    first = start("--config", given, "--listen", "127.0.0.1:0")
    url = url_of(first)
    with toy_site(url, config, 2) as learners:
        before = until(url, lambda status: status.rounds_committed >= 5)
        first.send_signal(signal.SIGHUP)
        code, said = finished(first)
        assert code == exits.SIGNALLED + signal.SIGHUP
        assert f"leaves run small as it is, and learners train on; --run-dir {tmp_path / 'run'} goes on with it" in said
        second = start("--listen", url.removeprefix("http://"))
        assert url_of(second) == url
        until(url, lambda status: status.rounds_committed >= before.rounds_committed + 10 and live(status) == 2)
        assert all(learner.lives == {1, 2} for learner in learners)
        second.send_signal(signal.SIGTERM)
        assert finished(second)[0] == exits.SIGNALLED + signal.SIGTERM

    _, events = runlog.read(tmp_path / "run" / "run.jsonl")
    assert check(events, config.protocol, timer_ns=10**9, transfer_ns=10**10) == []


def live(status: Status) -> int:
    return sum(learner.state == "live" for learner in status.learners)


def until_known(url: str) -> None:
    """Asks a standby until it has seen the leader's first sign of life; then it says so."""
    end_s, pause = time.monotonic() + WAIT_S, threading.Event()
    while time.monotonic() < end_s:
        try:
            read_status(url, "small")
        except UsageError as error:
            if "leads is at" in str(error):
                raise
        pause.wait(commands.LOOK_S)
    raise AssertionError("the standby never heard of the leader")


def test_a_standby_whose_run_comes_to_its_end_has_done_what_it_was_asked_to(start: Start, tmp_path: Path) -> None:
    config, given = settings(tmp_path, steps=20)
    leader = start("--config", given, "--listen", "127.0.0.1:0")
    first = url_of(leader)
    standby = start("--standby", "--listen", "127.0.0.1:0")
    url_of(standby)
    with toy_site(first, config, 1):
        assert finished(leader)[0] == exits.DONE
    code, said = finished(standby)
    assert code == exits.DONE
    assert "run 'small' has finished; there is nothing to take over" in said


def test_a_syncer_killed_before_its_last_versions_were_fetched_brings_the_end_about_once_more(
    start: Start, tmp_path: Path
) -> None:
    """C28: the model of a run that has finished is not lost because nobody had it yet."""
    config, given = settings(tmp_path, steps=20)
    leader = start("--config", given, "--listen", "127.0.0.1:0")
    first = url_of(leader)

    async def watched_to_the_end() -> None:
        layout = layout_of(ToyBackend(), config)
        async with Observer(first, "small", "watcher", layout, config.codec.download):
            with toy_site(first, config, 2):
                await asyncio.to_thread(until, first, lambda status: status.state == "finished")
            os.kill(leader.pid, signal.SIGKILL)

    asyncio.run(watched_to_the_end())
    finished(leader)
    again = start("--listen", "127.0.0.1:0")
    until(url_of(again), lambda status: status.state == "finished")
    code, said = finished(again)
    assert code == exits.DONE, said
    _, events = runlog.read(tmp_path / "run" / "run.jsonl")
    assert check(events, config.protocol, timer_ns=10**9, transfer_ns=10**10) == []
    once, twice = [event for event in events if isinstance(event, RunFinished)]
    assert (twice.versions, twice.ledger) == (once.versions, once.ledger)
    code, said = finished(start("--listen", "127.0.0.1:0"))
    assert (code, "has finished at clock" in said) == (exits.USAGE, True)


def test_a_second_syncer_is_refused_while_the_first_one_leads(start: Start, tmp_path: Path) -> None:
    _, given = settings(tmp_path)
    leader = start("--config", given, "--listen", "127.0.0.1:0")
    url = url_of(leader)
    code, said = finished(start("--listen", "127.0.0.1:0"))
    assert code == exits.USAGE
    assert f"the syncer at {url} leads this run; stop it first, or start this one with --standby" in said
    leader.send_signal(signal.SIGTERM)
    assert finished(leader)[0] == exits.SIGNALLED + signal.SIGTERM


def test_a_folder_is_resumed_at_once_after_a_kill_and_not_with_other_settings(start: Start, tmp_path: Path) -> None:
    config, given = settings(tmp_path)
    leader = start("--config", given, "--listen", "127.0.0.1:0")
    url = url_of(leader)
    with toy_site(url, config, 1):
        seen = until(url, lambda status: sum(status.versions) >= 3)
        leader.kill()
        leader.wait()
    for also in ((), ("--standby",)):
        code, said = finished(start("--set", "run.seed=5", "--listen", "127.0.0.1:0", *also))
        assert code == exits.USAGE
        assert "leave out --config and --set to resume it" in said
    again = start("--listen", "127.0.0.1:0")
    resumed = until(url_of(again), lambda status: True)
    assert resumed.state == "running"
    assert all(after >= before for after, before in zip(resumed.versions, seen.versions, strict=True))
    again.send_signal(signal.SIGTERM)
    assert finished(again)[0] == exits.SIGNALLED + signal.SIGTERM
    once_more = start("--listen", "127.0.0.1:0")  # It was stopped, which is not the end (C44).
    assert until(url_of(once_more), lambda status: True).state == "running"


def test_under_interval_at_most_so_many_commits_are_lost_and_learners_load_what_is_left(
    start: Start, tmp_path: Path
) -> None:
    durability = DurabilitySection(mode=Durability.INTERVAL, interval_commits=6, lease_s=LEASE_S)
    config, given = settings(tmp_path, durability)
    leader = start("--config", given, "--listen", "127.0.0.1:0")
    url = url_of(leader)
    port = url.rpartition(":")[2]
    with toy_site(url, config, 2) as learners:
        until(url, lambda status: sum(status.versions) >= 20)
        leader.kill()
        leader.wait()
        told = learners[0].told | learners[1].told
        again = start("--listen", f"127.0.0.1:{port}")
        resumed = until(url_of(again), lambda status: True)
        newest = [max(version for at, version in told if at == fragment) for fragment in range(2)]
        lost = sum(newest) - sum(resumed.versions)
        assert 0 <= lost <= durability.interval_commits
        until(url, lambda status: sum(status.versions) >= sum(newest) + 10 and live(status) == 2)
        again.send_signal(signal.SIGTERM)
        finished(again)
    _, events = runlog.read(tmp_path / "run" / "run.jsonl")
    assert check(events, config.protocol, timer_ns=10**9, transfer_ns=10**10) == []
