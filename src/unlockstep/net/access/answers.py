"""How the syncer answers a request: JSON, one sentence for everything that is refused, and the pieces of a long body.

Decides the form. What is refused, and with which status, is decided where it is found out.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from unlockstep.core.errors import RemoteProtocolError

Query = TypeVar("Query")

_log = logging.getLogger(__name__)


SENTENCE = web.RequestKey("sentence", str)
"""Under which a request holds why it was refused."""

HUNG_UP = web.RequestKey("hung_up", bool)
"""Under which it holds that its client was gone before the answer was: nobody was refused."""


CONNECTION_ERRORS = (aiohttp.ClientError, ConnectionError, ssl.SSLError)
"""How it ends that a client is gone, or says what is no TLS any more."""


class Refusal(Exception):
    """Answered as it stands."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers


@web.middleware
async def sentences(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every refusal, ours or the library's, into JSON."""
    headers: dict[str, str] | None = None
    try:
        return await handler(request)
    except Refusal as refusal:
        status, sentence, headers = refusal.status, str(refusal), refusal.headers
    except web.HTTPException as refusal:
        status, sentence = refusal.status, f"{request.method} {request.path}: {refusal.reason}"
    except RemoteProtocolError as error:
        status, sentence = 400, str(error)
    except TimeoutError:
        status, sentence = 408, "the body stopped coming"
    except (*CONNECTION_ERRORS, aiohttp.http_exceptions.HttpProcessingError) as error:
        status, sentence = 408, f"the body could not be read: {error}"
        is_gone = request.transport is None or request.transport.is_closing()
        request[HUNG_UP] = isinstance(error, ConnectionError) and is_gone
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        status, sentence = 500, "the syncer has failed; see its log"
    request[SENTENCE] = sentence
    return json({"error": sentence}, status, headers)


@contextmanager
def begun(request: web.Request) -> Iterator[None]:
    """For an answer with a long body: if that goes wrong the connection is cut. Whatever else was said would be taken
    for a part of the body."""
    try:
        yield
    except BaseException:
        if request.transport is not None:
            request.transport.abort()
        raise


async def write(response: web.StreamResponse, piece: bytes | memoryview) -> None:
    """A piece of a long body; others have their turn, be the client as fast as it may."""
    await response.write(piece)
    await asyncio.sleep(0)  # Only then may asyncio tell that the connection is lost; until it does, all is taken.


def json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """An answer that holds this."""
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def parse_query(request: web.Request, kind: type[Query]) -> Query:
    """What the address says behind the question mark. Raises Refusal if it is not of this kind."""
    try:
        return msgspec.convert(dict(request.query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(400, f"the query is not valid: {error}") from None
