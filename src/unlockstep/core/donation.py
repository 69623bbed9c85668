"""Which learner gives its state to a new process, and what becomes of that: the syncer's half of a hand-over of state.

Decides who is asked, in what order, how often and until when, and that a state is kept no longer than it is needed.
Does not look into a state: it is a body with a digest, which the host keeps in a file. What a new process does with it,
or without, is its own affair (``recovery``).

A *donor* is a live learner that has trained at least H steps in its present process (what others know beside their
parameters is worth nothing yet) and has no strike against it: of these the one whose clock is highest, of equal ones
the first by name. It gives one state at a time. If it cannot, falls silent, departs or loses its connection, or if what
comes is not what it sent, another one is asked, up to ``DONORS_MAX``; the new process hears of that only that it is
seen to. A ticket names one state of one donor for one process. Tickets do not outlive the syncer: a process asks its
next life anew, and no number is used again there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from unlockstep.core.actions import ForgetState
from unlockstep.core.events import StateHandedOver, StateNotHandedOver
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.membership import Member, Membership
from unlockstep.core.messages import (
    NoDonor,
    StateArrived,
    StateAsked,
    StateComing,
    StateDeclined,
    StateLost,
    StateReady,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.outbox import Outbox
from unlockstep.core.reasons import Recovered
from unlockstep.core.words import counted

DONORS_MAX = 3
"""Asked in vain for one process; it is then told that there is none."""

STATES_MAX = 8
"""On their way or kept at a time; who wants another one waits."""

TICKETS_PER_LIFE = 2**32


class _Phase(Enum):
    WAITING = "waiting"
    ASKED = "asked"
    """A donor copies or uploads its state."""
    READY = "ready"
    """The state is here, and is being fetched."""


@dataclass(slots=True)
class _Wish:
    """What one new process waits for."""

    learner: str
    incarnation: int
    phase: _Phase = _Phase.WAITING
    ticket: int = 0
    donor: str = ""
    donor_incarnation: int = 0
    until_ns: int = NEVER_NS
    size_bytes: int = 0
    tried: list[str] = field(default_factory=list)


class Donations:
    """Of one run.

    Args:
        options: H and the lease are read.
        members: who is here.
        outbox: what is to be said and done.
    """

    def __init__(self, options: ProtocolOptions, members: Membership, outbox: Outbox) -> None:
        self._options = options
        self._members = members
        self._outbox = outbox
        self._wishes: dict[str, _Wish] = {}
        """By the learner that wants."""
        self._next_ticket = TICKETS_PER_LIFE + 1

    def resume(self, life: int) -> None:
        """Another life of the syncer."""
        self._next_ticket = life * TICKETS_PER_LIFE + 1

    # ------------------------------------------------------------------------------------------- what happens

    def want(self, member: Member, failed: int, now_ns: int) -> None:
        """A new process asks; under ticket ``failed`` it could not fetch what was there (0: it asks for the first
        time)."""
        wish = self._wishes.get(member.learner)
        if wish is not None and wish.phase is _Phase.READY and wish.ticket == failed:
            self._fail(wish, "the learner could not fetch it", now_ns)
        else:
            self._drop(member.learner)
            self._wishes[member.learner] = _Wish(member.learner, member.incarnation)

    def is_expected(self, ticket: int, learner: str, incarnation: int) -> bool:
        """Whether this learner has been asked to upload its state under this ticket, and has not."""
        wish = self._find(ticket)
        return (
            wish is not None
            and wish.phase is _Phase.ASKED
            and (wish.donor, wish.donor_incarnation) == (learner, incarnation)
        )

    def hear(self, message: StateDeclined | StateComing | StateArrived | StateLost, now_ns: int) -> None:
        """What a donor, or the host, says of its state."""
        match message:
            case StateDeclined(learner, incarnation, ticket):
                if self.is_expected(ticket, learner, incarnation):
                    self._lost(ticket, "it could not be copied or delivered", now_ns)
            case StateComing(ticket):
                self._coming(ticket, now_ns)
            case StateArrived():
                self._arrived(message, now_ns)
            case StateLost(ticket, reason):
                self._lost(ticket, reason, now_ns)

    def _coming(self, ticket: int, now_ns: int) -> None:
        """A piece of the state has come in, or gone out."""
        wish = self._find(ticket)
        if wish is not None:
            self._extend(wish, now_ns)

    def _arrived(self, arrived: StateArrived, now_ns: int) -> None:
        """The state is here whole."""
        wish = self._find(arrived.ticket)
        if wish is None or wish.phase is not _Phase.ASKED:
            self._outbox.act(ForgetState(arrived.ticket))
            return
        wish.phase, wish.size_bytes = _Phase.READY, arrived.size_bytes
        self._extend(wish, now_ns)
        ready = StateReady(arrived.ticket, arrived.digest, arrived.size_bytes)
        self._outbox.send_to(wish.learner, wish.incarnation, ready)

    def _lost(self, ticket: int, reason: str, now_ns: int) -> None:
        """It does not come."""
        wish = self._find(ticket)
        if wish is not None and wish.phase is _Phase.ASKED:
            self._fail(wish, reason, now_ns)

    def gone(self, member: Member, now_ns: int) -> None:
        """A learner has lost its connection, or is no member any more."""
        self._drop(member.learner)
        for wish in list(self._wishes.values()):
            if wish.donor == member.learner and wish.phase is _Phase.ASKED:
                self._fail(wish, "it is gone", now_ns)

    def begun(self, member: Member, recovered: Recovered | None, now_ns: int) -> None:
        """A process reports that it has begun: it waits for nothing any more."""
        wish = self._wishes.get(member.learner)
        if wish is None:
            return
        if wish.phase is _Phase.READY and recovered is Recovered.DONOR:
            event = StateHandedOver(now_ns, wish.donor, member.learner, member.incarnation, wish.size_bytes)
            self._outbox.log(event)
        else:
            self._log_failure(wish, "the learner has begun without it", now_ns)
        self._drop(member.learner)

    def stop(self, now_ns: int) -> None:
        """The run reaches its end: nobody gives anything any more."""
        for wish in list(self._wishes.values()):
            self._end(wish, "the run reaches its end", now_ns)

    # ------------------------------------------------------------------------------------------- deadlines

    def next_deadline_ns(self) -> int:
        """When the next wish fails for the time it takes."""
        return min((wish.until_ns for wish in self._wishes.values()), default=NEVER_NS)

    def on_deadline(self, now_ns: int) -> None:
        """Who has been silent for too long is given up."""
        for wish in list(self._wishes.values()):
            if now_ns < wish.until_ns:
                continue
            if wish.phase is _Phase.READY:
                self._end(wish, "it was not fetched in time", now_ns)
            else:
                self._fail(wish, "it did not come in time", now_ns)

    # ------------------------------------------------------------------------------------------- choosing

    def proceed(self, now_ns: int) -> None:
        """Ask donors for whoever waits for one, in the order in which they came."""
        for wish in list(self._wishes.values()):
            if wish.phase is not _Phase.WAITING:
                continue
            donors = self._donors(wish)
            busy = {other.donor for other in self._wishes.values() if other.phase is _Phase.ASKED}
            free = [donor for donor in donors if donor.learner not in busy]
            if len(wish.tried) >= DONORS_MAX or not donors:
                self._end(wish, self._why_none(wish), now_ns)
            elif free and self._kept_count < STATES_MAX:
                self._ask(wish, min(free, key=lambda donor: (-donor.clock, donor.learner)), now_ns)

    def _donors(self, wish: _Wish) -> list[Member]:
        return [
            member
            for member in self._members.live()
            if member.learner != wish.learner
            and member.learner not in wish.tried
            and member.steps >= self._options.interval_steps
            and not member.strikes
        ]

    @property
    def _kept_count(self) -> int:
        return sum(wish.phase is not _Phase.WAITING for wish in self._wishes.values())

    def _why_none(self, wish: _Wish) -> str:
        if wish.tried:
            return f"no learner's state could be had (asked {', '.join(wish.tried)})"
        return f"no other live learner has trained {counted(self._options.interval_steps, 'step')}"

    def _ask(self, wish: _Wish, donor: Member, now_ns: int) -> None:
        wish.phase, wish.donor, wish.donor_incarnation = _Phase.ASKED, donor.learner, donor.incarnation
        wish.ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._outbox.send_to(donor.learner, donor.incarnation, StateAsked(wish.ticket))
        self._extend(wish, now_ns)

    def _extend(self, wish: _Wish, now_ns: int) -> None:
        """So much time until the next sign. A donor answers at its next step boundary, which may be a long step off."""
        donor = self._members.get(wish.donor)
        step_ns = 0 if donor is None else donor.step_average.value_ns
        within_ns = self._options.lease_ns + 2 * max(step_ns, self._members.step_ns())
        wish.until_ns = now_ns + within_ns
        self._outbox.send_to(wish.learner, wish.incarnation, StateComing(wish.ticket, within_ns))

    # ------------------------------------------------------------------------------------------- ends

    def _fail(self, wish: _Wish, reason: str, now_ns: int) -> None:
        """Not this donor: another one, when ``proceed`` finds it."""
        self._log_failure(wish, reason, now_ns)
        self._forget(wish)
        wish.tried.append(wish.donor)
        wish.phase, wish.donor, wish.ticket, wish.until_ns = _Phase.WAITING, "", 0, NEVER_NS

    def _end(self, wish: _Wish, reason: str, now_ns: int) -> None:
        self._log_failure(wish, reason, now_ns)
        self._outbox.send_to(wish.learner, wish.incarnation, NoDonor(reason))
        self._drop(wish.learner)

    def _log_failure(self, wish: _Wish, reason: str, now_ns: int) -> None:
        self._outbox.log(StateNotHandedOver(now_ns, wish.donor, wish.learner, wish.incarnation, reason))

    def _drop(self, learner: str) -> None:
        wish = self._wishes.pop(learner, None)
        if wish is not None:
            self._forget(wish)

    def _forget(self, wish: _Wish) -> None:
        if wish.ticket:
            self._outbox.act(ForgetState(wish.ticket))

    def _find(self, ticket: int) -> _Wish | None:
        return next((wish for wish in self._wishes.values() if ticket and wish.ticket == ticket), None)
