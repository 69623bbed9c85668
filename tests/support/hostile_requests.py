"""A syncer to be spoken to by strangers, raw requests that are sound, and what must hold whatever becomes of them.

The law: every answer is one of HTTP with a status below 500, the syncer has nothing to report, and it goes on. Used by
``tests/integration/test_hostile_requests.py`` and by ``fuzz/fuzz.py``.
"""

from __future__ import annotations

import logging
import re
import socket
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import aiohttp

from support.live_run import WAIT_S, Puppet, small_config
from support.syncer_thread import syncer_thread
from unlockstep.config import RunSection
from unlockstep.core.codec import body_digest
from unlockstep.core.messages import Pull, Settled
from unlockstep.net.access.limits import Limits
from unlockstep.net.wire import api
from unlockstep.net.wire.ranges import BodyDigest, Grid

UNLIMITED = Limits(
    accepts_per_s=1e9, accepts_burst=1e9, requests_per_s=1e9, requests_burst=1e9, head_s_max=2.0, rate_window_s=2.0
)
"""It is not the number of requests that is tried out here."""

ENDLESS = RunSection(name="small", steps=10**9)

_STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3}) ", re.MULTILINE)


class Errors(logging.Handler):
    """What is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


class Victim:
    """A syncer with one learner, ``l0``, which is asked for a contribution. Open until ``close``."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._syncer = self._stack.enter_context(syncer_thread(small_config(run=ENDLESS), folder, limits=UNLIMITED))
        self._stack.callback(self._syncer.do, self._hang_up)
        self._errors = Errors()
        logging.getLogger().addHandler(self._errors)
        self._stack.callback(logging.getLogger().removeHandler, self._errors)
        host, port = self._syncer.url.removeprefix("http://").split(":")
        self._address = host, int(port)
        self._session: aiohttp.ClientSession
        self._puppet: Puppet
        self._pull: Pull
        self._syncer.do(self._start)
        self.samples = self._samples()

    def close(self) -> None:
        self._stack.close()

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession()
        self._puppet = self._syncer.live.puppet(self._session, "l0")
        self._pull = await self._puppet.start()

    async def _hang_up(self) -> None:
        await self._puppet.socket.close()
        await self._session.close()

    # ------------------------------------------------------------------------------------------- laws

    def read(self, data: bytes) -> None:
        """Say this to the syncer, and hear it out. Raises AssertionError if the law is broken."""
        answer = b""
        with socket.create_connection(self._address, WAIT_S) as line, suppress(ConnectionError):
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            while piece := line.recv(65536):
                answer += piece
        statuses = [int(status) for status in _STATUS.findall(answer)]
        assert all(status < 500 for status in statuses), answer
        assert not self._errors.said, self._errors.said
        assert b"Traceback" not in answer

    def goes_on(self) -> None:
        """Raises AssertionError if the run has suffered: an honest contribution is to be merged. To be asked once."""

        async def contribute() -> None:
            honest = self._syncer.live.puppet(self._session, "honest")
            pull = await honest.start()
            assert (await honest.contribute(pull, honest.body(pull.fragment, 1.0)))[0] == 202
            assert (await honest.hear(Settled)).refusal is None
            await honest.socket.close()

        self._syncer.do(contribute)
        assert not self._errors.said, self._errors.said

    # ------------------------------------------------------------------------------------------- samples

    def _samples(self) -> list[bytes]:
        pull, base = self._pull, api.status_path("small")
        query = f"run_id=id&fragment={pull.fragment}&base_version=0&codec=float32&c_steps=1&c_tokens=10&tokens=20"
        contribution = f"{base}/rounds/{pull.round}/contributions/l0.1?{query}"
        body = bytes(self._puppet.body(pull.fragment, float("nan")))  # Whole, it is refused: the run stays as it is.
        digest = f"Content-Digest: {api.content_digest(body_digest(body))}\r\n"
        version = f"{base}/fragments/0/versions/0"
        state = "run_id=id&learner=l0&incarnation=1"
        return [
            _request("PUT", contribution, digest, body),
            *(_request("PUT", contribution, fields, part) for fields, part in _chunks(body, 64)),
            _request("PUT", f"{version}?{state}", digest, body),
            _request("PUT", f"{base}/states/1?{state}", digest, body),
            _request("GET", version, "Range: bytes=5-10\r\n"),
            _request("GET", f"{version}/digests"),
            _request("GET", f"{base}/states/1?learner=l0&incarnation=1"),
            _request("GET", f"{base}/control", "Connection: Upgrade\r\nUpgrade: websocket\r\n" + _WEBSOCKET) + _FRAME,
            _request("PUT", f"{api.PROBE_ROUTE}", "", bytes(100)),
            _request("GET", f"{api.PROBE_ROUTE}?bytes=10"),
            _request("GET", base),
        ]


_WEBSOCKET = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
_FRAME = b"\x82\x85\x00\x00\x00\x00\x81\xa1a\xa1b"


def _request(method: str, target: str, fields: str = "", body: bytes = b"") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if method == "PUT" else ""
    return f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}{fields}\r\n".encode() + body


def _chunks(body: bytes, size: int) -> list[tuple[str, bytes]]:
    """Fields and content of every part, and of the question what is missing."""
    grid = Grid(len(body), size)
    parts = [body[slice(*grid.span(index))] for index in range(grid.count)]
    whole = BodyDigest.of_chunks([bytes.fromhex(body_digest(part)) for part in parts], size)
    fields = "".join(f"{name}: {value}\r\n" for name, value in api.digest_fields(whole).items())
    said = [
        (
            f"{fields}Content-Range: bytes {grid.span(index).start}-{grid.span(index).stop - 1}/{len(body)}\r\n"
            f"Content-Digest: {api.content_digest(body_digest(part))}\r\n",
            part,
        )
        for index, part in enumerate(parts)
    ]
    return [(f"{fields}Content-Range: bytes */{len(body)}\r\n", b""), *said]
