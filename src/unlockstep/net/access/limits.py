"""What strangers may ask of a syncer's port, each limit with a name; and the two pure things that keep count.

Decides how much is too much, for one address and for all. Does not decide what happens then (``guard``, ``gate``).

The numbers leave room for 64 learners at one address, each with a control connection and two times sixteen streams:
2112 connections, which all come at once when a syncer is back, and then some hundred requests a second between them.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

UNPACED = 1e15
"""An allowance that nobody uses up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one port."""

    connections_max: int = 4096
    connections_per_address_max: int = 2560
    unproven_max: int = 1024
    """Connections that have not yet made a request they may make. One more costs the oldest of them its place: who
    means it needs three round trips, who sits there does not."""
    unproven_per_address_max: int = 512
    unproven_s_max: float = 30.0
    """Longest time that a connection may stay so."""
    accepts_per_s: float = 200.0
    accepts_burst: float = 2560.0
    """New connections from one address."""
    requests_per_s: float = 2000.0
    requests_burst: float = 10_000.0
    """Requests from one address."""
    unpaced: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks whose addresses are held to no rate: through a tunnel or a proxy on this machine everybody comes from
    the same address, where one who asks without end would shut out all others."""
    addresses_max: int = 4096
    """Addresses that are remembered while they have no connection."""

    sweep_s: float = 0.5
    """How often it is looked for who takes too long, and for files that have changed."""
    handshake_s_max: float = 10.0
    head_s_max: float = 10.0
    """From the first byte of a request to the end of its head."""
    idle_s_max: float = 600.0
    """Between two requests of a connection."""
    rate_min: float = 1024.0
    """Bytes a second in which a body must come, on average over ``rate_window_s``, as long as it is being read."""
    rate_window_s: float = 30.0
    unread_s_max: float = 60.0
    """Longest time that a client may leave an answer unread."""
    refused_s_max: float = 2.0
    """Given to a client to read why it was refused, while nobody reads the body that it sends."""
    header_bytes_max: int = 8190
    """Longest line of a head."""
    headers_max: int = 64

    failures_free: float = 5.0
    """Wrong tokens of one address that are answered at once. Of every one after that the answer takes twice as long."""
    failures_per_s: float = 0.1
    """... and so many are forgotten in a second."""
    failure_s_min: float = 0.1
    failure_s_max: float = 5.0
    failures_waiting_max: int = 8
    """Answers that wait so, for one address; with one more that connection is cut."""


FILES_KEPT = 256
"""Of the files that a process may have open, those that are no connections: the store, logs, states of learners, and
connections that were accepted a moment ago and are about to be refused."""


def fitting(limits: Limits, open_files: int | None) -> Limits:
    """The limits, with no more connections than a process that may have so many files open (None: any number) can
    hold and still save its run; a quarter of them, from one address, without a request."""
    if open_files is None:
        return limits
    most = max(1, open_files - min(FILES_KEPT, open_files // 2))
    return replace(
        limits,
        connections_max=min(limits.connections_max, most),
        connections_per_address_max=min(limits.connections_per_address_max, most),
        unproven_max=min(limits.unproven_max, max(1, most // 2)),
        unproven_per_address_max=min(limits.unproven_per_address_max, max(1, most // 4)),
    )


class Bucket:
    """An allowance that fills up at ``rate`` a second, and holds ``burst``."""

    __slots__ = ("_burst", "_level", "_rate", "_seen_s")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._seen_s = burst, now_s

    def take(self, now_s: float) -> bool:
        """Whether there is one left, which then is gone."""
        self._level = min(self._burst, self._level + self._rate * max(0.0, now_s - self._seen_s))
        self._seen_s = max(self._seen_s, now_s)
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True


class Visitor:
    """What one address has under way, and has left."""

    __slots__ = ("_failures", "_failures_s", "_limits", "accepts", "connections", "requests", "unproven", "waiting")

    def __init__(self, limits: Limits, now_s: float) -> None:
        self.connections = 0
        self.unproven = 0
        self.waiting = 0
        """Answers to wrong tokens that wait."""
        self.accepts = Bucket(limits.accepts_per_s, limits.accepts_burst, now_s)
        self.requests = Bucket(limits.requests_per_s, limits.requests_burst, now_s)
        self._limits = limits
        self._failures, self._failures_s = 0.0, now_s

    def failed(self, now_s: float) -> float:
        """It has shown a wrong token: how long the answer takes, seconds."""
        limits = self._limits
        forgotten = limits.failures_per_s * max(0.0, now_s - self._failures_s)
        self._failures, self._failures_s = max(0.0, self._failures - forgotten) + 1.0, now_s
        # As many as double the shortest wait to the longest are remembered: it ends, for who mends it.
        doublings = self._failures - limits.failures_free - 1.0
        if self._failures <= limits.failures_free:
            return 0.0
        wait_s = limits.failure_s_min * 2.0 ** min(doublings, 64.0)
        if wait_s >= limits.failure_s_max:
            self._failures -= 1.0
        return min(limits.failure_s_max, wait_s)


class Visitors:
    """Everybody who is or was here lately, by address; bounded however many come."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._visitors: OrderedDict[str, Visitor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._visitors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._visitors)

    def at(self, address: str, now_s: float) -> Visitor:
        """Who is at this address (``network_of``)."""
        visitor = self._visitors.get(address)
        if visitor is None:
            visitor = self._visitors[address] = Visitor(self._limits_at(address), now_s)
            self._forget()
        self._visitors.move_to_end(address)
        return visitor

    def _limits_at(self, address: str) -> Limits:
        if any(_is_in(address, network) for network in self._limits.unpaced):
            return replace(self._limits, accepts_burst=UNPACED, requests_burst=UNPACED)
        return self._limits

    def _forget(self) -> None:
        """Those who are longest gone; who has a connection stays, and of those there are few enough."""
        excess = len(self._visitors) - self._limits.addresses_max - self._limits.connections_max
        if excess <= 0:
            return
        gone = [address for address, visitor in self._visitors.items() if not visitor.connections]
        for address in gone[: max(excess, self._limits.addresses_max // 8)]:
            del self._visitors[address]


def _is_in(address: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network)
    except ValueError:
        return False  # A Unix socket, or a network of IPv6: neither is this machine's.


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 what a single customer is given, 64 bits of it."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found) if found.is_loopback else str(ipaddress.ip_network((found, 64), strict=False))
