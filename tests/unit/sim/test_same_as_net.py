"""A simulated learner is as patient as a real one: ``sim`` and ``net`` may not see each other."""

from __future__ import annotations

from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.clients import learner as learner_client
from unlockstep.net.wire import timeouts
from unlockstep.sim import learner_host


def test_pauses_are_those_of_the_real_client() -> None:
    assert learner_host.BACKOFF_NS_MIN == timeouts.BACKOFF_S_MIN * NANOSECONDS_PER_SECOND
    assert learner_host.BACKOFF_NS_MAX == timeouts.BACKOFF_S_MAX * NANOSECONDS_PER_SECOND
    assert learner_host.FLUSH_NS_MAX == learner_client.FLUSH_S_MAX * NANOSECONDS_PER_SECOND
