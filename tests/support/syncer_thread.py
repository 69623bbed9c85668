"""A live syncer whose event loop runs in a thread, for tests that are threads or processes themselves.

Decides nothing: ``live_run.live_syncer`` with a place to run in.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.live_run import WAIT_S, LiveSyncer, live_syncer
from unlockstep.config import RunConfig
from unlockstep.net.access.limits import Limits
from unlockstep.net.access.security import OPEN, ServerSecurity


@dataclass(frozen=True)
class SyncerThread:
    """A syncer that listens, and the way to ask its event loop for something."""

    live: LiveSyncer
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return self.live.url

    def do(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """The result of a coroutine that runs in the syncer's event loop."""

        async def run() -> Any:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_S)


@contextmanager
def syncer_thread(
    config: RunConfig, folder: Path, *, security: ServerSecurity = OPEN, limits: Limits | None = None
) -> Iterator[SyncerThread]:
    """A syncer on loopback, gone when the block ends."""
    started: Future[SyncerThread] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        try:
            async with live_syncer(config, folder, security=security, limits=limits) as live:
                loop = asyncio.get_running_loop()
                ends.append(lambda: loop.call_soon_threadsafe(over.set))
                started.set_result(SyncerThread(live, loop))
                await over.wait()
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    ends: list[Callable[[], object]] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="test-syncer", daemon=True)
    thread.start()
    try:
        yield started.result(WAIT_S)
    finally:
        for end in ends:
            end()
        thread.join(WAIT_S)
        assert not thread.is_alive(), "the syncer does not end"
