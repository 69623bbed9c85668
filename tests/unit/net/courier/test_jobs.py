"""Frames between a learner and its courier: whole again however they are cut, and nothing else passes for one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.formats import Codec
from unlockstep.core.messages import HandedOver, VersionNotice
from unlockstep.net.courier.jobs import (
    FRAME_BYTES_MAX,
    Answered,
    Contribute,
    Failed,
    Fetch,
    Forget,
    FrameReader,
    GiveState,
    Laid,
    Passage,
    Ready,
    Seed,
    SetUp,
    TakeState,
    TurnTo,
    read_order,
    read_report,
    send_frame,
)
from unlockstep.net.wire.timeouts import Leases, derive

TIMEOUTS = derive(Leases(away_s_max=0))
QUERY = {"run_id": "id", "tokens": "10"}
ORDERS = [
    SetUp(10, "secret"),
    TurnTo("http://there:1"),
    Contribute(1, 8, TIMEOUTS, "id", "a", 3, 0, 10, 1, Codec.INT4, "/path", QUERY),
    Forget(HandedOver(3, 0, 10)),
    Seed(2, 8, TIMEOUTS, 1, "/path", QUERY),
    Fetch(3, 8, TIMEOUTS, VersionNotice(0, 1, "00" * 32), "/path", {}),
    GiveState(4, 2**40, TIMEOUTS, "/path", QUERY),
    TakeState(5, 2**40, TIMEOUTS, "/path", QUERY, "00" * 32),
]
REPORTS = [Ready(), Answered(1, 202, ""), Laid(2, 64, Passage(10, 0.5)), Failed(3, "it is not to be had")]


@contextmanager
def ends() -> Iterator[tuple[socket.socket, FrameReader]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = FrameReader(theirs)
        yield ours, reader
        reader.close()


def frame(body: bytes, descriptors: int = 0) -> bytes:
    return len(body).to_bytes(4, "little") + bytes([descriptors]) + body


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_arrives_as_it_was_given_with_its_memory(order: object) -> None:
    reading, writing = os.pipe()
    with ends() as (ours, reader):
        send_frame(ours, order, writing)  # type: ignore[arg-type]
        os.close(writing)
        assert reader.read()
        ((body, descriptor),) = reader.frames()
        assert descriptor is not None and read_order(body) == order
        os.write(descriptor, b"x")
        os.close(descriptor)
    assert os.read(reading, 2) == b"x"
    os.close(reading)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_a_report_arrives_as_it_was_given(report: object) -> None:
    with ends() as (ours, reader):
        send_frame(ours, report)  # type: ignore[arg-type]
        assert reader.read()
        assert [(read_report(body), descriptor) for body, descriptor in reader.frames()] == [(report, None)]


@given(bodies=st.lists(st.binary(max_size=40), max_size=6), cuts=st.lists(st.integers(1, 30), max_size=20))
def test_frames_are_whole_again_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(frame(body) for body in bodies)
    found = []
    with ends() as (ours, reader):
        for cut in [*cuts, len(sent) + 1]:
            piece, sent = sent[:cut], sent[cut:]
            if piece:
                ours.sendall(piece)
                assert reader.read()
                found += [body for body, _ in reader.frames()]
    assert found == bodies


def test_the_end_of_the_other_end_is_told() -> None:
    with ends() as (ours, reader):
        ours.close()
        assert not reader.read()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(b"x", descriptors=1), id="no descriptor comes with it"),
        pytest.param(frame(b"x", descriptors=2), id="more descriptors than one"),
        pytest.param((FRAME_BYTES_MAX).to_bytes(4, "little") + b"\0", id="longer than a frame"),
    ],
)
def test_what_is_no_frame_is_refused(sent: bytes) -> None:
    with ends() as (ours, reader):
        ours.sendall(sent)
        assert reader.read()
        with pytest.raises(LocalProtocolError):
            list(reader.frames())


@given(st.binary(max_size=200))
def test_what_is_no_order_or_report_is_refused(body: bytes) -> None:
    for read in (read_order, read_report):
        with suppress(LocalProtocolError):
            read(body)


def test_what_does_not_fit_a_frame_is_never_sent() -> None:
    with ends() as (ours, _), pytest.raises(LocalProtocolError):
        send_frame(ours, Failed(1, "x" * FRAME_BYTES_MAX))


def test_an_end_that_nobody_reads_does_not_hold_up_the_other() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            for _ in range(10_000):
                send_frame(ours, Failed(1, "x" * 1000))


def test_descriptors_that_nobody_took_are_closed() -> None:
    reading, writing = os.pipe()
    with ends() as (ours, reader):
        send_frame(ours, TurnTo("x"), writing)
        os.close(writing)
        assert reader.read()
    assert os.read(reading, 1) == b""  # All its writers are closed.
    os.close(reading)
