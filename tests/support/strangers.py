"""Thousands of bad requests to a syncer, from many addresses of this machine at once; a process of its own:

    python strangers.py URL SECRETS COUNT [quick]

Decides what each kind of them does, and that every kind keeps coming until the end. Prints, as JSON, how many of each
were made and how each was answered: a status, or 0 for a connection that was cut. Knows nothing of what the syncer is
to make of it.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ADDRESSES = [f"127.0.{block}.{host}" for block in (1, 2) for host in range(1, 33)]
"""All of them are this machine."""
AT_ONCE = 64
ANSWER_S_MAX = 30.0
RUN = "/v1/runs/small"


@dataclass(frozen=True)
class Site:
    """The syncer, and what the strangers have got hold of."""

    host: str
    port: int
    contexts: dict[str, ssl.SSLContext]
    """By what certificate is shown: ``own`` was signed by the authority; ``none``, ``expired``, ``foreign``."""
    tokens: dict[str, str]

    @classmethod
    def of(cls, url: str, secrets: Path) -> Site:
        parts = urlsplit(url)
        contexts = {}
        for name in ("none", "own", "expired", "foreign"):
            contexts[name] = ssl.create_default_context(cafile=secrets / "ca.pem")
            if name != "none":
                contexts[name].load_cert_chain(secrets / f"{name}.pem", secrets / f"{name}.key")
        tokens = {path.stem: path.read_text().strip() for path in secrets.glob("*.token")}
        assert parts.hostname is not None and parts.port is not None
        return cls(parts.hostname, parts.port, contexts, tokens)


_sources = itertools.cycle(ADDRESSES)


class Line:
    """One connection of a stranger."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, site: Site, cert: str | None = "own") -> Line:
        """With TLS and this certificate; None: without TLS."""
        context = None if cert is None else site.contexts[cert]
        streams = asyncio.open_connection(site.host, site.port, ssl=context, local_addr=(next(_sources), 0))
        return cls(*await asyncio.wait_for(streams, ANSWER_S_MAX))

    async def ask(self, data: bytes) -> int:
        """The status that is answered; 0 if the connection is cut instead."""
        with suppress(OSError):
            self._writer.write(data)
            await self._writer.drain()
        return await self.status()

    async def status(self) -> int:
        try:
            head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), ANSWER_S_MAX)
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await asyncio.wait_for(self._reader.readexactly(int(line.partition(b":")[2])), ANSWER_S_MAX)
            return int(head.split(b" ", 2)[1])
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            return 0

    async def end(self) -> int:
        """What comes is thrown away until the other end hangs up."""
        with suppress(OSError):
            while await asyncio.wait_for(self._reader.read(65536), ANSWER_S_MAX):
                pass
        return 0

    def close(self) -> None:
        self._writer.transport.abort()


def request(method: str, path: str, token: str | None, fields: str = "", body: bytes = b"") -> bytes:
    shown = "" if token is None else f"Authorization: Bearer {token}\r\n"
    length = "" if method == "GET" or "Content-Length" in fields else f"Content-Length: {len(body)}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{shown}{length}{fields}\r\n".encode("latin-1") + body


# ------------------------------------------------------------------------------------------------- one by one

Kind = Callable[[Site, int], Awaitable[list[int]]]
"""What one stranger does, the n-th of its kind: how each of its requests was answered."""


async def said(site: Site, cert: str | None, *requests: bytes) -> list[int]:
    """On one connection, as long as it stands."""
    try:
        line = await Line.to(site, cert)
    except (OSError, TimeoutError):
        return [0]
    try:
        statuses = []
        for each in requests:
            statuses.append(await line.ask(each))
            if statuses[-1] in (0, 401, 403):
                break
        return statuses
    finally:
        line.close()


async def stalled(site: Site, cert: str | None, data: bytes) -> list[int]:
    """Say so much and no more, and wait to be cut."""
    line = await Line.to(site, cert)
    try:
        return [await line.ask(data) and await line.end()]
    finally:
        line.close()


async def garbage(site: Site, n: int) -> list[int]:
    return await said(site, None, bytes((n * i) % 256 for i in range(1, 200)))


async def plain_http(site: Site, n: int) -> list[int]:
    return await said(site, None, request("GET", RUN, site.tokens["learner"]))


async def no_certificate(site: Site, n: int) -> list[int]:
    return await said(site, "none", request("GET", RUN, site.tokens["learner"]))


async def expired_certificate(site: Site, n: int) -> list[int]:
    return await said(site, "expired", request("GET", RUN, site.tokens["learner"]))


async def foreign_certificate(site: Site, n: int) -> list[int]:
    return await said(site, "foreign", request("GET", RUN, site.tokens["learner"]))


async def half_handshake(site: Site, n: int) -> list[int]:
    return await stalled(site, None, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")


async def no_token(site: Site, n: int) -> list[int]:
    return await said(site, "own", request("GET", (RUN, "/metrics", f"{RUN}/config")[n % 3], None))


async def wrong_token(site: Site, n: int) -> list[int]:
    shown = ("wrong", site.tokens["learner"][:-1], "x" * 5000, "Bearer")[n % 4]
    return await said(site, "own", request("GET", RUN, shown))


async def expired_token(site: Site, n: int) -> list[int]:
    return await said(site, "own", request("GET", RUN, site.tokens["gone"]))


async def not_allowed(site: Site, n: int) -> list[int]:
    path = (f"{RUN}/stop", f"{RUN}/fragments/0/versions/0", f"{RUN}/states/1")[n % 3]
    return await said(site, "own", request(("POST", "PUT", "PUT")[n % 3], path, site.tokens["observer"]))


async def another_name(site: Site, n: int) -> list[int]:
    """Speaks for a learner that is not its own: a contribution of somebody else's is sent once more."""
    query = f"run_id=id&fragment={n % 2}&base_version={n}&codec=float32&c_steps=1&c_tokens=10&tokens={n}"
    fields = "Content-Digest: sha-256=:" + "A" * 43 + "=:\r\n"
    path = f"{RUN}/rounds/{n}/contributions/toy-{n % 2}.1?{query}"
    return await said(site, "own", request("PUT", path, site.tokens["mallory"], fields, bytes(100)))


async def foreign_origin(site: Site, n: int) -> list[int]:
    fields = ("Origin: https://evil.example\r\n", "Origin: null\r\n")[n % 2]
    return await said(site, "own", request("POST", f"{RUN}/stop", site.tokens["admin"], fields))


async def huge_head(site: Site, n: int) -> list[int]:
    """Or one that is none."""
    fields = (f"X: {'y' * 20_000}\r\n", "".join(f"X-{i}: 1\r\n" for i in range(200)), "X\u00e4\r\n")[n % 3]
    return await said(site, "own", request("GET", RUN, site.tokens["mallory"], fields))


async def half_a_head(site: Site, n: int) -> list[int]:
    line = await Line.to(site)
    line._writer.write(request("GET", RUN, site.tokens["mallory"])[: 20 + n % 60])
    with suppress(OSError):
        await line._writer.drain()
    line.close()
    return [0]


async def slow_head(site: Site, n: int) -> list[int]:
    return await stalled(site, "own", request("GET", RUN, site.tokens["mallory"])[: 20 + n % 60])


TRICKS = [
    "/v1/runs/small/../../../etc/passwd",
    "/v1/runs/small/%2e%2e/%2e%2e/etc/passwd",
    "/v1/runs/..%2f..%2fetc%2fpasswd",
    "/v1/runs/small%00",
    "/v1/runs/%ff%fe",
    "/v1/runs/" + "a" * 4000,
    "//v1/runs/small/x",
    "/v1/runs/small/fragments/%D9%A1/versions/0",
    "/v1/runs/small/fragments/-1/versions/0",
    "/v1/runs/small/fragments/99999999999999999999/versions/0",
    "/v1/runs/sm%C3%A4ll",
    "/v1/runs/small/fragments/0/versions/0/../../../../../etc/passwd",
]


async def path_tricks(site: Site, n: int) -> list[int]:
    """Many on one connection: they are answered and change nothing."""
    paths = [TRICKS[(n + i) % len(TRICKS)] for i in range(TRICKS_AT_ONCE)]
    return await said(site, "own", *(request("GET", path, site.tokens["mallory"]) for path in paths))


TRICKS_AT_ONCE = 20


async def oversize(site: Site, n: int) -> list[int]:
    fields = f"Content-Length: {10**9 + n}\r\n"
    return await said(site, "own", request("PUT", "/v1/probe", site.tokens["mallory"], fields))


async def gzip_bomb(site: Site, n: int) -> list[int]:
    fields = "Content-Encoding: gzip\r\nContent-Digest: sha-256=:" + "A" * 43 + "=:\r\n"
    path = f"{RUN}/rounds/1/contributions/mallory.1?run_id=id&fragment=0&base_version=0&codec=float32"
    return await said(site, "own", request("PUT", path, site.tokens["mallory"], fields, BOMB))


BOMB = gzip.compress(bytes(50_000_000))
FRAMES = [
    b"\x82\x85\x00\x00\x00\x00\x81\xa1a\xa1b",  # msgpack, but no message
    b"\x81\x82\x00\x00\x00\x00hi",  # text
    b"\x82\x05hello",  # not masked
    b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",  # longer than anything
    b"\x82\xfe\x10\x00\x00\x00\x00\x00" + b"\x91" * 4096,  # deep
    b"\xf2\x80\x00\x00\x00\x00",  # reserved bits
]


async def malformed_frame(site: Site, n: int) -> list[int]:
    fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    fields += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    line = await Line.to(site)
    try:
        assert await line.ask(request("GET", f"{RUN}/control", site.tokens["mallory"], fields)) == 101
        line._writer.write(FRAMES[n % len(FRAMES)])
        return [await line.end()]
    finally:
        line.close()


KINDS: dict[Kind, int] = {
    garbage: 1000,
    plain_http: 1000,
    no_certificate: 150,
    expired_certificate: 150,
    foreign_certificate: 150,
    half_handshake: 50,
    no_token: 200,
    wrong_token: 200,
    expired_token: 100,
    not_allowed: 150,
    another_name: 200,
    foreign_origin: 100,
    huge_head: 100,
    half_a_head: 100,
    slow_head: 50,
    path_tricks: 5950,
    oversize: 100,
    gzip_bomb: 100,
    malformed_frame: 150,
}
"""How many requests of each make ten thousand."""


SLOW = (half_handshake, slow_head)
"""They only wait, for as long as they are let."""


async def storm(site: Site, count: int, is_quick: bool) -> dict[str, Counter[int]]:
    """About so many requests, of all kinds in turn; without the slow ones if it is to be quick.

    Before the flood comes one of each kind alone: of a flood, the audit trail tells the first few and counts the rest,
    and which are the first depends on how busy the machine is.
    """
    kinds = {kind: share for kind, share in KINDS.items() if not (is_quick and kind in SLOW)}
    places, found = asyncio.Semaphore(AT_ONCE), {kind.__name__: Counter[int]() for kind in kinds}

    async def one(kind: Kind, n: int) -> None:
        async with asyncio.Semaphore(1) if kind in SLOW else places:  # Who only waits takes nobody's place.
            found[kind.__name__].update(await kind(site, n))

    due: list[tuple[float, int, Kind, int]] = []
    for order, (kind, share) in enumerate(kinds.items()):
        calls = max(1, round(share * count / sum(kinds.values())) // (TRICKS_AT_ONCE if kind is path_tricks else 1))
        due += [((n + 0.5) / calls, order, kind, n) for n in range(kind not in SLOW, calls)]
    due.sort(key=lambda each: (each[2] not in SLOW, each[0], each[1]))
    for kind in kinds:
        if kind not in SLOW:
            await one(kind, 0)
    await asyncio.gather(*(one(kind, n) for _, _, kind, n in due))
    return found


if __name__ == "__main__":
    outcome = asyncio.run(storm(Site.of(sys.argv[1], Path(sys.argv[2])), int(sys.argv[3]), sys.argv[4:] == ["quick"]))
    print(json.dumps({name: {str(status): n for status, n in counts.items()} for name, counts in outcome.items()}))
