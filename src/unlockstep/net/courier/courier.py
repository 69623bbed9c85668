"""A learner's courier: it has bulk carried where it cannot slow the training thread, nor be starved by it.

::

    link thread ── contribute, fetch, ... ──> Courier ── job, parcel ──> Carrier ──> Porter, in a process of its own
                                                └─> worker threads: subtract, copy           or in threads of this one

Decides what is computed here (the outer gradient, and copies: the arrays would have to travel otherwise) and what
becomes of a job whose carrier dies under it. Does not decide what a job is made of (``porter``), which jobs there are
(``net.clients.learner``), or how a process is kept alive (``child``).
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from unlockstep.config import CodecSection
from unlockstep.core.chunks import Float32
from unlockstep.core.codec import fragment_codecs
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.layout import Layout
from unlockstep.core.messages import HandedOver, VersionNotice
from unlockstep.core.outer_gradient import outer_gradient
from unlockstep.learners.state_body import Donated, decode_state, encode_state
from unlockstep.loop import Contribution
from unlockstep.net.courier.jobs import (
    Answered,
    Contribute,
    Failed,
    Fetch,
    GiveState,
    Job,
    Laid,
    Result,
    Seed,
    Setting,
    TakeState,
)
from unlockstep.net.courier.memory_files import Bytes, MemoryFile
from unlockstep.net.courier.porter import Porter, connector, fetch_size
from unlockstep.net.wire import api
from unlockstep.net.wire.link_meter import LinkMeter
from unlockstep.net.wire.timeouts import Timeouts

WORKERS = 2

SMALL_BYTES = 4 * 1024 * 1024
"""Up to so many are computed with at once, in a quarter of a millisecond: to hand the work to another thread would cost
the training thread more, as both have to wait for the interpreter lock."""

LIVES_MAX = 2
"""Carriers that may die under one job: it may be the job that kills them."""

NOBODY = -1
"""Number of a job that no carrier has answered."""

LARGE = float("inf")
"""Of what is always computed with in a worker."""

THREADS_MAX = 16
"""Jobs at once in threads of this process. Whoever asks allows fewer."""

Outcome = TypeVar("Outcome")

MakeJob: TypeAlias = Callable[[int, int, Timeouts], Job]
"""Of its number, the size of its memory, and the deadlines of the link."""


def memory_bytes(layout: Layout, codec: CodecSection) -> int:
    """What the largest fragment needs in memory while it is carried, up or down."""
    return max(fetch_size(each) for each in fragment_codecs(layout, codec.download))


class CarrierDied(ConnectionError):
    """It is gone, and what it was about with it."""


@dataclass(slots=True)
class Parcel:
    """The memory of one job."""

    bytes: Bytes
    file: MemoryFile | None = None
    """What it is part of, where another process is to see it."""

    def floats(self, count: int, offset: int = 0) -> Float32:
        """float32[count], without a copy."""
        return self.bytes[offset : offset + 4 * count].view(np.float32)


def own_memory(size: int) -> Parcel:
    """Memory of this process alone, in bytes. Raises OSError if there is no room for it: how much is asked for may be
    what a syncer has said."""
    try:
        return Parcel(np.empty(size, np.uint8))
    except MemoryError:
        raise OSError(errno.ENOMEM, f"there is no room for {size} bytes") from None


class Carrier(Protocol):
    """Who has a ``Porter`` carry out jobs. Called in the event loop, but for ``pack`` and ``unpack``."""

    async def open(self) -> None:
        """Begin."""
        ...

    def pack(self, size: int) -> Parcel:
        """Memory for a job, in bytes. Raises OSError if there is no room for it."""
        ...

    async def carry(self, job: Job, parcel: Parcel) -> Result:
        """Raises CarrierDied; the parcel is as it was then."""
        ...

    def unpack(self, parcel: Parcel, offset: int, count: int) -> Float32:
        """float32[count] in memory of this process alone; the parcel is used up."""
        ...

    def take_back(self, parcel: Parcel) -> None:
        """Its job has ended, and nobody needs what is in it."""
        ...

    def forget(self, handed_over: HandedOver) -> None:
        """A contribution is settled: nothing of it need be kept."""
        ...

    def turn_to(self, url: str) -> None:
        """Another syncer leads. What is under way to the one before is given up."""
        ...

    async def close(self) -> None:
        """Give up what is under way, and end."""
        ...


class Courier:
    """Of one learner. Everything is called in its link's event loop.

    Args:
        setting: the run, the model and the syncer.
        layout: the same as in ``setting``.
        carrier: who carries.
        meter: of the link; what it knows goes with every job, and comes back with what has passed.
    """

    def __init__(self, setting: Setting, layout: Layout, carrier: Carrier, meter: LinkMeter) -> None:
        self._run = setting.run
        self._layout = layout
        self._downloads = fragment_codecs(layout, setting.codec.download)
        self._carrier = carrier
        self._meter = meter
        self._workers = ThreadPoolExecutor(WORKERS, "unlockstep-bulk")
        self._numbers = itertools.count()

    async def open(self) -> None:
        """Begin."""
        await self._carrier.open()

    async def close(self) -> None:
        """Give up what is under way, and end."""
        await self._carrier.close()
        self._workers.shutdown(wait=True, cancel_futures=True)

    def turn_to(self, url: str) -> None:
        """Another syncer leads. What is under way to the one before is given up."""
        self._carrier.turn_to(url)

    # ------------------------------------------------------------------------------------------- up

    async def contribute(self, made: Contribution, path: str, query: dict[str, str]) -> Answered:
        """Upload ``anchor - local``, float32[n]. Status 0: it has not arrived, as far as is known."""
        key = made.run_id, made.learner, made.round, made.fragment, made.tokens, made.loads, made.codec

        def pack() -> Parcel:
            parcel = self._carrier.pack(4 * made.local.size)
            outer_gradient(made.anchor, made.local, out=parcel.floats(made.local.size))
            return parcel

        def make(number: int, size: int, timeouts: Timeouts) -> Contribute:
            return Contribute(number, size, timeouts, *key, path, query)

        return await self._send(4 * made.local.size, pack, make)

    def forget(self, handed_over: HandedOver) -> None:
        """A contribution is settled, and will not be uploaded again."""
        self._carrier.forget(handed_over)

    async def seed(self, fragment: int, values: Float32, path: str, query: dict[str, str]) -> Answered:
        """Upload version 0 of a fragment, float32[n]."""

        def pack() -> Parcel:
            parcel = self._carrier.pack(4 * values.size)
            np.copyto(parcel.floats(values.size), values)
            return parcel

        def make(number: int, size: int, timeouts: Timeouts) -> Seed:
            return Seed(number, size, timeouts, fragment, path, query)

        return await self._send(4 * values.size, pack, make)

    async def give_state(self, donated: list[Donated], path: str, query: dict[str, str]) -> Answered:
        """Upload what another learner is to go on with. It is taken out of the list, so that there are not two of it
        in memory while it travels."""

        def pack() -> Parcel:
            packed: list[Parcel] = []

            def make_room(size: int) -> memoryview:
                packed.append(self._carrier.pack(size))
                return packed[0].bytes.data

            encode_state(donated.pop(), self._layout, make_room)
            return packed[0]

        def make(number: int, size: int, timeouts: Timeouts) -> GiveState:
            return GiveState(number, size, timeouts, path, query)

        answered, parcel = await self._upload(LARGE, pack, make)
        if parcel is not None:  # It takes the system a while to take back the pages of a whole state.
            await self._work(LARGE, self._carrier.take_back, parcel)
        return answered

    # ------------------------------------------------------------------------------------------- down

    async def fetch(self, notice: VersionNotice, query: dict[str, str]) -> Float32:
        """The values of a version, float32[n].

        Raises:
            RemoteProtocolError: it is not to be had. OSError: there is no room for it, or nobody to carry it.
        """
        if not 0 <= notice.fragment < len(self._downloads):
            raise RemoteProtocolError(f"fragment {notice.fragment} is not part of this model")
        codec = self._downloads[notice.fragment]
        size, path = fetch_size(codec), api.version_path(self._run, notice.fragment, notice.version)
        parcel = await self._work(size, self._carrier.pack, size)
        laid = await self._receive(
            lambda number, size, timeouts: Fetch(number, size, timeouts, notice, path, query), parcel
        )
        return await self._work(size, self._carrier.unpack, parcel, laid.offset, codec.size)

    async def take_state(self, path: str, query: dict[str, str], size: int, digest: str) -> Donated:
        """What another learner gives. Its arrays are views of the memory it has arrived in. Raises as ``fetch``."""
        parcel = await self._work(LARGE, self._carrier.pack, size)
        await self._receive(
            lambda number, size, timeouts: TakeState(number, size, timeouts, path, query, digest), parcel
        )
        return await self._work(LARGE, decode_state, parcel.bytes.data, self._layout)

    # ------------------------------------------------------------------------------------------- either way

    async def _send(self, size: int, pack: Callable[[], Parcel], make: MakeJob) -> Answered:
        answered, parcel = await self._upload(size, pack, make)
        if parcel is not None:
            self._carrier.take_back(parcel)
        return answered

    async def _upload(self, size: float, pack: Callable[[], Parcel], make: MakeJob) -> tuple[Answered, Parcel | None]:
        """What has come of it, and the parcel, if nobody else may still be reading from it."""
        try:
            parcel = await self._work(size, pack)
            result = await self._carry(make, parcel)
        except OSError as error:
            return Answered(NOBODY, 0, str(error)), None
        assert isinstance(result, Answered), "an upload is answered"
        return result, parcel

    async def _receive(self, make: MakeJob, parcel: Parcel) -> Laid:
        result = await self._carry(make, parcel)
        if isinstance(result, Failed):
            self._carrier.take_back(parcel)
            raise RemoteProtocolError(result.sentence)
        assert isinstance(result, Laid), "a download is laid into memory"
        return result

    async def _carry(self, make: MakeJob, parcel: Parcel) -> Result:
        lives = LIVES_MAX
        while True:
            job = make(next(self._numbers), parcel.bytes.size, self._meter.timeouts)
            try:
                result = await self._carrier.carry(job, parcel)
                break
            except CarrierDied:
                lives -= 1
                if not lives:
                    raise
        if not isinstance(result, Failed):
            passage = result.passage
            self._meter.moved("up" if isinstance(result, Answered) else "down", passage.size_bytes, passage.seconds)
        return result

    async def _work(self, size: float, work: Callable[..., Outcome], *arguments: object) -> Outcome:
        """Compute with so many bytes."""
        if size <= SMALL_BYTES:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, *arguments)


class ThreadCarrier:
    """Jobs in threads of this process: where a child cannot be had, or would be too much.

    Args:
        setting: the run, the model and the syncer.
        token: what is shown to the syncer.
    """

    def __init__(self, setting: Setting, token: str | None) -> None:
        self._porter = Porter(setting, connector(setting, token))
        self._threads = ThreadPoolExecutor(THREADS_MAX, "unlockstep-courier")

    async def open(self) -> None:
        """Nothing is to be done."""

    def pack(self, size: int) -> Parcel:
        """See ``Carrier``."""
        return own_memory(size)

    async def carry(self, job: Job, parcel: Parcel) -> Result:
        """See ``Carrier``."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._porter.carry_out, job, parcel.bytes
        )

    def unpack(self, parcel: Parcel, offset: int, count: int) -> Float32:
        """See ``Carrier``. Without a copy: nobody else has this memory."""
        return parcel.floats(count, offset)

    def take_back(self, parcel: Parcel) -> None:
        """It is forgotten."""

    def forget(self, handed_over: HandedOver) -> None:
        """See ``Carrier``. In a thread: it may have to wait for one that encodes."""
        self._threads.submit(self._porter.forget, handed_over)

    def turn_to(self, url: str) -> None:
        """See ``Carrier``."""
        self._porter.turn_to(url)

    async def close(self) -> None:
        """See ``Carrier``."""
        self._porter.close()
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
