"""Goodput: how much of the time that all learners had went into training that counted, and where the rest went.

Decides what the ideal is, and the classes that everything below it falls into: none is below 0, and they add up to 1.
Does not decide what became of a token (``core.ledger``) nor what a learner did when (``stretches``).

For learner l, with r its undisturbed rate in tokens per second, C the time it was in steps, T the time it was on the
roster, and n what it trained::

    goodput = sum over l of tokens of l that were merged, on time or late  /  sum over l of max(r C, n) + r (T - C)

*The roster* is: who has begun a first step, from then on until it leaves in order, again from its next join, and until
the end of the run. Who was killed stays on the roster: that it is missing is what goodput is about. With an event tape
it is who is on the tape, from the first step of the run or a join until a leave, whether or not it could train.

*The undisturbed rate* is that of the median of the learner's own steps. With a tape each step counts as long as it
would have been at the learner's own speed (``Slow`` taken out), and steps in which something was done to it are left
out. A learner that never took a step is given the median of the others' rates. What was trained in less time than that
rate allows, because its steps on the whole took less than the median one, was possible all the same: hence the n.

*The rest* is told apart twice. Time in which nothing was trained goes to what the learner did instead: slower steps,
waiting, recovering, away and down. What was trained and not merged goes to what became of it. Paper, section 4.2,
defines goodput for chips; ``sim.goodput`` computes that, and agrees (a test holds it to it).
"""

from __future__ import annotations

import bisect
import math
import statistics
from array import array
from collections.abc import Callable, Mapping, Sequence

import msgspec

from unlockstep.core.events import Event, LearnerJoined, StepReported
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.status import LedgerStatus
from unlockstep.report.stretches import Attendance, Doing, Stretch
from unlockstep.report.tape_time import TapeTime
from unlockstep.tape import Join, Leave, Replace, Slow, Tape


class Shares(msgspec.Struct, frozen=True):
    """Parts of what was possible: each from 0 to 1, and they add up to 1. The first two are goodput."""

    merged: float = 0.0
    merged_late: float = 0.0
    slowed: float = 0.0
    """Steps took longer than undisturbed ones, net of those that took less."""
    waiting: float = 0.0
    """Connected and in no step (``Doing.WAITING``)."""
    recovering: float = 0.0
    """New processes that had not begun their first step."""
    away: float = 0.0
    """Without a connection, and in no step that anybody ever heard of."""
    down: float = 0.0
    """No process; less what a dead one has handed over of a step that it never reported."""
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
    tokens_possible: float = 0.0
    """What the shares are parts of."""


class _Sums:
    """What one learner did."""

    __slots__ = ("ns_per_token", "ns_per_token_own", "spent_ns", "tokens", "tokens_before")

    def __init__(self) -> None:
        self.spent_ns = dict.fromkeys(Doing, 0)
        self.tokens = 0.0
        """That its steps have trained."""
        self.tokens_before = 0.0
        """Trained before the log begins."""
        self.ns_per_token = array("d")
        """Of every step."""
        self.ns_per_token_own = array("d")
        """Of those in which nothing was done to it, as they would be at its own speed."""

    def tokens_per_s(self) -> float:
        """Of its median step; 0 if that is not known."""
        steps = self.ns_per_token_own or self.ns_per_token
        return NANOSECONDS_PER_SECOND / statistics.median(steps) if steps else 0.0


_FROM_THE_FIRST_STEP = -(2**62)


class _Windows:
    """When a learner is on a tape, and how fast it is meant to be."""

    def __init__(self, tape: Tape, learner: str) -> None:
        self.spans: list[tuple[int, int]] = []
        self._at_ns = [0]
        self._factors = [1.0]
        since_ns = _FROM_THE_FIRST_STEP if learner in tape.learners else None
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

    def overlap_ns(self, begin_ns: int, end_ns: int, first_ns: int) -> int:
        """How much of a stretch is on the tape, and after the first step of the run."""
        return sum(max(0, min(end_ns, end) - max(begin_ns, begin, first_ns)) for begin, end in self.spans)

    def factor(self, begin_ns: int, end_ns: int) -> float | None:
        """How much slower than at its own speed it is meant to be; None if anything is done to it meanwhile."""
        first = bisect.bisect_right(self._at_ns, max(0, begin_ns))
        return self._factors[first - 1] if first == bisect.bisect_right(self._at_ns, max(0, end_ns)) else None

    def slowest(self, begin_ns: int, end_ns: int) -> float:
        """The largest factor that is in force some time of a stretch."""
        first, last = (bisect.bisect_right(self._at_ns, max(0, at_ns)) for at_ns in (begin_ns, end_ns))
        return max(self._factors[first - 1 : last])


class RosterTime:
    """Adds up what learners did, event by event.

    Args:
        tape: what was done to the run; whoever passes it shows it every event first.
        until_ns: how long a run is known to have gone on whose log does not end, ns.
        also: who else takes the stretches, each with how many times slower than at its own speed the tape has the
            learner meanwhile, at most.
    """

    def __init__(self, tape: TapeTime, until_ns: int, also: Callable[[Stretch, float], None]) -> None:
        self._tape = tape
        self._windows = {} if tape.tape is None else {name: _Windows(tape.tape, name) for name in tape.tape.cast}
        self._until_ns = until_ns
        self._sums: dict[str, _Sums] = {}
        self._also = also
        self._attendance = Attendance(self._take, tape)
        self._kept: list[Stretch] = []
        """Until it is known when the time of the tape begins."""
        self._tokens_before: dict[str, float] = {}

    def see(self, event: Event) -> None:
        match event:
            case LearnerJoined():
                self._tokens_before.setdefault(event.learner, 0.0)
            case StepReported() if event.learner not in self._tokens_before:  # The log begins in the middle of the run.
                self._tokens_before[event.learner] = event.tokens * (1 - 1 / max(1, event.steps))
        self._attendance.see(event)

    def _take(self, stretch: Stretch) -> None:
        self._also(stretch, self._slowest(stretch))
        if self._windows and not self._tape.is_known:
            self._kept.append(stretch)
            return
        for kept in self._kept:
            self._add(kept)
        self._kept.clear()
        self._add(stretch)

    def _slowest(self, stretch: Stretch) -> float:
        windows = self._windows.get(stretch.learner)
        if windows is None or not self._tape.is_known:
            return 1.0
        return windows.slowest(self._told_ns(stretch.begin_ns), self._told_ns(stretch.end_ns))

    def _add(self, stretch: Stretch) -> None:
        windows = self._windows.get(stretch.learner)
        sums = self._sums.get(stretch.learner)
        if sums is None:
            if stretch.doing is not Doing.COMPUTING and windows is None:
                return  # Not on the roster before its first step.
            sums = self._sums[stretch.learner] = _Sums()
        sums.tokens += stretch.tokens
        begin_ns, end_ns = self._told_ns(stretch.begin_ns), self._told_ns(stretch.end_ns)
        if stretch.step_ns > 0 and stretch.tokens > 0:
            ns_per_token = stretch.step_ns / stretch.tokens
            sums.ns_per_token.append(ns_per_token)
            factor = 1.0 if windows is None else windows.factor(begin_ns, end_ns)
            if factor is not None:
                sums.ns_per_token_own.append(ns_per_token / factor)
        length_ns = end_ns - begin_ns if windows is None else windows.overlap_ns(begin_ns, end_ns, self._first_ns)
        sums.spent_ns[stretch.doing] += length_ns

    def _told_ns(self, at_ns: int) -> int:
        """Time of the tape."""
        return at_ns - self._tape.zero_ns

    @property
    def _first_ns(self) -> int:
        """When the first step of the run began, by the time of the tape."""
        first_ns = self._tape.first_step_ns
        return 0 if first_ns is None else self._told_ns(first_ns)

    def account(self, ledgers: Mapping[str, LedgerStatus]) -> tuple[Goodput | None, dict[str, Goodput]]:
        """The end of the log.

        Args:
            ledgers: what became of each learner's tokens.

        Returns:
            Of all together, None if nobody was on the roster; and of each that was.
        """
        end_ns = self._told_ns(self._attendance.finish(self._until_ns))
        for kept in self._kept:  # The tape has never begun.
            self._add(kept)
        for name, windows in self._windows.items():
            sums = self._sums.setdefault(name, _Sums())
            missing_ns = windows.overlap_ns(self._first_ns, end_ns, self._first_ns) - sum(sums.spent_ns.values())
            if missing_ns > 0:  # It was not there yet, or ever.
                sums.spent_ns[Doing.DOWN] += missing_ns
        for name, sums in self._sums.items():
            sums.tokens_before = self._tokens_before.get(name, 0.0)
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
    fates = {
        "merged": ledger.merged,
        "merged_late": ledger.merged_late,
        "refused": math.fsum(ledger.refused.values()),
        "overwritten": ledger.overwritten,
        "dropped": ledger.dropped,
        "lost": ledger.lost,
        "in_flight": ledger.in_flight - sums.tokens_before,
    }
    fates = {name: max(0.0, tokens) for name, tokens in fates.items()}
    trained = math.fsum(fates.values())
    times = {doing: spent_ns * tokens_per_s / NANOSECONDS_PER_SECOND for doing, spent_ns in sums.spent_ns.items()}
    # What was handed over of a step that its process did not live to report took some of the time it is down.
    unreported = min(max(0.0, trained - sums.tokens), times[Doing.DOWN])
    times[Doing.DOWN] -= unreported
    times[Doing.COMPUTING] = max(0.0, times[Doing.COMPUTING] + unreported - trained)
    parts = {("slowed" if doing is Doing.COMPUTING else doing.value): tokens for doing, tokens in times.items()} | fates
    possible = math.fsum(parts.values())
    if not possible:  # Nobody has trained: all there is to share out is time.
        parts, whole = {doing.value: float(spent) for doing, spent in sums.spent_ns.items()}, float(roster_ns)
        parts["slowed"] = parts.pop(Doing.COMPUTING.value)
    else:
        whole = possible
    shares = Shares(**{name: part / whole for name, part in parts.items()})
    return Goodput(shares.merged + shares.merged_late, roster_ns, tokens_per_s, shares, possible)


def _together(each: Sequence[Goodput]) -> Goodput | None:
    """Weighted by what each could have trained; by time, if nobody has trained."""
    roster_ns = sum(one.roster_ns for one in each)
    if roster_ns == 0:
        return None
    weights = [one.tokens_possible for one in each]
    if not any(weights):
        weights = [float(one.roster_ns) for one in each]
    whole = math.fsum(weights)

    def mean(name: str) -> float:
        return math.fsum(weight * getattr(one.shares, name) for weight, one in zip(weights, each, strict=True)) / whole

    shares = Shares(**{name: mean(name) for name in Shares.__struct_fields__})
    tokens_per_s = math.fsum(one.tokens_per_s * one.roster_ns for one in each) / roster_ns
    possible = math.fsum(one.tokens_possible for one in each)
    return Goodput(shares.merged + shares.merged_late, roster_ns, tokens_per_s, shares, possible)
