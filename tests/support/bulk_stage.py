"""A syncer on loopback and one learner that is asked for a contribution: what tests of bulk transfer begin with.

Decides nothing. A body of the toy model has 512 bytes, so chunks are small here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from support.live_run import WAIT_S, LiveSyncer, Puppet, live_syncer, small_config
from unlockstep.core.messages import Pull
from unlockstep.net.bulk.client import Answer
from unlockstep.net.wire import api

BODY_BYTES = 512

TAKEN = Answer(202, "")


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[tuple[LiveSyncer, Puppet, Pull]]:
    """A syncer, and a learner that is asked for a contribution."""
    async with live_syncer(small_config(), folder) as syncer, aiohttp.ClientSession() as session:
        learner = syncer.puppet(session, "l0")
        yield syncer, learner, await learner.start()


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test; pytest sees an ordinary one."""

    def run(tmp_path: Path, **parameters: Any) -> None:
        asyncio.run(asyncio.wait_for(test(tmp_path, **parameters), 2 * WAIT_S))

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run


def place(learner: Puppet, pull: Pull) -> tuple[str, dict[str, str]]:
    """Where a contribution of one step goes."""
    query = {
        "run_id": learner.run_id,
        "fragment": pull.fragment,
        "base_version": 0,
        "codec": pull.codec.value,
        "c_steps": 1,
        "c_tokens": 10,
        "tokens": learner.steps_taken * 10,
    }
    path = api.contribution_path("small", pull.round, learner.name, learner.incarnation)
    return path, {name: str(value) for name, value in query.items()}
