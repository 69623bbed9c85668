"""The syncer's half of the protocol, without sockets, clocks or arrays: start here to know how a run proceeds.

Decides who is told what about the run as a whole: joining, the first parameters, leases, the end. Policies it asks,
each a file of its own: ``admission`` (may this process join), ``membership`` (who is alive, what time it is),
``rounds`` (opening, contributions, closing), ``donation`` (state for new processes), ``ledger`` (tokens). The
arithmetic of a merge is the host's: it is asked for by ``Commit`` and reported by ``Committed``.

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

The process may die at any moment. What it has promised is on disk before it says so (``Save``); another life of it
takes that up (``saved``, ``resume``), and learners come back to it as they do after a broken connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from unlockstep.core.actions import Announce, RunEnded, SyncerAction
from unlockstep.core.admission import examine
from unlockstep.core.codec_choice import UploadCodecs
from unlockstep.core.deeds_heard import DeedsHeard
from unlockstep.core.donation import Donations
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError
from unlockstep.core.events import (
    DataCollecting,
    EvaluationReported,
    Event,
    JoinWasRefused,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLeaving,
    LearnerLive,
    MessageIgnored,
    RunFinished,
    RunFinishing,
    RunSeeded,
    StepReported,
    SyncerResumed,
)
from unlockstep.core.formats import Codec
from unlockstep.core.going_back import GoingBack
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.layout import Layout
from unlockstep.core.leasing import EVERYTHING_TRAINED, Leasing
from unlockstep.core.ledger import Ledger
from unlockstep.core.lives import Lives
from unlockstep.core.membership import Member, MemberMove, Membership, MemberState
from unlockstep.core.messages import (
    Committed,
    ContributionArrived,
    Disconnected,
    EndRun,
    Evaluation,
    Farewell,
    Finish,
    HandedOver,
    Heartbeat,
    Join,
    JoinRefused,
    Leave,
    Leaving,
    Progress,
    Published,
    Recorded,
    SeedArrived,
    StateArrived,
    StateComing,
    StateDeclined,
    StateLost,
    StateWanted,
    Stop,
    SyncerInput,
    Transferring,
    UploadMeasured,
    VersionNotice,
    Welcome,
    WentBack,
)
from unlockstep.core.options import Dealing, ProtocolOptions, RollbackOptions
from unlockstep.core.outbox import Outbox
from unlockstep.core.reasons import DepartureReason, JoinRefusal, Recovered, RefusalReason
from unlockstep.core.rounds import Pace, Rounds
from unlockstep.core.run_states import MOVES, RunMove, RunState, how_ended
from unlockstep.core.saved import SavedRun
from unlockstep.core.shapes import check_shape
from unlockstep.core.status import Status
from unlockstep.core.status_of import Tally, status_of
from unlockstep.core.traffic import Traffic


class SyncerCore:
    """One run, as the syncer sees it.

    Args:
        run: name of the run.
        options: protocol settings.
        steps_max: the run ends when the clock reaches this; 0 sets no limit.
        tokens_max: above 0, the run ends when the learners have trained this many tokens instead, however many steps
            that takes.
        run_id: tells this run from any other of the same name: what was a member of another one is none of this.
        dealing: how the corpus is dealt out by data leases; None: every learner reads what it likes. If its epochs
            have an end, the run ends when all are trained, or by ``tokens_max`` before, however many steps that takes.
        rollback: when to go back to an earlier state of the parameters; None: never.
        codecs: formats of uploads, from the finest to the coarsest.
    """

    def __init__(
        self,
        run: str,
        options: ProtocolOptions,
        steps_max: int,
        tokens_max: int,
        run_id: str,
        *,
        dealing: Dealing | None = None,
        rollback: RollbackOptions | None = None,
        codecs: tuple[Codec, ...] = (Codec.BFLOAT16,),
    ) -> None:
        self.run_id = run_id
        self.life = 1
        """Which start of the syncer this is."""
        self._run = run
        self._options = options
        self._steps_max = steps_max
        self._tokens_max = tokens_max
        self._state = RunState.EMPTY
        self._members = Membership(options, codecs[-1])
        self._ledger, self._tally = Ledger(options.fragments), Tally()
        self._outbox = Outbox()
        self._rounds = Rounds(options, self._members, self._ledger, self._tally, self._outbox)
        self._deeds_heard = DeedsHeard(self._rounds, self._ledger, self._outbox)
        self._leasing = Leasing(dealing, self._outbox)
        self.donations = Donations(options, self._members, self._outbox)
        self._going_back = GoingBack(rollback, self._rounds, self._members, self._tally, self._outbox)
        self._layout: Layout | None = None
        uploads = UploadCodecs(codecs, options, self._members, lambda: self._layout, self._outbox)
        self._seeder: Member | None = None
        self._is_seeded = False
        self._finish_until_ns = NEVER_NS
        self.is_stopped = False
        """Somebody has asked the run to end before its end."""
        self._lives = Lives()
        self._reactions: dict[type[Any], Callable[[Any, int], None]] = {
            Join: self._on_join,
            Heartbeat: self._on_heartbeat,
            Progress: self._on_progress,
            Leaving: self._on_leaving,
            Leave: self._on_leave,
            Disconnected: self._on_disconnected,
            Evaluation: self._on_evaluation,
            SeedArrived: self._on_seed,
            ContributionArrived: self._on_contribution,
            Transferring: Traffic(self._members, self._outbox).moved,
            UploadMeasured: uploads.measured,
            Committed: self._on_committed,
            StateWanted: self._on_state_wanted,
            StateDeclined: self._on_state,
            StateComing: self._on_state,
            StateArrived: self._on_state,
            StateLost: self._on_state,
            Recorded: self._going_back.recorded,
            WentBack: self._on_went_back,
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
        return min(
            self._finish_until_ns,
            self._members.next_expiry_ns(),
            self._rounds.next_deadline_ns(),
            self.donations.next_deadline_ns(),
        )

    def on_deadline(self, now_ns: int) -> None:
        """The clock has reached a deadline (calling early does no harm)."""
        if self._state is RunState.FINISHED:
            return
        for member in self._members.expired(now_ns):
            self._depart(member, DepartureReason.LEASE_EXPIRED, now_ns)
        self.donations.on_deadline(now_ns)
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
            layout=self._layout,
            ledger=self._ledger,
            tally=self._tally,
            data=self._leasing.status(),
        )

    # --------------------------------------------------------------------------------------------- lives

    def saved(self, now_ns: int) -> SavedRun:
        """What must outlive this process, as of now."""
        return SavedRun(
            run_id=self.run_id,
            life=self.life,
            at_ns=now_ns,
            state=self._state.value,
            is_stopped=self.is_stopped,
            clock=self._members.clock,
            notices=self.notices,
            members=self._members.saved(),
            ledger=self._ledger.saved(),
            rounds=self._rounds.saved(),
            tally=self._tally.saved(now_ns),
            data=self._leasing.saved(),
            lives=self._lives.saved(),
            evaluations=self._going_back.saved(),
        )

    def resume(self, saved: SavedRun, layout: Layout | None, life: int, now_ns: int) -> None:
        """Take up a run where an earlier life of the syncer has saved it; before anything is received.

        A run that was reaching its end goes on doing so, unless somebody had asked it to: then it goes on as before.

        Args:
            saved: of the same run, under the same settings.
            layout: of the run; None if it had none.
            life: of this process, higher than any before.
            now_ns: time of the run, not before ``saved.at_ns``.
        """
        self.run_id, self.life = saved.run_id, life
        self.donations.resume(life)
        self._members.restore(saved.members, saved.clock, now_ns)
        self._ledger.restore(saved.ledger)
        for member in self._members:
            if not member.is_present:
                self._ledger.goes_with_the_syncer(member.learner)
            elif saved.state == RunState.FINISHED.value:
                self._ledger.go_on(member.learner)
        self._tally.restore(saved.tally, saved.at_ns)
        self._going_back.restore(saved.evaluations)
        versions = tuple(notice.version for notice in saved.notices)
        self._lives.resume(saved.lives, life, versions)
        self._outbox.log(SyncerResumed(now_ns, life, saved.clock, versions))
        if saved.notices:
            self._layout = layout
            self._is_seeded = True
            self._state = RunState.RUNNING
            self._rounds.pace = Pace.SCHEDULED
            self._rounds.notices.update({notice.fragment: notice for notice in saved.notices})
        self._rounds.resume(saved.rounds, now_ns)
        self._leasing.restore(saved.data, self._members, now_ns)
        self._outbox.save()
        self._proceed(now_ns)

    # --------------------------------------------------------------------------------------------- joining

    def _on_join(self, join: Join, now_ns: int) -> None:
        is_over = self._state is RunState.FINISHED
        finished = is_over or self._state in (RunState.FINISHING, RunState.DRAINING)
        verdict = examine(join, self.run_id, self._options, self._members, self._layout, finished, is_over, now_ns)
        if not isinstance(verdict, JoinRefused) and (objection := self._leasing.objection(join)) is not None:
            verdict = JoinRefused(JoinRefusal.DATA_MISMATCH, objection)
        if isinstance(verdict, JoinRefused):
            self._outbox.log(JoinWasRefused(now_ns, join.learner, verdict.reason, verdict.detail))
            self._outbox.send_to(join.learner, join.incarnation, verdict)
            return
        member = self._members.get(join.learner)
        same_process = member is not None and member.owns(join.incarnation)
        resumes = same_process and member is not None and member.is_present
        if member is not None and same_process:
            self._leasing.check(join, member.process_since)
        if member is not None and resumes:
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
        self._layout = verdict  # now, since without anybody there was none
        if not resumes:
            self._outbox.save()
        said = (join.position, join.samples) if same_process else (0, 0, join.about)
        self._outbox.log(LearnerJoined(now_ns, member.learner, member.incarnation, same_process, *said))
        self._leasing.joined(member, join, not same_process, now_ns)
        wanted, told = self._rounds.review(member, join.unsettled) if same_process else ((), ())
        self._welcome(member, join.life, wanted)
        for settled in told:
            self._outbox.send_to(member.learner, member.incarnation, settled)
        self._proceed(now_ns)

    def _welcome(self, member: Member, life: int, wanted: tuple[HandedOver, ...] = ()) -> None:
        if self._state is RunState.EMPTY:
            self._move(RunMove.SEEDER_FOUND)
            self._seeder = member
            self._rounds.notices.clear()
        grants, exhausted = self._leasing.terms(member)
        welcome = Welcome(
            incarnation=member.incarnation,
            clock=self._members.clock,
            lease_ns=self._options.lease_ns,
            versions=self.notices,
            seed=self._seeder is member,
            steps_before=member.steps_before,
            run_id=self.run_id,
            life=self.life,
            wanted=wanted,
            versions_kept=self._lives.kept_since(life),
            grants=grants,
            exhausted=exhausted,
            deeds=member.deeds,
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
        self._outbox.log(RunSeeded(now_ns, seeder.learner, self.run_id))
        self._outbox.save()
        for notice in self.notices:
            self._outbox.act(Announce(Published(notice, self._members.clock)))

    def _replace_seeder(self) -> None:
        """The seeding learner is gone before the run had parameters: another one's are taken, from the first on."""
        self._seeder = None
        self._move(RunMove.SEEDER_LOST)
        for member in self._members.present():
            if member.state is MemberState.JOINING:
                self._welcome(member, self.life)
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
        self._leasing.check(progress, member.process_since)
        member.heard_ns = now_ns
        if member.state is MemberState.AWAY or self._state is RunState.FINISHED:
            return  # it speaks on a connection that is being torn down, or of what is closed
        self._leasing.reported(member, progress)
        if progress.steps > member.steps:  # What is adopted between two steps counts with the next one.
            member.clock = max(member.clock, progress.clock)
        member.unsettled = progress.unsettled
        member.report(progress.tokens, progress.c_steps, progress.c_tokens)
        member.last = progress.last
        self._deeds_heard.take(member, progress, now_ns)
        self.donations.begun(member, progress.recovered, now_ns)
        if progress.steps > 0:
            self._take_step(member, progress, now_ns)
        self._members.advance_clock()
        self._proceed(now_ns)

    def _take_step(self, member: Member, progress: Progress, now_ns: int) -> None:
        if member.state is MemberState.JOINING:
            recovered = Recovered.KEPT if member.steps > 0 else progress.recovered
            self._outbox.log(LearnerLive(now_ns, member.learner, member.incarnation, recovered))
        elif progress.steps > member.steps:
            member.step_average.add(progress.step_ns)
        member.move(MemberMove.STEP)
        member.is_expected = False
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
                progress.position,
                progress.samples,
            )
        )

    def _on_leaving(self, leaving: Leaving, now_ns: int) -> None:
        """Ask for everything at once: nobody will wait for it any more."""
        member = self._members.current(leaving.learner, leaving.incarnation)
        if member is None:
            self._fence(leaving.learner, leaving.incarnation, "Leaving", now_ns)
            return
        member.heard_ns = now_ns
        if member.state is MemberState.AWAY or self._state is RunState.FINISHED:
            return
        member.move(MemberMove.LEAVE)
        self._rounds.forget_asked(member)
        self._outbox.log(LearnerLeaving(now_ns, member.learner, member.incarnation))
        self._leasing.away(member)
        self.donations.gone(member, now_ns)
        self._outbox.send_to(member.learner, member.incarnation, Farewell(self._rounds.last_pulls(member)))
        self._proceed(now_ns)

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
        self._leasing.away(member)
        self.donations.gone(member, now_ns)
        self._rounds.forget_asked(member)
        if member is self._seeder:
            self._replace_seeder()
        self._proceed(now_ns)

    def _depart(
        self, member: Member, reason: DepartureReason, now_ns: int, tokens_dropped: tuple[int, ...] = ()
    ) -> None:
        pause_ns = 0
        if reason is DepartureReason.QUARANTINED:
            pause_ns = self._members.quarantine(member, now_ns)
        else:
            member.move(MemberMove.DEPART)
        member.is_expected = False
        self._outbox.save()
        if reason is not DepartureReason.LEFT:
            self._ledger.died(member.learner)
            self._outbox.send_to(member.learner, member.incarnation, self._members.fenced(member, reason, now_ns))
        pause_ns = 0 if pause_ns == NEVER_NS else pause_ns
        self._outbox.log(LearnerDeparted(now_ns, member.learner, member.incarnation, reason, tokens_dropped, pause_ns))
        self._leasing.departed(member, in_order=reason is DepartureReason.LEFT)
        self.donations.gone(member, now_ns)
        self._rounds.forget_asked(member)
        if member is self._seeder:
            self._replace_seeder()
        if not self._is_seeded and not self._members.present():
            self._leasing.forget()
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
        self._outbox.send_to(learner, incarnation, self._members.fenced(member, reason, now_ns))

    def _on_evaluation(self, evaluation: Evaluation, now_ns: int) -> None:
        event = EvaluationReported(
            now_ns,
            evaluation.source,
            evaluation.clock,
            evaluation.loss,
            evaluation.nats_per_byte,
            evaluation.versions,
            evaluation.scores,
        )
        self._tally.evaluated(event)
        self._outbox.log(event)
        if self._state is RunState.RUNNING:
            self._going_back.judge(evaluation, now_ns)

    @property
    def wants_records(self) -> bool:
        """Whether it has any use for ``Recorded``."""
        return self._going_back.is_on

    def _on_went_back(self, back: WentBack, now_ns: int) -> None:
        self._going_back.went_back(back, now_ns)
        self._proceed(now_ns)

    # --------------------------------------------------------------------------------------------- rounds

    def _proceed(self, now_ns: int) -> None:
        """Whatever follows from the present state: called after anything that may have changed it."""
        self._check_end(now_ns)
        self.donations.proceed(now_ns)
        self._rounds.proceed(now_ns)
        self._leasing.settle(self._members, self._rounds, now_ns)
        if self._state is RunState.RUNNING:
            self._deal(now_ns)
        if self._rounds.is_drained:
            self._end(now_ns)

    def _deal(self, now_ns: int) -> None:
        """Grant data to whoever needs some. When there is none left to train, collect what is trained; when that is
        done, the run is over, unless some of it is to be trained again."""
        self._leasing.top_up(self._members, now_ns)
        is_on = self._leasing.is_idle(self._members)
        if is_on != (self._rounds.pace is Pace.COLLECTING):
            self._rounds.pace = Pace.COLLECTING if is_on else Pace.SCHEDULED
            self._outbox.log(DataCollecting(now_ns, is_on))
            self._rounds.proceed(now_ns)
        if is_on and self._leasing.is_finished:
            self._finish(EVERYTHING_TRAINED, now_ns)
            self._proceed(now_ns)
        elif is_on and self._rounds.is_collected:
            if self._leasing.take_back_lost(self._members, self._rounds, now_ns):
                self._deal(now_ns)
            elif self._leasing.is_trained(self._members):
                self._finish(f"{EVERYTHING_TRAINED}, and no more of it can be merged", now_ns)
                self._proceed(now_ns)

    def _on_contribution(self, made: ContributionArrived, now_ns: int) -> None:
        member = self._members.current(made.learner, made.incarnation)
        try:
            self._leasing.check(made, 0 if member is None else member.process_since)
        except RemoteProtocolError:
            made = msgspec.structs.replace(made, defect=made.defect or RefusalReason.BAD_COUNTS)
        if self._rounds.on_contribution(made, now_ns) and member is not None:
            self._leasing.accepted(made, member.process_since)
        if member is not None and member.strikes >= self._options.strikes_max:
            self._depart(member, DepartureReason.QUARANTINED, now_ns)
        self._proceed(now_ns)

    def _on_committed(self, committed: Committed, now_ns: int) -> None:
        merged = self._rounds.held_in(committed.round)
        self._rounds.on_committed(committed, now_ns)
        self._leasing.reached(merged)
        self._proceed(now_ns)

    # --------------------------------------------------------------------------------------------- state of learners

    def _on_state_wanted(self, wanted: StateWanted, now_ns: int) -> None:
        member = self._members.current(wanted.learner, wanted.incarnation)
        if member is None:
            self._fence(wanted.learner, wanted.incarnation, "StateWanted", now_ns)
        elif member.state is MemberState.JOINING:
            member.heard_ns = now_ns
            self.donations.want(member, wanted.failed, now_ns)
            if self._state is not RunState.RUNNING:
                self.donations.stop(now_ns)
            self._proceed(now_ns)

    def _on_state(self, message: StateDeclined | StateComing | StateArrived | StateLost, now_ns: int) -> None:
        self.donations.hear(message, now_ns)
        self._proceed(now_ns)

    # --------------------------------------------------------------------------------------------- the end

    def _check_end(self, now_ns: int) -> None:
        if self._state is RunState.RUNNING:
            clock, tokens = self._members.clock, self._ledger.trained_total
            if 0 < self._tokens_max <= tokens:
                self._finish(f"{tokens} tokens of {self._tokens_max} are trained", now_ns)
            elif self._tokens_max == 0 and not self._leasing.ends_run and 0 < self._steps_max <= clock:
                self._finish(f"{clock} steps of {self._steps_max} are done", now_ns)
        elif self._state is RunState.FINISHING and (
            now_ns >= self._finish_until_ns
            or not any(member.is_expected or (member.is_live and not member.last) for member in self._members)
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
        self._outbox.save()
        self._outbox.act(Announce(Finish()))
        self.donations.stop(now_ns)
        self._outbox.log(RunFinishing(now_ns, self._members.clock, reason))

    def _on_end_run(self, end: EndRun, now_ns: int) -> None:
        self.is_stopped |= self._state in (RunState.EMPTY, RunState.SEEDING, RunState.RUNNING)
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
        ledger, data = self._ledger.status(), self._leasing.status()
        self._outbox.log(RunFinished(now_ns, self._members.clock, versions, under_way, ledger, data))
        self._outbox.save()
        steps_max = 0 if self._tokens_max or self._leasing.ends_run else self._steps_max
        self._outbox.act(Announce(Stop(how_ended(self.is_stopped, self._members.clock, steps_max))))
        self._outbox.act(RunEnded())

    def _move(self, move: RunMove) -> None:
        target = MOVES[self._state].get(move)
        if target is None:
            raise LocalProtocolError(f"the run cannot {move.value} while it is {self._state.value}")
        self._state = target
