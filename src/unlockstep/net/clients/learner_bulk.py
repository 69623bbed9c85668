"""A learner's bulk: what its core wants carried becomes jobs of the courier, and what comes of them its messages.

::

    Upload, Resend ──> contribute ──> UploadArrived, UploadFailed    Fetch      ──> fetch      ──> Fetched, FetchFailed
    UploadSeed     ──> seed       ──> SeedStored, or a hang-up       FetchState ──> take_state ──> StateFetched, ...
    TakeState      ──> give_state ──> StateNotTaken, or nothing

Decides how many transfers run side by side, what an answer to an upload means, that one without an answer has failed
only once it is known whether its link is cut, and that all are given up when another syncer leads. Does not decide how
a body is made or travels (``net.courier``), nor what is asked for (the core).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from unlockstep.core.actions import FetchState
from unlockstep.core.chunks import Float32
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.formats import Packing
from unlockstep.core.messages import (
    Fetched,
    FetchFailed,
    HandedOver,
    HostFailed,
    LearnerInput,
    SeedStored,
    StateFetched,
    StateFetchFailed,
    StateNotTaken,
    UploadArrived,
    UploadFailed,
    VersionNotice,
)
from unlockstep.learners.state_body import Donated
from unlockstep.loop import Contribution
from unlockstep.net.courier.courier import Courier
from unlockstep.net.courier.jobs import Answered
from unlockstep.net.wire import api

UPLOADS_AT_ONCE_MAX = 2
FETCHES_AT_ONCE_MAX = 4

_log = logging.getLogger(__name__)


class LearnerBulk:
    """Of one learner. Everything but ``take``, ``take_state`` and ``discard`` is called in its link's event loop.

    Args:
        run: name of the run.
        packing: of its contributions.
        courier: who carries.
        tasks: where transfers run: a bug in one of them ends the link.
        deliver: is told what becomes of it.
        hang_up: ends the control connection, so that a learner that has to seed begins anew.
        link_is_known: returns once it would be known if the link were cut by now.
    """

    def __init__(
        self,
        run: str,
        packing: Packing,
        courier: Courier,
        tasks: asyncio.TaskGroup,
        deliver: Callable[[LearnerInput], None],
        hang_up: Callable[[], None],
        link_is_known: Callable[[], Awaitable[None]],
    ) -> None:
        self._run = run
        self._packing = packing
        self._courier = courier
        self._tasks = tasks
        self._deliver = deliver
        self._hang_up, self._link_is_known = hang_up, link_is_known
        self._upload_places = asyncio.Semaphore(UPLOADS_AT_ONCE_MAX)
        self._fetch_places = asyncio.Semaphore(FETCHES_AT_ONCE_MAX)
        self._handing_over: dict[HandedOver, Contribution] = {}
        """Each at its newest attempt: what becomes of an earlier one is of no interest."""
        self._payloads = itertools.count()
        self._arrived: dict[int, Float32] = {}
        self._states: dict[int, Donated] = {}
        self._transfers: set[asyncio.Task[None]] = set()
        self._state_transfers: set[asyncio.Task[None]] = set()
        """Of states, up and down: large, and nobody waits for them at the end."""
        self._is_closing = False
        self._url = ""
        self.reader = api.ReaderQuery()
        """Who this learner is, as far as it knows: bytes that pass are a sign of its life."""

    # ------------------------------------------------------------------------------------------- what is wanted

    def upload(self, contribution: Contribution) -> None:
        """See ``loop.Link``."""
        self._begin(self._upload(contribution), self._transfers)

    def forget(self, handed_over: HandedOver) -> None:
        """See ``loop.Link``."""
        if not self._is_closing:
            self._handing_over.pop(handed_over, None)
            self._courier.forget(handed_over)

    def upload_seed(self, sender: api.SeedQuery, fragment: int, values: Float32) -> None:
        """See ``loop.Link``."""
        self._begin(self._upload_seed(sender, fragment, values), self._transfers)

    def fetch(self, notice: VersionNotice) -> None:
        """See ``loop.Link``."""
        self._begin(self._fetch(notice), self._transfers)

    def upload_state(self, sender: api.StateQuery, ticket: int, donated: Donated) -> None:
        """See ``loop.Link``."""
        self._begin(self._upload_state(sender, ticket, [donated]), self._state_transfers)

    def fetch_state(self, action: FetchState) -> None:
        """See ``loop.Link``."""
        self._begin(self._fetch_state(action), self._state_transfers)

    def take(self, payload: int) -> Float32:
        """See ``loop.Link``. From any thread."""
        return self._arrived.pop(payload)

    def take_state(self, payload: int) -> Donated:
        """See ``loop.Link``. From any thread."""
        return self._states.pop(payload)

    def discard(self, payload: int) -> None:
        """See ``loop.Link``. From any thread."""
        self._arrived.pop(payload, None)
        self._states.pop(payload, None)

    # ------------------------------------------------------------------------------------------- all of it

    def turn_to(self, url: str) -> None:
        """The syncer is here. If another one led before, which may be frozen, what is under way to it is given up."""
        if self._url not in ("", url):
            self._give_up()
        if self._url != url:
            self._courier.turn_to(url)
        self._url = url

    def when_arrived(self, then: Callable[[], None], timeout_s: float) -> None:
        """Call this when what is under way now has arrived, or the time is over."""

        async def wait_and_call() -> None:
            await self.arrive(timeout_s)
            then()

        self._begin(wait_and_call(), self._transfers)

    async def arrive(self, timeout_s: float | None = None) -> None:
        """Wait for what is under way now, but for states of learners."""
        under_way = self._transfers - {asyncio.current_task()}
        if under_way:
            await asyncio.wait(under_way, timeout=timeout_s)

    def close(self) -> None:
        """Give up whatever is under way; nobody is told any more."""
        self._is_closing = True
        self._give_up()

    def _give_up(self) -> None:
        for task in (*self._transfers, *self._state_transfers):
            task.cancel()

    def _begin(self, transfer: Coroutine[Any, Any, None], transfers: set[asyncio.Task[None]]) -> None:
        if self._is_closing:
            transfer.close()
            return
        task = self._tasks.create_task(transfer)
        transfers.add(task)
        task.add_done_callback(transfers.discard)

    # ------------------------------------------------------------------------------------------- each

    async def _upload(self, contribution: Contribution) -> None:
        c = contribution
        handed_over = HandedOver(c.round, c.fragment, c.tokens)
        self._handing_over[handed_over] = c
        path = api.contribution_path(self._run, c.round, c.learner, c.incarnation)
        query = _query(
            api.ContributionQuery(c.run_id, c.fragment, c.base_version, c.codec, self._packing),
            api.CountsQuery(c.c_steps, c.c_tokens, c.tokens, c.position, c.samples, c.steps, c.deed),
        )
        status = 0
        try:
            async with self._upload_places:
                if self._handing_over.get(handed_over) is c:  # else it need not travel any more
                    answer = await self._courier.contribute(c, path, query)
                    status = _noted(answer, path)
            if not status:  # What is told while the syncer is away is handed over once more; otherwise it is dropped.
                await self._link_is_known()
        finally:
            is_newest = self._handing_over.get(handed_over) is c
            if is_newest:
                del self._handing_over[handed_over]
            if is_newest and not self._is_closing:
                if status in api.CONTRIBUTION_TAKEN:
                    self._deliver(UploadArrived(c.round, c.fragment, c.tokens))
                else:
                    self._deliver(UploadFailed(c.round, c.fragment, c.c_tokens, c.tokens))

    async def _upload_seed(self, sender: api.SeedQuery, fragment: int, values: Float32) -> None:
        path = api.version_path(self._run, fragment, 0)
        async with self._upload_places:
            status = _noted(await self._courier.seed(fragment, values, path, _query(sender)), path)
        if status in api.SEED_TAKEN:
            self._deliver(SeedStored(fragment))
        elif status in api.SEED_UNFIT:
            self._deliver(HostFailed(f"the syncer cannot take fragment {fragment} of the model as version 0"))
        else:
            self._hang_up()

    async def _fetch(self, notice: VersionNotice) -> None:
        try:
            async with self._fetch_places:
                values = await self._courier.fetch(notice, _query(self.reader))
        except (OSError, RemoteProtocolError) as error:
            _log.info("version %d of fragment %d was not fetched: %s", notice.version, notice.fragment, error)
            self._deliver(FetchFailed(notice.fragment, notice.version))
            return
        payload = next(self._payloads)
        self._arrived[payload] = values
        self._deliver(Fetched(notice.fragment, notice.version, notice.digest, payload))

    async def _upload_state(self, sender: api.StateQuery, ticket: int, donated: list[Donated]) -> None:
        """It takes no upload's place, so that no round waits for it."""
        path = api.state_path(self._run, ticket)
        status = 0
        try:
            status = _noted(await self._courier.give_state(donated, path, _query(sender)), path)
        finally:
            if status != api.STATE_TAKEN and not self._is_closing:
                self._deliver(StateNotTaken(ticket))

    async def _fetch_state(self, action: FetchState) -> None:
        donated = None
        try:
            path = api.state_path(self._run, action.ticket)
            donated = await self._courier.take_state(path, _query(self.reader), action.size_bytes, action.digest)
        except (OSError, RemoteProtocolError) as error:
            _log.warning("the state of another learner was not fetched: %s", error)
        finally:
            if donated is None and not self._is_closing:
                self._deliver(StateFetchFailed(action.ticket))
        if donated is not None:
            payload = next(self._payloads)
            self._states[payload] = donated
            self._deliver(StateFetched(action.ticket, donated.notices, donated.clock, payload, donated.of))


def _query(*parts: msgspec.Struct) -> dict[str, str]:
    return {name: str(value) for part in parts for name, value in msgspec.to_builtins(part).items()}


def _noted(answer: Answered, path: str) -> int:
    """The status, which is logged if it is a refusal."""
    if answer.status >= 400 or not answer.status:
        _log.warning("an upload to %s was refused (status %d): %s", path, answer.status, answer.sentence)
    return answer.status
