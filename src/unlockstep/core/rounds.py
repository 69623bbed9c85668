"""The rounds of a run: which are open, what has come in for them, and when each is merged.

Decides when a round opens and closes, whom it asks and what becomes of every contribution. Policies it asks:
``schedule`` (which round is due), ``window`` (quorum and grace), ``weights`` through ``sync_round`` (shares). Does not
decide who is a member, when the run begins and ends (``syncer``), nor the arithmetic of a merge (the host, asked by
``Commit``).
"""

from __future__ import annotations

import itertools
from enum import Enum

import msgspec

from unlockstep.core import window
from unlockstep.core.actions import Announce, Commit, Release
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    ContributionUndelivered,
    FragmentCommitted,
    Merged,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
)
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.ledger import Ledger
from unlockstep.core.membership import Member, Membership, MemberState
from unlockstep.core.messages import (
    Committed,
    ContributionArrived,
    HandedOver,
    Published,
    Pull,
    Settled,
    Undelivered,
    VersionNotice,
)
from unlockstep.core.options import Late, Participation, ProtocolOptions
from unlockstep.core.outbox import Outbox
from unlockstep.core.reasons import NOT_ENTERED, RefusalReason, WindowReason
from unlockstep.core.saved import OpenRound, SavedRounds, Unmerged
from unlockstep.core.schedule import Schedule
from unlockstep.core.status import NextRoundStatus
from unlockstep.core.status_of import Tally
from unlockstep.core.sync_round import Held, RoundMemory, RoundMove, RoundState, SyncRound

STRIKING = frozenset(
    {
        RefusalReason.NON_FINITE,
        RefusalReason.WRONG_SIZE,
        RefusalReason.MALFORMED,
        RefusalReason.BAD_COUNTS,
        RefusalReason.ABSURD_NORM,
    }
)
"""Refusals that speak against the learner itself, not against its timing or the network."""


class Pace(Enum):
    """How rounds open."""

    HELD = "held"
    """Not at all: the run has no parameters yet, or waits for the last steps. Open rounds go on."""
    SCHEDULED = "scheduled"
    """As they come due."""
    COLLECTING = "collecting"
    """At any time, of the fragments of which enough have something to hand over: nobody has data to take a step with.
    What came late counts to the quorum, since nobody can come in time any more."""
    DRAINING = "draining"
    """One last time for every fragment, as fast as they close; a round that cannot reach its quorum is given up."""
    OVER = "over"
    """Nothing is accepted any more."""


class Rounds:
    """All rounds of a run.

    Args:
        options: protocol settings.
        members: who is alive, and what time it is.
        ledger: where tokens are entered.
        tally: totals for the status.
        outbox: where actions and events go.
    """

    def __init__(
        self, options: ProtocolOptions, members: Membership, ledger: Ledger, tally: Tally, outbox: Outbox
    ) -> None:
        self._options = options
        self._members = members
        self._ledger = ledger
        self._tally = tally
        self._outbox = outbox
        self._schedule = Schedule(options.fragments, options.interval_steps)
        self._rounds: dict[int, SyncRound] = {}
        self._late: dict[int, list[Held]] = {fragment: [] for fragment in range(options.fragments)}
        self._memory = RoundMemory(options.rounds_remembered_max)
        self._drain_left = 0
        self._drain_until_ns = NEVER_NS
        self.averages = window.TimeAverages(options)
        self.notices: dict[int, VersionNotice] = {}
        """The newest version of every fragment."""
        self.pace = Pace.HELD
        self.is_going_back = False
        """No round opens or closes: the parameters are about to be others."""

    # --------------------------------------------------------------------------------------------- outside

    def proceed(self, now_ns: int) -> None:
        """Whatever follows from the present state: open what is due, ask who can give, close what is complete."""
        if self.is_going_back:
            return
        while True:
            self._open_due(now_ns)
            for collecting in self._open_rounds():
                self._ask(collecting)
                self._reconsider(collecting, now_ns)
            if not self._may_open():
                return

    def next_deadline_ns(self) -> int:
        """When the next grace window, or the wait of the last rounds, ends; nothing waits while no round is open."""
        if self.is_going_back:
            return NEVER_NS
        windows = [r.decision.until_ns for r in self._open_rounds() if r.decision is not None]
        return min([self._drain_until_ns, *windows]) if windows else NEVER_NS

    def drain(self, until_ns: int) -> None:
        """Collect what is left, one round per fragment, at the latest until a given time."""
        self.pace = Pace.DRAINING
        self._drain_left = self._options.fragments
        self._drain_until_ns = until_ns

    @property
    def is_drained(self) -> bool:
        is_over = self._drain_left == 0 and not self._rounds and not self._members.leaving()
        return self.pace is Pace.DRAINING and is_over and not self.is_going_back

    @property
    def is_collected(self) -> bool:
        """Nothing comes any more, and nothing that is here can be merged: quorums are out of reach."""
        if self.pace is not Pace.COLLECTING or self._may_open():
            return False
        if any(self.is_under_way(member) for member in self._members.live()):
            return False
        return all(r.is_open and not self._missing(r) for r in self._rounds.values())

    def held_of(self, learner: str, process: int) -> int:
        """How many contributions of this process are here and not merged yet."""
        waiting = itertools.chain(*(r.held() for r in self._rounds.values()), *self._late.values())
        return sum((held.learner, held.process) == (learner, process) for held in waiting)

    def is_under_way(self, member: Member) -> bool:
        """Whether something that the member has handed over is not here, or the member has not heard what became of
        it."""
        return member.unsettled > self.held_of(member.learner, member.process_since)

    def _may_bring(self, member: Member, fragment: int) -> bool:
        """Whether something of the fragment may come from a member that takes no more steps. Of what is under way it
        is not known of which fragment it is."""
        return member.c_steps[fragment] > 0 or self.is_under_way(member)

    def _may_come(self, fragment: int) -> bool:
        """... from any member, when the run ends."""
        if any(member.c_steps[fragment] > 0 for member in self._members.live()):
            return True
        return any(self._may_bring(member, fragment) for member in self._members.leaving())

    def held_in(self, round: int) -> list[Held]:
        """What a round holds; nothing if it is not in progress."""
        return self._rounds[round].held() if round in self._rounds else []

    def saved(self) -> SavedRounds:
        """What outlives the syncer's process."""
        next_round, due = self._schedule.saved()
        waiting = [held for r in self.in_progress() for held in r.held()]
        waiting += [held for fragment in sorted(self._late) for held in self._late[fragment]]
        return SavedRounds(
            next_round=next_round,
            due=due,
            open=tuple(OpenRound(r.round, r.fragment, r.clock) for r in self.in_progress()),
            unmerged=tuple(Unmerged(h.learner, h.process, h.round, h.fragment, h.c_tokens, h.tokens) for h in waiting),
            remembered=self._memory.saved(self._options.rounds_saved_max),
        )

    def resume(self, saved: SavedRounds, now_ns: int) -> None:
        """Go on from what was saved; members and ledger have been restored. Rounds that were in flight begin anew."""
        self._schedule.restore(saved.next_round, saved.due)
        self._memory.restore(saved.remembered)
        self._memory.expect(range(saved.next_round, saved.next_round + self._options.rounds_saved_max))
        for held in saved.unmerged:
            member = self._members.get(held.learner)
            may_return = member is not None and member.process_since == held.process
            self._memory.forget(held.round, held.learner, held.process, held.tokens)
            self._ledger.voided(held.learner, held.fragment, held.c_tokens, may_return)
        for each in saved.open:
            self._rounds[each.round] = SyncRound(each.round, each.fragment, each.clock, now_ns, [])
            self._outbox.log(RoundOpened(now_ns, each.round, each.fragment, each.clock, 0, ()))

    def begin_anew(self, notices: tuple[VersionNotice, ...], now_ns: int) -> None:
        """These are the newest versions, and what was made from any before is void. Open rounds begin anew, empty.

        Raises:
            LocalProtocolError: a commit is under way, or these versions do not follow the newest ones.
        """
        follows = [notice.version == self.notices[notice.fragment].version + 1 for notice in notices]
        if not all(follows) or not all(collecting.is_open for collecting in self._rounds.values()):
            raise LocalProtocolError("the run goes back while a commit is under way")
        self.is_going_back = False
        for notice in notices:
            self.notices[notice.fragment] = msgspec.structs.replace(notice, void_below=notice.version)
        for collecting in self.in_progress():
            self._give_up(collecting.held(), RefusalReason.ROLLED_BACK)
        for late in self._late.values():
            self._give_up(late, RefusalReason.ROLLED_BACK)
            late.clear()
        live = len(self._members.live())
        for each in self.in_progress():
            self._rounds[each.round] = SyncRound(each.round, each.fragment, each.clock, now_ns, [])
            self._outbox.log(RoundOpened(now_ns, each.round, each.fragment, each.clock, live, ()))

    def stop(self) -> None:
        """The run is over: contributions that came too late for the last round are given up."""
        self.pace = Pace.OVER
        for late in self._late.values():
            self._give_up(late, RefusalReason.RUN_FINISHED)
            late.clear()

    def forget_asked(self, member: Member) -> None:
        """The learner may not have heard what it was asked: no round waits for it until it is asked again."""
        for collecting in self._open_rounds():
            collecting.asked.pop(member.learner, None)

    def in_progress(self) -> list[SyncRound]:
        """Rounds that are open or committing, in order."""
        return [self._rounds[number] for number in sorted(self._rounds)]

    def next_up(self) -> NextRoundStatus:
        """The round that opens next."""
        schedule = self._schedule
        return NextRoundStatus(schedule.next_round, schedule.next_fragment, schedule.due_clock)

    def enter_undelivered(self, member: Member, lost: Undelivered, now_ns: int) -> None:
        """A learner says that a contribution of its could not be delivered. If it arrived all the same, it counts."""
        if not self._memory.enter(lost.round, member.learner, member.process_since, lost.tokens):
            return
        self._ledger.undelivered(member.learner, lost.fragment, lost.c_tokens)
        self._outbox.log(
            ContributionUndelivered(
                now_ns, lost.round, lost.fragment, member.learner, member.incarnation, lost.c_tokens, lost.tokens
            )
        )
        waiting = self._rounds.get(lost.round)
        if waiting is not None and waiting.is_open:
            waiting.asked.pop(member.learner, None)

    # --------------------------------------------------------------------------------------------- opening

    def _open_rounds(self) -> list[SyncRound]:
        return [self._rounds[number] for number in sorted(self._rounds) if self._rounds[number].is_open]

    def _open_due(self, now_ns: int) -> None:
        while self._may_open():
            while self.pace is Pace.COLLECTING and not self._is_worthwhile(self._schedule.next_fragment):
                self._schedule.open(self._members.clock)
            fragment = self._schedule.next_fragment
            number = self._schedule.open(self._members.clock)
            if self.pace is Pace.DRAINING:
                self._drain_left -= 1
                if not self._late[fragment] and not self._may_come(fragment):
                    continue
            opened = SyncRound(number, fragment, self._members.clock, now_ns, self._late[fragment])
            self._late[fragment] = []
            self._rounds[number] = opened
            self._memory.open(number)
            self._ask(opened)
            live = len(self._members.live())
            self._outbox.log(RoundOpened(now_ns, number, fragment, opened.clock, live, tuple(sorted(opened.asked))))

    def _may_open(self) -> bool:
        if len(self._rounds) >= self._options.rounds_in_flight_max:
            return False
        if self.pace is Pace.COLLECTING:
            return any(self._is_worthwhile(fragment) for fragment in range(self._options.fragments))
        if any(r.fragment == self._schedule.next_fragment for r in self._rounds.values()):
            return False
        if self.pace is Pace.DRAINING:
            return self._drain_left > 0
        return (
            self.pace is Pace.SCHEDULED and self._schedule.is_due(self._members.clock) and len(self._members.live()) > 0
        )

    def _is_worthwhile(self, fragment: int) -> bool:
        """While all is being collected: a round of the fragment would reach its quorum."""
        if any(r.fragment == fragment for r in self._rounds.values()):
            return False
        able = {member.learner for member in self._members.live() if member.c_steps[fragment] > 0}
        return len(able.union(held.learner for held in self._late[fragment])) >= self._options.quorum

    def _ask(self, collecting: SyncRound) -> None:
        """Pull from every live learner that has something to hand over and was not asked yet."""
        for member in self._members.live():
            if member.learner in collecting.asked or member.learner in collecting.contributions:
                continue
            if self._has_part(member, collecting):
                collecting.asked[member.learner] = member.incarnation
                pull = Pull(collecting.round, collecting.fragment, member.codec)
                self._outbox.send_to(member.learner, member.incarnation, pull)

    def last_pulls(self, member: Member) -> tuple[Pull, ...]:
        """For each fragment that a learner which is about to go has progress on: the open round, or else the last one,
        after which it is late and counts in the next. Before the first round of a fragment there is none."""
        pulls = []
        for fragment in range(self._options.fragments):
            newest = (
                self._schedule.next_round - 1 - (self._schedule.next_round - 1 - fragment) % self._options.fragments
            )
            if member.c_steps[fragment] and newest in self._memory:
                pulls.append(Pull(newest, fragment, member.codec))
        return tuple(pulls)

    def _has_part(self, member: Member, collecting: SyncRound) -> bool:
        if member.c_steps[collecting.fragment] == 0:
            return False
        fresh = self._options.participation is Participation.FRESH and self.pace is Pace.SCHEDULED
        return not fresh or member.clock >= collecting.clock

    # --------------------------------------------------------------------------------------------- contributions

    def on_contribution(self, made: ContributionArrived, now_ns: int) -> bool:
        """An upload has arrived: it counts in its round, in the next one of the fragment, or not at all. Whether it
        does."""
        member = self._members.current(made.learner, made.incarnation)
        refusal = self._examine(made, member)
        if refusal is None and member is not None:
            self._accept(made, member, now_ns)
            return True
        self._refuse(made, member, refusal or RefusalReason.STALE_INCARNATION, now_ns)
        return False

    def _examine(self, made: ContributionArrived, member: Member | None) -> RefusalReason | None:
        if member is None:
            return self._why_fenced(made)
        if self.pace is Pace.OVER:
            return RefusalReason.RUN_FINISHED
        if made.round not in self._memory or made.fragment != made.round % self._options.fragments:
            return RefusalReason.UNKNOWN_ROUND
        if self._memory.has(made.round, made.learner, member.process_since, made.tokens):
            return RefusalReason.DUPLICATE
        if 0 <= made.base_version < self.notices[made.fragment].void_below:
            return RefusalReason.ROLLED_BACK
        current = self.notices[made.fragment].version
        if not max(0, current - self._options.staleness_max) <= made.base_version <= current:
            return RefusalReason.STALE_BASE  # Before any defect: who was away for long has moved far, through no fault.
        if made.defect is not None:
            return made.defect
        if made.c_steps < 1 or not 0 <= made.c_tokens <= made.tokens:
            return RefusalReason.BAD_COUNTS
        if self._options.late is Late.DROP and self._is_late(made) and member.state is not MemberState.LEAVING:
            return RefusalReason.LATE  # Who leaves was asked late, through no fault of its.
        return None

    def _why_fenced(self, made: ContributionArrived) -> RefusalReason:
        """Its sender is no member just now. Whose lease has ended keeps what it has sent, and hands it over once more
        when it is back; who has left in order, or is shut out, brings nothing again."""
        known = self._members.get(made.learner)
        if known is not None and known.state is MemberState.QUARANTINED:
            return RefusalReason.QUARANTINED
        is_gone = known is not None and known.owns(made.incarnation) and not known.is_present
        if is_gone and not self._ledger.is_closed(made.learner):
            return RefusalReason.LEFT
        return RefusalReason.STALE_INCARNATION

    def _is_late(self, made: ContributionArrived) -> bool:
        """Its round has closed, or has what it wanted of this learner: it belongs to the next one of the fragment."""
        collecting = self._rounds.get(made.round)
        return collecting is None or not collecting.is_open or made.learner in collecting.contributions

    def _accept(self, made: ContributionArrived, member: Member, now_ns: int) -> None:
        held = Held(
            learner=made.learner,
            incarnation=made.incarnation,
            round=made.round,
            fragment=made.fragment,
            base_version=made.base_version,
            c_steps=made.c_steps,
            c_tokens=made.c_tokens,
            tokens=made.tokens,
            payload=made.payload,
            process=member.process_since,
            position=made.position,
            samples=made.samples,
        )
        member.heard_ns = now_ns
        member.strikes = 0
        self._hand_over(member, made)
        self._ledger.accepted(made.learner, made.fragment, made.c_tokens)
        self._memory.enter(made.round, made.learner, member.process_since, made.tokens)
        late = self._is_late(made)
        if late:
            following = next(
                (r for r in self._open_rounds() if r.fragment == made.fragment and r.round > made.round), None
            )
            (self._late[made.fragment] if following is None else following.late).append(held)
            if following is not None and self.pace is Pace.DRAINING and member.c_steps[made.fragment] == 0:
                following.asked.pop(made.learner, None)  # This is all that it will ever have for the round.
        else:
            self._rounds[made.round].contributions[made.learner] = held
            self._note_quorum(self._rounds[made.round], now_ns)
        self._outbox.log(
            ContributionAccepted(
                now_ns,
                made.round,
                made.fragment,
                made.learner,
                made.incarnation,
                made.base_version,
                self.notices[made.fragment].version - made.base_version,
                made.c_steps,
                made.c_tokens,
                made.tokens,
                made.norm,
                late,
                made.position,
                made.samples,
                made.steps,
                made.deed,
                made.codec,
            )
        )

    def _note_quorum(self, collecting: SyncRound, now_ns: int) -> None:
        if collecting.quorum_at_ns is None and len(collecting.contributions) >= self._options.quorum:
            collecting.quorum_at_ns = now_ns
            self.averages.quorum.add(now_ns - collecting.opened_ns)
            collecting.grace_ns = window.grace_ns(
                self._options,
                step_ns=self._members.step_ns(),
                quorum_ns=self.averages.quorum.value_ns,
                sync_ns=self.averages.sync_ns,
            )

    def _hand_over(self, member: Member, made: ContributionArrived) -> None:
        """What the member held of the fragment is here."""
        member.hand_over(made.fragment, made.tokens)
        self._ledger.trained(member.learner, member.count_tokens(made.tokens))

    def _refuse(self, made: ContributionArrived, member: Member | None, reason: RefusalReason, now_ns: int) -> None:
        self._ledger.refusals[reason] += 1
        if made.payload >= 0:
            self._outbox.act(Release(made.payload))
        strikes = 0
        if self._enter_refused(made, reason):
            self._outbox.save()
        if member is not None and not self._is_waiting(made, member):
            collecting = self._rounds.get(made.round)
            if collecting is not None and reason is not RefusalReason.DUPLICATE:
                collecting.asked.pop(made.learner, None)
            self._outbox.send_to(
                member.learner,
                member.incarnation,
                Settled(made.round, made.fragment, made.tokens, late=False, refusal=reason),
            )
        if member is not None:
            member.strikes += reason in STRIKING
            strikes = member.strikes
        self._outbox.log(
            ContributionRefused(
                now_ns,
                made.round,
                made.fragment,
                made.learner,
                made.incarnation,
                made.c_tokens,
                made.tokens,
                reason,
                strikes,
            )
        )

    def review(
        self, member: Member, unsettled: tuple[HandedOver, ...]
    ) -> tuple[tuple[HandedOver, ...], tuple[Settled, ...]]:
        """A learner that is back says what it has handed over and not heard of.

        Returns:
            (what is not here, what has been settled, to be told once more). What waits to be merged will be told.
        """
        wanted, told = [], []
        for kept in unsettled:
            is_known = kept.round in self._memory and self.pace is not Pace.OVER
            if is_known and not self._memory.has(kept.round, member.learner, member.process_since, kept.tokens):
                wanted.append(kept)
            elif not self._is_waiting(kept, member):
                reason = RefusalReason.DUPLICATE if is_known else RefusalReason.UNKNOWN_ROUND
                told.append(Settled(kept.round, kept.fragment, kept.tokens, late=False, refusal=reason))
        return tuple(wanted), tuple(told)

    def _is_waiting(self, made: ContributionArrived | HandedOver, member: Member) -> bool:
        """Whether this very contribution is here and not merged yet: then its learner is told nothing of a repeat, and
        keeps it until it is."""
        waiting = [held for r in self._rounds.values() for held in r.held()] + self._late[made.fragment]
        key = made.round, member.learner, member.process_since, made.tokens
        return any((held.round, held.learner, held.process, held.tokens) == key for held in waiting)

    def _enter_refused(self, made: ContributionArrived, reason: RefusalReason) -> bool:
        """Enter the tokens as refused, unless they are in the ledger already (a duplicate's), may still be handed over
        once more (whose lease has ended) or are not to be believed; whether they were."""
        member = self._members.get(made.learner)
        if reason in NOT_ENTERED or member is None or not member.owns(made.incarnation):
            return False
        if self.pace is Pace.OVER or not 0 <= made.c_tokens <= made.tokens:
            return False
        if not self._memory.enter(made.round, made.learner, member.process_since, made.tokens):
            return False
        self._hand_over(member, made)
        if self._ledger.is_closed(made.learner):
            self._ledger.refused_after_death(made.learner, made.fragment, made.c_tokens, reason)
        else:
            self._ledger.refused(made.learner, made.fragment, made.c_tokens, reason)
        return True

    # --------------------------------------------------------------------------------------------- closing

    def _reconsider(self, collecting: SyncRound, now_ns: int) -> None:
        """Close the round if it is time; otherwise remember why it is open and until when."""
        live = self._members.live()
        missing = self._missing(collecting)
        time_is_up = self.pace is Pace.DRAINING and now_ns >= self._drain_until_ns
        nothing_comes = time_is_up or (self.pace in (Pace.COLLECTING, Pace.DRAINING) and not missing)
        # Otherwise what came late to earlier rounds does not count, only what was made for this one.
        contributed = len(collecting.participants() if nothing_comes else collecting.contributions)
        has_quorum = nothing_comes and contributed >= self._options.quorum
        decision = window.decide(
            self._options,
            now_ns=now_ns,
            quorum_at_ns=now_ns if has_quorum else collecting.quorum_at_ns,
            contributed=contributed,
            awaited=len(missing),
            live=len(live),
            grace_ns=0 if time_is_up else collecting.grace_ns,
        )
        if self.pace is Pace.DRAINING and missing and not time_is_up:
            sentence = f"the last round of the fragment waits for {len(missing)} more"
            decision = window.Decision(
                close=False, until_ns=NEVER_NS, grace_ns=0, reason=WindowReason.WAITING_FOR_THE_LAST, sentence=sentence
            )
        collecting.decision = decision
        if decision.close:
            self._close(collecting, decision, len(live), now_ns)
        elif self.pace is Pace.DRAINING and (not missing or time_is_up):
            self._abandon(collecting, now_ns)

    def _missing(self, collecting: SyncRound) -> list[Member]:
        """Who is live, and of whom the round still expects something."""
        missing = [member for member in self._members.live() if member.learner not in collecting.contributions]
        if self._options.participation is Participation.LATEST or self.pace in (Pace.COLLECTING, Pace.DRAINING):
            missing = [member for member in missing if member.learner in collecting.asked]
        if self.pace is Pace.DRAINING:  # What they were asked for when they said so would be refused after the end.
            missing += [member for member in self._members.leaving() if self._may_bring(member, collecting.fragment)]
        if self.pace is Pace.COLLECTING:  # Who has nothing left takes no step to have something again.
            missing = [m for m in missing if m.c_steps[collecting.fragment] > 0 or self.is_under_way(m)]
        return missing

    def _close(self, collecting: SyncRound, decision: window.Decision, live: int, now_ns: int) -> None:
        quorum_at_ns = now_ns if collecting.quorum_at_ns is None else collecting.quorum_at_ns
        closed = RoundClosed(
            now_ns,
            collecting.round,
            collecting.fragment,
            decision.reason,
            decision.sentence,
            collecting.participants(),
            live,
            now_ns - collecting.opened_ns,
            quorum_at_ns - collecting.opened_ns,
            collecting.grace_ns,
        )
        self._outbox.log(closed)
        self._tally.closed(closed)
        collecting.closed_ns = now_ns
        shares = collecting.shares()
        if not shares:
            self._end_empty(collecting, now_ns)
            return
        collecting.move(RoundMove.CLOSE)
        version = self.notices[collecting.fragment].version + 1
        self._outbox.act(Commit(collecting.round, collecting.fragment, version, shares))

    def _abandon(self, collecting: SyncRound, now_ns: int) -> None:
        """The run ends and the round cannot reach its quorum any more."""
        collecting.move(RoundMove.CLOSE_EMPTY)
        self._give_up(collecting.held(), RefusalReason.RUN_FINISHED)
        del self._rounds[collecting.round]
        self._outbox.log(RoundEmpty(now_ns, collecting.round, collecting.fragment))

    def _give_up(self, everything: list[Held], reason: RefusalReason) -> None:
        """Contributions that had been accepted will not be merged any more."""
        if everything:
            self._outbox.save()
        for held in everything:
            self._ledger.abandoned(held.learner, held.fragment, held.c_tokens, reason)
            self._ledger.refusals[reason] += 1
            late = held.round not in self._rounds
            self._tell(held, late, reason)
            self._outbox.act(Release(held.payload))

    def _end_empty(self, collecting: SyncRound, now_ns: int) -> None:
        collecting.move(RoundMove.CLOSE_EMPTY)
        self._settle(collecting)
        self._retire(collecting)
        self._tally.rounds_empty += 1
        self._outbox.log(RoundEmpty(now_ns, collecting.round, collecting.fragment))

    def _retire(self, collecting: SyncRound) -> None:
        for held in collecting.held():
            self._outbox.act(Release(held.payload))
        del self._rounds[collecting.round]

    def on_committed(self, committed: Committed, now_ns: int) -> None:
        """The version asked for is computed and durable: tell everybody."""
        collecting = self._rounds.get(committed.round)
        expected = self.notices[committed.fragment].version + 1
        if collecting is None or collecting.state is not RoundState.COMMITTING or committed.version != expected:
            raise LocalProtocolError(f"version {committed.version} of round {committed.round} was not asked for")
        collecting.move(RoundMove.COMMIT)
        self.averages.commit.add(now_ns - collecting.closed_ns)
        void_below = self.notices[committed.fragment].void_below
        notice = VersionNotice(committed.fragment, committed.version, committed.digest, void_below)
        self.notices[committed.fragment] = notice
        self._outbox.save(is_commit=True)
        self._outbox.act(Announce(Published(notice, self._members.clock)))
        self._settle(collecting)
        for learner in collecting.participants():
            member = self._members.get(learner)
            assert member is not None, "whoever contributes is a member"
            member.last_round = collecting.round
            member.rounds_merged += 1
        self._tally.rounds_committed += 1
        self._outbox.log(
            FragmentCommitted(
                now_ns,
                committed.round,
                committed.fragment,
                committed.version,
                committed.digest,
                committed.norm,
                {share.learner: share.weight for share in collecting.shares()},
                sum(held.c_tokens for held in collecting.held()),
                now_ns - collecting.closed_ns,
                tuple(Merged(held.learner, held.process, held.round, held.tokens) for held in collecting.held()),
            )
        )
        self._retire(collecting)

    def _settle(self, collecting: SyncRound) -> None:
        """Tell the contributors and enter their tokens."""
        for held in collecting.held():
            late = held.round != collecting.round
            self._ledger.merged(held.learner, held.fragment, held.c_tokens, late)
            self._tell(held, late, None)

    def _tell(self, held: Held, late: bool, refusal: RefusalReason | None) -> None:
        """Its process, under whatever incarnation it is here now."""
        member = self._members.get(held.learner)
        if member is not None and member.process_since == held.process:
            settled = Settled(held.round, held.fragment, held.tokens, late, refusal)
            self._outbox.send_to(member.learner, member.incarnation, settled)
