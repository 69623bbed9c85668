"""Two processes under one name: whoever has come last goes on, and the one before ends and stays away."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from support.live_run import WAIT_S, LiveSyncer, learner, live_syncer, small_config
from unlockstep.config import RunSection
from unlockstep.core.events import LearnerDeparted, StepReported
from unlockstep.core.reasons import DepartureReason
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import LearnerLoop
from unlockstep.net.clients.learner import LearnerClient

ENDLESS = small_config(run=RunSection(name="small", steps=10**6))


class Process:
    """What one process of a learner is made of."""

    def __init__(self, syncer: LiveSyncer) -> None:
        self._backend = ToyBackend()
        self._client: LearnerClient
        self.loop: LearnerLoop
        self._client, self.loop = learner(syncer.url, syncer.config, "a", self._backend)
        self._client.start(self.loop)

    def trains(self, steps: int) -> None:
        for _ in range(steps):
            assert self.loop.wait_until_may_step(WAIT_S), self.loop.done
            self.loop.finish_step(self._backend.inner_step(self.loop.clock))

    def ends(self) -> str:
        """Why."""
        while self.loop.done is None:
            self.loop.wait_until_may_step(0.05)
        assert self.loop.done.failed
        return self.loop.done.reason

    def close(self) -> None:
        self._client.close()


def test_the_newest_of_one_name_goes_on_and_the_one_before_stays_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def story(syncer: LiveSyncer) -> None:
        first = Process(syncer)
        first.trains(3)
        second = Process(syncer)
        try:
            second.trains(1)
            syncer.log.wait(LearnerDeparted, learner="a", incarnation=1, reason=DepartureReason.SUPERSEDED)
            assert first.ends() == "another process has joined under the name a"
            second.trains(5)
            syncer.log.wait(StepReported, learner="a", incarnation=2, steps=6)
            first.close()  # Waits for its thread, so that all it had to say is said.
            second.trains(1)
            syncer.log.wait(StepReported, learner="a", incarnation=2, steps=7)
            assert second.loop.done is None
        finally:
            second.close()
        assert "connecting again" not in caplog.text

    async def run() -> None:
        async with live_syncer(ENDLESS, tmp_path) as syncer:
            await asyncio.to_thread(story, syncer)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
