"""What each job is made of: which bytes go to which address, which values come back, and that nothing raises."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from unlockstep.config import CodecSection
from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.formats import Codec
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.core.messages import HandedOver, VersionNotice
from unlockstep.net.bulk.client import Answer
from unlockstep.net.courier.jobs import (
    SENTENCE_LENGTH_MAX,
    Answered,
    Contribute,
    Failed,
    Fetch,
    GiveState,
    Laid,
    Passage,
    Seed,
    Setting,
    TakeState,
)
from unlockstep.net.courier.porter import Moved, Porter, fetch_size
from unlockstep.net.wire.timeouts import Measured, Timeouts, derive

TENSORS = tuple(TensorSpec(name, (size,), "float32", Role.PARAMETER) for name, size in {"a": 5, "b": 300}.items())
LAYOUT = build_layout(TENSORS, 2, LayoutMethod.TENSOR)
TIMEOUTS = derive()
QUERY = {"tokens": "10"}


class Shelf:
    """A way to a syncer that keeps what it is sent and has what it was given (``porter.Way``)."""

    def __init__(self, timeouts: Callable[[], Timeouts]) -> None:
        self.timeouts = timeouts
        self.sent: list[tuple[str, dict[str, str], bytes]] = []
        self.bodies: dict[str, bytes] = {}
        self.answer = Answer(202, "")
        self.error: Exception | None = None
        self.is_closed = False

    def upload(self, path: str, query: dict[str, str], body: memoryview, *, moved: Moved) -> Answer:
        if self.error is not None:
            raise self.error
        self.sent.append((path, query, bytes(body)))
        self._move(len(body), moved)
        return self.answer

    def download(
        self, path: str, size: int, digest: str, into: memoryview | None = None, *, query: dict[str, str], moved: Moved
    ) -> memoryview:
        if self.error is not None:
            raise self.error
        body = memoryview(bytearray(size)) if into is None else into
        body[:] = self.bodies[path]
        self._move(size, moved)
        assert len(body) == size and body_digest(body) == digest
        return body

    def _move(self, size: int, moved: Moved) -> None:
        """In two pieces."""
        for piece in (size // 2, size - size // 2):
            moved(piece)

    def close(self) -> None:
        self.is_closed = True


def porter(upload: Codec = Codec.FLOAT32, download: Codec = Codec.FLOAT32) -> tuple[Porter, list[Shelf]]:
    """Its clock shows a second more whenever it is looked at."""
    shelves: list[Shelf] = []

    def connect(url: str, timeouts: Callable[[], Timeouts]) -> Shelf:
        shelves.append(Shelf(timeouts))
        return shelves[-1]

    setting = Setting(
        "http://here:1", "run", TENSORS, 2, LayoutMethod.TENSOR, CodecSection(upload=upload, download=download)
    )
    return Porter(setting, connect, map(float, itertools.count()).__next__), shelves


def values_of(fragment: int) -> np.ndarray:
    return np.linspace(-1, 1, LAYOUT.fragment_size(fragment)).astype(np.float32)


def contribute(number: int, fragment: int = 0, codec: Codec = Codec.FLOAT32, tokens: int = 10) -> Contribute:
    size = 4 * LAYOUT.fragment_size(fragment)
    return Contribute(number, size, TIMEOUTS, "id", "a", fragment, fragment, tokens, 1, codec, "/p", QUERY)


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint8).copy()


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.value)
@pytest.mark.parametrize("fragment", [0, 1])
def test_a_contribution_is_sent_in_the_format_that_was_asked_for(codec: Codec, fragment: int) -> None:
    carrier, (shelf,) = porter()
    values = values_of(fragment)
    answered = carrier.carry_out(contribute(7, fragment, codec), bits(values))
    assert answered == Answered(7, 202, "", Passage(len(shelf.sent[0][2]), 2.0))
    assert shelf.sent == [("/p", QUERY, bytes(FragmentCodec(LAYOUT, fragment, codec).encode(values)))]


def test_what_rounding_takes_is_sent_with_the_next_contribution_and_not_with_the_same_once_more() -> None:
    carrier, (shelf,) = porter()
    wire, values = FragmentCodec(LAYOUT, 1, Codec.INT4), values_of(1)
    first, again = contribute(1, 1, Codec.INT4), contribute(2, 1, Codec.INT4)
    second = contribute(3, 1, Codec.INT4, tokens=20)
    for job in (first, again, second):
        memory = bits(values)
        carrier.carry_out(job, memory)
        assert_array_equal(memory, bits(values))  # who gives it may need it once more
    one, same, two = (body for _, _, body in shelf.sent)
    assert one == same == bytes(wire.encode(values))
    assert two == bytes(wire.encode(values + (values - wire.decode(one))))
    carrier.forget(HandedOver(1, 1, 10))
    carrier.carry_out(contribute(4, 1, Codec.INT4), bits(values))
    assert shelf.sent[-1][2] == one  # It takes nothing of what later ones have lost.


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.value)
def test_a_seed_is_sent_as_it_is_whatever_the_format_of_versions(codec: Codec) -> None:
    carrier, (shelf,) = porter(download=codec)
    values = values_of(1)
    answered = carrier.carry_out(Seed(7, 4 * values.size, TIMEOUTS, 1, "/p", QUERY), bits(values))
    assert answered == Answered(7, 202, "", Passage(len(shelf.sent[0][2]), 2.0))
    assert shelf.sent == [("/p", QUERY, bytes(FragmentCodec(LAYOUT, 1, Codec.FLOAT32).encode(values)))]


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.value)
@pytest.mark.parametrize("fragment", [0, 1])
def test_a_version_is_laid_into_memory_as_float32(codec: Codec, fragment: int) -> None:
    carrier, (shelf,) = porter(download=codec)
    format = FragmentCodec(LAYOUT, fragment, codec)
    body = format.encode(values_of(fragment))
    shelf.bodies["/p"] = bytes(body)
    memory = np.zeros(fetch_size(format), np.uint8)
    notice = VersionNotice(fragment, 3, body_digest(body))
    laid = carrier.carry_out(Fetch(7, memory.size, TIMEOUTS, notice, "/p", QUERY), memory)
    assert isinstance(laid, Laid) and laid.number == 7 and laid.passage == Passage(format.body_size, 2.0)
    found = memory[laid.offset : laid.offset + 4 * format.size].view(np.float32)
    assert_array_equal(found, format.decode(body))


def test_a_state_travels_as_it_is() -> None:
    carrier, (shelf,) = porter()
    state = np.arange(100, dtype=np.uint8)
    assert carrier.carry_out(GiveState(1, 100, TIMEOUTS, "/up", QUERY), state) == Answered(
        1, 202, "", Passage(100, 2.0)
    )
    assert shelf.sent == [("/up", QUERY, state.tobytes())]
    shelf.bodies["/down"] = state.tobytes()
    memory = np.zeros(100, np.uint8)
    taken = carrier.carry_out(TakeState(2, 100, TIMEOUTS, "/down", QUERY, body_digest(state.data)), memory)
    assert taken == Laid(2, 0, Passage(100, 2.0)) and np.array_equal(memory, state)


@pytest.mark.parametrize("error", [OSError("the link is down"), RemoteProtocolError("no"), ZeroDivisionError("bug")])
def test_what_goes_wrong_is_the_result_of_the_job(error: Exception) -> None:
    carrier, (shelf,) = porter()
    shelf.error = error
    memory = np.zeros(4096, np.uint8)
    answered = carrier.carry_out(contribute(1), memory[:20])
    assert isinstance(answered, Answered) and answered.status == 0 and str(error) in answered.sentence
    failed = carrier.carry_out(Fetch(2, 4096, TIMEOUTS, VersionNotice(0, 1, "00" * 32), "/p", {}), memory)
    assert isinstance(failed, Failed) and failed.number == 2 and str(error) in failed.sentence


def test_a_body_that_cannot_be_read_is_not_laid_anywhere() -> None:
    carrier, (shelf,) = porter()
    format = FragmentCodec(LAYOUT, 0, Codec.FLOAT32)
    shelf.bodies["/p"] = bytes(format.body_size)
    notice = VersionNotice(0, 1, body_digest(bytes(format.body_size)))
    memory = np.zeros(format.body_size, np.uint8)
    failed = carrier.carry_out(Fetch(2, format.body_size, TIMEOUTS, notice, "/p", {}), memory)
    assert isinstance(failed, Failed) and "another header" in failed.sentence


def test_a_sentence_of_the_syncer_fits_a_frame() -> None:
    carrier, (shelf,) = porter()
    shelf.answer = Answer(422, "x" * 100_000)
    answered = carrier.carry_out(GiveState(1, 1, TIMEOUTS, "/p", QUERY), np.zeros(1, np.uint8))
    assert isinstance(answered, Answered) and answered.sentence == "x" * SENTENCE_LENGTH_MAX


def test_the_deadlines_of_a_way_are_those_that_came_with_the_last_job() -> None:
    carrier, (shelf,) = porter()
    slow = derive(measured=Measured(round_trip_s=3.0))
    assert shelf.timeouts() == TIMEOUTS != slow
    carrier.carry_out(GiveState(1, 1, slow, "/p", QUERY), np.zeros(1, np.uint8))
    assert shelf.timeouts() == slow


def test_another_leader_ends_what_is_under_way_to_the_one_before() -> None:
    carrier, shelves = porter()
    carrier.turn_to("http://there:1")
    before, after = shelves
    assert before.is_closed and not after.is_closed
    carrier.carry_out(GiveState(1, 1, TIMEOUTS, "/p", QUERY), np.zeros(1, np.uint8))
    assert not before.sent and len(after.sent) == 1
    carrier.close()
    assert after.is_closed
