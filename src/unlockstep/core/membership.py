"""Who is a learner of this run, which start of it counts, and for how long it is believed to be alive.

Decides states, leases, incarnations and the syncer's clock. Does not decide what a round does about somebody's absence
(``rounds``, ``syncer``).

A member's life is the table ``MOVES``: a move that is not listed is a bug in the caller. Four of the states count as
*present* (they hold a lease): a JOINING learner is loading parameters or compiling and nobody waits for it; a LIVE one
has taken a step; an AWAY one has lost its connection and may come back under the same incarnation until its lease ends;
a LEAVING one takes no more steps and goes when it has handed over what it has.
Every process of a learner gets its own incarnation number, and another one when it comes back after its lease; only the
newest counts, whatever an older one still sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.formats import Codec
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.messages import Fenced, Transferring
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import DepartureReason
from unlockstep.core.saved import SavedMember
from unlockstep.core.upload_link import UploadLink
from unlockstep.core.window import MovingAverage


class MemberState(Enum):
    JOINING = "joining"
    LIVE = "live"
    AWAY = "away"
    LEAVING = "leaving"
    GONE = "gone"
    QUARANTINED = "quarantined"


class MemberMove(Enum):
    STEP = "step"
    CONNECTION_LOST = "connection_lost"
    RESUME = "resume"
    LEAVE = "leave"
    DEPART = "depart"
    QUARANTINE = "quarantine"
    JOIN = "join"


MOVES: dict[MemberState, dict[MemberMove, MemberState]] = {
    MemberState.JOINING: {
        MemberMove.STEP: MemberState.LIVE,
        MemberMove.LEAVE: MemberState.LEAVING,
        MemberMove.CONNECTION_LOST: MemberState.AWAY,
        MemberMove.RESUME: MemberState.JOINING,
        MemberMove.DEPART: MemberState.GONE,
        MemberMove.QUARANTINE: MemberState.QUARANTINED,
    },
    MemberState.LIVE: {
        MemberMove.STEP: MemberState.LIVE,
        MemberMove.LEAVE: MemberState.LEAVING,
        MemberMove.CONNECTION_LOST: MemberState.AWAY,
        MemberMove.RESUME: MemberState.JOINING,
        MemberMove.DEPART: MemberState.GONE,
        MemberMove.QUARANTINE: MemberState.QUARANTINED,
    },
    MemberState.AWAY: {
        MemberMove.CONNECTION_LOST: MemberState.AWAY,
        MemberMove.RESUME: MemberState.JOINING,
        MemberMove.DEPART: MemberState.GONE,
        MemberMove.QUARANTINE: MemberState.QUARANTINED,
    },
    MemberState.LEAVING: {
        MemberMove.STEP: MemberState.LEAVING,
        MemberMove.LEAVE: MemberState.LEAVING,
        MemberMove.CONNECTION_LOST: MemberState.AWAY,
        MemberMove.RESUME: MemberState.JOINING,
        MemberMove.DEPART: MemberState.GONE,
        MemberMove.QUARANTINE: MemberState.QUARANTINED,
    },
    MemberState.GONE: {MemberMove.JOIN: MemberState.JOINING},
    MemberState.QUARANTINED: {MemberMove.JOIN: MemberState.JOINING},
}

PRESENT = (MemberState.JOINING, MemberState.LIVE, MemberState.AWAY, MemberState.LEAVING)


class Member:
    """One learner, over all its starts."""

    def __init__(self, learner: str, fragment_count: int, average_weight: float, codec: Codec = Codec.BFLOAT16) -> None:
        self.learner = learner
        self.codec = codec
        """In which it is asked for its contributions."""
        self.upload_link = UploadLink()
        self.incarnation = 0
        self.process_since = 0
        """The first incarnation of the process that holds the name now."""
        self.state = MemberState.GONE
        self.heard_ns = 0
        self.clock = 0
        self.steps = 0
        self.steps_before = 0
        self.tokens_before = 0
        self.tokens = 0
        self.loss: float | None = None
        self.step_average = MovingAverage(average_weight)
        self.c_steps = (0,) * fragment_count
        self.c_tokens = (0,) * fragment_count
        self._overwritten = [0] * fragment_count
        self._handed_over = [-1] * fragment_count
        """Tokens this process had trained at its newest hand-over that has arrived; -1 before the first."""
        self.deeds = 0
        """Number of the last deed of this process that was heard of."""
        self.last = False
        self.unsettled = 0
        """Contributions that it has handed over, and had not heard of when it reported last."""
        self.strikes = 0
        self.quarantines = 0
        """How often it has been shut out."""
        self.out_until_ns = 0
        """Until when it was shut out last, in time of the run; ``NEVER_NS``: for good."""
        self.last_round: int | None = None
        self.rounds_merged = 0
        self.is_expected = False
        """It was present when an earlier life of the syncer ended, and has not reported to this one."""

    @property
    def is_live(self) -> bool:
        return self.state is MemberState.LIVE

    @property
    def is_present(self) -> bool:
        return self.state in PRESENT

    def move(self, move: MemberMove) -> None:
        target = MOVES[self.state].get(move)
        if target is None:
            raise LocalProtocolError(f"learner {self.learner} cannot {move.value} while it is {self.state.value}")
        self.state = target

    def begin(self, now_ns: int) -> None:
        """A new process under this name: next incarnation, counters of its own."""
        if self.state is MemberState.QUARANTINED:
            self.strikes = 0
        self.move(MemberMove.JOIN)
        self.is_expected = False
        self.incarnation += 1
        self.process_since = self.incarnation
        self.heard_ns = now_ns
        self.steps_before += self.steps
        self.tokens_before += self.tokens
        self.steps = self.tokens = 0
        self._overwritten = [0] * len(self._overwritten)
        self._handed_over = [-1] * len(self._handed_over)
        self.c_steps = self.c_tokens = (0,) * len(self.c_steps)
        self.last = False
        self.deeds = 0

    def come_back(self, now_ns: int) -> None:
        """The same process after its lease had ended: next incarnation, so that what it sent before is fenced, but its
        counters and its progress go on."""
        self.move(MemberMove.JOIN)
        self.incarnation += 1
        self.heard_ns = now_ns

    def report(self, tokens: int, c_steps: tuple[int, ...], c_tokens: tuple[int, ...]) -> None:
        """What the member says it holds, per fragment, with ``tokens`` trained.

        Messages and bodies travel on different connections. A body may arrive before the report of the boundary it was
        copied at: what that report says of the fragment is here already.
        """
        holds = [tokens > handed_over for handed_over in self._handed_over]
        self.c_steps = tuple(steps if held else 0 for steps, held in zip(c_steps, holds, strict=True))
        self.c_tokens = tuple(count if held else 0 for count, held in zip(c_tokens, holds, strict=True))

    def hand_over(self, fragment: int, tokens: int) -> None:
        """A body has arrived that was handed over with ``tokens`` trained: until the next report there is nothing to
        ask for, unless a report of a later step has overtaken it and already says what is left."""
        self._handed_over[fragment] = max(self._handed_over[fragment], tokens)
        if tokens >= self.tokens:
            self.c_steps = (*self.c_steps[:fragment], 0, *self.c_steps[fragment + 1 :])
            self.c_tokens = (*self.c_tokens[:fragment], 0, *self.c_tokens[fragment + 1 :])

    def count_tokens(self, tokens: int) -> int:
        """This process has trained so many tokens, by one of its messages; returns the total over all processes. An
        older count may arrive after a newer one."""
        self.tokens = max(self.tokens, tokens)
        return self.tokens_before + self.tokens

    def count_overwritten(self, overwritten: tuple[int, ...]) -> list[tuple[int, int]]:
        """Adoptions have discarded so many tokens in this process; returns what is new, as (fragment, tokens)."""
        new = [(fragment, after - self._overwritten[fragment]) for fragment, after in enumerate(overwritten)]
        new = [(fragment, tokens) for fragment, tokens in new if tokens > 0]
        for fragment, tokens in new:
            self._overwritten[fragment] += tokens
        return new

    def saved(self) -> SavedMember:
        """What outlives the syncer's process."""
        return SavedMember(
            learner=self.learner,
            incarnation=self.incarnation,
            process_since=self.process_since,
            state=self.state.value,
            clock=self.clock,
            steps=self.steps,
            tokens=self.tokens,
            steps_before=self.steps_before,
            tokens_before=self.tokens_before,
            overwritten=tuple(self._overwritten),
            strikes=self.strikes,
            last_round=self.last_round,
            rounds_merged=self.rounds_merged,
            quarantines=self.quarantines,
            out_until_ns=self.out_until_ns,
            deeds=self.deeds,
        )

    def restore(self, saved: SavedMember, now_ns: int) -> None:
        """Be what was saved. Whoever was present is away, with a whole lease to come back."""
        state = MemberState(saved.state)
        self.is_expected = state in PRESENT
        self.state = MemberState.AWAY if self.is_expected else state
        self.heard_ns = now_ns
        self.incarnation, self.process_since = saved.incarnation, saved.process_since
        self.clock = saved.clock
        self.steps, self.tokens = saved.steps, saved.tokens
        self.steps_before, self.tokens_before = saved.steps_before, saved.tokens_before
        self._overwritten = list(saved.overwritten)
        self.strikes = saved.strikes
        self.last_round, self.rounds_merged = saved.last_round, saved.rounds_merged
        self.quarantines, self.out_until_ns = saved.quarantines, saved.out_until_ns
        self.deeds = saved.deeds

    def owns(self, incarnation: int) -> bool:
        """Whether this incarnation belongs to the process that holds the name now."""
        return self.process_since <= incarnation <= self.incarnation


class Membership:
    """All members, by name. Iteration is in ascending name, so that nothing depends on the order of arrival.

    Args:
        options: protocol settings.
        codec: in which a learner uploads at first.
    """

    def __init__(self, options: ProtocolOptions, codec: Codec = Codec.BFLOAT16) -> None:
        self._options = options
        self._codec = codec
        self._members: dict[str, Member] = {}
        self._ordered: list[Member] = []
        self._clock = 0

    def __iter__(self) -> Iterator[Member]:
        return iter(self._ordered)

    @property
    def clock(self) -> int:
        """The syncer's clock t: the K-th highest clock among live learners; never goes back."""
        return self._clock

    def live(self) -> list[Member]:
        return [member for member in self._ordered if member.state is MemberState.LIVE]

    def leaving(self) -> list[Member]:
        return [member for member in self._ordered if member.state is MemberState.LEAVING]

    def present(self) -> list[Member]:
        return [member for member in self if member.is_present]

    def get(self, learner: str) -> Member | None:
        return self._members.get(learner)

    def current(self, learner: str, incarnation: int) -> Member | None:
        """The member, if this is its present incarnation and it still holds a lease; otherwise None (fenced)."""
        member = self._members.get(learner)
        if member is None or member.incarnation != incarnation or not member.is_present:
            return None
        return member

    def hear_transfer(self, sign: Transferring, now_ns: int) -> None:
        """Bytes of this start of a learner are passing: it is alive. One that does not count stays gone, and one that
        has lost its connection has to come back over another one all the same."""
        member = self.current(sign.learner, sign.incarnation)
        if member is not None and member.state is not MemberState.AWAY:
            member.heard_ns = now_ns

    def join(self, learner: str, now_ns: int) -> Member:
        """A new process of a learner that holds no lease at present."""
        member = self._members.get(learner) or self._add(learner)
        member.begin(now_ns)
        member.clock = self._clock
        return member

    def quarantine(self, member: Member, now_ns: int) -> int:
        """Shut a member out; returns how long, ``NEVER_NS`` if for good. Only another process of it may come after
        that: what this one has is not to be trusted."""
        member.move(MemberMove.QUARANTINE)
        member.quarantines += 1
        pause_ns = self._options.quarantine_ns(member.quarantines)
        member.out_until_ns = NEVER_NS if pause_ns == NEVER_NS else now_ns + pause_ns
        return pause_ns

    def retry_ns(self, member: Member, now_ns: int) -> int:
        """How long a member that is quarantined has to wait until it may join as a new process; 0: for ever."""
        return 0 if member.out_until_ns == NEVER_NS else max(1, member.out_until_ns - now_ns)

    def fenced(self, member: Member | None, reason: DepartureReason, now_ns: int) -> Fenced:
        """What is said to a start that does not count any more."""
        is_out = member is not None and reason is DepartureReason.QUARANTINED
        return Fenced(reason, self.retry_ns(member, now_ns) if is_out and member is not None else 0)

    def _add(self, learner: str) -> Member:
        member = Member(learner, self._options.fragments, self._options.average_weight, self._codec)
        self._members[learner] = member
        self._ordered = sorted(self._members.values(), key=lambda member: member.learner)
        return member

    def saved(self) -> tuple[SavedMember, ...]:
        """Every member, ascending."""
        return tuple(member.saved() for member in self)

    def restore(self, members: tuple[SavedMember, ...], clock: int, now_ns: int) -> None:
        """Go on from what was ``saved`` when the clock was at ``clock``."""
        self._clock = clock
        for saved in members:
            self._add(saved.learner).restore(saved, now_ns)

    def advance_clock(self) -> None:
        """To be called when a live learner's clock has moved."""
        clocks = sorted((member.clock for member in self._members.values() if member.is_live), reverse=True)
        if len(clocks) >= self._options.quorum:
            self._clock = max(self._clock, clocks[self._options.quorum - 1])

    def step_ns(self) -> int:
        """xi_step: median over live learners of their average step time (the lower one of two), 0 if unknown."""
        averages = sorted(
            member.step_average.value_ns
            for member in self._members.values()
            if member.is_live and member.step_average.value_ns > 0
        )
        return averages[(len(averages) - 1) // 2] if averages else 0

    def next_expiry_ns(self) -> int:
        """When the next lease ends."""
        heard = [member.heard_ns for member in self._members.values() if member.is_present]
        return min(heard) + self._options.lease_ns if heard else NEVER_NS

    def expired(self, now_ns: int) -> list[Member]:
        """Members whose lease has ended by now."""
        return [member for member in self.present() if now_ns - member.heard_ns >= self._options.lease_ns]
