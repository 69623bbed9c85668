"""Whether an emulated link is what it says: bare TCP streams over it against what they should reach.

    python benchmarks/link_emulation.py      # 4 min; needs root

Rate: one stream on a link without loss, by what the link is set to; 0 means no limit, and shows how far the emulation
goes on this machine. Loss: eight streams side by side on a link they cannot fill, so that each is limited by its losses
alone, under Reno; per stream, against the formula of Mathis et al. 1997, ``MSS / RTT * C / sqrt(p)``, with
C = sqrt(3/2) if every segment is acknowledged and sqrt(3/4) if every other one is: what is measured should lie between.

``late`` is how long after its time a frame was delivered at worst: the precision of every delay.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.link_cable import Shape
from support.links import Star, inside, set_congestion_control, star, why_not

WARM_UP_S = 10.0
SEGMENT_BYTES = 1448
"""An MTU of 1500 less the headers of IPv4 and TCP, and timestamps."""
HEADERS_BYTES = 52
QUEUE_BYTES = 4_000_000
RATES_MBIT = (10, 100, 1000, 0)
LOSSES = ((50, 0.01), (100, 0.0025), (100, 0.01), (100, 0.04), (200, 0.01))
"""(round trip in milliseconds, share of packets)."""
STREAMS = 8

Row = dict[str, object]


def send(connection: socket.socket) -> None:
    piece = bytes(2**18)
    with connection, suppress(OSError):  # The other end is closed.
        while True:
            connection.sendall(piece)


def receive(connection: socket.socket) -> None:
    buffer = bytearray(2**18)
    with suppress(OSError):
        while connection.recv_into(buffer):
            pass


def measure(site: Star, shape: Shape, streams: int, window_s: float) -> tuple[float, float]:
    """Mbit/s that arrive, headers not counted, and how late a frame was at worst in milliseconds."""
    link, threads = site.links[0], []
    with ExitStack() as stack:
        with inside(site.syncer):
            server = stack.enter_context(socket.create_server((site.address(0), 0)))
        ends = []
        for _ in range(streams):
            with inside(site.learners[0]):
                ours = stack.enter_context(socket.create_connection(server.getsockname()))
            theirs, _ = server.accept()
            ends.append(stack.enter_context(theirs))
            threads += [Thread(target=send, args=(ours,)), Thread(target=receive, args=(theirs,))]
        link.be(shape)
        for thread in threads:
            thread.start()
        time.sleep(WARM_UP_S)
        before, began_s = link.report().up, time.monotonic()
        time.sleep(window_s)
        report, took_s = link.report(), time.monotonic() - began_s
        link.be(Shape())
        for end in ends:
            end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    frames, moved = report.up.delivered - before.delivered, report.up.delivered_bytes - before.delivered_bytes
    return (moved - HEADERS_BYTES * frames) * 8e-6 / took_s, report.late_ns_max / 1e6


def rates(window_s: float) -> list[Row]:
    rows: list[Row] = []
    for rate_mbit in RATES_MBIT:
        with star(1) as site:
            reached, late_ms = measure(site, Shape(rate_mbit=rate_mbit, queue_bytes=QUEUE_BYTES), 1, window_s)
        most = rate_mbit * SEGMENT_BYTES / (SEGMENT_BYTES + HEADERS_BYTES)
        rows.append({"set, Mbit/s": rate_mbit, "at most": round(most, 1), "reached": round(reached, 1)})
        rows[-1]["late, ms"] = round(late_ms, 1)
    return rows


def losses(window_s: float) -> list[Row]:
    rows: list[Row] = []
    for round_trip_ms, loss in LOSSES:
        shape = Shape(delay_ms=round_trip_ms / 2, loss=loss, rate_mbit=1000, queue_bytes=QUEUE_BYTES)
        with star(1) as site:
            for namespace in (site.syncer, *site.learners):
                set_congestion_control(namespace, "reno")
            reached, late_ms = measure(site, shape, STREAMS, window_s)
        whole = SEGMENT_BYTES * 8e-3 / round_trip_ms / math.sqrt(loss)
        row: Row = {
            "round trip, ms": round_trip_ms,
            "loss": f"{loss:.2%}",
            "Mbit/s a stream": round(reached / STREAMS, 2),
        }
        formula = {"every second acknowledged": math.sqrt(3 / 4), "every one": math.sqrt(3 / 2)}
        row |= {name: round(whole * constant, 2) for name, constant in formula.items()}
        rows.append(row | {"late, ms": round(late_ms, 1)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--json", action="store_true", help="one JSON object per row instead of tables")
    options = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"not measured, links cannot be emulated: {reason}")
        return
    for title, part in (("rate", rates), ("loss", losses)):
        rows = part(options.seconds)
        if options.json:
            for row in rows:
                print(json.dumps({"part": title} | row))
            continue
        table = Table(*rows[0], title=title)
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        Console(width=110).print(table)


if __name__ == "__main__":
    main()
