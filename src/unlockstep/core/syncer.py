"""The syncer's half of the protocol, without sockets, clocks or arrays: start here to know how a run proceeds.

Decides who is told what about the run as a whole: joining, the first parameters, leases, the end. Policies it asks,
each a file of its own: ``admission`` (may this process join), ``membership`` (who is alive, what time it is),
``rounds`` (opening, contributions, closing), ``ledger`` (tokens). The arithmetic of a merge is the host's: it is asked
for by ``Commit`` and reported by ``Committed``.

A round, from start to end; the middle part is ``rounds.Rounds``::

    Progress ─> the clock advances ─> open what is due ─> Pull to each learner that has something to hand over
    ContributionArrived ─> accept or refuse ─┐
    deadline (grace, lease) ─────────────────┴─> reconsider ─> window.decide ─> close ─> Commit
    Committed ─> Published to everyone, Settled to its contributors

So a round closes when its quorum is in and either every learner it still expects something from has answered or the
grace window has ended; ``window.decide`` is that rule, and says which of the two it was.

The outside is five verbs: ``receive``, ``next_deadline_ns``, ``on_deadline``, ``take_actions``, ``take_events``. Time
is an argument. The order of what is received is the only source of nondeterminism; the rest follows.

A run's life is the table ``MOVES``. SEEDING: the first learner uploads the initial parameters. FINISHING: the end is
reached, learners finish the step they are in. DRAINING: one last round of every fragment collects what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from unlockstep.core.actions import Announce, RunEnded, SyncerAction
from unlockstep.core.admission import examine
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.events import (
    EvaluationReported,
    Event,
    FragmentAdopted,
    JoinWasRefused,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLive,
    MessageIgnored,
    RunFinished,
    RunFinishing,
    RunSeeded,
    StepReported,
    TokensOverwritten,
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
    SeedArrived,
    Stop,
    SyncerInput,
    VersionNotice,
    Welcome,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.outbox import Outbox
from unlockstep.core.reasons import DepartureReason, RefusalReason
from unlockstep.core.rounds import Pace, Rounds
from unlockstep.core.shapes import check_shape
from unlockstep.core.status import Status
from unlockstep.core.status_of import Tally, status_of


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
        tokens_max: above 0, the run ends when the learners have trained this many tokens instead, however many steps
            that takes.
        run_id: tells this run from any other of the same name: what was a member of another one is none of this.
    """

    def __init__(self, run: str, options: ProtocolOptions, steps_max: int, tokens_max: int, run_id: str) -> None:
        self.run_id = run_id
        self._run = run
        self._options = options
        self._steps_max = steps_max
        self._tokens_max = tokens_max
        self._state = RunState.EMPTY
        self._members = Membership(options)
        self._ledger = Ledger(options.fragments)
        self._tally = Tally()
        self._outbox = Outbox()
        self._rounds = Rounds(options, self._members, self._ledger, self._tally, self._outbox)
        self._layout: Layout | None = None
        self._seeder: Member | None = None
        self._is_seeded = False
        self._finish_until_ns = NEVER_NS
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
        """Something was said or has happened.

        Raises:
            RemoteProtocolError: a learner's message does not fit this run; it had no effect.
        """
        check_shape(message, self._options.fragments)
        self._reactions[type(message)](message, now_ns)
        self._watch(now_ns)

    def next_deadline_ns(self) -> int:
        """When ``on_deadline`` wants to be called if nothing is received before; NEVER_NS if never."""
        if self._state is RunState.FINISHED:
            return NEVER_NS
        return min(self._finish_until_ns, self._members.next_expiry_ns(), self._rounds.next_deadline_ns())

    def on_deadline(self, now_ns: int) -> None:
        """The clock has reached a deadline (calling early does no harm)."""
        if self._state is RunState.FINISHED:
            return
        for member in self._members.expired(now_ns):
            self._depart(member, DepartureReason.LEASE_EXPIRED, now_ns)
        self._proceed(now_ns)
        self._watch(now_ns)

    def _watch(self, now_ns: int) -> None:
        if self._state in (RunState.EMPTY, RunState.SEEDING, RunState.RUNNING):
            self._tally.watch_downtime(len(self._members.live()), now_ns)

    def take_actions(self) -> list[SyncerAction]:
        """What the host must do now, in order. Taking empties the list."""
        return self._outbox.take_actions()

    def take_events(self) -> list[Event]:
        """What has happened since the last call, for the run log."""
        return self._outbox.take_events()

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
        if not self._is_seeded:
            return ()
        return tuple(self._rounds.notices[fragment] for fragment in range(self._options.fragments))

    def status(self, now_ns: int) -> Status:
        """The state of the run, for people."""
        return status_of(
            run=self._run,
            state=self._state.value,
            now_ns=now_ns,
            ends=(self._steps_max, self._tokens_max),
            members=self._members,
            rounds=self._rounds.in_progress(),
            round_next=self._rounds.next_up(),
            versions=tuple(notice.version for notice in self.notices),
            layout_digest=None if self._layout is None else self._layout.digest,
            ledger=self._ledger,
            tally=self._tally,
        )

    # --------------------------------------------------------------------------------------------- joining

    def _on_join(self, join: Join, now_ns: int) -> None:
        is_over = self._state is RunState.FINISHED
        finished = is_over or self._state in (RunState.FINISHING, RunState.DRAINING)
        verdict = examine(join, self.run_id, self._options, self._members, self._layout, finished, is_over)
        if isinstance(verdict, JoinRefused):
            self._outbox.log(JoinWasRefused(now_ns, join.learner, verdict.reason, verdict.detail))
            self._outbox.send_to(join.learner, join.incarnation, verdict)
            return
        self._layout = verdict
        member = self._members.get(join.learner)
        same_process = member is not None and member.owns(join.incarnation)
        if member is not None and same_process and member.is_present:
            member.move(MemberMove.RESUME)
            member.heard_ns = now_ns
            self._rounds.forget_asked(member)
        elif member is not None and same_process:
            member.come_back(now_ns)
            self._ledger.came_back(member.learner)
        else:
            if member is not None and member.is_present:
                self._depart(member, DepartureReason.SUPERSEDED, now_ns)
            member = self._members.join(join.learner, now_ns)
            self._ledger.opened(join.learner)
        self._outbox.log(LearnerJoined(now_ns, member.learner, member.incarnation, same_process))
        self._welcome(member)
        self._proceed(now_ns)

    def _welcome(self, member: Member) -> None:
        if self._state is RunState.EMPTY:
            self._move(RunMove.SEEDER_FOUND)
            self._seeder = member
            self._rounds.notices.clear()
        welcome = Welcome(
            incarnation=member.incarnation,
            clock=self._members.clock,
            lease_ns=self._options.lease_ns,
            versions=self.notices,
            seed=self._seeder is member,
            steps_before=member.steps_before,
            run_id=self.run_id,
        )
        self._outbox.send_to(member.learner, member.incarnation, welcome)
        if self._state in (RunState.FINISHING, RunState.DRAINING):
            self._outbox.send_to(member.learner, member.incarnation, Finish())

    def _on_seed(self, seed: SeedArrived, now_ns: int) -> None:
        if self._seeder is None or self._members.current(seed.learner, seed.incarnation) is not self._seeder:
            self._outbox.log(MessageIgnored(now_ns, seed.learner, "SeedArrived", RefusalReason.STALE_INCARNATION))
            return
        self._rounds.notices[seed.fragment] = VersionNotice(seed.fragment, 0, seed.digest)
        if len(self._rounds.notices) < self._options.fragments:
            return
        seeder, self._seeder = self._seeder, None
        self._move(RunMove.SEEDED)
        self._is_seeded = True
        self._rounds.pace = Pace.SCHEDULED
        self._outbox.log(RunSeeded(now_ns, seeder.learner))
        for notice in self.notices:
            self._outbox.act(Announce(Published(notice, self._members.clock)))

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
        member.heard_ns = now_ns
        if member.state is MemberState.AWAY or self._state is RunState.FINISHED:
            return  # it speaks on a connection that is being torn down, or of what is closed
        member.clock = max(member.clock, progress.clock)
        member.report(progress.tokens, progress.c_steps, progress.c_tokens)
        member.last = progress.last
        self._take_adoptions(member, progress, now_ns)
        if progress.steps > 0:
            self._take_step(member, progress, now_ns)
        self._members.advance_clock()
        self._proceed(now_ns)

    def _take_step(self, member: Member, progress: Progress, now_ns: int) -> None:
        if not member.is_live:
            self._outbox.log(LearnerLive(now_ns, member.learner, member.incarnation))
        elif progress.steps > member.steps:
            member.step_average.add(progress.step_ns)
        member.move(MemberMove.STEP)
        self._ledger.trained(member.learner, member.count_tokens(progress.tokens))
        if progress.steps <= member.steps:  # the same boundary once more: what it had not said yet
            return
        member.steps, member.loss = progress.steps, progress.loss
        self._outbox.log(
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
            self._rounds.enter_undelivered(member, lost, now_ns)
        for fragment, tokens in member.count_overwritten(progress.overwritten):
            self._ledger.overwritten(member.learner, fragment, tokens)
            self._outbox.log(TokensOverwritten(now_ns, member.learner, member.incarnation, fragment, tokens))
        for notice in progress.adopted:
            if notice.fetch_ns > 0 and progress.steps > 0:
                self._rounds.averages.fetch.add(notice.fetch_ns)
            self._outbox.log(
                FragmentAdopted(
                    now_ns,
                    member.learner,
                    member.incarnation,
                    notice.fragment,
                    notice.version,
                    notice.digest,
                )
            )

    def _on_leave(self, leave: Leave, now_ns: int) -> None:
        member = self._members.current(leave.learner, leave.incarnation)
        if member is None:
            return
        if self._state is not RunState.FINISHED:
            self._ledger.left(member.learner, leave.tokens_dropped)
        self._depart(member, DepartureReason.LEFT, now_ns, leave.tokens_dropped)
        self._proceed(now_ns)

    def _on_disconnected(self, lost: Disconnected, now_ns: int) -> None:
        member = self._members.current(lost.learner, lost.incarnation)
        if member is None:
            return
        member.move(MemberMove.CONNECTION_LOST)
        self._outbox.log(LearnerAway(now_ns, member.learner, member.incarnation))
        self._rounds.forget_asked(member)
        if member is self._seeder:
            self._replace_seeder()
        self._proceed(now_ns)

    def _depart(
        self, member: Member, reason: DepartureReason, now_ns: int, tokens_dropped: tuple[int, ...] = ()
    ) -> None:
        quarantined = reason is DepartureReason.QUARANTINED
        member.move(MemberMove.QUARANTINE if quarantined else MemberMove.DEPART)
        if reason is not DepartureReason.LEFT:
            self._ledger.died(member.learner)
            self._outbox.send_to(member.learner, member.incarnation, Fenced(reason))
        self._outbox.log(LearnerDeparted(now_ns, member.learner, member.incarnation, reason, tokens_dropped))
        self._rounds.forget_asked(member)
        if member is self._seeder:
            self._replace_seeder()
        if not self._is_seeded and not self._members.present():
            self._layout = None  # nobody is left whose parameters it could hold: the next learner brings its own

    def _fence(self, learner: str, incarnation: int, message: str, now_ns: int) -> None:
        """An earlier start of a learner, or one whose lease has ended, is told so whenever it speaks."""
        member = self._members.get(learner)
        reason = DepartureReason.LEASE_EXPIRED
        if member is not None and not member.owns(incarnation):
            reason = DepartureReason.SUPERSEDED
        elif member is not None and member.state is MemberState.QUARANTINED:
            reason = DepartureReason.QUARANTINED
        self._outbox.log(MessageIgnored(now_ns, learner, message, RefusalReason.STALE_INCARNATION))
        self._outbox.send_to(learner, incarnation, Fenced(reason))

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
        self._outbox.log(event)

    # --------------------------------------------------------------------------------------------- rounds

    def _proceed(self, now_ns: int) -> None:
        """Whatever follows from the present state: called after anything that may have changed it."""
        self._check_end(now_ns)
        self._rounds.proceed(now_ns)
        if self._rounds.is_drained:
            self._end(now_ns)

    def _on_contribution(self, made: ContributionArrived, now_ns: int) -> None:
        self._rounds.on_contribution(made, now_ns)
        member = self._members.current(made.learner, made.incarnation)
        if member is not None and member.strikes >= self._options.strikes_max:
            self._depart(member, DepartureReason.QUARANTINED, now_ns)
        self._proceed(now_ns)

    def _on_committed(self, committed: Committed, now_ns: int) -> None:
        self._rounds.on_committed(committed, now_ns)
        self._proceed(now_ns)

    # --------------------------------------------------------------------------------------------- the end

    def _check_end(self, now_ns: int) -> None:
        if self._state is RunState.RUNNING:
            clock, tokens = self._members.clock, self._ledger.trained_total
            if 0 < self._tokens_max <= tokens:
                self._finish(f"{tokens} tokens of {self._tokens_max} are trained", now_ns)
            elif self._tokens_max == 0 and 0 < self._steps_max <= clock:
                self._finish(f"{clock} steps of {self._steps_max} are done", now_ns)
        elif self._state is RunState.FINISHING and (
            all(member.last for member in self._members.live()) or now_ns >= self._finish_until_ns
        ):
            self._move(RunMove.DRAIN)
            self._finish_until_ns = NEVER_NS
            self._rounds.drain(until_ns=now_ns + self._options.lease_ns)

    def _finish(self, reason: str, now_ns: int) -> None:
        """The end is reached. Learners are given the time of a slow step to reach their next boundary."""
        self._move(RunMove.FINISH)
        self._tally.stop_watching(now_ns)
        self._rounds.pace = Pace.HELD
        self._finish_until_ns = now_ns + self._options.lease_ns + 2 * self._members.step_ns()
        self._outbox.act(Announce(Finish()))
        self._outbox.log(RunFinishing(now_ns, self._members.clock, reason))

    def _on_end_run(self, end: EndRun, now_ns: int) -> None:
        if self._state is RunState.RUNNING:
            self._finish(end.reason, now_ns)
            self._proceed(now_ns)
        elif self._state in (RunState.EMPTY, RunState.SEEDING):
            self._end(now_ns)

    def _end(self, now_ns: int) -> None:
        for member in self._members.present():
            if member.state is MemberState.AWAY:
                self._ledger.died(member.learner)
        versions = tuple(notice.version for notice in self.notices)
        self._move(RunMove.END)
        self._rounds.stop()
        under_way = self._ledger.finish({member.learner: member.c_tokens for member in self._members.present()})
        self._outbox.log(RunFinished(now_ns, self._members.clock, versions, under_way, self._ledger.status()))
        self._outbox.act(Announce(Stop("the run has finished")))
        self._outbox.act(RunEnded())

    def _move(self, move: RunMove) -> None:
        target = MOVES[self._state].get(move)
        if target is None:
            raise LocalProtocolError(f"the run cannot {move.value} while it is {self._state.value}")
        self._state = target
