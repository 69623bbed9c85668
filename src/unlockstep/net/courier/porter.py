"""Carries out the jobs of a learner's courier, whichever process it is in: encode and upload, download and decode.

::

    Contribute          memory (float32) ──encode──> body ──pack──> PUT ──> syncer
    Seed                memory (float32) ──encode──> body ──PUT──> syncer
    GiveState           memory ──PUT──> syncer
    Fetch               syncer ──GET──> body ──decode──> memory (float32)
    TakeState           syncer ──GET──> memory

Decides what each job is made of, and that nothing a syncer or the network does ends in an exception. Does not decide
how bytes travel and how often they are sent again (``net.bulk``), which numbers they mean (``core.feedback``), nor how
many jobs run at once (whoever asks). What rounding has taken is kept here, and goes with the process. Its methods are
called from as many threads as there are jobs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from unlockstep.core.codec import FragmentCodec, fragment_codecs
from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.core.feedback import Encoder
from unlockstep.core.formats import Codec
from unlockstep.core.layout import build_layout
from unlockstep.core.messages import HandedOver
from unlockstep.net.access.security import ClientSecurity
from unlockstep.net.bulk.client import Answer, Bulk
from unlockstep.net.bulk.pace import Pace
from unlockstep.net.courier.jobs import (
    SENTENCE_LENGTH_MAX,
    Answered,
    Contribute,
    Failed,
    Fetch,
    GiveState,
    Job,
    Laid,
    Passage,
    Result,
    Seed,
    Setting,
    TakeState,
)
from unlockstep.net.courier.memory_files import Bytes
from unlockstep.net.wire.packing import pack
from unlockstep.net.wire.timeouts import Timeouts, derive

_log = logging.getLogger(__name__)


Moved = Callable[[int], None]


class Way(Protocol):
    """To one syncer (``bulk.Bulk``)."""

    def upload(self, path: str, query: dict[str, str], body: memoryview, *, moved: Moved) -> Answer: ...

    def download(
        self, path: str, size: int, digest: str, into: memoryview | None = None, *, query: dict[str, str], moved: Moved
    ) -> memoryview: ...

    def close(self) -> None: ...


Connect = Callable[[str, Callable[[], Timeouts]], Way]
"""A way to the syncer at an address, whose deadlines are to be asked for."""


class Porter:
    """Of one learner.

    Args:
        setting: the run, the model and the syncer.
        connect: makes what bodies travel by.
        now_s: a steady clock.
    """

    def __init__(self, setting: Setting, connect: Connect, now_s: Callable[[], float] = time.monotonic) -> None:
        layout = build_layout(setting.tensors, setting.fragments, setting.method)
        codec = setting.codec
        self._encoder = Encoder(layout, feedback=codec.upload_feedback, rounding=codec.upload_rounding)
        self._encoding = threading.Lock()
        """Held by who uses the encoder."""
        self._packing = codec.upload_packing
        self._seeds = fragment_codecs(layout, Codec.FLOAT32)
        self._downloads = fragment_codecs(layout, codec.download)
        self._timeouts = derive()
        self._connect = connect
        self._now_s = now_s
        self._way = self._connect(setting.url, lambda: self._timeouts)

    def carry_out(self, job: Job, memory: Bytes) -> Result:
        """All of a job. ``memory`` is the caller's again when it returns."""
        way, self._timeouts = self._way, job.timeouts
        try:
            match job:
                case Contribute():
                    with self._encoding:
                        body = self._encoder.encode(job, job.codec, memory.view("<f4"))
                    return self._upload(way, job, pack(body, self._packing, job.codec))
                case Seed():
                    return self._upload(way, job, self._seeds[job.fragment].encode(memory.view("<f4")))
                case GiveState():
                    return self._upload(way, job, memory.data)
                case Fetch():
                    return self._fetch(way, job, memory)
                case TakeState():
                    watch = _Watch(self._now_s)
                    way.download(job.path, job.size, job.digest, memory.data, query=job.query, moved=watch.moved)
                    return Laid(job.number, 0, watch.passage)
        except (RemoteProtocolError, UsageError, OSError) as error:
            return _failed(job, str(error) or type(error).__name__)
        except Exception as error:
            _log.exception("a job of the courier has failed, which is a bug")
            return _failed(job, f"{type(error).__name__}: {error}")

    def forget(self, handed_over: HandedOver) -> None:
        """A contribution is settled: its body will not be asked for again."""
        with self._encoding:
            self._encoder.forget(handed_over)

    def turn_to(self, url: str) -> None:
        """Another syncer leads: give up what is under way to the one before."""
        before, self._way = self._way, self._connect(url, lambda: self._timeouts)
        before.close()

    def close(self) -> None:
        """Give up whatever is under way."""
        self._way.close()

    def _upload(self, way: Way, job: Contribute | Seed | GiveState, body: memoryview) -> Answered:
        watch = _Watch(self._now_s)
        answer = way.upload(job.path, job.query, body, moved=watch.moved)
        return Answered(job.number, answer.status, answer.sentence[:SENTENCE_LENGTH_MAX], watch.passage)

    def _fetch(self, way: Way, job: Fetch, memory: Bytes) -> Laid:
        codec = self._downloads[job.notice.fragment]
        # The values are the last bytes of the body as they are, or else have to be made of it.
        is_plain = codec.codec is Codec.FLOAT32
        into, watch = memory[: codec.body_size].data if is_plain else None, _Watch(self._now_s)
        body = way.download(job.path, codec.body_size, job.notice.digest, into, query=job.query, moved=watch.moved)
        codec.decode(body, out=memory[: 4 * codec.size].view("<f4"))
        return Laid(job.number, codec.body_size - 4 * codec.size if is_plain else 0, watch.passage)


class _Watch:
    """Looks at the clock when bytes pass."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._began_s = self._ended_s = now_s()
        self._size_bytes = 0

    def moved(self, count: int) -> None:
        self._size_bytes += count
        self._ended_s = self._now_s()

    @property
    def passage(self) -> Passage:
        return Passage(self._size_bytes, self._ended_s - self._began_s)


def connector(setting: Setting, token: str | None) -> Connect:
    """What a ``Porter`` connects by; all its ways have one pace."""
    files = (
        None if each is None else Path(each) for each in (setting.ca, setting.cert, setting.key, setting.token_file)
    )
    ca, cert, key, token_file = files
    pace, security = Pace(setting.bytes_per_s), ClientSecurity(ca, cert, key, token_file or token)
    return lambda url, timeouts: Bulk(url, security, pace=pace, timeouts=timeouts)


def fetch_size(codec: FragmentCodec) -> int:
    """What a ``Fetch`` needs in memory: for the values, and for the body where that holds them as they are."""
    return max(codec.body_size, 4 * codec.size)


def _failed(job: Job, sentence: str) -> Result:
    sentence = sentence[:SENTENCE_LENGTH_MAX]
    if isinstance(job, Fetch | TakeState):
        return Failed(job.number, sentence)
    return Answered(job.number, 0, sentence)
