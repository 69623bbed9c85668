"""Where a learner's bulk is best carried: what it moves, and what a step takes, for each of three ways, side by side.

    python benchmarks/courier.py [--load idle torch python] [--seconds 8] [--mbit 1000] [--json]

A contribution after the other goes up and a version after the other comes down, all the time, while the main thread

* waits (``idle``),
* trains ``llama-20m`` in torch, whose kernels give up the interpreter lock (``torch``),
* or runs a loop of pure Python, which holds it as long as it can (``python``).

The ways: ``event loop``, aiohttp in a thread with workers that subtract, encode and hash, which is how a learner did it
at first; ``threads``, the same jobs by blocking sockets (``ThreadCarrier``); ``process``, a child with shared memory
(``ChildCarrier``). All do the same work on fragments of 12 MB, in bfloat16 on the wire. The other end is a process that
hashes nothing, pinned to the last core where the system allows it. Rates are of float32, as the learner has it.
``--mbit`` caps every way at the rate of a link, each way; without it they take what they can get.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from rich.console import Console
from rich.table import Table

from unlockstep.config import CodecSection
from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.formats import Codec
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.core.messages import VersionNotice
from unlockstep.core.outer_gradient import outer_gradient
from unlockstep.loop import Contribution
from unlockstep.net.bulk.pace import Bucket
from unlockstep.net.courier.child import ChildCarrier
from unlockstep.net.courier.courier import Courier, ThreadCarrier, memory_bytes
from unlockstep.net.courier.jobs import Setting
from unlockstep.net.wire.link_meter import LinkMeter
from unlockstep.net.wire.ranges import Span, content_range, parse_content_range, parse_range

ELEMENTS = 3 * 1024 * 1024
PIECE_BYTES = 256 * 1024
AT_ONCE = 2
"""Of each kind."""

TENSORS = (TensorSpec("weights", (ELEMENTS,), "float32", Role.PARAMETER),)
LAYOUT = build_layout(TENSORS, 1, LayoutMethod.TENSOR)
CODEC = CodecSection(upload=Codec.BFLOAT16, download=Codec.BFLOAT16)
FORMAT = FragmentCodec(LAYOUT, 0, Codec.BFLOAT16)
BODY = bytes(FORMAT.encode(np.linspace(-1, 1, ELEMENTS).astype(np.float32)))
NOTICE = VersionNotice(0, 1, body_digest(BODY))


@dataclass(frozen=True, slots=True)
class Row:
    """Of one way beside one load."""

    way: str
    load: str
    up_mb_per_s: float
    down_mb_per_s: float
    alone_ms: float | None
    step_ms: float | None


# ------------------------------------------------------------------------------------------------- the other end


def serve() -> None:
    """Take and give bodies until stdin ends."""

    arrived: dict[str, set[Span]] = defaultdict(set)

    async def put(request: web.Request) -> web.Response:
        while await request.content.readany():
            pass
        field = request.headers.get("Content-Range")
        if field is not None:
            span, size = parse_content_range(field)
            here = arrived[request.path_qs]
            here.add(span)
            edges = sorted(here)
            gaps = [(a.stop, b.start) for a, b in pairwise([Span(0, 0), *edges, Span(size, size)]) if a.stop < b.start]
            if gaps:
                return web.json_response({"upload": "x", "missing": gaps}, status=202)
            del arrived[request.path_qs]
        return web.json_response({"outcome": "received"}, status=202)

    async def get(request: web.Request) -> web.StreamResponse:
        response, view = web.StreamResponse(), memoryview(BODY)
        if "Range" in request.headers:
            span = parse_range(request.headers["Range"], len(BODY))
            assert span is not None
            view = view[span.start : span.stop]
            response.set_status(206)
            response.headers["Content-Range"] = content_range(span, len(BODY))
        response.content_length = len(view)
        await response.prepare(request)
        for start in range(0, len(view), PIECE_BYTES):
            await response.write(view[start : start + PIECE_BYTES])
        return response

    async def main() -> None:
        application = web.Application()
        application.router.add_put("/up", put)
        application.router.add_get("/v1/runs/run/fragments/0/versions/1", get)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        os._exit(0)

    asyncio.run(main())


@contextmanager
def other_end() -> Iterator[str]:
    """Its address."""
    process = subprocess.Popen([sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait()


# ------------------------------------------------------------------------------------------------- ways


class EventLoopCourier:
    """How a learner did it at first: bodies by aiohttp, arithmetic in two worker threads."""

    def __init__(self, url: str, bytes_per_s: float) -> None:
        self._url = url
        self._up, self._down = Bucket(bytes_per_s), Bucket(bytes_per_s)

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(read_bufsize=1024 * 1024)

    async def close(self) -> None:
        await self._session.close()

    async def contribute(self, made: Contribution, path: str, query: dict[str, str]) -> None:
        def encode() -> tuple[memoryview, str]:
            body = FORMAT.encode(outer_gradient(made.anchor, made.local))
            return body, body_digest(body)

        body, digest = await asyncio.to_thread(encode)

        async def pieces() -> Any:
            for start in range(0, len(body), PIECE_BYTES):
                yield body[start : start + PIECE_BYTES]
                await _rest(self._up, PIECE_BYTES)

        headers = {"Content-Length": str(len(body)), "X-Digest": digest}
        async with self._session.put(self._url + path, params=query, headers=headers, data=pieces()) as response:
            await response.read()

    async def fetch(self, notice: VersionNotice, query: dict[str, str]) -> Any:
        body, filled = np.empty(len(BODY), np.uint8).data, 0
        async with self._session.get(f"{self._url}/v1/runs/run/fragments/0/versions/1") as response:
            while piece := await response.content.readany():
                body[filled : filled + len(piece)] = piece
                filled += len(piece)
                await _rest(self._down, len(piece))

        def decode() -> Any:
            assert body_digest(body) == notice.digest
            return FORMAT.decode(body)

        return await asyncio.to_thread(decode)


async def _rest(bucket: Bucket, count: int) -> None:
    if pause_ns := bucket.take(count, time.monotonic_ns()):
        await asyncio.sleep(pause_ns / 1e9)


def new_courier(way: str, url: str, bytes_per_s: float) -> Any:
    if way == "event loop":
        return EventLoopCourier(url, bytes_per_s)
    capped = None if bytes_per_s == float("inf") else bytes_per_s
    setting = Setting(url, "run", TENSORS, 1, LayoutMethod.TENSOR, CODEC, bytes_per_s=capped)
    carrier = (
        ChildCarrier(setting, None, memory_bytes(LAYOUT, CODEC)) if way == "process" else ThreadCarrier(setting, None)
    )
    return Courier(setting, LAYOUT, carrier, LinkMeter())


WAYS = ("event loop", "threads", "process")


class Traffic:
    """A thread with an event loop, as a learner's link is, in which bodies go up and down all the time."""

    def __init__(self, way: str, url: str, bytes_per_s: float) -> None:
        self.ups: list[float] = []
        self.downs: list[float] = []
        """When each transfer was through."""
        self._arguments = way, url, bytes_per_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Traffic:
        self._thread.start()
        while not (self.ups and self.downs):  # Until it is warm.
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    async def _run(self) -> None:
        courier = new_courier(*self._arguments)
        await courier.open()
        anchor, local = np.ones(ELEMENTS, np.float32), np.full(ELEMENTS, 0.5, np.float32)
        numbers = itertools.count()
        made = Contribution("id", "l", 1, 0, 0, 0, 1, 1, 1, anchor, local)

        async def up() -> None:
            while not self._is_over.is_set():
                await courier.contribute(made, "/up", {"tokens": str(next(numbers))})
                self.ups.append(time.perf_counter())

        async def down() -> None:
            while not self._is_over.is_set():
                await courier.fetch(NOTICE, {})
                self.downs.append(time.perf_counter())

        await asyncio.gather(*(work() for work in (up, down) for _ in range(AT_ONCE)))
        await courier.close()


# ------------------------------------------------------------------------------------------------- loads


def torch_step() -> Callable[[], object]:
    import torch

    from unlockstep.models import build_model, causal_loss

    model = build_model("llama-20m", vocabulary_size=256, seed=0)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randint(0, 256, (4, 129))

    def step() -> None:
        causal_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def python_step() -> Callable[[], object]:
    def step() -> int:
        total = 0
        for number in range(1_000_000):
            total += number * number & 3
        return total

    return step


LOADS: dict[str, Callable[[], Callable[[], object]] | None] = {
    "idle": None,
    "torch": torch_step,
    "python": python_step,
}


def step_ms(step: Callable[[], object], seconds: float) -> float:
    """Median."""
    times = []
    ends = time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        step()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def measure(load: str, seconds: float, bytes_per_s: float) -> Iterator[Row]:
    """All ways beside one load. What a step takes alone is measured before and after each."""
    make = LOADS[load]
    step = make() if make is not None else None
    if step is not None:
        step_ms(step, 2.0)
    for way in WAYS:
        alone = [step_ms(step, seconds / 2)] if step is not None else []
        beside: float | None = None
        with other_end() as url, Traffic(way, url, bytes_per_s) as traffic:
            began = time.perf_counter()
            if step is None:
                time.sleep(seconds)
            else:
                beside = step_ms(step, seconds)
            ended = time.perf_counter()
            up, down = (
                sum(began <= at <= ended for at in list(each)) * 4 * ELEMENTS / (ended - began) / 1e6
                for each in (traffic.ups, traffic.downs)
            )
        if step is not None:
            alone.append(step_ms(step, seconds / 2))
        yield Row(way, load, up, down, statistics.mean(alone) if alone else None, beside)
        print(f"{load}: {way}", file=sys.stderr)


def main() -> None:
    if sys.argv[1:] == ["serve"]:
        with suppress(KeyboardInterrupt):
            serve()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--mbit", type=float, default=float("inf"), help="cap of the link, Mbit/s each way")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    arguments = parser.parse_args()
    rows = [row for load in arguments.load for row in measure(load, arguments.seconds, arguments.mbit * 1e6 / 8)]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table(title="a learner's bulk and its training thread, side by side (medians)")
    for column in ("main thread", "bulk in", "up MB/s", "down MB/s", "step alone", "step beside it", "ratio"):
        table.add_column(column, justify="left" if column in ("main thread", "bulk in") else "right", no_wrap=True)
    for row in rows:
        steps = ("", "", "")
        if row.alone_ms is not None and row.step_ms is not None:
            steps = (f"{row.alone_ms:.1f} ms", f"{row.step_ms:.1f} ms", f"{row.step_ms / row.alone_ms:.2f}")
        table.add_row(row.load, row.way, f"{row.up_mb_per_s:.0f}", f"{row.down_mb_per_s:.0f}", *steps)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
