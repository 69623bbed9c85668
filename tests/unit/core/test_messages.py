"""Control messages on the wire: what is written is read, and what is not a message is refused."""

from __future__ import annotations

import math
import typing

import msgspec
import pytest

from support.core_builders import join
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.messages import (
    MESSAGE_BYTES_MAX,
    Connected,
    Evaluation,
    Fenced,
    Finish,
    Heartbeat,
    JoinRefused,
    LearnerMessage,
    Published,
    Pull,
    Settled,
    Stop,
    SyncerMessage,
    VersionNotice,
    Welcome,
    decode_learner_message,
    decode_syncer_message,
    encode,
)
from unlockstep.core.reasons import DepartureReason, JoinRefusal, RefusalReason

NOTICE = VersionNotice(3, 7, "ab" * 32)

TO_SYNCER: list[LearnerMessage] = [
    join("a", incarnation=2),
    Heartbeat("a", 1),
    Evaluation("evaluator", 12, 2.5, 1.75, (3, 3)),
]

TO_LEARNER: list[SyncerMessage] = [
    Welcome(incarnation=3, clock=9, lease_ns=10**10, versions=(NOTICE,), seed=False, steps_before=40, run_id="id"),
    JoinRefused(JoinRefusal.BAD_NAME, "use another"),
    Pull(5, 3),
    Published(NOTICE, clock=9),
    Settled(5, 3, 900, late=True, refusal=None),
    Settled(5, 3, 900, late=False, refusal=RefusalReason.NON_FINITE),
    Fenced(DepartureReason.LEASE_EXPIRED),
    Finish(),
    Stop("over"),
]


@pytest.mark.parametrize("message", TO_SYNCER, ids=lambda message: type(message).__name__)
def test_what_a_learner_says_is_what_the_syncer_reads(message: LearnerMessage) -> None:
    assert decode_learner_message(encode(message)) == message


@pytest.mark.parametrize("message", TO_LEARNER, ids=lambda message: type(message).__name__)
def test_what_the_syncer_says_is_what_a_learner_reads(message: SyncerMessage) -> None:
    assert decode_syncer_message(encode(message)) == message


@pytest.mark.parametrize("message", TO_SYNCER, ids=lambda message: type(message).__name__)
def test_a_learner_does_not_read_what_only_a_syncer_hears(message: LearnerMessage) -> None:
    with pytest.raises(RemoteProtocolError, match="control message does not decode"):
        decode_syncer_message(encode(message))


@pytest.mark.parametrize("message", TO_LEARNER, ids=lambda message: type(message).__name__)
def test_a_syncer_does_not_read_what_only_a_learner_hears(message: SyncerMessage) -> None:
    with pytest.raises(RemoteProtocolError, match="control message does not decode"):
        decode_learner_message(encode(message))


def test_what_a_host_tells_its_own_core_never_travels() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_learner_message(msgspec.msgpack.encode(Connected()))


@pytest.mark.parametrize("message", TO_SYNCER, ids=lambda message: type(message).__name__)
def test_every_truncation_is_refused(message: LearnerMessage) -> None:
    data = encode(message)
    for length in range(0, len(data), max(1, len(data) // 40)):
        with pytest.raises(RemoteProtocolError):
            decode_learner_message(data[:length])


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="trailing"):
        decode_learner_message(encode(Heartbeat("a", 1)) + b"\x00")


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "Heartbeat", "learner": "a"},
        {"type": "Heartbeat", "learner": "a", "incarnation": "1"},
        {"type": "Heartbeat", "learner": "a", "incarnation": 1.5},
        {"type": "Heartbeat", "learner": "a", "incarnation": None},
        {"type": "Heartbeat", "learner": "a", "incarnation": 1, "more": 0},
        {"type": "Goodbye", "learner": "a", "incarnation": 1},
        {"learner": "a", "incarnation": 1},
        [1, 2],
        "Heartbeat",
        None,
    ],
)
def test_what_is_not_exactly_a_message_is_refused(fields: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_learner_message(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(("size", "refused"), [(MESSAGE_BYTES_MAX, False), (MESSAGE_BYTES_MAX + 1, True)])
def test_the_size_of_a_message_is_limited(size: int, refused: bool) -> None:
    frame = len(encode(Heartbeat("", 1))) + 4  # msgpack needs four bytes more for a long string's length
    data = encode(Heartbeat("a" * (size - frame), 1))
    assert len(data) == size
    if refused:
        with pytest.raises(RemoteProtocolError, match=f"{size} bytes exceeds the limit of {MESSAGE_BYTES_MAX}"):
            decode_learner_message(data)
    else:
        assert isinstance(decode_learner_message(data), Heartbeat)


def test_deep_nesting_is_refused_and_not_followed() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_learner_message(b"\x91" * 100_000 + b"\x90")


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    data = encode(Heartbeat("zz", 1)).replace(b"zz", b"\xff\xfe")
    with pytest.raises(RemoteProtocolError):
        decode_learner_message(data)


def test_a_loss_that_is_not_a_number_travels() -> None:
    """C9"""
    sent = Evaluation("evaluator", 1, math.nan, math.inf, ())
    read = decode_learner_message(encode(sent))
    assert isinstance(read, Evaluation)
    assert math.isnan(read.loss) and read.nats_per_byte == math.inf


def test_the_two_families_share_no_type() -> None:
    assert not set(typing.get_args(LearnerMessage)) & set(typing.get_args(SyncerMessage))
