"""Every deadline of the network, derived from what a user sets and what was measured.

::

    set       protocol.lease_s       silence after which a learner no longer counts
              durability.lease_s     silence after which a standby takes over
              protocol.away_s_max    how long others go on without a syncer
    measured  round trip, bytes per second each way, step time

Decides how long each wait may be, and when a transfer has stalled: that follows progress, never a guessed size. Does
not measure (``link_meter``), wait or read a clock: time is an argument. The deadlines of the protocol itself (rounds,
leases, donors) are ``core``'s, and follow from the first of the three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from unlockstep.config import RunConfig
from unlockstep.core.learner import HEARTBEATS_PER_LEASE

ROUND_TRIP_S_ASSUMED = 0.25
"""Where none was measured: across an ocean, and then some."""

BYTES_PER_S_ASSUMED = 1_000_000.0
"""Where none was measured: a link of 10 Mbit/s, less what others take."""

SYN_REPEATED_S = 1.0
"""A lost first packet of a connection is sent again after so long (RFC 6298), and the next time after two seconds."""

CONNECT_S_MIN, CONNECT_S_MAX = 2.0, 20.0
CONNECT_S_UNKNOWN = 5.0
"""How far attempts grow whose round trip is not known; in one no longer than this, two packets are never more than two
seconds apart."""
CONNECT_GROWTH = 1.5

GONE_S_MIN, GONE_S_MAX = 1.0, 15.0
"""Silence of a control connection, whatever the leases: below, a busy computer would count as gone; above, the end of
an outage would be noticed too late."""

LEADER_LEASES_TO_GONE = 3
"""A leader that is silent for so many of its leases has been followed by a standby, and is left."""

SILENCE_SHARE = 0.6
"""Of that time, after which a sign of life is asked for. aiohttp gives half as long for it, and rounds up."""

REPLY_S_MIN, REPLY_S_MAX = 10.0, 60.0
"""For the answer to a small request: a process that is busy, or starting, answers late."""

VERDICT_S = 60.0
"""For the answer to a body, which is hashed and decoded first, after those of others. It does not grow with a link: one
that is dead meanwhile is noticed by itself (``sockets.watch_over``)."""

STALL_S_MIN, STALL_S_MAX = 10.0, 60.0
STALL_BYTES_PER_S_MIN, STALL_BYTES_PER_S_MAX = 1024.0, 64 * 1024.0
STALL_SHARE = 0.001
"""Of the measured rate: what a transfer must reach to count as moving."""

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0
"""Pause before connecting again: doubled after every failure, of which a random half is taken off."""

CLOSE_S_MIN, CLOSE_S_MAX = 1.0, 2.0
"""So short that a process is gone within five seconds, wherever its peer is."""

GOODBYE_S_MIN = 60.0
"""At the end of a run, beyond what is computed: evaluators are at work, and processors are busy."""


@dataclass(frozen=True, slots=True)
class Leases:
    """What a user sets, seconds."""

    lease_s: float = 10.0
    """``protocol.lease_s``."""
    leader_lease_s: float = 5.0
    """``durability.lease_s``."""
    away_s_max: float = 3600.0
    """``protocol.away_s_max``; 0: for ever."""
    has_standby: bool = False
    """Whether there is another address to go to when the syncer falls silent."""


DEFAULTS = Leases()
"""Of whoever does not know the settings of a run yet."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a link and of a run; None: nothing yet."""

    round_trip_s: float | None = None
    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    step_s: float | None = None


NOTHING = Measured()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long what may last, seconds. Made by ``derive``."""

    connect_s: float
    """One attempt to open a connection: name, TCP and TLS."""
    connect_s_max: float
    """... to which attempts grow while none succeeds and the round trip is not known."""
    reply_s: float
    """From a small request to its answer, and from a control connection to its first message."""
    silence_s: float
    """Silence of a control connection after which its other end is asked for a sign of life (a ping)."""
    gone_s: float
    """... and after which it counts as gone, at either end."""
    verdict_s: float
    """From the last byte of a body to its answer."""
    stall_s: float
    """A transfer is given up, and what was sent without an acknowledgement, if within so long ..."""
    stall_bytes: int
    """... it moves fewer bytes than this."""
    backoff_s_min: float
    """Pause before connecting again, the first time."""
    backoff_s_max: float
    """... and at most."""
    close_s: float
    """For a peer to answer a WebSocket's closing frame."""
    heartbeat_s: float
    """A learner that has nothing else to say says after so long that it is here."""
    return_s: float
    """At the end of a run, for observers of the syncer's life before to find this one."""
    goodbye_s: float
    """At the end of a run, for the last contributions of all learners to be merged."""
    away_s: float
    """Without a syncer, learners train on and evaluators wait for so long; infinite: for ever."""

    def connect_s_after(self, failures: int) -> float:
        """Of an attempt after so many that failed: longer and longer, in case the link is slower than anybody knows."""
        grown_s = self.connect_s * CONNECT_GROWTH ** min(failures, 64)
        return min(grown_s, max(self.connect_s, self.connect_s_max))

    def backoff_s_after(self, failures: int) -> float:
        """Longest pause after so many attempts in a row that failed, from 1."""
        return min(self.backoff_s_min * 2.0 ** min(max(failures, 1) - 1, 64), self.backoff_s_max)


def derive(leases: Leases = DEFAULTS, measured: Measured = NOTHING, model_bytes: int = 0) -> Timeouts:
    """All deadlines.

    Args:
        leases: what is set.
        measured: what is known; a deadline grows with the round trip and never shrinks below what it is without one.
        model_bytes: size of all fragments, once up or down: what may be on its way when a run ends.
    """
    round_trip_s = ROUND_TRIP_S_ASSUMED if measured.round_trip_s is None else max(0.0, measured.round_trip_s)
    step_s = measured.step_s or 0.0
    connect_s = _between(CONNECT_S_MIN, SYN_REPEATED_S + 4 * round_trip_s, CONNECT_S_MAX)
    reply_s = _between(REPLY_S_MIN, 5 + 8 * round_trip_s, REPLY_S_MAX)
    gone_s = min(leases.lease_s, GONE_S_MAX)
    if leases.has_standby:
        gone_s = min(gone_s, LEADER_LEASES_TO_GONE * leases.leader_lease_s)
    gone_s = max(gone_s, GONE_S_MIN, 8 * round_trip_s)
    stall_s = max(_between(STALL_S_MIN, leases.lease_s, STALL_S_MAX), 8 * round_trip_s)
    up, down = (rate or BYTES_PER_S_ASSUMED for rate in (measured.up_bytes_per_s, measured.down_bytes_per_s))
    slower = min(measured.up_bytes_per_s or math.inf, measured.down_bytes_per_s or math.inf)
    bytes_per_s = STALL_BYTES_PER_S_MIN
    if slower < math.inf:
        bytes_per_s = _between(STALL_BYTES_PER_S_MIN, STALL_SHARE * slower, STALL_BYTES_PER_S_MAX)
    backoff_s_max = _between(2 * BACKOFF_S_MIN, leases.lease_s / 10, BACKOFF_S_MAX)
    return Timeouts(
        connect_s=connect_s,
        connect_s_max=max(connect_s, CONNECT_S_UNKNOWN if measured.round_trip_s is None else 0.0),
        reply_s=reply_s,
        silence_s=SILENCE_SHARE * gone_s,
        gone_s=gone_s,
        verdict_s=VERDICT_S,
        stall_s=stall_s,
        stall_bytes=round(stall_s * bytes_per_s),
        backoff_s_min=BACKOFF_S_MIN,
        backoff_s_max=backoff_s_max,
        close_s=_between(CLOSE_S_MIN, 1 + 2 * round_trip_s, CLOSE_S_MAX),
        heartbeat_s=leases.lease_s / HEARTBEATS_PER_LEASE,
        return_s=reply_s,
        goodbye_s=GOODBYE_S_MIN + leases.lease_s + 2 * step_s + 2 * model_bytes * (1 / up + 1 / down),
        away_s=leases.away_s_max or math.inf,
    )


def leases_of(config: RunConfig, has_standby: bool = False) -> Leases:
    """What the settings of a run say."""
    protocol, durability = config.protocol, config.durability
    return Leases(protocol.lease_s, durability.lease_s, protocol.away_s_max, has_standby)


def _between(least: float, value: float, most: float) -> float:
    return min(max(least, value), most)


class _Mark(NamedTuple):
    at_s: float
    moved: int


class ProgressWatch:
    """Whether one transfer still moves: at least ``stall_bytes`` within every ``stall_s``.

    Args:
        timeouts: the window and what must pass in it.
        now_s: when the transfer begins, by any steady clock.
    """

    def __init__(self, timeouts: Timeouts, now_s: float) -> None:
        self._window_s = timeouts.stall_s
        self._bytes = timeouts.stall_bytes
        self._mark = _Mark(now_s, 0)
        self._moved = 0

    @property
    def until_s(self) -> float:
        """When it counts as stalled if no more passes."""
        return self._mark.at_s + self._window_s

    def moved(self, count: int, now_s: float) -> None:
        """So many bytes more have passed. Once enough have, the window begins anew."""
        self._moved += count
        if self._moved - self._mark.moved >= self._bytes:
            self._mark = _Mark(now_s, self._moved)

    def excuse(self, duration_s: float) -> None:
        """For so long it could not move, by our own doing."""
        self._mark = _Mark(self._mark.at_s + duration_s, self._mark.moved)

    def has_stalled(self, now_s: float) -> bool:
        """Whether it is to be given up."""
        return now_s >= self.until_s
