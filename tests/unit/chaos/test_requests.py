"""Which byte of what a learner says is spoiled: one of a body, wherever the pieces begin and end."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from unlockstep.chaos.proxy import _Requests

PUT = b"PUT /v1/runs/r/rounds/7/contributions/a.1?codec=int8 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
GET = b"GET /v1/runs/r/config HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = b"GET /v1/runs/r/control HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
BODY = b"PUT \r\n\r\n!"


def through(data: bytes, cuts: list[int], wanted: list[bytes]) -> bytes:
    """What comes out of a reader that is asked for these bodies, given in pieces."""
    reader, places = _Requests(lambda target: target in wanted), sorted({0, len(data), *(c % len(data) for c in cuts)})
    return b"".join(reader.pass_on(data[a:b]) for a, b in itertools.pairwise(places))


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_one_bit_in_the_middle_of_the_body_is_turned_over_and_nothing_else(cuts: list[int]) -> None:
    said = GET + PUT + BODY + GET + PUT.replace(b"/7/", b"/8/") + BODY + GET
    heard = through(said, cuts, [b"/v1/runs/r/rounds/8/contributions/a.1?codec=int8"])
    where = len(said) - len(GET) - len(BODY) + 9 // 2
    assert [index for index in range(len(said)) if said[index] != heard[index]] == [where]
    assert heard[where] == said[where] ^ 1


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_what_follows_an_upgrade_is_left_alone(cuts: list[int]) -> None:
    said = UPGRADE + PUT + BODY
    assert through(said, cuts, [b"/v1/runs/r/rounds/7/contributions/a.1?codec=int8"]) == said


@given(st.binary(min_size=1), st.lists(st.integers(0, 1000), max_size=12))
def test_whatever_is_no_request_passes_as_it_is(data: bytes, cuts: list[int]) -> None:
    reader = _Requests(lambda target: False)
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    assert b"".join(reader.pass_on(data[a:b]) for a, b in itertools.pairwise(places)) == data
