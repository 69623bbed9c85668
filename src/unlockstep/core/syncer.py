"""The syncer's half of the protocol, without sockets, clocks or arrays: read this file to know how a run proceeds.

Decides when a round opens and closes, whom it asks, what becomes of every contribution, when the run ends. Policies it
asks, each a file of its own: ``admission`` (may this process join), ``membership`` (who is alive, what time it is),
``schedule`` (which round is due), ``window`` (quorum and grace), ``ledger`` (tokens). The arithmetic of a merge is the
host's: it is asked for by ``Commit`` and reported by ``Committed``.

A round, from start to end::

    Progress ─> the clock advances ─> _open_due_rounds ─> Pull to each learner that has something to hand over
    ContributionArrived ─> _accept or _refuse ─┐
    deadline (grace, lease) ───────────────────┴─> _reconsider ─> window.decide ─> _close ─> Commit
    Committed ─> _on_committed ─> Published to everyone, Settled to its contributors

The outside is five verbs: ``receive``, ``next_deadline_ns``, ``on_deadline``, ``take_actions``, ``take_events``. Time
is an argument. The order of what is received is the only source of nondeterminism; the rest follows.

A run's life is the table ``MOVES``. SEEDING: the first learner uploads the initial parameters. FINISHING: the end is
reached, learners finish the step they are in. DRAINING: one last round of every fragment collects what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from unlockstep.core import window
from unlockstep.core.actions import Announce, Commit, Release, RunEnded, SendTo, SyncerAction
from unlockstep.core.admission import examine
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    EvaluationReported,
    Event,
    FragmentAdopted,
    FragmentCommitted,
    JoinWasRefused,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLive,
    MessageIgnored,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
    RunFinished,
    RunFinishing,
    RunSeeded,
    StepReported,
)
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.layout import Layout
from unlockstep.core.ledger import Ledger
from unlockstep.core.membership import Member, MemberMove, Membership, MemberState
from unlockstep.core.messages import (
    Committed,
    ContributionArrived,
    Disconnected,
    EndRun,
    Evaluation,
    Fenced,
    Finish,
    Heartbeat,
    Join,
    JoinRefused,
    Leave,
    Progress,
    Published,
    Pull,
    SeedArrived,
    Settled,
    Stop,
    SyncerInput,
    SyncerMessage,
    VersionNotice,
    Welcome,
)
from unlockstep.core.options import Late, Participation, ProtocolOptions
from unlockstep.core.reasons import DepartureReason, JoinRefusal, RefusalReason, WindowReason
from unlockstep.core.schedule import Schedule
from unlockstep.core.status import Status
from unlockstep.core.status_of import Tally, status_of
from unlockstep.core.sync_round import ClosedRounds, Held, RoundMove, RoundState, SyncRound

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


class RunState(Enum):
    EMPTY = "empty"
    SEEDING = "seeding"
    RUNNING = "running"
    FINISHING = "finishing"
    DRAINING = "draining"
    FINISHED = "finished"


class RunMove(Enum):
    SEEDER_FOUND = "seeder_found"
    SEEDER_LOST = "seeder_lost"
    SEEDED = "seeded"
    FINISH = "finish"
    DRAIN = "drain"
    END = "end"


MOVES: dict[RunState, dict[RunMove, RunState]] = {
    RunState.EMPTY: {RunMove.SEEDER_FOUND: RunState.SEEDING, RunMove.END: RunState.FINISHED},
    RunState.SEEDING: {
        RunMove.SEEDER_LOST: RunState.EMPTY,
        RunMove.SEEDED: RunState.RUNNING,
        RunMove.END: RunState.FINISHED,
    },
    RunState.RUNNING: {RunMove.FINISH: RunState.FINISHING},
    RunState.FINISHING: {RunMove.DRAIN: RunState.DRAINING},
    RunState.DRAINING: {RunMove.END: RunState.FINISHED},
    RunState.FINISHED: {},
}


class SyncerCore:
    """One run, as the syncer sees it.

    Args:
        run: name of the run.
        options: protocol settings.
        steps_max: the run ends when the clock reaches this; 0 sets no limit.
        tokens_max: ... or when the learners have trained this many tokens; 0 sets no limit.
    """

    def __init__(self, run: str, options: ProtocolOptions, steps_max: int, tokens_max: int) -> None:
        self._run = run
        self._options = options
        self._steps_max = steps_max
        self._tokens_max = tokens_max
        self._state = RunState.EMPTY
        self._members = Membership(options)
        self._schedule = Schedule(options.fragments, options.interval_steps)
        self._averages = window.TimeAverages(options)
        self._ledger = Ledger(options.fragments)
        self._layout: Layout | None = None
        self._seeder: Member | None = None
        self._notices: dict[int, VersionNotice] = {}
        self._rounds: dict[int, SyncRound] = {}
        self._late: dict[int, list[Held]] = {fragment: [] for fragment in range(options.fragments)}
        self._closed = ClosedRounds(options.closed_rounds_max)
        self._drain_left = 0
        self._limit_ns = NEVER_NS
        self._tally = Tally()
        self._actions: list[SyncerAction] = []
        self._events: list[Event] = []
        self._reactions: dict[type[Any], Callable[[Any, int], None]] = {
            Join: self._on_join,
            Heartbeat: self._on_heartbeat,
            Progress: self._on_progress,
            Leave: self._on_leave,
            Disconnected: self._on_disconnected,
            Evaluation: self._on_evaluation,
            SeedArrived: self._on_seed,
            ContributionArrived: self._on_contribution,
            Committed: self._on_committed,
            EndRun: self._on_end_run,
        }

    # --------------------------------------------------------------------------------------------- five verbs

    def receive(self, message: SyncerInput, now_ns: int) -> None:
        """Something was said or has happened."""
        self._reactions[type(message)](message, now_ns)
        self._tally.watch_downtime(len(self._members.live()), now_ns)

    def next_deadline_ns(self) -> int:
        """When ``on_deadline`` wants to be called if nothing is received before; NEVER_NS if never."""
        if self._state is RunState.FINISHED:
            return NEVER_NS
        windows = [r.decision.until_ns for r in self._rounds.values() if r.is_open and r.decision is not None]
        return min([self._limit_ns, self._members.next_expiry_ns(), *windows])

    def on_deadline(self, now_ns: int) -> None:
        """The clock has reached a deadline (calling early does no harm)."""
        for member in self._members.expired(now_ns):
            self._depart(member, DepartureReason.LEASE_EXPIRED, now_ns)
        self._proceed(now_ns)
        self._tally.watch_downtime(len(self._members.live()), now_ns)

    def take_actions(self) -> list[SyncerAction]:
        """What the host must do now, in order. Taking empties the list."""
        actions, self._actions = self._actions, []
        return actions

    def take_events(self) -> list[Event]:
        """What has happened since the last call, for the run log."""
        events, self._events = self._events, []
        return events

    @property
    def layout(self) -> Layout | None:
        """How parameters are cut; None until the first learner has joined."""
        return self._layout

    @property
    def state(self) -> RunState:
        return self._state

    @property
    def notices(self) -> tuple[VersionNotice, ...]:
        """The newest version of every fragment, in order; empty while the run has no parameters."""
        if self._state in (RunState.EMPTY, RunState.SEEDING):
            return ()
        return tuple(self._notices[fragment] for fragment in sorted(self._notices))

    def status(self, now_ns: int) -> Status:
        """The state of the run, for people."""
        return status_of(
            run=self._run,
            state=self._state.value,
            now_ns=now_ns,
            ends=(self._steps_max, self._tokens_max),
            members=self._members,
            rounds=[self._rounds[number] for number in sorted(self._rounds)],
            versions=tuple(notice.version for notice in self.notices),
            ledger=self._ledger,
            tally=self._tally,
        )

    # --------------------------------------------------------------------------------------------- joining

    def _on_join(self, join: Join, now_ns: int) -> None:
        finished = self._state in (RunState.FINISHING, RunState.DRAINING, RunState.FINISHED)
        verdict = examine(join, self._options, self._members, self._layout, finished)
        if isinstance(verdict, JoinRefused):
            self._events.append(JoinWasRefused(now_ns, join.learner, verdict.reason, verdict.detail))
            self._send_to(join.learner, join.incarnation, verdict)
            return
        self._layout = verdict
        member = self._members.get(join.learner)
        if member is not None and 0 < join.incarnation < member.incarnation:
            self._fence(join.learner, join.incarnation, "Join", now_ns)
            return
        same_process = member is not None and join.incarnation == member.incarnation
        if member is not None and same_process and member.is_present:
            member.move(MemberMove.RESUME)
            member.heard_ns = now_ns
            self._forget_asked(member)
        elif member is not None and same_process:
            member.come_back(now_ns)
            self._ledger.came_back(member.learner)
        else:
            if member is not None and member.is_present:
                self._depart(member, DepartureReason.SUPERSEDED, now_ns)
            member = self._members.join(join.learner, now_ns)
            self._ledger.opened(join.learner)
        self._events.append(LearnerJoined(now_ns, member.learner, member.incarnation, same_process))
        self._welcome(member)

    def _welcome(self, member: Member) -> None:
        if self._state is RunState.EMPTY:
            self._move(RunMove.SEEDER_FOUND)
            self._seeder = member
            self._notices.clear()
        welcome = Welcome(
            incarnation=member.incarnation,
            clock=self._members.clock,
            lease_ns=self._options.lease_ns,
            versions=self.notices,
            seed=self._seeder is member,
            steps_before=member.steps_before,
        )
        self._send_to(member.learner, member.incarnation, welcome)

    def _on_seed(self, seed: SeedArrived, now_ns: int) -> None:
        if self._seeder is None or self._members.current(seed.learner, seed.incarnation) is not self._seeder:
            self._events.append(
                MessageIgnored(now_ns, seed.learner, "SeedArrived", RefusalReason.STALE_INCARNATION)
            )
            return
        self._notices[seed.fragment] = VersionNotice(seed.fragment, 0, seed.digest)
        if len(self._notices) < self._options.fragments:
            return
        seeder, self._seeder = self._seeder, None
        self._move(RunMove.SEEDED)
        self._events.append(RunSeeded(now_ns, seeder.learner))
        for notice in self.notices:
            self._actions.append(Announce(Published(notice, self._members.clock)))

    def _replace_seeder(self) -> None:
        """The seeding learner is gone before the run had parameters: another one's are taken, from the first on."""
        self._seeder = None
        self._move(RunMove.SEEDER_LOST)
        for member in self._members.present():
            if member.state is MemberState.JOINING:
                self._welcome(member)
                return

    # --------------------------------------------------------------------------------------------- being alive

    def _on_heartbeat(self, heartbeat: Heartbeat, now_ns: int) -> None:
        member = self._members.current(heartbeat.learner, heartbeat.incarnation)
        if member is None:
            self._fence(heartbeat.learner, heartbeat.incarnation, "Heartbeat", now_ns)
        else:
            member.heard_ns = now_ns

    def _on_progress(self, progress: Progress, now_ns: int) -> None:
        member = self._members.current(progress.learner, progress.incarnation)
        if member is None:
            self._fence(progress.learner, progress.incarnation, "Progress", now_ns)
            return
        if member.state is MemberState.AWAY:  # it spoke on a connection that is being torn down
            return
        member.heard_ns = now_ns
        member.clock = max(member.clock, progress.clock)
        member.c_steps, member.c_tokens = progress.c_steps, progress.c_tokens
        member.last = progress.last
        self._take_adoptions(member, progress, now_ns)
        if progress.steps > 0:
            self._take_step(member, progress, now_ns)
        self._members.advance_clock()
        self._proceed(now_ns)

    def _take_step(self, member: Member, progress: Progress, now_ns: int) -> None:
        if not member.is_live:
            self._events.append(LearnerLive(now_ns, member.learner, member.incarnation))
        elif progress.steps > member.steps:
            member.step_average.add(progress.step_ns)
        member.move(MemberMove.STEP)
        member.steps, member.loss = progress.steps, progress.loss
        self._count_tokens(member, progress.tokens)
        self._events.append(
            StepReported(
                now_ns,
                member.learner,
                member.incarnation,
                member.clock,
                progress.steps,
                progress.tokens,
                progress.step_ns,
                progress.loss,
            )
        )

    def _take_adoptions(self, member: Member, progress: Progress, now_ns: int) -> None:
        for lost in progress.undelivered:
            if lost.round not in self._closed or not self._closed.is_duplicate(
                lost.round, member.learner, member.incarnation
            ):
                self._ledger.undelivered(member.learner, lost.fragment, lost.c_tokens)
        for notice in progress.adopted:
            if notice.fetch_ns > 0 and progress.steps > 0:
                self._averages.fetch.add(notice.fetch_ns)
            self._ledger.overwritten(member.learner, notice.fragment, notice.tokens_overwritten)
            self._events.append(
                FragmentAdopted(
                    now_ns,
                    member.learner,
                    member.incarnation,
                    notice.fragment,
                    notice.version,
                    notice.digest,
                    notice.tokens_overwritten,
                )
            )

    def _count_tokens(self, member: Member, tokens: int) -> None:
        member.tokens = max(member.tokens, tokens)
        self._ledger.trained(member.learner, member.tokens_before + member.tokens)

    def _on_leave(self, leave: Leave, now_ns: int) -> None:
        member = self._members.current(leave.learner, leave.incarnation)
        if member is None:
            return
        self._ledger.left(member.learner, leave.tokens_dropped)
        self._depart(member, DepartureReason.LEFT, now_ns)
        self._proceed(now_ns)

    def _on_disconnected(self, lost: Disconnected, now_ns: int) -> None:
        member = self._members.current(lost.learner, lost.incarnation)
        if member is None:
            return
        member.move(MemberMove.CONNECTION_LOST)
        self._events.append(LearnerAway(now_ns, member.learner, member.incarnation))
        self._forget_asked(member)
        if member is self._seeder:
            self._replace_seeder()
        self._proceed(now_ns)

    def _depart(self, member: Member, reason: DepartureReason, now_ns: int) -> None:
        quarantined = reason is DepartureReason.QUARANTINED
        member.move(MemberMove.QUARANTINE if quarantined else MemberMove.DEPART)
        if reason is not DepartureReason.LEFT:
            self._ledger.died(member.learner)
            self._send_to(member.learner, member.incarnation, Fenced(reason))
        self._events.append(LearnerDeparted(now_ns, member.learner, member.incarnation, reason))
        self._forget_asked(member)
        if member is self._seeder:
            self._replace_seeder()

    def _forget_asked(self, member: Member) -> None:
        for collecting in self._open_rounds():
            collecting.asked.pop(member.learner, None)

    def _fence(self, learner: str, incarnation: int, message: str, now_ns: int) -> None:
        """An earlier start of a learner, or one whose lease has ended, is told so whenever it speaks."""
        member = self._members.get(learner)
        superseded = member is not None and member.incarnation != incarnation
        reason = DepartureReason.SUPERSEDED if superseded else DepartureReason.LEASE_EXPIRED
        self._events.append(MessageIgnored(now_ns, learner, message, RefusalReason.STALE_INCARNATION))
        self._send_to(learner, incarnation, Fenced(reason))

    def _on_evaluation(self, evaluation: Evaluation, now_ns: int) -> None:
        event = EvaluationReported(
            now_ns,
            evaluation.source,
            evaluation.clock,
            evaluation.loss,
            evaluation.nats_per_byte,
            evaluation.versions,
        )
        self._tally.evaluated(event)
        self._events.append(event)

    # --------------------------------------------------------------------------------------------- rounds open

    def _proceed(self, now_ns: int) -> None:
        """Whatever follows from the present state: called after anything that may have changed it."""
        self._check_end(now_ns)
        self._open_due_rounds(now_ns)
        for collecting in self._open_rounds():
            self._ask(collecting)
            self._reconsider(collecting, now_ns)
        self._check_drained(now_ns)

    def _open_rounds(self) -> list[SyncRound]:
        return [self._rounds[number] for number in sorted(self._rounds) if self._rounds[number].is_open]

    def _open_due_rounds(self, now_ns: int) -> None:
        while self._may_open():
            fragment = self._schedule.next_fragment
            number = self._schedule.open(self._members.clock)
            if self._state is RunState.DRAINING:
                self._drain_left -= 1
                if not self._late[fragment] and not any(m.c_steps[fragment] for m in self._members.live()):
                    continue
            opened = SyncRound(number, fragment, self._members.clock, now_ns, self._late[fragment])
            self._late[fragment] = []
            self._rounds[number] = opened
            self._ask(opened)
            live = len(self._members.live())
            self._events.append(
                RoundOpened(now_ns, number, fragment, opened.clock, live, tuple(sorted(opened.asked)))
            )

    def _may_open(self) -> bool:
        if len(self._rounds) >= self._options.rounds_in_flight_max:
            return False
        if any(r.fragment == self._schedule.next_fragment for r in self._rounds.values()):
            return False
        if self._state is RunState.DRAINING:
            return self._drain_left > 0
        return (
            self._state is RunState.RUNNING
            and self._schedule.is_due(self._members.clock)
            and len(self._members.live()) > 0
        )

    def _ask(self, collecting: SyncRound) -> None:
        """Pull from every live learner that has something to hand over and was not asked yet."""
        for member in self._members.live():
            if member.learner in collecting.asked or member.learner in collecting.contributions:
                continue
            if self._has_part(member, collecting):
                collecting.asked[member.learner] = member.incarnation
                self._send_to(member.learner, member.incarnation, Pull(collecting.round, collecting.fragment))

    def _has_part(self, member: Member, collecting: SyncRound) -> bool:
        if member.c_steps[collecting.fragment] == 0:
            return False
        fresh = self._options.participation is Participation.FRESH and self._state is RunState.RUNNING
        return not fresh or member.clock >= collecting.clock

    # --------------------------------------------------------------------------------------------- contributions

    def _on_contribution(self, contribution: ContributionArrived, now_ns: int) -> None:
        member = self._members.current(contribution.learner, contribution.incarnation)
        refusal = self._examine_contribution(contribution, member)
        if refusal is None and member is not None:
            self._accept(contribution, member, now_ns)
        else:
            self._refuse(contribution, member, refusal or RefusalReason.STALE_INCARNATION, now_ns)
        self._proceed(now_ns)

    def _examine_contribution(self, made: ContributionArrived, member: Member | None) -> RefusalReason | None:
        if member is None:
            known = self._members.get(made.learner)
            quarantined = known is not None and known.state is MemberState.QUARANTINED
            return RefusalReason.QUARANTINED if quarantined else RefusalReason.STALE_INCARNATION
        if self._state is RunState.FINISHED:
            return RefusalReason.RUN_FINISHED
        collecting = self._rounds.get(made.round)
        if collecting is not None and collecting.fragment != made.fragment:
            return RefusalReason.UNKNOWN_ROUND
        if collecting is None and (made.round not in self._closed or made.fragment != self._fragment_of(made.round)):
            return RefusalReason.UNKNOWN_ROUND
        if collecting is not None and collecting.is_open:
            if made.learner in collecting.contributions:
                return RefusalReason.DUPLICATE
        elif self._closed.is_duplicate(made.round, made.learner, made.incarnation):
            return RefusalReason.DUPLICATE
        if made.defect is not None:
            return made.defect
        if made.c_steps < 1 or made.c_tokens < 0:
            return RefusalReason.BAD_COUNTS
        if not 0 <= self._notices[made.fragment].version - made.base_version <= self._options.staleness_max:
            return RefusalReason.STALE_BASE
        if (collecting is None or not collecting.is_open) and self._options.late is Late.DROP:
            return RefusalReason.LATE
        return None

    def _fragment_of(self, round: int) -> int:
        return round % self._options.fragments

    def _accept(self, made: ContributionArrived, member: Member, now_ns: int) -> None:
        held = Held(
            learner=made.learner,
            incarnation=made.incarnation,
            round=made.round,
            fragment=made.fragment,
            base_version=made.base_version,
            c_steps=made.c_steps,
            c_tokens=made.c_tokens,
            payload=made.payload,
        )
        member.heard_ns = now_ns
        member.strikes = 0
        self._count_tokens(member, made.tokens)
        self._hand_over(member, made.fragment)
        self._ledger.accepted(made.learner, made.fragment, made.c_tokens)
        collecting = self._rounds.get(made.round)
        late = collecting is None or not collecting.is_open
        if collecting is not None and collecting.is_open:
            collecting.contributions[made.learner] = held
            self._note_quorum(collecting, now_ns)
        else:
            self._closed.note(made.round, made.learner, made.incarnation)
            following = next((r for r in self._open_rounds() if r.fragment == made.fragment), None)
            (self._late[made.fragment] if following is None else following.late).append(held)
        self._events.append(
            ContributionAccepted(
                now_ns,
                made.round,
                made.fragment,
                made.learner,
                made.incarnation,
                made.base_version,
                self._notices[made.fragment].version - made.base_version,
                made.c_steps,
                made.c_tokens,
                made.norm,
                late,
            )
        )

    def _note_quorum(self, collecting: SyncRound, now_ns: int) -> None:
        if collecting.quorum_at_ns is None and len(collecting.contributions) >= self._options.quorum:
            collecting.quorum_at_ns = now_ns
            self._averages.quorum.add(now_ns - collecting.opened_ns)
            collecting.grace_ns = window.grace_ns(
                self._options,
                step_ns=self._members.step_ns(),
                quorum_ns=self._averages.quorum.value_ns,
                sync_ns=self._averages.sync_ns,
            )

    def _hand_over(self, member: Member, fragment: int) -> None:
        """What the member held of the fragment is here: until its next report there is nothing to ask for."""
        member.c_steps = (*member.c_steps[:fragment], 0, *member.c_steps[fragment + 1 :])
        member.c_tokens = (*member.c_tokens[:fragment], 0, *member.c_tokens[fragment + 1 :])

    def _refuse(
        self, made: ContributionArrived, member: Member | None, reason: RefusalReason, now_ns: int
    ) -> None:
        self._ledger.refusals[reason] += 1
        if made.payload >= 0:
            self._actions.append(Release(made.payload))
        strikes = 0
        self._enter_refused(made, reason)
        if member is not None:
            collecting = self._rounds.get(made.round)
            if collecting is not None and reason is not RefusalReason.DUPLICATE:
                collecting.asked.pop(made.learner, None)
            self._send_to(
                member.learner, member.incarnation, Settled(made.round, made.fragment, late=False, refusal=reason)
            )
            if reason in STRIKING:
                quarantine = self._members.strike(member)
                strikes = member.strikes
                if quarantine is not None:
                    self._depart(member, quarantine, now_ns)
        self._events.append(
            ContributionRefused(
                now_ns, made.round, made.fragment, made.learner, made.incarnation, made.c_tokens, reason, strikes
            )
        )

    def _enter_refused(self, made: ContributionArrived, reason: RefusalReason) -> None:
        """Enter the tokens as refused, unless they are in the ledger already: a duplicate's, or a dead process's."""
        member = self._members.get(made.learner)
        if reason is RefusalReason.DUPLICATE or member is None or not member.owns(made.incarnation):
            return
        if self._ledger.is_closed(made.learner) or not 0 <= made.c_tokens <= made.tokens:
            return
        self._count_tokens(member, made.tokens)
        self._hand_over(member, made.fragment)
        self._ledger.refused(made.learner, made.fragment, made.c_tokens, reason)

    # --------------------------------------------------------------------------------------------- rounds close

    def _reconsider(self, collecting: SyncRound, now_ns: int) -> None:
        """Close the round if it is time; otherwise remember why it is open and until when."""
        live = self._members.live()
        missing = [member for member in live if member.learner not in collecting.contributions]
        if self._options.participation is Participation.LATEST or self._state is not RunState.RUNNING:
            missing = [member for member in missing if member.learner in collecting.asked]
        decision = window.decide(
            self._options,
            now_ns=now_ns,
            quorum_at_ns=collecting.quorum_at_ns,
            contributed=len(collecting.contributions),
            awaited=len(missing),
            live=len(live),
            grace_ns=collecting.grace_ns,
        )
        collecting.decision = decision
        if decision.close:
            self._close(collecting, decision, len(live), now_ns)
        elif self._state is RunState.DRAINING and (not missing or now_ns >= self._limit_ns):
            self._abandon(collecting, now_ns)

    def _close(self, collecting: SyncRound, decision: window.Decision, live: int, now_ns: int) -> None:
        quorum_at_ns = now_ns if collecting.quorum_at_ns is None else collecting.quorum_at_ns
        participants = collecting.participants()
        self._events.append(
            RoundClosed(
                now_ns,
                collecting.round,
                collecting.fragment,
                decision.reason,
                decision.sentence,
                participants,
                live,
                now_ns - collecting.opened_ns,
                quorum_at_ns - collecting.opened_ns,
                collecting.grace_ns,
            )
        )
        self._tally.closed(len(participants), live)
        self._closed.add(collecting)
        collecting.closed_ns = now_ns
        shares = collecting.shares()
        if not shares:
            self._end_empty(collecting, now_ns)
            return
        collecting.move(RoundMove.CLOSE)
        version = self._notices[collecting.fragment].version + 1
        self._actions.append(Commit(collecting.round, collecting.fragment, version, shares))

    def _abandon(self, collecting: SyncRound, now_ns: int) -> None:
        """The run ends and the round cannot reach its quorum any more."""
        for held in collecting.held():
            self._ledger.abandoned(held.learner, held.fragment, held.c_tokens, RefusalReason.RUN_FINISHED)
            self._ledger.refusals[RefusalReason.RUN_FINISHED] += 1
        collecting.move(RoundMove.CLOSE_EMPTY)
        self._closed.add(collecting)
        self._retire(collecting)
        self._events.append(RoundEmpty(now_ns, collecting.round, collecting.fragment))

    def _end_empty(self, collecting: SyncRound, now_ns: int) -> None:
        collecting.move(RoundMove.CLOSE_EMPTY)
        for held in collecting.held():
            self._ledger.merged(held.learner, held.fragment, held.c_tokens, late=held.round != collecting.round)
        self._retire(collecting)
        self._tally.rounds_empty += 1
        self._events.append(RoundEmpty(now_ns, collecting.round, collecting.fragment))

    def _retire(self, collecting: SyncRound) -> None:
        for held in collecting.held():
            self._actions.append(Release(held.payload))
        del self._rounds[collecting.round]

    def _on_committed(self, committed: Committed, now_ns: int) -> None:
        collecting = self._rounds.get(committed.round)
        expected = self._notices[committed.fragment].version + 1
        if collecting is None or collecting.state is not RoundState.COMMITTING or committed.version != expected:
            raise LocalProtocolError(f"version {committed.version} of round {committed.round} was not asked for")
        collecting.move(RoundMove.COMMIT)
        self._averages.commit.add(now_ns - collecting.closed_ns)
        notice = VersionNotice(committed.fragment, committed.version, committed.digest)
        self._notices[committed.fragment] = notice
        self._actions.append(Announce(Published(notice, self._members.clock)))
        self._settle(collecting)
        self._tally.rounds_committed += 1
        self._events.append(
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
            )
        )
        self._retire(collecting)
        self._proceed(now_ns)

    def _settle(self, collecting: SyncRound) -> None:
        """Tell the contributors and enter their tokens."""
        for held in collecting.held():
            late = held.round != collecting.round
            self._ledger.merged(held.learner, held.fragment, held.c_tokens, late)
            settled = Settled(held.round, held.fragment, late, None)
            self._send_to(held.learner, held.incarnation, settled)
        for learner in collecting.participants():
            member = self._members.get(learner)
            if member is not None:
                member.last_round = collecting.round
                member.rounds_merged += 1

    # --------------------------------------------------------------------------------------------- the end

    def _check_end(self, now_ns: int) -> None:
        if self._state is RunState.RUNNING:
            clock, tokens = self._members.clock, self._ledger.trained_total
            if 0 < self._steps_max <= clock:
                self._finish(f"{clock} steps of {self._steps_max} are done", now_ns)
            elif 0 < self._tokens_max <= tokens:
                self._finish(f"{tokens} tokens of {self._tokens_max} are trained", now_ns)
        elif self._state is RunState.FINISHING:
            if all(member.last for member in self._members.live()) or now_ns >= self._limit_ns:
                self._move(RunMove.DRAIN)
                self._drain_left = self._options.fragments
                self._limit_ns = now_ns + self._options.lease_ns

    def _finish(self, reason: str, now_ns: int) -> None:
        self._move(RunMove.FINISH)
        self._limit_ns = now_ns + self._options.lease_ns + 2 * self._members.step_ns()
        self._actions.append(Announce(Finish()))
        self._events.append(RunFinishing(now_ns, self._members.clock, reason))

    def _on_end_run(self, end: EndRun, now_ns: int) -> None:
        if self._state is RunState.RUNNING:
            self._finish(end.reason, now_ns)
            self._proceed(now_ns)
        elif self._state in (RunState.EMPTY, RunState.SEEDING):
            self._end(now_ns)

    def _check_drained(self, now_ns: int) -> None:
        if self._state is RunState.DRAINING and self._drain_left == 0 and not self._rounds:
            self._end(now_ns)

    def _end(self, now_ns: int) -> None:
        for member in self._members.present():
            self._ledger.left(member.learner, member.c_tokens)
        self._move(RunMove.END)
        self._limit_ns = NEVER_NS
        versions = tuple(notice.version for notice in self.notices)
        self._events.append(RunFinished(now_ns, self._members.clock, versions))
        self._actions.append(Announce(Stop("the run has finished")))
        self._actions.append(RunEnded())

    def _move(self, move: RunMove) -> None:
        target = MOVES[self._state].get(move)
        if target is None:
            raise LocalProtocolError(f"the run cannot {move.value} while it is {self._state.value}")
        self._state = target

    def _send_to(self, learner: str, incarnation: int, message: SyncerMessage) -> None:
        self._actions.append(SendTo(learner, incarnation, message))
