"""A learner's half of the protocol, without sockets, clocks or arrays.

Decides what a learner says, when it hands progress over, when it adopts a commit, and when it may take a step. Does not
decide how arrays are copied, encoded or written (the loop, the link, the store), nor how the inner step is taken.

The outside is the syncer's verbs, without ``take_events``. The host reports every inner step by ``StepFinished``; the
actions ``TakeSnapshot`` and ``Adopt`` touch the model and are only ever issued where no step is in progress: in answer
to ``StepFinished``, or in a state in which ``may_step`` is False.

What happens at a step boundary, in this order:

1. counters: every fragment has one step and this step's tokens more that were not handed over yet;
2. pulls that had to wait for a complete step are answered;
3. versions that have arrived are adopted (see ``adoptions``);
4. the syncer is told (``Progress``: clock, counters, adoptions, in one message);
5. the fragments due next are copied to the host, so that a pull in the middle of the coming step is answered at once.

A learner that takes data leases and has no data for another step is *at rest*: it remains at that boundary, and does 2
to 4 whenever there is reason to, until it is granted more or the run ends.

Handing over moves the anchor: what is uploaded is the progress since the last adoption *or the last hand-over*,
whichever is later, and its counters start again from zero. So no token is ever in two contributions, even if a learner
is asked twice before it sees the result of the first.

What was handed over stays here until the syncer has said what became of it (``Settled``). If the syncer dies before
that, the contribution is handed over once more to the next life of it; if this one has it already, that does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unlockstep.core.actions import Done, LearnerAction, ResetOptimizer, Send
from unlockstep.core.adoptions import Adoptions, Kept
from unlockstep.core.course import BEGINNING, Course
from unlockstep.core.deeds import Began, DataTaken, Deed, Moment
from unlockstep.core.diary import Diary
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.hand_overs import HandOvers
from unlockstep.core.ids import NEVER_NS, PROTOCOL_VERSION, seconds
from unlockstep.core.layout import Layout
from unlockstep.core.learner_record import FragmentRecord, LearnerRecord
from unlockstep.core.learner_states import MOVES, FragmentState, LearnerMove, LearnerState
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Farewell,
    Fenced,
    Fetched,
    FetchFailed,
    Finish,
    GoneBack,
    Granted,
    HandedOver,
    Heartbeat,
    HostFailed,
    Join,
    JoinRefused,
    LearnerInput,
    LearnerMessage,
    Leave,
    LeaveRequested,
    Leaving,
    Progress,
    Published,
    Pull,
    SeedStored,
    Settled,
    StepFinished,
    Stop,
    UploadArrived,
    UploadFailed,
    Welcome,
)
from unlockstep.core.reasons import DepartureReason, JoinRefusal, RefusalReason
from unlockstep.core.recovery import Recovery
from unlockstep.core.seeding import Seeding
from unlockstep.core.versions import Versions

HEARTBEATS_PER_LEASE = 3


class LearnerCore:
    """One start of one learner.

    Args:
        learner: its name, unique in the run.
        layout: how its model is cut.
        waits_for_pull: under ``latest`` with ``overwrite`` or ``blend``, progress is handed over before a newer version
            overwrites it, see ``adoptions``.
        kept: which counts survive an adoption.
        staleness_max: versions a contribution may be behind.
        has_state: the host can copy and load what the learner trains with: a new process asks for that of another one.
        away_ns_max: how long it goes on without a syncer.
        course: what it holds of the corpus, if it takes data leases.
        about: what the run log should know of the process.
    """

    def __init__(
        self,
        learner: str,
        layout: Layout,
        *,
        waits_for_pull: bool,
        kept: Kept,
        staleness_max: int,
        has_state: bool = False,
        away_ns_max: int = NEVER_NS,
        course: Course | None = None,
        about: Mapping[str, str] | None = None,
    ) -> None:
        self.learner = learner
        self.incarnation = 0
        self.run_id = ""
        """Which run it is a member of; empty before the first welcome."""
        self.life = 0
        """Which start of the syncer it has been welcomed by; 0 before the first welcome."""
        self.clock = 0
        self.steps = 0
        self.tokens = 0
        self.steps_before = 0
        """Inner steps that earlier processes of this learner had taken: where the data goes on."""
        self.layout = layout
        self.course = course
        self.position = self.samples = 0
        """Of the course, as of the last step boundary."""
        self._adoptions = Adoptions(self, waits_for_pull, staleness_max, kept)
        self._state = LearnerState.JOINING
        self._welcomed = False
        self._about = {str(name): str(text) for name, text in (about or {}).items()}
        self._began_after = (0, 0)
        """Incarnation and steps of the process that this program was before, 0 and 0 for none."""
        self._has_begun = False
        self._staleness_max = staleness_max
        self._unsettled_said = 0
        """How many contributions were not settled when it reported last."""
        self._has_state = has_state
        self._must_begin_anew = False
        """It is quarantined: all it has is void at the next step boundary."""
        self._may_join = False
        """It was told to, but must begin anew before."""
        self._refusal: RefusalReason | None = None
        self._finish_asked = False
        self._lease_ns = NEVER_NS
        self._sent_ns = 0
        self._away_ns_max = away_ns_max
        self._alone_since_ns: int | None = None
        """When the connection to the syncer was lost."""
        self._actions: list[LearnerAction] = []
        self._set_up()

    def _set_up(self) -> None:
        """Nothing was received, and nothing trained."""
        self._diary = Diary()
        self._fragments = [FragmentState() for _ in range(self.layout.fragment_count)]
        self._seeding = Seeding(self._fragments)
        self._versions = Versions(self, self._fragments)
        self._hand_overs = HandOvers(self, self._fragments, self._staleness_max)
        self.recovery = Recovery(self, self._fragments, self._has_state)
        """Where this process has its state from, and what it does for others."""
        self._reactions = self._all_reactions()

    def _all_reactions(self) -> dict[type[Any], Callable[[Any, int], None]]:
        return {
            Connected: self._on_connected,
            Disconnected: self._on_disconnected,
            Welcome: self._on_welcome,
            JoinRefused: self._on_join_refused,
            SeedStored: self._on_seed_stored,
            Granted: self._on_granted,
            Published: self._on_published,
            GoneBack: self._on_gone_back,
            Fetched: self._on_fetched,
            FetchFailed: self._versions.fail,
            StepFinished: self._on_step_finished,
            Pull: self._on_pull,
            Settled: self._on_settled,
            UploadArrived: self._on_upload_arrived,
            UploadFailed: self._on_upload_failed,
            Fenced: self._on_fenced,
            Finish: self._on_finish,
            Stop: self._on_stop,
            HostFailed: self._on_host_failed,
            LeaveRequested: self._on_leave_requested,
            Farewell: self._on_farewell,
            **self.recovery.reactions,
        }

    # --------------------------------------------------------------------------------------------- outside

    def receive(self, message: LearnerInput, now_ns: int) -> None:
        """Something was said by the syncer, or has happened in this process. After the end nothing has an effect."""
        if self._state is not LearnerState.DONE:
            self._reactions[type(message)](message, now_ns)
            if self.is_at_rest:
                self._rest(now_ns)

    def next_deadline_ns(self) -> int:
        """When a fetch that has failed is tried again, a donor is given up, or the next heartbeat is due if nothing
        else is said before; NEVER_NS if never. Without a syncer: when it has been away for too long."""
        if self._state is LearnerState.DONE:
            return NEVER_NS
        if not self._welcomed:
            return min(self.recovery.until_ns, self._alone_until_ns)
        return min(self._versions.again_ns, self.recovery.until_ns, self._sent_ns + self.heartbeat_ns)

    @property
    def _alone_until_ns(self) -> int:
        return NEVER_NS if self._alone_since_ns is None else self._alone_since_ns + self._away_ns_max

    def on_deadline(self, now_ns: int) -> None:
        """Say that we are alive, ask again for what could not be fetched, or begin without what does not come."""
        if now_ns < self.next_deadline_ns():
            return
        self.recovery.on_deadline(now_ns)
        if not self._welcomed:
            if now_ns >= self._alone_until_ns:
                away = f"the syncer has been away for {seconds(self._away_ns_max)} (protocol.away_s_max)"
                self._done(f"{away}; start this learner again when it is back", failed=True, is_alone=True)
            return
        if now_ns >= self._versions.again_ns:
            self._versions.fetch_missing()
        if now_ns >= self._sent_ns + self.heartbeat_ns:
            self._send(Heartbeat(self.learner, self.incarnation), now_ns)

    @property
    def heartbeat_ns(self) -> int:
        return self._lease_ns // HEARTBEATS_PER_LEASE

    def take_actions(self) -> list[LearnerAction]:
        """What the host must do now, in order. Taking empties the list."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def state(self) -> LearnerState:
        return self._state

    @property
    def may_step(self) -> bool:
        """Whether the next inner step may begin: all parameters and enough data are here, and the end is not."""
        return self._state is LearnerState.TRAINING and (self.course is None or self.course.is_ready)

    @property
    def _is_stopping(self) -> bool:
        """There will be no step any more, or none unless a new life of the syncer wants some."""
        return self._state in (LearnerState.FINISHING, LearnerState.LEAVING)

    @property
    def is_at_rest(self) -> bool:
        """It would train, and there is no data: no step is in progress, and none may begin."""
        if self._state is not LearnerState.TRAINING or self.course is None:
            return False
        return self.course.samples == self.samples and not self.course.is_ready

    @property
    def versions(self) -> tuple[int, ...]:
        """The version adopted of every fragment; -1 before the first."""
        return tuple(fragment.version for fragment in self._fragments)

    # --------------------------------------------------------------------------------------------- going on

    def record(self) -> LearnerRecord:
        """What another process needs to go on from here; between two steps."""
        return LearnerRecord(
            learner=self.learner,
            run_id=self.run_id,
            incarnation=self.incarnation,
            life=self.life,
            clock=self.clock,
            steps=self.steps,
            tokens=self.tokens,
            steps_before=self.steps_before,
            next_round=self._hand_overs.next_round,
            pulls_in_step=self._hand_overs.pulls_in_step,
            undelivered=self._hand_overs.remaining(),
            fragments=tuple(
                FragmentRecord(f.version, f.c_steps, f.c_tokens, f.overwritten, f.is_shared, f.has_snapshot)
                for f in self._fragments
            ),
            course=None if self.course is None else self.course.state(),
            deeds=self._diary.remaining(),
            deeds_count=self._diary.count,
        )

    def resume(self, record: LearnerRecord) -> None:
        """Go on where another process stopped, before anything is received. To the syncer it is the same process,
        whose connection was broken."""
        self._move(LearnerMove.RESUME)
        self.incarnation, self.run_id, self.life = record.incarnation, record.run_id, record.life
        self.clock, self.steps, self.tokens = record.clock, record.steps, record.tokens
        self.steps_before = record.steps_before
        self._diary.resume(record.deeds_count, record.deeds)
        self._hand_overs.resume(record.undelivered, record.next_round, record.pulls_in_step)
        if self.course is not None and record.course is not None:
            self.course.resume(record.course)
            self.position, self.samples = self.course.position, self.course.samples
        for fragment, known in zip(self._fragments, record.fragments, strict=True):
            fragment.version, fragment.life, fragment.overwritten = known.version, self.life, known.overwritten
            fragment.c_steps, fragment.c_tokens = known.c_steps, known.c_tokens
            fragment.is_shared, fragment.has_snapshot = known.is_shared, known.has_snapshot

    # --------------------------------------------------------------------------------------------- joining

    def _on_connected(self, _: Connected, now_ns: int) -> None:
        if self._must_begin_anew:
            self._may_join = True
        else:
            self._join(now_ns)

    def _join(self, now_ns: int) -> None:
        """Ask to take part. Until the answer is here nothing else is said: it would be said for the wrong start."""
        self._welcomed = False
        join = Join(
            self.learner,
            self.incarnation,
            PROTOCOL_VERSION,
            self.layout.digest,
            self.layout.specs(),
            self.run_id,
            self._hand_overs.unsettled,
            0 if self.course is None else self.course.sequences,
            "" if self.course is None else self.course.digest,
            self.position,
            self.samples,
            self.life,
            self._about,
        )
        self._actions.append(Send(join))

    def _on_disconnected(self, _: Disconnected, now_ns: int) -> None:
        """Training goes on. What was asked or promised over the old connection is void."""
        self._welcomed = self._may_join = False
        if self._alone_since_ns is None and self.incarnation > 0:
            self._alone_since_ns = now_ns
        self._hand_overs.connection_lost()
        self.recovery.disconnected(now_ns)
        self._versions.connection_lost()

    def _on_welcome(self, welcome: Welcome, now_ns: int) -> None:
        if self.steps == 0:
            self.steps_before = welcome.steps_before
            self.clock = max(self.clock, welcome.clock)
        is_new_life = 0 < self.life != welcome.life
        was_given_up = 0 < self.incarnation != welcome.incarnation
        self.incarnation, self.run_id, self.life = welcome.incarnation, welcome.run_id, welcome.life
        self._lease_ns = welcome.lease_ns
        self._welcomed = True
        self._alone_since_ns = None
        self._sent_ns = now_ns
        self._hold(welcome)
        self._diary.heard(welcome.deeds)
        if not welcome.seed:
            if self._state is LearnerState.SEEDING:
                self._seeding.take_back()
            if is_new_life:
                self._meet_new_life(welcome)
            elif any(notice.version < self._fragments[notice.fragment].version for notice in welcome.versions):
                self._done(
                    "the syncer has gone back behind what this learner has adopted; start the run anew", failed=True
                )
                return
            self._move(LearnerMove.WELCOME)
            self._hand_overs.again(welcome.wanted, everything=is_new_life or was_given_up)
            for notice in welcome.versions:
                self._versions.note(notice, welcome.clock, now_ns)
            self._versions.fetch_missing()
            if self._state is LearnerState.LOADING and self.steps == 0 and welcome.versions:
                self.recovery.welcomed(now_ns)
            if self._is_stopping or (self.is_at_rest and not self._versions.must_reload):
                self._report(now_ns, step_ns=0, loss=float("nan"))
            else:  # The answer may have taken long, and the lease has begun with the question.
                self._send(Heartbeat(self.learner, self.incarnation), now_ns)
            if self._state is LearnerState.LEAVING:
                self._send(Leaving(self.learner, self.incarnation), now_ns)
        elif LearnerMove.WELCOME_SEED in MOVES[self._state]:
            self._move(LearnerMove.WELCOME_SEED)
            self._actions += self._seeding.begin()
        else:
            self._done("the syncer has lost the run's parameters; start the run anew", failed=True)

    def _meet_new_life(self, welcome: Welcome) -> None:
        """The syncer has died and gone on from what it had saved: less than it had published, perhaps."""
        self._finish_asked = False
        self.recovery.forget()
        if self._state is LearnerState.FINISHING:
            self._move(LearnerMove.GO_ON)
        self._versions.meet_new_life(welcome.versions_kept)
        self._diary.lose(welcome.versions_kept)

    def _on_granted(self, granted: Granted, now_ns: int) -> None:
        self._hold(granted)

    def _hold(self, told: Welcome | Granted) -> None:
        """A step may have begun with what is there for it: that much it keeps."""
        if self.course is not None:
            self.course.hold(told.grants, told.exhausted, keep=self.course.step_sequences)

    def _reload(self, now_ns: int) -> None:
        """Take all of the syncer's versions, as a learner that has just started; at a step boundary."""
        self._move(LearnerMove.RELOAD)
        self._versions.forget_adopted()
        self._versions.fetch_missing()
        self._load_if_complete(now_ns)

    def _on_seed_stored(self, stored: SeedStored, now_ns: int) -> None:
        if self._state is LearnerState.SEEDING:
            self._seeding.stored(stored.fragment, self.life)
            self._begin_if_seeded(now_ns)

    def _begin_if_seeded(self, now_ns: int) -> None:
        if self._seeding.is_complete:
            self._move(LearnerMove.LOADED)
            self._report(now_ns, step_ns=0, loss=float("nan"))

    def _on_join_refused(self, refused: JoinRefused, now_ns: int) -> None:
        """That the run has ended is no failure. Who is quarantined asks again after its pause, which its host keeps."""
        if refused.retry_ns > 0:
            self._shut_out(now_ns)
            return
        self._done(refused.detail, failed=refused.reason is not JoinRefusal.RUN_FINISHED)

    def _on_fenced(self, fenced: Fenced, now_ns: int) -> None:
        """This start no longer counts. After a lost lease it joins again and goes on with the progress it has; after a
        quarantine, as a new start without any."""
        if fenced.reason is DepartureReason.LEASE_EXPIRED:
            if self._welcomed:
                self._hand_overs.void()
                self._join(now_ns)
        elif fenced.reason is DepartureReason.SUPERSEDED:
            self._done(f"another process has joined under the name {self.learner}", failed=True)
        elif fenced.retry_ns > 0:
            self._shut_out(now_ns)
        else:
            last = "" if self._refusal is None else f", the last one as {self._refusal.value}"
            self._done(f"the syncer refused too many of this learner's contributions{last}", failed=True)

    def _shut_out(self, now_ns: int) -> None:
        """It is quarantined: what it has is not to be trusted, its inner optimizer's state least of all."""
        self._welcomed = False
        if self._state is LearnerState.LEAVING:
            self._go(now_ns)
        elif self.incarnation == 0:  # Its name is: what it may have kept of an earlier process goes the same way.
            self._actions.append(ResetOptimizer())
        else:
            self._must_begin_anew = True
            if self._state is not LearnerState.TRAINING:
                self._begin_anew(now_ns)

    def _begin_anew(self, now_ns: int) -> None:
        """Be as a process that has just started; at a step boundary. The syncer enters all it had as lost."""
        self._must_begin_anew = False
        self._move(LearnerMove.BEGIN_ANEW)
        self._versions.discard_all()
        self._hand_overs.settle_all()
        self._actions.append(ResetOptimizer())
        self._set_up()
        if self.course is not None:
            self.course.resume(BEGINNING)
        self.position = self.samples = self._unsettled_said = 0
        was, steps = (self.incarnation, 0) if self._has_begun else self._began_after
        self._began_after, self._has_begun = (was, steps + self.steps), False
        self._alone_since_ns = None
        self.incarnation = self.life = self.steps = self.tokens = 0
        self.run_id, self._refusal = "", None
        self._finish_asked = False
        if self._may_join:
            self._join(now_ns)

    # --------------------------------------------------------------------------------------------- versions

    def _on_published(self, published: Published, now_ns: int) -> None:
        self._versions.note(published.notice, published.clock, now_ns)
        self._versions.fetch_missing()
        if self._state is LearnerState.SEEDING and self._welcomed:
            self._seeding.announced(published.notice)
            self._begin_if_seeded(now_ns)

    def _on_gone_back(self, back: GoneBack, now_ns: int) -> None:
        for notice in back.notices:
            self._versions.note(notice, back.clock, now_ns)
        self._versions.fetch_missing()

    def _on_fetched(self, fetched: Fetched, now_ns: int) -> None:
        self._versions.arrive(fetched, now_ns)
        self._load_if_complete(now_ns)

    def _load_if_complete(self, now_ns: int) -> None:
        """Once every fragment is here, take them all before the next step; or those that no donor gives."""
        if self._state is not LearnerState.LOADING:
            return
        if self.recovery.is_waiting:
            self.recovery.load_if_complete()
        else:
            self.load(frozenset(), now_ns)

    def load(self, loaded: frozenset[int], now_ns: int) -> None:
        """Take every fragment but those that are loaded, once all are here, and begin."""
        rest = [index for index in range(len(self._fragments)) if index not in loaded]
        if self._state is not LearnerState.LOADING or any(self._fragments[index].arrived is None for index in rest):
            return
        for index in rest:
            self._adoptions.adopt(index, self._fragments[index], load=True)
        if self.steps == 0:
            self.recovery.begin_without()
        self._move(LearnerMove.LOADED)
        self._report(now_ns, step_ns=0, loss=float("nan"))

    # --------------------------------------------------------------------------------------------- a step boundary

    def _on_step_finished(self, step: StepFinished, now_ns: int) -> None:
        if self._state is not LearnerState.TRAINING:
            raise LocalProtocolError(f"an inner step was reported while the learner is {self._state.value}")
        if self._must_begin_anew:
            self.steps += 1  # For nothing.
            self._begin_anew(now_ns)
            return
        if self.steps == 0:
            self.note(Began(self.clock, self.steps_before, *self._began_after))
            self._has_begun = True
        self.clock += 1
        self.steps += 1
        self.tokens += step.tokens
        for fragment in self._fragments:
            fragment.c_steps += 1
            fragment.c_tokens += step.tokens
            fragment.has_snapshot = False
        if self.course is not None:
            self._count_data(self.course)
        self._use_boundary(now_ns)
        self._report(now_ns, step.step_ns, step.loss)
        if self._state is LearnerState.TRAINING:
            self._hand_overs.copy_ahead()
        self.recovery.give(now_ns)

    def _count_data(self, course: Course) -> None:
        full = course.step_sequences
        if (course.position - self.position, course.samples - self.samples) != (full, full):
            self.note(DataTaken(course.taken))
        course.taken = ()
        self.position, self.samples = course.position, course.samples

    def _use_boundary(self, now_ns: int) -> None:
        """No step is in progress: hand over, adopt, end."""
        self._hand_overs.proceed(is_at_boundary=True)
        if self._versions.must_reload:
            self._reload(now_ns)
        if self._adopt_due():
            self._hand_overs.proceed(is_at_boundary=True)  # What has waited for just that.
        if self._finish_asked and self._state is LearnerState.TRAINING:
            self._move(LearnerMove.FINISH)

    def _adopt_due(self) -> bool:
        """Adopt what has arrived; returns whether anything had."""
        if self._state is not LearnerState.TRAINING:
            return False
        due = [index for index, fragment in enumerate(self._fragments) if self._adoptions.is_due(fragment)]
        for index in due:
            self._adoptions.adopt(index, self._fragments[index], load=self.steps == 0)
        return bool(due)

    def _rest(self, now_ns: int) -> None:
        """There is no data, and something was heard."""
        if self._must_begin_anew:
            self._begin_anew(now_ns)
            return
        self._use_boundary(now_ns)
        is_news = self._diary.has_news or len(self._hand_overs.unsettled) != self._unsettled_said
        if is_news or self._state is LearnerState.FINISHING:
            self._report(now_ns, step_ns=0, loss=float("nan"))
        self.recovery.give(now_ns)

    def _report(self, now_ns: int, step_ns: int, loss: float) -> None:
        if not self._welcomed:
            return
        progress = Progress(
            learner=self.learner,
            incarnation=self.incarnation,
            clock=self.clock,
            steps=self.steps,
            tokens=self.tokens,
            step_ns=step_ns,
            loss=loss,
            c_steps=tuple(fragment.c_steps for fragment in self._fragments),
            c_tokens=tuple(fragment.c_tokens for fragment in self._fragments),
            overwritten=tuple(fragment.overwritten for fragment in self._fragments),
            deeds=self._diary.say(),
            undelivered=self._hand_overs.declare(),
            last=self._state is LearnerState.FINISHING,
            position=self.position,
            samples=self.samples,
            unsettled=len(self._hand_overs.unsettled),
            recovered=self.recovery.way,
        )
        self._unsettled_said = len(self._hand_overs.unsettled)
        self._send(progress, now_ns)

    # --------------------------------------------------------------------------------------------- handing over

    def _on_pull(self, pull: Pull, now_ns: int) -> None:
        self._hand_overs.pull(pull, is_at_boundary=self._is_stopping)

    def _on_settled(self, settled: Settled, now_ns: int) -> None:
        """Merged or not is for the syncer to enter; a learner only remembers why it was refused."""
        self._refusal = settled.refusal or self._refusal
        self._hand_overs.settle(HandedOver(settled.round, settled.fragment, settled.tokens))
        self._hand_overs.proceed(is_at_boundary=self._is_stopping)

    def _on_upload_arrived(self, arrived: UploadArrived, now_ns: int) -> None:
        self._hand_overs.arrive(HandedOver(arrived.round, arrived.fragment, arrived.tokens))
        self._hand_overs.proceed(is_at_boundary=self._is_stopping)

    def _on_upload_failed(self, failed: UploadFailed, now_ns: int) -> None:
        is_news = self._hand_overs.fail(failed, is_away=not self._welcomed)
        self._hand_overs.proceed(is_at_boundary=self._is_stopping)
        if is_news and self._is_stopping:
            self._report(now_ns, step_ns=0, loss=float("nan"))

    # --------------------------------------------------------------------------------------------- the end

    def _on_finish(self, finish: Finish, now_ns: int) -> None:
        """Takes effect at the next step boundary."""
        self._finish_asked = True

    def _on_stop(self, stop: Stop, now_ns: int) -> None:
        self._done(stop.reason, failed=False)

    def _on_host_failed(self, failed: HostFailed, now_ns: int) -> None:
        self._done(failed.reason, failed=True)

    def _on_leave_requested(self, leave: LeaveRequested, now_ns: int) -> None:
        """Go in order, between two steps: first the syncer is told, and says what it wants of all this (``Farewell``).
        Asked once more, or with nothing to hand over, go at once: what was not handed over is declared dropped."""
        if self._state is LearnerState.TRAINING and any(fragment.c_tokens for fragment in self._fragments):
            self._move(LearnerMove.LEAVE)
            if self._welcomed:
                self._report(now_ns, step_ns=0, loss=float("nan"))
                self._send(Leaving(self.learner, self.incarnation), now_ns)
        else:
            self._go(now_ns)

    def _on_farewell(self, farewell: Farewell, now_ns: int) -> None:
        """Hand over what is asked for, and go."""
        if self._state is LearnerState.LEAVING:
            self._go(now_ns, farewell.pulls)

    def _go(self, now_ns: int, pulls: tuple[Pull, ...] = ()) -> None:
        if self._welcomed:
            self._hand_overs.end(pulls, is_at_boundary=self._is_stopping)
            self._report(now_ns, step_ns=0, loss=float("nan"))
            dropped = tuple(fragment.c_tokens for fragment in self._fragments)
            self._send(Leave(self.learner, self.incarnation, dropped), now_ns)
        self._done("left the run", failed=False)

    def _done(self, reason: str, failed: bool, is_alone: bool = False) -> None:
        self._move(LearnerMove.STOP)
        self.recovery.forget()
        self._versions.discard_all()
        self._actions.append(Done(reason, failed, is_alone))

    def _move(self, move: LearnerMove) -> None:
        target = MOVES[self._state].get(move)
        if target is None:
            raise LocalProtocolError(f"a learner cannot {move.value} while it is {self._state.value}")
        self._state = target

    def _send(self, message: LearnerMessage, now_ns: int) -> None:
        self._sent_ns = now_ns
        self._actions.append(Send(message))

    # --------------------------------------------------------------------------------------------- for its parts

    @property
    def may_fetch(self) -> bool:
        return self._welcomed and self._state in (LearnerState.LOADING, LearnerState.TRAINING)

    @property
    def lease_ns(self) -> int:
        return self._lease_ns

    def say(self, message: LearnerMessage, now_ns: int) -> None:
        if self._welcomed:
            self._send(message, now_ns)

    def act(self, action: LearnerAction) -> None:
        self._actions.append(action)

    def note(self, deed: Deed) -> int:
        return self._diary.note(deed, self.steps)

    @property
    def moment(self) -> Moment:
        return Moment(self.learner, self.incarnation, self.steps, self._diary.count)
