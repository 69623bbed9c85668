"""For everybody who looks at a run without training in it: evaluators, ``status``, a learner that asks for settings.

Decides how a syncer is found and what is said if there is none. Does not decide what is shown or evaluated.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import aiohttp

from unlockstep import __version__
from unlockstep.core.chunks import Float32
from unlockstep.core.codec import fragment_codecs
from unlockstep.core.errors import RemoteProtocolError, Unanswered, UsageError
from unlockstep.core.formats import Codec
from unlockstep.core.ids import PROTOCOL_VERSION
from unlockstep.core.layout import Layout
from unlockstep.core.messages import (
    Evaluation,
    SyncerMessage,
    VersionNotice,
    decode_syncer_message,
    encode,
)
from unlockstep.core.status import Status
from unlockstep.net.access.audit import shortened
from unlockstep.net.access.security import NO_SECURITY, ClientSecurity
from unlockstep.net.bulk.client import Bulk
from unlockstep.net.bulk.downloading import NotAllowed
from unlockstep.net.clients.control import control_connection
from unlockstep.net.clients.sessions import NETWORK_ERRORS, Addresses
from unlockstep.net.wire import api
from unlockstep.net.wire.link_meter import LinkMeter
from unlockstep.net.wire.names import advice
from unlockstep.net.wire.sockets import over_after
from unlockstep.net.wire.timeouts import DEFAULTS, Leases, derive

REPLY_BYTES_MAX = 64 * 1024 * 1024
"""Largest status or configuration to read."""

ANSWER_S_MAX = 30.0
"""From a question to the end of its answer. Neither is large."""

NOT_NOW = frozenset({408, 429, 502, 503, 504, *range(520, 531)})
"""Said by a syncer that has too much to do or does not lead, or by a proxy or a tunnel that finds none behind it (from
520 on): that passes."""

Parsed = TypeVar("Parsed")

_log = logging.getLogger(__name__)

_TIMEOUTS = derive()
"""Of whoever asks before it knows the settings of a run."""


class Refused(UsageError):
    """A syncer is there, and it and this client do not accept each other."""


def read_config(url: str, run: str | None = None, security: ClientSecurity = NO_SECURITY) -> str:
    """The configuration of a run as TOML; ``run`` may be left out where a syncer has only one.

    Raises:
        Unanswered: no syncer answers at ``url``, which may pass.
        UsageError: what answers is none, the two do not accept each other, it speaks another version of the protocol,
            or it has no such run.
    """
    only = _meet(url, security)  # Before its settings are read: those of another version may have other names.
    text = _ask(url, api.config_path(run or only), security)
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise UsageError(f"what answers at {url} is not an unlockstep syncer; check the address") from None


def read_status(url: str, run: str | None = None, security: ClientSecurity = NO_SECURITY) -> Status:
    """The state of a run. Raises as ``read_config`` does."""
    return _parse(_ask(url, api.status_path(run or _meet(url, security)), security), Status, url)


def end_run(url: str, run: str | None = None, security: ClientSecurity = NO_SECURITY) -> str:
    """Ask the syncer to end a run in order; its name. Raises as ``read_config`` does."""
    name = run or _meet(url, security)
    _ask(url, api.stop_path(name), security, "POST")
    return name


def read_about(url: str, security: ClientSecurity = NO_SECURITY) -> api.About:
    """Who answers at an address.

    Raises:
        Unanswered: nobody does, which may pass.
        UsageError: no syncer, or one that does not accept this client.
    """
    return _parse(_ask(url, api.ABOUT_ROUTE, security), api.About, url)


def require_same_protocol(about: api.About, where: str) -> None:
    """Raises UsageError if a syncer and this process would not understand each other."""
    if about.protocol != PROTOCOL_VERSION:
        raise UsageError(
            f"the syncer at {where} is unlockstep {about.unlockstep} and speaks protocol {about.protocol}, this is "
            f"unlockstep {__version__} and speaks {PROTOCOL_VERSION}; install the same version on both"
        )


def _meet(url: str, security: ClientSecurity) -> str:
    """The name of the run that a syncer has, if it speaks our protocol."""
    about = read_about(url, security)
    require_same_protocol(about, url)
    return about.runs[0]


class Observer:
    """One observer's connection to a run, as an asynchronous context.

    Args:
        url: of the syncer, ``http://host:port``; several with commas between them.
        run: name of the run.
        name: of the observer; letters, digits, ``_`` and ``-``.
        layout: how the model is cut.
        codec: number format of the run's versions.
        leases: the settings that every deadline follows from.
        security: whom it trusts, and what it shows.

    Raises:
        Refused: on entering, if the syncer does not accept it, or it the syncer.
        UsageError: on entering, if there is no such run to observe.
    """

    def __init__(
        self,
        url: str,
        run: str,
        name: str,
        layout: Layout,
        codec: Codec,
        leases: Leases = DEFAULTS,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        self.name = name
        self._url = url
        self._security = security
        self._addresses = Addresses(url)
        self._meter = LinkMeter(replace(leases, has_standby=self._addresses.count > 1))
        self._run = run
        self._codecs = fragment_codecs(layout, codec)
        self._worker = ThreadPoolExecutor(1, "unlockstep-observer")
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue(api.OUTBOX_MESSAGES_MAX)
        """What was said and not yet acted upon; None: that was all."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as open_until_left:
            open_until_left.callback(self._worker.shutdown, wait=True, cancel_futures=True)
            for attempt in range(self._addresses.count):
                url = str(self._addresses)
                path, params = api.control_path(self._run), {"observer": self.name}
                connection = control_connection(url + path, self._meter, self._security, attempt, params)
                try:
                    self._socket = await open_until_left.enter_async_context(connection)
                    break
                except NETWORK_ERRORS as error:
                    if attempt < self._addresses.count - 1:
                        self._addresses.next()
                        continue
                    if (refused := self._security.refused(error, url)) is not None:
                        raise Refused(refused) from None
                    raise UsageError(
                        f"run {self._run!r} cannot be observed at {url} ({error}); check the address and the run's name"
                    ) from None
            self._bulk = Bulk(str(self._addresses), self._security, timeouts=lambda: self._meter.timeouts)
            open_until_left.callback(self._bulk.close)
            reading = asyncio.create_task(self._read_on())
            open_until_left.callback(reading.cancel)
            self._open = open_until_left.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def messages(self) -> AsyncIterator[SyncerMessage]:
        """``Published`` for the newest version of every fragment, then whatever is announced, until the syncer goes or
        says what is no message."""
        while (frame := await self._frames.get()) is not None:
            try:
                message = decode_syncer_message(frame)
            except RemoteProtocolError as error:
                _log.warning("the syncer at %s has said what cannot be read: %s", self._addresses, error)
                return
            yield message

    async def _read_on(self) -> None:
        """All the time, also while a message is acted upon: whoever does not answer the syncer's pings meanwhile is
        gone."""
        async for frame in self._socket:
            if frame.type is aiohttp.WSMsgType.BINARY:
                await self._frames.put(frame.data)
        await self._frames.put(None)

    async def fetch(self, notice: VersionNotice) -> Float32 | None:
        """The values of a version, float32[n]; None if it is not to be had: a newer one will be announced. Raises
        Refused if it is not for this observer."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._read, notice)
        except NotAllowed as error:
            raise Refused(f"the syncer at {self._addresses} does not give versions to this observer: {error}") from None
        except (*NETWORK_ERRORS, RemoteProtocolError):
            return None

    def _read(self, notice: VersionNotice) -> Float32:
        if not 0 <= notice.fragment < len(self._codecs):
            raise RemoteProtocolError(f"fragment {notice.fragment} is not part of this model")
        codec, began_s = self._codecs[notice.fragment], time.monotonic()
        path = api.version_path(self._run, notice.fragment, notice.version)
        body = self._bulk.download(path, codec.body_size, notice.digest)
        self._meter.moved("down", len(body), time.monotonic() - began_s)
        return codec.decode(body)

    async def send(self, evaluation: Evaluation) -> None:
        """Report an evaluation; lost if the syncer is gone."""
        try:
            await self._socket.send_bytes(encode(evaluation))
        except NETWORK_ERRORS:
            return


def _ask(url: str, path: str, security: ClientSecurity, method: str = "GET") -> bytes:
    """From the first of several addresses that has it; what the last one says if none has."""
    *others, last = api.base_urls(url)
    for base in others:
        with suppress(UsageError):
            return _ask_at(base, path, security, method)
    return _ask_at(last, path, security, method)


def _ask_at(base: str, path: str, security: ClientSecurity, method: str) -> bytes:
    target, context = urlsplit(base), security.context(base)
    host = target.hostname or ""
    connection = http.client.HTTPConnection(host, target.port, timeout=_TIMEOUTS.reply_s)
    if context is not None:
        connection = http.client.HTTPSConnection(host, target.port, timeout=_TIMEOUTS.reply_s, context=context)
    try:
        with closing(connection):
            connection.connect()
            with over_after(connection.sock, ANSWER_S_MAX):
                connection.request(method, path, headers=security.headers(base) | {"Connection": "close"})
                with connection.getresponse() as response:
                    body = response.read(REPLY_BYTES_MAX)
                    if response.length:  # Settings that are cut off may still be settings, of another run.
                        raise http.client.IncompleteRead(body, response.length)
    except (OSError, http.client.HTTPException) as error:
        if (refused := security.refused(error, base)) is not None:
            raise UsageError(refused) from None
        otherwise = security.hung_up(error, base)
        said = shortened(str(error)) if otherwise is None else "what is there hung up"
        fix = advice(host) if otherwise is None else f"; {otherwise}"
        raise Unanswered(
            f"no syncer answers at {base} ({said}); check the address and that the syncer is running{fix}"
        ) from None
    if response.status in NOT_NOW:
        raise Unanswered(_not_now(body, base, response.status))
    if not 200 <= response.status < 300:  # A syncer sends nobody to another address, and a token must not follow.
        raise UsageError(_sentence(body, base))
    return body


def _sentence(body: bytes, base: str) -> str:
    """What a syncer said instead of an answer, if it was a syncer."""
    try:
        return f"{base}: {shortened(api.read_answer(body, dict[str, str])['error'])}"
    except (RemoteProtocolError, KeyError):
        return f"what answers at {base} is not an unlockstep syncer; check the address"


def _not_now(body: bytes, base: str, status: int) -> str:
    """The same, said where it passes: it need not be a syncer."""
    try:
        return f"{base}: {shortened(api.read_answer(body, dict[str, str])['error'])}"
    except (RemoteProtocolError, KeyError):
        return f"no syncer answers at {base} (status {status}); check the address and that the syncer is running"


def _parse(body: bytes, kind: type[Parsed], url: str) -> Parsed:
    try:
        return api.read_answer(body, kind)
    except RemoteProtocolError:
        raise UsageError(
            f"what answers at {url} is not an unlockstep syncer of this version; check the address"
        ) from None
