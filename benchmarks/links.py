"""What a run makes of links that are far, lossy, narrow or cut: emulated between network namespaces of this machine.

    python benchmarks/links.py [partition]   # rejoining after a partition: --repeats 3, 5 min
    python benchmarks/links.py narrow        # a large body on a narrow link: --repeats 1, 8 min
    python benchmarks/links.py streams       # one connection and several: --repeats 3, 25 min

Needs root (``tests/support/links.py`` makes the namespaces). Congestion control is CUBIC where nothing else is said.

``partition``: three learners, each behind a link of its own (round trip 50 ms, 100 Mbit/s), all cut at once and healed
after a while. From the healing until a learner has joined again, until its first step counts, and until its first
contribution is accepted; the slowest of the three. Steps are those its training took meanwhile.

``narrow``: a learner trains behind 10 Mbit/s (round trip 50 ms, a queue of 256 KiB) with a lease of 10 s, while 200 MB
go up, then down. Latency of control messages is from the training loop to the syncer's log; a small request, over a
connection of its own, is what ``unlockstep doctor`` asks meanwhile.

``streams``: bytes that arrive in a given time at a round trip of 100 ms, 1 % loss each way and 1 Gbit/s, by the number
of connections.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import aiohttp
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.link_cable import Shape
from support.linked_run import WAIT_S, LinkedRun, linked_config, linked_run
from support.links import inside, set_congestion_control, star, why_not
from support.live_run import Puppet, layout_of
from unlockstep.config import CodecSection, RunConfig
from unlockstep.core.codec import FragmentCodec
from unlockstep.core.events import (
    ContributionAccepted,
    Event,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    RoundOpened,
    RunSeeded,
    StepReported,
)
from unlockstep.core.formats import Codec
from unlockstep.core.messages import Published, decode_syncer_message
from unlockstep.learners.toy import ToyBackend
from unlockstep.net.bulk.client import Bulk
from unlockstep.net.wire import api

Row = dict[str, object]

CROSS_COUNTRY = Shape(delay_ms=25, rate_mbit=100)
NARROW = Shape(delay_ms=25, rate_mbit=10)


@contextmanager
def sites(learners: int, shape: Shape, config: RunConfig, seed: int = 0) -> Iterator[LinkedRun]:
    """A run whose processes and files are gone when the block ends."""
    with (
        tempfile.TemporaryDirectory() as folder,
        star(learners, shape, seed) as site,
        linked_run(site, config, Path(folder)) as run,
    ):
        yield run


# ------------------------------------------------------------------------------------------------------- partition


def partition(repeats: int) -> list[Row]:
    """One row for each duration of a partition."""
    return [cut_for(duration_s, lease_s, repeats) for duration_s, lease_s in ((5, 10), (12, 10), (60, 10))]


def cut_for(duration_s: int, lease_s: float, repeats: int) -> Row:
    slowest: list[tuple[float, ...]] = []
    steps: list[int] = []
    for _ in range(repeats):
        with sites(3, CROSS_COUNTRY, linked_config(lease_s=lease_s)) as run:
            names = run.join_all()
            for name in names:
                run.log.wait(ContributionAccepted, learner=name)
            before = [run.followed[name].count for name in names]
            for link in run.star.links:
                link.cut()
            time.sleep(duration_s)
            steps += [run.followed[name].count - taken for name, taken in zip(names, before, strict=True)]
            mark = run.log.mark
            for link in run.star.links:
                link.heal()
            healed_ns = run.now_ns()
            slowest.append(tuple(seconds_to(run, kind, names, mark, healed_ns) for kind in SIGNS))
    joined, counted, given = (statistics.median(values) for values in zip(*slowest, strict=True))
    return {
        "cut for, s": duration_s,
        "lease, s": lease_s,
        "steps meanwhile": min(steps),
        "of": round(duration_s / 0.05),
        "joined after, s": round(joined, 2),
        "step counted after, s": round(counted, 2),
        "contributed after, s": round(given, 2),
        "worst": round(max(each[2] for each in slowest), 2),
    }


SIGNS: tuple[type[Event], ...] = (LearnerJoined, StepReported, ContributionAccepted)


def seconds_to(run: LinkedRun, kind: type[Event], names: list[str], mark: int, since_ns: int) -> float:
    """Until it has happened to each of these learners. Who was never missed does not join again."""
    if kind is LearnerJoined and not any(isinstance(e, LearnerDeparted | LearnerAway) for e in run.log.events):
        return 0.0
    return max(run.log.wait(kind, since=mark, learner=name).at_ns - since_ns for name in names) / 1e9


# ---------------------------------------------------------------------------------------------------------- narrow


def narrow(repeats: int, body_bytes: int = 200_000_000) -> list[Row]:
    """One row for the link at rest and one for each direction."""
    rows: list[Row] = []
    for _ in range(repeats):
        with sites(1, CROSS_COUNTRY, linked_config(lease_s=10.0, fragments=1)) as run:
            rows += fill(run, body_bytes)
    return rows


def fill(run: LinkedRun, body_bytes: int) -> list[Row]:
    """Upload a body on a narrow link, then take another one down it."""
    heavy = ("--elements", str(body_bytes // 16), "--noise", "0", "--step-s", "0.2", "--says-steps", "1")
    name = run.join(0, *heavy)
    seeded = run.log.wait(RunSeeded, timeout_s=300)
    run.star.links[0].be(NARROW)
    asked_ms = [round_trip_ms(run)]
    opened = run.log.wait(RoundOpened, timeout_s=300)
    patience_s = 10 * body_bytes * 8e-7 + 60
    asked_ms.append(round_trip_ms(run))
    accepted = run.log.wait(ContributionAccepted, timeout_s=patience_s)
    run.log.wait(FragmentCommitted, timeout_s=patience_s)
    before_bytes = run.star.links[0].report().down.delivered_bytes
    asked_ms.append(round_trip_ms(run))
    while run.star.links[0].report().down.delivered_bytes < before_bytes + body_bytes:
        time.sleep(0.1)
    fetched_ns = run.now_ns()
    spans = {
        "none": (seeded.at_ns, opened.at_ns),
        "up": (opened.at_ns, accepted.at_ns),
        "down": (accepted.at_ns, fetched_ns),
    }
    return [
        row_of(run, name, direction, span, 0 if direction == "none" else body_bytes, asked)
        for (direction, span), asked in zip(spans.items(), asked_ms, strict=True)
    ]


def round_trip_ms(run: LinkedRun) -> float:
    """Of a small request over a connection of its own, as ``unlockstep doctor`` finds it."""
    doctor = (sys.executable, "-m", "unlockstep", "doctor", run.url(0), "--no-rates", "--json")
    out, _ = run.star.start(run.star.learners[0], *doctor).communicate(timeout=120)
    return msgspec.json.decode(out)["links"][0]["measured"]["round_trip_s"] * 1e3


def row_of(run: LinkedRun, name: str, direction: str, span: tuple[int, int], body_bytes: int, asked_ms: float) -> Row:
    def within(event: Event) -> bool:
        return span[0] <= event.at_ns <= span[1]

    offset_ns, events = clock_offset_ns(run), [event for event in run.log.events if within(event)]
    said = run.followed[name].reports
    late = sorted(
        (event.at_ns + offset_ns - said[event.steps]) / 1e6
        for event in events
        if isinstance(event, StepReported) and event.steps in said
    )
    heard = sorted(event.at_ns for event in events if isinstance(event, StepReported))
    return {
        "body": direction,
        "MB": round(body_bytes / 1e6),
        "took, s": round((span[1] - span[0]) / 1e9, 1),
        "Mbit/s": round(body_bytes * 8e3 / (span[1] - span[0]), 2),
        "reports": len(late),
        "latency, ms": round(statistics.median(late)),
        "95 %": round(late[int(0.95 * len(late))]),
        "worst": round(late[-1]),
        "longest silence, s": round(max(b - a for a, b in itertools.pairwise(heard)) / 1e9, 2),
        "request, ms": round(asked_ms),
        "leases lost": sum(isinstance(event, LearnerAway | LearnerDeparted) for event in events),
    }


def clock_offset_ns(run: LinkedRun) -> int:
    """Of the machine's monotonic clock over the run's; the best of a few questions, each answered in about 1 ms."""
    tries = []
    for _ in range(20):
        asked_ns = time.monotonic_ns()
        at_ns = run.now_ns()
        took_ns = time.monotonic_ns() - asked_ns
        tries.append((took_ns, asked_ns + took_ns // 2 - at_ns))
    return min(tries)[1]


# --------------------------------------------------------------------------------------------------------- streams


@dataclass(frozen=True)
class Plan:
    """What is measured under one congestion control.

    Args:
        numbers: of streams; 0: as many as the client finds out to pay.
        warm_up_s, choosing_s: before the measurement; the second where the number is found out.
        window_s: of the measurement.
    """

    numbers: tuple[int, ...]
    warm_up_s: float
    choosing_s: float
    window_s: float


PLANS = {
    "cubic": Plan((1, 2, 4, 8, 16, 0), warm_up_s=3.0, choosing_s=45.0, window_s=15.0),
    "bbr": Plan((1, 8), warm_up_s=1.5, choosing_s=0.0, window_s=3.0),  # A body is through in a few seconds.
}
LOSSY = Shape(delay_ms=50, loss=0.01, rate_mbit=1000, queue_bytes=4_000_000)
BODY_BYTES = 400_000_000
HEADERS_BYTES = 20 + 20 + 12
"""Of a packet: IPv4, TCP, its timestamps."""


def streams(repeats: int) -> list[Row]:
    """One row for each congestion control and direction: Mbit/s by the number of streams."""
    rows: list[Row] = []
    for (control, plan), direction in itertools.product(PLANS.items(), ("up", "down")):
        rates = {
            number: statistics.median(rate(control, direction, number, seed) for seed in range(repeats))
            for number in plan.numbers
        }
        row: Row = {"control": control, "body": direction}
        for number in PLANS["cubic"].numbers:
            row[f"{number} streams" if number else "chosen"] = round(rates[number], 1) if number in rates else ""
        rows.append(row | {"8 to 1": round(rates[8] / rates[1], 1)})
    return rows


class Seeder:
    """A learner by hand that was asked for version 0 of the only fragment: a body that goes up once, and then down as
    often as wanted. Its control connection is kept by an event loop in a thread."""

    def __init__(self, run: LinkedRun) -> None:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._digest: Future[str] = Future()
        self._puppet = self._do(self._join(run))
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        seeds = FragmentCodec(self._puppet.layout, 0, Codec.FLOAT32)
        self.body = seeds.encode(np.zeros(seeds.size, np.float32))
        self.version_bytes = FragmentCodec(self._puppet.layout, 0, run.config.codec.download).body_size
        self.path = api.version_path(run.config.run.name, 0, 0)
        sender = api.SeedQuery(self._puppet.run_id, self._puppet.name, self._puppet.incarnation)
        self.query = {name: str(value) for name, value in msgspec.structs.asdict(sender).items()}

    def digest(self) -> str:
        """Of version 0, as it was announced."""
        return self._digest.result(WAIT_S)

    def close(self) -> None:
        self._do(self._session.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()

    async def _join(self, run: LinkedRun) -> Puppet:
        self._session = aiohttp.ClientSession()
        puppet = Puppet(run.url(0), run.config, self._session, "seeder")
        puppet.layout = layout_of(ToyBackend(sizes=(BODY_BYTES // 32,) * 8), run.config)
        assert (await puppet.join()).seed
        return puppet

    async def _listen(self) -> None:
        """So that pings are answered."""
        async for frame in self._puppet.socket:
            message = decode_syncer_message(frame.data)
            if isinstance(message, Published) and not self._digest.done():
                self._digest.set_result(message.notice.digest)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)


def rate(control: str, direction: str, number: int, seed: int) -> float:
    """Mbit/s of a body that arrive at the far end of the link, headers not counted, after the warm-up."""
    plan = PLANS[control]
    with ExitStack() as stack:
        plain = CodecSection(upload=Codec.FLOAT32, download=Codec.FLOAT32)
        config = msgspec.structs.replace(linked_config(fragments=1, lease_s=3600.0), codec=plain)
        run = stack.enter_context(sites(1, Shape(), config, seed=100 * seed))
        link = run.star.links[0]
        for namespace in (run.star.syncer, *run.star.learners):
            set_congestion_control(namespace, control)
        stack.enter_context(inside(run.star.learners[0]))
        bulk = stack.enter_context(closing(Bulk(run.url(0), streams=number or None)))
        seeder = stack.enter_context(closing(Seeder(run)))
        if direction == "up":
            transfer = Thread(target=lambda: bulk.upload(seeder.path, seeder.query, seeder.body), daemon=True)
        else:
            assert bulk.upload(seeder.path, seeder.query, seeder.body).status == 201
            digest = seeder.digest()
            transfer = Thread(target=lambda: fetch(bulk, seeder, digest), daemon=True)
        link.be(LOSSY)
        transfer.start()
        time.sleep(plan.warm_up_s if number else plan.choosing_s)
        before, began_s = getattr(link.report(), direction), time.monotonic()
        time.sleep(plan.window_s)
        after, took_s = getattr(link.report(), direction), time.monotonic() - began_s
        assert transfer.is_alive(), "the body is too small to measure with"
        bulk.cancel()
        transfer.join()
        link.be(Shape())
    frames, moved = after.delivered - before.delivered, after.delivered_bytes - before.delivered_bytes
    return (moved - HEADERS_BYTES * frames) * 8e-6 / took_s


def fetch(bulk: Bulk, seeder: Seeder, digest: str) -> None:
    with suppress(OSError):  # It is cancelled in the middle.
        bulk.download(seeder.path, seeder.version_bytes, digest)


# ------------------------------------------------------------------------------------------------------------- all

PARTS: dict[str, Callable[[int], list[Row]]] = {"partition": partition, "narrow": narrow, "streams": streams}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS), nargs="*", default="partition")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object per row instead of tables")
    options = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"not measured, links cannot be emulated: {reason}")
        return
    for part in [options.part] if isinstance(options.part, str) else options.part:
        rows = PARTS[part](options.repeats)
        if options.json:
            for row in rows:
                print(json.dumps({"part": part} | row))
            continue
        table = Table(*rows[0], title=part)
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        Console(width=140).print(table)


if __name__ == "__main__":
    main()
