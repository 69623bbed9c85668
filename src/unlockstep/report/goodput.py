"""Goodput: how much of the time that all learners had went into training that counted, and where the rest went.

Decides what the ideal is, and the classes that everything below it falls into; they add up to 1 exactly. Does not
decide what became of a token (``core.ledger``) nor what a learner did when (``stretches``).

For learner l, with r its undisturbed rate in tokens per second and T the time it was on the roster::

    goodput = sum over l of tokens of l that were merged, on time or late  /  sum over l of r * T

*The roster* is: who has begun a first step, from then on until it leaves in order, again from its next join, and until
the end of the run. Who was killed stays on the roster: that it is missing is what goodput is about. With an event tape
it is who is on the tape, from its beginning or a join until a leave, whether or not it could train.

*The undisturbed rate* is that of the median of the learner's own steps. With a tape each step counts as long as it
would have been at the learner's own speed (``Slow`` taken out), and steps in which something was done to it are left
out. A learner that never took a step is given the median of the others' rates.

*The rest* is told apart twice. Time in which nothing was trained goes to what the learner did instead: T minus trained
tokens / r is cut into slowed, waiting, recovering, away and down. What was trained and not merged goes to what became
of it. Paper, section 4.2, defines goodput for chips; ``sim.goodput`` computes that, and agrees (a test holds it to it).
"""

from __future__ import annotations

import bisect
import math
import statistics
from array import array
from collections.abc import Mapping, Sequence

import msgspec

from unlockstep.core.events import Event
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.status import LedgerStatus
from unlockstep.report.stretches import Attendance, Doing
from unlockstep.tape import Join, Leave, Replace, Slow, Tape


class Shares(msgspec.Struct, frozen=True):
    """Parts of the ideal useful time; they add up to 1. The first two are goodput."""

    merged: float = 0.0
    merged_late: float = 0.0
    slowed: float = 0.0
    """Steps took longer than undisturbed ones, net of those that took less: a little below 0 if its mean step is
    shorter than its median one."""
    waiting: float = 0.0
    """Connected and in no step (``Doing.WAITING``)."""
    recovering: float = 0.0
    """New processes that had not begun their first step."""
    away: float = 0.0
    """Without a connection, less what was trained there."""
    down: float = 0.0
    """No process; also what a dead one has handed over of a step that it never reported, as less of it."""
    refused: float = 0.0
    overwritten: float = 0.0
    dropped: float = 0.0
    lost: float = 0.0
    in_flight: float = 0.0
    """Trained, and not known what becomes of it yet; nothing after the end."""


class Goodput(msgspec.Struct, frozen=True):
    """Of one learner, or of all together."""

    goodput: float
    """Tokens merged, on time or late, over tokens possible; ``shares.merged + shares.merged_late``."""
    roster_ns: int
    """Time on the roster; of all together, the sum."""
    tokens_per_s: float
    """Undisturbed rate; of all together, the mean over roster time. 0 if nobody has trained."""
    shares: Shares


class _Sums:
    """What one learner did."""

    __slots__ = ("ns_per_token", "ns_per_token_own", "spent_ns", "tokens")

    def __init__(self) -> None:
        self.spent_ns = dict.fromkeys(Doing, 0)
        self.tokens = dict.fromkeys(Doing, 0.0)
        """By what it did when it trained them."""
        self.ns_per_token = array("d")
        """Of every step."""
        self.ns_per_token_own = array("d")
        """Of those in which nothing was done to it, as they would be at its own speed."""

    def tokens_per_s(self) -> float:
        """Of its median step; 0 if that is not known."""
        steps = self.ns_per_token_own or self.ns_per_token
        return NANOSECONDS_PER_SECOND / statistics.median(steps) if steps else 0.0


class _Windows:
    """When a learner is on a tape, and how fast it is meant to be."""

    def __init__(self, tape: Tape, learner: str) -> None:
        self.spans: list[tuple[int, int]] = []
        self._at_ns = [0]
        self._factors = [1.0]
        since_ns = 0 if learner in tape.learners else None
        for action in tape.actions:
            if action.target != learner:
                continue
            if isinstance(action, Join):
                since_ns = action.at_ns
            elif isinstance(action, Leave) and since_ns is not None:
                self.spans.append((since_ns, action.at_ns))
                since_ns = None
            factor = self._factors[-1]
            if isinstance(action, Slow):
                factor = action.factor
            elif isinstance(action, Join | Leave | Replace):
                factor = 1.0
            self._at_ns.append(action.at_ns)
            self._factors.append(factor)
        if since_ns is not None:
            self.spans.append((since_ns, 2**63))

    def overlap_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much of a stretch is on the tape."""
        return sum(max(0, min(end_ns, end) - max(begin_ns, begin)) for begin, end in self.spans)

    def factor(self, begin_ns: int, end_ns: int) -> float | None:
        """How much slower than at its own speed it is meant to be; None if anything is done to it meanwhile."""
        first = bisect.bisect_right(self._at_ns, max(0, begin_ns))
        return self._factors[first - 1] if first == bisect.bisect_right(self._at_ns, end_ns) else None


class RosterTime:
    """Adds up what learners did, event by event.

    Args:
        tape: what was done to the run; None if nothing was, or nobody knows. Its time begins with the first step.
        until_ns: how long a run is known to have gone on whose log does not end, ns.
    """

    def __init__(self, tape: Tape | None = None, until_ns: int = 0) -> None:
        self._windows = {} if tape is None else {name: _Windows(tape, name) for name in tape.cast}
        self._until_ns = until_ns
        self._sums: dict[str, _Sums] = {}
        self._attendance = Attendance(self._take)
        self._origin_ns: int | None = None
        """When the first step of the run began."""

    def see(self, event: Event) -> None:
        self._attendance.see(event)

    def _take(self, learner: str, doing: Doing, begin_ns: int, end_ns: int, tokens: float) -> None:
        if doing is Doing.COMPUTING and self._origin_ns is None:
            self._origin_ns = begin_ns
        windows = self._windows.get(learner)
        sums = self._sums.get(learner)
        if sums is None:
            if doing is not Doing.COMPUTING and windows is None:
                return  # Not on the roster before its first step.
            sums = self._sums[learner] = _Sums()
        sums.tokens[doing] += tokens
        length_ns = end_ns - begin_ns
        if doing is Doing.COMPUTING and tokens > 0 and length_ns > 0:
            sums.ns_per_token.append(length_ns / tokens)
            factor = 1.0 if windows is None else windows.factor(self._told_ns(begin_ns), self._told_ns(end_ns))
            if factor is not None:
                sums.ns_per_token_own.append(length_ns / tokens / factor)
        sums.spent_ns[doing] += length_ns if windows is None else self._on_tape_ns(windows, begin_ns, end_ns)

    def _told_ns(self, at_ns: int) -> int:
        """Time of the tape."""
        return at_ns - (self._origin_ns or 0)

    def _on_tape_ns(self, windows: _Windows, begin_ns: int, end_ns: int) -> int:
        if end_ns < begin_ns:
            return end_ns - begin_ns
        return windows.overlap_ns(self._told_ns(begin_ns), self._told_ns(end_ns))

    def account(self, ledgers: Mapping[str, LedgerStatus]) -> tuple[Goodput | None, dict[str, Goodput]]:
        """The end of the log.

        Args:
            ledgers: what became of each learner's tokens.

        Returns:
            Of all together, None if nobody was on the roster; and of each that was.
        """
        end_ns = self._told_ns(self._attendance.finish(self._until_ns))
        for name, windows in self._windows.items():
            sums = self._sums.setdefault(name, _Sums())
            missing_ns = windows.overlap_ns(0, end_ns) - sum(sums.spent_ns.values())
            if missing_ns > 0:  # It was not there yet, or ever.
                sums.spent_ns[Doing.DOWN] += missing_ns
        rates = {name: sums.tokens_per_s() for name, sums in self._sums.items()}
        known = [rate for rate in rates.values() if rate]
        usual = statistics.median(known) if known else 0.0
        each = {
            name: _of_learner(sums, rates[name] or usual, ledgers.get(name, _NOTHING))
            for name, sums in sorted(self._sums.items())
            if sum(sums.spent_ns.values()) > 0
        }
        return _together(tuple(each.values())), each


_NOTHING = LedgerStatus(0.0, 0.0, 0.0, {}, 0.0, 0.0, 0.0, 0.0)


def _of_learner(sums: _Sums, tokens_per_s: float, ledger: LedgerStatus) -> Goodput:
    roster_ns = sum(sums.spent_ns.values())
    possible = tokens_per_s * roster_ns / NANOSECONDS_PER_SECOND

    def share(tokens: float) -> float:
        return tokens / possible if possible else 0.0

    time = {doing: spent_ns / roster_ns - share(sums.tokens[doing]) for doing, spent_ns in sums.spent_ns.items()}
    # What was handed over of a step that its process did not live to report.
    unreported = ledger.trained - sum(sums.tokens.values())
    shares = Shares(
        merged=share(ledger.merged),
        merged_late=share(ledger.merged_late),
        slowed=time[Doing.COMPUTING],
        waiting=time[Doing.WAITING],
        recovering=time[Doing.RECOVERING],
        away=time[Doing.AWAY],
        down=time[Doing.DOWN] - share(unreported),
        refused=share(sum(ledger.refused.values())),
        overwritten=share(ledger.overwritten),
        dropped=share(ledger.dropped),
        lost=share(ledger.lost),
        in_flight=share(ledger.in_flight),
    )
    return Goodput(shares.merged + shares.merged_late, roster_ns, tokens_per_s, shares)


def _together(each: Sequence[Goodput]) -> Goodput | None:
    """Weighted by what each could have trained; by time, if nobody has trained."""
    roster_ns = sum(one.roster_ns for one in each)
    if roster_ns == 0:
        return None
    possible = [one.tokens_per_s * one.roster_ns for one in each]
    weights = possible if any(possible) else [float(one.roster_ns) for one in each]
    whole = math.fsum(weights)

    def mean(name: str) -> float:
        return math.fsum(weight * getattr(one.shares, name) for weight, one in zip(weights, each, strict=True)) / whole

    shares = Shares(**{name: mean(name) for name in Shares.__struct_fields__})
    return Goodput(shares.merged + shares.merged_late, roster_ns, math.fsum(possible) / roster_ns, shares)
