"""Whatever is said to a syncer's port, in whatever pieces of whatever requests: it answers or hangs up, and goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.hostile_requests import Victim


@pytest.fixture
def victim() -> Iterator[Victim]:
    found = Victim()
    try:
        yield found
        found.goes_on()
    finally:
        found.close()


VALUES = ["", "0", "-1", "1", "9" * 19, "9" * 400, "nan", "1e308", "0x10", "%00", "%2e%2e/", "é", "*", "a" * 300, " "]


@st.composite
def spoilt(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """A sound request with one of its values replaced, a field or a piece of another request put in, or cut short."""
    request = draw(st.sampled_from(samples))
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    match draw(st.sampled_from(["value", "field", "twice", "gone", "byte", "body", "cut", "two"])):
        case "value":
            parts = lines[0].replace(b"?", b"&").split(b"&")
            index = draw(st.integers(0, len(parts) - 1))
            name = parts[index].partition(b"=")[0]
            lines[0] = lines[0].replace(parts[index], name + b"=" + draw(st.sampled_from(VALUES)).encode())
        case "field":
            index = draw(st.integers(0, len(lines) - 1))
            lines[index] = lines[index].partition(b": ")[0] + b": " + draw(st.sampled_from(VALUES)).encode()
        case "twice":
            lines.append(draw(st.sampled_from(lines)))
        case "gone":
            del lines[draw(st.integers(0, len(lines) - 1))]
        case "byte":
            spoil = bytearray(b"\r\n".join(lines))
            spoil[draw(st.integers(0, len(spoil) - 1))] = draw(st.integers(0, 255))
            return bytes(spoil) + b"\r\n\r\n" + body
        case "body":
            body = draw(st.binary(max_size=64)) + body[draw(st.integers(0, 64)) :]
        case "cut":
            return request[: draw(st.integers(0, len(request)))]
        case "two":
            return request + draw(st.sampled_from(samples))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


UPGRADE = b"GET /v1/runs/small/control HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"

FOUND = [
    UPGRADE + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAA\x97AAAAAAAAAA==\r\n\r\n",
]


def test_every_request_is_answered_below_500_and_the_run_goes_on(victim: Victim) -> None:
    for sample in victim.samples:
        victim.read(sample)

    for request in FOUND:
        victim.read(request)

    # A request that was answered once is answered another way the next time: there is nothing to make smaller.
    @settings(max_examples=1000, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
    @given(spoilt(victim.samples) | st.binary(max_size=200))
    def law(data: bytes) -> None:
        victim.read(data)

    law()
