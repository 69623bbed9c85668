"""What becomes of a request whose client is gone: nobody was refused."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from unlockstep.net.access.answers import HUNG_UP, begun, sentences

LOST = aiohttp.ClientConnectionResetError("Cannot write to closing transport")
BAD = aiohttp.ClientPayloadError("the body is malformed")


@pytest.mark.parametrize(
    ("error", "is_closing", "hung_up"), [(LOST, True, True), (LOST, False, False), (BAD, True, False)]
)
@pytest.mark.parametrize("has_begun", [False, True])
def test_who_is_gone_is_not_refused(error: Exception, is_closing: bool, hung_up: bool, has_begun: bool) -> None:
    transport = Mock()
    transport.is_closing.return_value = is_closing

    def abort() -> None:
        transport.is_closing.return_value = True

    transport.abort.side_effect = abort
    request = make_mocked_request("GET", "/v1/probe", transport=transport)

    async def answer(request: web.Request) -> web.StreamResponse:
        if not has_begun:
            raise error
        with begun(request):
            raise error

    response = asyncio.run(sentences(request, answer))
    assert response.status == 408
    assert request[HUNG_UP] == (hung_up or (has_begun and error is LOST))
