"""How many threads carry a transfer, as the number of streams changes under way."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from unlockstep.net.bulk.carriage import Attempt, Carriage
from unlockstep.net.bulk.channel import Channel
from unlockstep.net.bulk.lane import Lane
from unlockstep.net.bulk.streams import FixedStreams
from unlockstep.net.wire.timeouts import derive

WAIT_S = 20.0


class Streams(FixedStreams):
    """As many as the test says."""

    def __init__(self) -> None:
        super().__init__(1)
        self.now = 1

    @property
    def number(self) -> int:
        return self.now


class Connected:
    """All a carriage wants of a channel."""

    is_reusable = is_fresh = True

    def cut(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class TwoChunks:
    """The first one ends when the second one is being carried (``carriage.Work``)."""

    streams: Streams
    left: list[int] = field(default_factory=lambda: [0, 1])
    done: int = 0
    second: threading.Event = field(default_factory=threading.Event)

    @property
    def waiting(self) -> int:
        return len(self.left)

    @property
    def is_done(self) -> bool:
        return self.done == 2

    def take(self) -> int | None:
        return self.left.pop(0) if self.left else None

    def give_back(self, index: int) -> None:
        self.left.append(index)

    def carry(self, channel: Channel, index: int, attempt: Attempt) -> None:
        if index == 1:
            self.second.set()
        else:
            self.streams.now = 2
            attempt.moved(1)
            assert self.second.wait(WAIT_S), "the second stream waits for the end of the first one's chunk"
        self.done += 1


def test_another_stream_begins_while_the_first_is_in_the_middle_of_its_chunk() -> None:
    """On a slow link a chunk takes a minute: that is too long to wait for what more streams would bring."""
    streams = Streams()
    lane = Lane(streams, Connected, lambda: 0)  # type: ignore[arg-type]
    work = TwoChunks(streams)
    Carriage(lane, lambda channel: None, derive(), threading.Event(), lambda count: None).run(work)
    assert work.is_done
