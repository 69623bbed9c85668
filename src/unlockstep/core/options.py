"""What the protocol can be told: the ``[protocol]`` section of a run's configuration, checked once when it is built.

Decides names, defaults and limits of the protocol's settings and the relations between them. Does not decide how they
are used: ``schedule`` (P, H), ``window`` (quorum, grace), ``membership`` (lease), ``rounds`` (participation, late).
Durations are seconds here, because people write this section; the core reads the ``_ns`` properties.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from unlockstep.core.errors import ConfigError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND, NEVER_NS

COUNT_MAX = 2**20
"""Largest number of fragments, learners, steps of an interval: beyond any use, and small enough to hold in memory."""


class Participation(Enum):
    """Which live learners a round asks."""

    LATEST = "latest"
    """Every live learner with at least one inner step on the fragment since it last handed progress over."""
    FRESH = "fresh"
    """Only learners that have finished the step the round is due at (the paper's rule)."""


class Late(Enum):
    """What becomes of a contribution that arrives after its round has closed, or has another one of its learner."""

    NEXT = "next"
    """It counts in the next round of that fragment."""
    DROP = "drop"
    """It is refused (the paper's rule)."""


class Anchor(Enum):
    """What an outer gradient is measured from."""

    LEARNER = "learner"
    """What this learner last handed over, or an adoption left it: only its own progress counts."""
    SYNCER = "syncer"
    """The syncer's current value (the paper's form, App. D.2)."""


class Dealing(msgspec.Struct, frozen=True, kw_only=True):
    """How the corpus is dealt out by data leases; checked where it is configured (``config.DataSection``)."""

    chunk_sequences: int
    """Size of a grant that comes fresh from the corpus."""
    stock_sequences: int
    """What a learner has before it at least, while there is anything to grant."""
    epochs: int
    """Times each sequence is to be trained; then the run ends. 0: without end."""


class ProtocolOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of the protocol; the symbols are the paper's."""

    fragments: int = 4
    """P: fragments the parameters are cut into."""
    layout: str = "balanced"
    """How parameters are dealt to fragments: ``balanced``, ``tensor`` or ``layer``."""
    interval_steps: int = 4
    """H: inner steps between two rounds of the same fragment."""
    overlap_steps: int = 2
    """tau: inner steps one round may overlap with; bounds the rounds in flight."""
    quorum: int = 1
    """K: learners a round needs before it may close; also which clock drives the syncer (the K-th highest)."""
    participation: Participation = Participation.LATEST
    late: Late = Late.NEXT
    anchor: Anchor = Anchor.LEARNER
    grace_factor: float = 0.8
    """gamma: share of the slack spent on waiting (paper, Eq. 3); 0 switches the grace window off."""
    grace_cap_steps: float = 1.0
    """Longest grace window, in inner steps."""
    average_weight: float = 0.25
    """Weight of the newest sample in the moving averages xi."""
    staleness_max: int = 16
    """Versions a contribution may be behind before it is refused."""
    lease_s: float = 10.0
    """Silence after which a learner no longer counts, seconds."""
    away_s_max: float = 3600.0
    """How long a learner trains on while the syncer is away, seconds, before it stops; 0: for ever."""
    strikes_max: int = 3
    """Refused contributions in a row after which a learner is quarantined."""
    quarantine_s: float = 60.0
    """How long it stays out, seconds; twice as long every time after that. 0: for good."""
    quarantine_s_max: float = 3600.0
    """... and at most so long."""
    learners_max: int = 1024
    """Learners that may be members at once."""
    closed_rounds_max: int = 4096
    """Closed rounds remembered, to tell late from unknown."""

    @property
    def lease_ns(self) -> int:
        return int(self.lease_s * NANOSECONDS_PER_SECOND)

    def quarantine_ns(self, times: int) -> int:
        """How long a learner stays out that is quarantined for the n-th time, from 1; ``NEVER_NS``: for good."""
        if self.quarantine_s == 0:
            return NEVER_NS
        doubled_s = self.quarantine_s * 2.0 ** min(times - 1, 64)
        return int(min(doubled_s, self.quarantine_s_max) * NANOSECONDS_PER_SECOND)

    @property
    def away_ns_max(self) -> int:
        return int(self.away_s_max * NANOSECONDS_PER_SECOND) if self.away_s_max else NEVER_NS

    @property
    def rounds_in_flight_max(self) -> int:
        """max(1, floor(tau * P / H)): how many rounds may be open or committing at once."""
        return max(1, self.overlap_steps * self.fragments // self.interval_steps)

    @property
    def rounds_remembered_max(self) -> int:
        """P more than of closed ones: what opens and closes beside an open round does not crowd it out."""
        return self.closed_rounds_max + self.fragments

    @property
    def rounds_saved_max(self) -> int:
        """Of these as many as outlive the syncer: what answers an older one starts from a version that is too old."""
        return min(self.rounds_remembered_max, (self.staleness_max + 2) * self.fragments + self.rounds_in_flight_max)

    def __post_init__(self) -> None:
        for name in ("fragments", "interval_steps", "quorum", "strikes_max", "learners_max", "closed_rounds_max"):
            _at_least(name, getattr(self, name), 1)
            _at_most(name, getattr(self, name), COUNT_MAX)
        for name in ("overlap_steps", "grace_factor", "grace_cap_steps", "staleness_max"):
            _at_least(name, getattr(self, name), 0)
        _at_most("grace_cap_steps", self.grace_cap_steps, COUNT_MAX)
        if self.grace_factor >= 1:
            raise ConfigError(
                f"protocol.grace_factor is {self.grace_factor!r}, but waiting for the whole slack stalls the learners; "
                "choose a value from 0 up to, but not including, 1"
            )
        if not 0 < self.average_weight <= 1:
            raise ConfigError(f"protocol.average_weight is {self.average_weight!r}; choose a value above 0 and up to 1")
        if not 0.05 <= self.lease_s <= 86_400:
            raise ConfigError(f"protocol.lease_s is {self.lease_s!r}; choose between 0.05 seconds and one day (86400)")
        if self.quarantine_s != 0 and not 0.05 <= self.quarantine_s <= self.quarantine_s_max <= 31_536_000:
            raise ConfigError(
                f"protocol.quarantine_s is {self.quarantine_s!r} and protocol.quarantine_s_max is "
                f"{self.quarantine_s_max!r}; choose a pause from 0.05 seconds on, and a longest one not below it and "
                "at most a year (31536000), or a pause of 0 to shut a learner out for good"
            )
        if not (self.away_s_max == 0 or 1 <= self.away_s_max < 10**9):
            raise ConfigError(
                f"protocol.away_s_max is {self.away_s_max!r}; choose at least 1 second, or 0 to train on for ever"
            )
        if self.layout not in ("balanced", "tensor", "layer"):
            raise ConfigError(f"protocol.layout is {self.layout!r}; choose balanced, tensor or layer")


class RollbackOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When the syncer goes back to an earlier state of all parameters (``core.loss_watch``)."""

    spike_factor: float = 0.0
    """... if an evaluator reports a loss above so many times the median of recent ones, or NaN; 0: never."""
    window: int = 5
    """Evaluations that are recent; of each a record is kept to go back to."""

    def __post_init__(self) -> None:
        if self.spike_factor != 0 and not 1 < self.spike_factor <= 1e6:
            raise ConfigError(
                f"rollback.spike_factor is {self.spike_factor!r}; choose a value above 1 and up to a million, or 0 for "
                "never"
            )
        if not 1 <= self.window <= 1024:
            raise ConfigError(f"rollback.window is {self.window!r}; choose a number of evaluations from 1 to 1024")


def _at_most(name: str, value: float, most: int) -> None:
    if value > most:
        raise ConfigError(f"protocol.{name} is {value!r}; it must be at most {most}")


def _at_least(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise ConfigError(f"protocol.{name} is {value!r}; it must be at least {least}")
