"""An evaluator whose syncer goes away: it connects again, and what the syncer then says is newest counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec
import numpy as np
import pytest

from support.gates import refusals, secured
from support.live_run import WAIT_S, layout_of, live_syncer, small_config
from unlockstep.cli.evaluator import Line, Replica
from unlockstep.cli.exits import RunFailed
from unlockstep.core.errors import UsageError
from unlockstep.core.events import FragmentCommitted
from unlockstep.core.layout import Layout, LayoutMethod
from unlockstep.core.messages import EndRun
from unlockstep.learners.toy import ToyBackend
from unlockstep.net.access.limits import Limits
from unlockstep.net.access.security import NO_SECURITY
from unlockstep.net.clients import sessions

CONFIG = small_config()
LAYOUT = layout_of(ToyBackend(), CONFIG)


async def until(replica: Replica, is_so: Callable[[], bool]) -> None:
    """Wait for news until it is so."""
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            await replica.news.wait()
            replica.news.clear()


def test_what_a_syncer_that_is_back_says_is_newest_counts(tmp_path: Path) -> None:
    """This one forgets everything, as one that saves only now and then forgets the last commits."""

    async def run() -> None:
        replica = Replica(LAYOUT.fragment_count)
        async with aiohttp.ClientSession() as session:
            async with live_syncer(CONFIG, tmp_path) as live:
                line = Line(CONFIG, live.url, "eval", NO_SECURITY)
                following = asyncio.create_task(replica.follow(line, LAYOUT))
                learner = live.puppet(session, "a")
                pull = await learner.start()
                await learner.contribute(pull, learner.body(pull.fragment, 1.0))
                await live.log.until(FragmentCommitted)
                await until(replica, lambda: replica.versions == (1, 0))
                replica.is_new = False
            port = urlsplit(live.url).port
            assert port is not None
            async with live_syncer(CONFIG, tmp_path, port) as live:
                learner = live.puppet(session, "a")
                assert (await learner.join()).seed
                await learner.seed(2.0)
                await until(replica, lambda: all(np.all(values == 2.0) for values in replica.values.values()))
                assert replica.is_new and replica.versions == (0, 0)
                assert not replica.over.is_set()
                live.service.receive(EndRun("enough"))
                await learner.socket.close()
                async with asyncio.timeout(WAIT_S):
                    await replica.over.wait()
                    replica.has_been_told.set()
                    await following

    asyncio.run(run())


def test_an_evaluator_gives_up_in_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as live:
            pass
        impatient = small_config(protocol=msgspec.structs.replace(CONFIG.protocol, away_s_max=1.0))
        line = Line(impatient, live.url, "eval", NO_SECURITY)
        with pytest.raises(RunFailed, match=r"run 'small' was over and has not come back for 1 s .*; start the eval"):
            await Replica(LAYOUT.fragment_count).follow(line, LAYOUT)

    asyncio.run(run())


def test_another_model_is_not_waited_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as live, aiohttp.ClientSession() as session:
            learner = live.puppet(session, "a")
            await learner.join()
            line = Line(CONFIG, live.url, "eval", NO_SECURITY)
            with pytest.raises(UsageError, match=r"model.spec is 'llama-tiny' but the learners of run 'small' train"):
                await Replica(2).follow(line, Layout((), LayoutMethod.BALANCED))

    asyncio.run(run())


# ----------------------------------------------------------------------------------------------- who is not accepted


@pytest.mark.parametrize(
    ("token", "sentence"),
    [("learner", "does not allow this with the token shown"), ("observer", "does not give versions to this observer")],
)
def test_an_evaluator_with_a_token_of_another_role_says_so_and_ends(token: str, sentence: str, tmp_path: Path) -> None:
    """At its first connection, or at the first version that it asks for."""

    async def run() -> None:
        async with secured(tmp_path, config=CONFIG) as at, at.session("learner") as session:
            await at.syncer.puppet(session, "a").start()
            line = Line(CONFIG, at.syncer.url, "eval", at.secrets.client(token))
            with pytest.raises(UsageError, match=sentence):
                await Replica(LAYOUT.fragment_count).follow(line, LAYOUT)

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_an_evaluator_whose_token_is_taken_away_says_so_once_and_returns_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "REFUSED_S", 0.02)

    async def run() -> None:
        async with secured(tmp_path, Limits(sweep_s=0.02), CONFIG) as at, at.session("learner") as session:
            await at.syncer.puppet(session, "a").start()
            replica = Replica(LAYOUT.fragment_count)
            line = Line(CONFIG, at.syncer.url, "eval", at.secrets.client("evaluator"))
            following = asyncio.create_task(replica.follow(line, LAYOUT))
            await until(replica, lambda: replica.versions == (0, 0))
            tokens = (at.secrets.folder / "tokens.toml").read_text()
            at.change_tokens(tokens, "")
            while sum("GET /v1/runs/small/control" in sentence for _, sentence in refusals(tmp_path)) < 3:
                assert not following.done()
                await asyncio.sleep(0)
            (at.secrets.folder / "tokens.toml").write_text(tokens)
            while "connected again after" not in caplog.text:
                assert not following.done()
                await asyncio.sleep(0)
            following.cancel()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    assert caplog.text.count("does not accept the token shown") == 1
    assert "(in Python: token=); trying again" in caplog.text
