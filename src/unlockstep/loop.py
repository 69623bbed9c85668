"""The one place where a model and the protocol meet on a learner: one call per inner step.

Decides which thread does what: boundary actions (snapshots, adoptions) run in the training thread between two inner
steps; everything else runs wherever the message that caused it arrived, at once, so that a pull is answered in the
middle of a long step. Does not decide what to do (``core.learner``), how bodies travel (the link) or how a model is
read and written (the store).
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from unlockstep.core.actions import (
    Adopt,
    Discard,
    Done,
    Fetch,
    FetchState,
    Forget,
    LearnerAction,
    LoadState,
    Resend,
    ResetOptimizer,
    Send,
    TakeSnapshot,
    TakeState,
    Upload,
    UploadSeed,
)
from unlockstep.core.adoption import Adoption, kept
from unlockstep.core.course import Course
from unlockstep.core.data_book import Grant
from unlockstep.core.deeds import Moment
from unlockstep.core.errors import UsageError
from unlockstep.core.formats import Codec
from unlockstep.core.layout import Layout
from unlockstep.core.learner import LearnerCore
from unlockstep.core.learner_record import LearnerRecord
from unlockstep.core.learner_states import LearnerState
from unlockstep.core.messages import (
    CheckpointLoaded,
    HandedOver,
    HostFailed,
    LearnerInput,
    LearnerMessage,
    LeaveRequested,
    StateLoaded,
    StateNotTaken,
    StateUnfit,
    StepFinished,
    VersionNotice,
)
from unlockstep.core.options import Participation, ProtocolOptions
from unlockstep.core.reasons import Recovered
from unlockstep.holdings import Holdings
from unlockstep.learners.backend import FloatArray, FragmentStore, InnerState, StepStats
from unlockstep.learners.state_body import Donated


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a learner hands over for a round. The arrays are never written again: a link may encode them at leisure."""

    run_id: str
    learner: str
    incarnation: int
    round: int
    fragment: int
    base_version: int
    c_steps: int
    c_tokens: int
    tokens: int
    anchor: FloatArray
    local: FloatArray
    position: int = 0
    samples: int = 0
    loads: int = 0
    """How often the fragment has been loaded by this process: what rounding took before the last time is void."""
    codec: Codec = Codec.BFLOAT16
    """In which it travels."""
    steps: int = 0
    """Inner steps of its process when it handed over."""
    deed: int = 0
    """Number of the hand-over among the deeds of its process."""


@dataclass(frozen=True, slots=True)
class LoopState:
    """What a loop knows between two steps beside the model. The arrays are never written again."""

    record: LearnerRecord
    anchors: tuple[FloatArray, ...]
    """Of every fragment, float32[fragment_size]."""


class Link(Protocol):
    """How a learner reaches its syncer. No method blocks or raises for the network's sake: what comes of it arrives
    through ``LearnerLoop.deliver``."""

    def send(self, message: LearnerMessage) -> None:
        """Put a control message on its way; lost if the connection is down (the core notices by ``Disconnected``)."""
        ...

    def fetch(self, notice: VersionNotice) -> None:
        """Download a version; ends in ``Fetched(payload)`` or ``FetchFailed``."""
        ...

    def upload(self, contribution: Contribution) -> None:
        """Encode and upload a contribution, perhaps not for the first time; ends in ``UploadArrived``, whatever becomes
        of it, or ``UploadFailed``. Of two attempts at one contribution only the newer is spoken of."""
        ...

    def forget(self, handed_over: HandedOver) -> None:
        """This contribution is settled, and will not be uploaded again. If its turn has not come, it need not be."""
        ...

    def upload_seed(self, run_id: str, learner: str, incarnation: int, fragment: int, values: FloatArray) -> None:
        """Upload version 0 of a fragment; ends in ``SeedStored`` or ``Disconnected``."""
        ...

    def take(self, payload: int) -> FloatArray:
        """The decoded values of a fetched body, which the link then forgets."""
        ...

    def upload_state(self, run_id: str, learner: str, incarnation: int, ticket: int, donated: Donated) -> None:
        """Encode and upload what this learner trains with. Silent if it arrives; else ``StateNotTaken``."""
        ...

    def fetch_state(self, action: FetchState) -> None:
        """Download the state of another learner; ends in ``StateFetched(payload)`` or ``StateFetchFailed``."""
        ...

    def take_state(self, payload: int) -> Donated:
        """The decoded state, which the link then forgets."""
        ...

    def discard(self, payload: int) -> None:
        """A fetched body is not needed."""
        ...


_AT_BOUNDARY = (TakeSnapshot, Adopt, UploadSeed, TakeState, LoadState, ResetOptimizer)
"""Actions that touch the model."""

_LOADING = (LearnerState.JOINING, LearnerState.SEEDING, LearnerState.LOADING)
"""States that end in training."""


class LearnerLoop:
    """A model, its protocol core and a link, tied together.

    Args:
        core: the learner's half of the protocol.
        store: the model.
        link: the way to the syncer.
        adoption: how a commit meets local progress.
        blend_alpha: share of the local value kept by ``blend``.
        now_ns: the clock; monotonic, nanoseconds.
        inner: what the inner optimizer remembers, which a new process takes from another learner, and gives to others;
            None: neither.
        reset_optimizer: forgets the state of the inner optimizer; called in the training thread between two steps.
        stands_still: see ``Holdings``.

    ``deliver`` and ``on_deadline`` may be called from any thread, everything else from the training thread only.
    """

    def __init__(
        self,
        core: LearnerCore,
        store: FragmentStore,
        link: Link,
        *,
        adoption: Adoption,
        blend_alpha: float,
        now_ns: Callable[[], int],
        inner: InnerState | None = None,
        reset_optimizer: Callable[[], None] = lambda: None,
        stands_still: bool = False,
    ) -> None:
        self._core = core
        self._inner = inner
        self._holdings = Holdings(core.layout, store, adoption, blend_alpha, stands_still)
        self._link = link
        self._now_ns = now_ns
        self._reset_optimizer = reset_optimizer
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[LearnerAction] = deque()
        self._unsettled: dict[HandedOver, Contribution] = {}
        """It may have to be handed over once more."""
        self._boundary_ns: int | None = None
        self._done: Done | None = None

    @classmethod
    def create(
        cls,
        learner: str,
        layout: Layout,
        store: FragmentStore,
        link: Link,
        *,
        protocol: ProtocolOptions,
        adoption: Adoption,
        blend_alpha: float,
        now_ns: Callable[[], int],
        course: Course | None = None,
        inner: InnerState | None = None,
        reset_optimizer: Callable[[], None] = lambda: None,
        about: Mapping[str, str] | None = None,
        stands_still: bool = False,
    ) -> LearnerLoop:
        """A loop around a core of its own, by the run's settings. ``store`` is bound to ``layout``; with ``course`` the
        learner takes data leases; ``about`` is what the run log should know of the process."""
        core = LearnerCore(
            learner,
            layout,
            waits_for_pull=protocol.participation is Participation.LATEST and adoption is not Adoption.CARRY,
            kept=functools.partial(kept, adoption, alpha=blend_alpha),
            staleness_max=protocol.staleness_max,
            course=course,
            has_state=inner is not None,
            away_ns_max=protocol.away_ns_max,
            about=about,
        )
        return cls(
            core,
            store,
            link,
            adoption=adoption,
            blend_alpha=blend_alpha,
            now_ns=now_ns,
            inner=inner,
            reset_optimizer=reset_optimizer,
            stands_still=stands_still,
        )

    # ------------------------------------------------------------------------------------- from any thread

    def deliver(self, message: LearnerInput) -> None:
        """The link has received something, or has finished something."""
        with self._lock:
            self._core.receive(message, self._now_ns())
            self._take_actions()

    def next_deadline_ns(self) -> int:
        """When ``on_deadline`` wants to be called."""
        with self._lock:
            return self._core.next_deadline_ns()

    def on_deadline(self) -> None:
        """A deadline has come."""
        with self._lock:
            self._core.on_deadline(self._now_ns())
            self._take_actions()

    @property
    def done(self) -> Done | None:
        """Why there are no more steps; None while there may be."""
        return self._done

    @property
    def clock(self) -> int:
        """The learner's clock: inner steps, moved on by what it adopted. Schedules follow it."""
        return self._core.clock

    @property
    def learner(self) -> str:
        """Its name."""
        return self._core.learner

    @property
    def incarnation(self) -> int:
        """Which start of this learner this is; 0 before the syncer has said so."""
        return self._core.incarnation

    @property
    def run_id(self) -> str:
        """Which run this learner is a member of; empty before the syncer has said so."""
        return self._core.run_id

    @property
    def steps_before(self) -> int:
        """Inner steps that earlier processes under this name have taken."""
        return self._core.steps_before

    @property
    def recovered(self) -> Recovered | None:
        """Where the inner optimizer's state has come from; None before the first step may begin, and for the learner
        that began the run."""
        return self._core.recovery.way

    @property
    def donor_was_unfit(self) -> bool:
        """Whether another learner's state had come, and was none for this model and its optimizer."""
        return self._core.recovery.was_unfit

    @property
    def recovered_why(self) -> str:
        """Why from there, for people."""
        return self._core.recovery.why

    @property
    def may_step(self) -> bool:
        """Whether the next inner step may begin now: the run goes on, and everything it wants of the model is done."""
        with self._lock:
            return self._core.may_step and not self._queue

    @property
    def waits_for_data(self) -> bool:
        """Whether the next step wants nothing but data, of which there is none at present."""
        with self._lock:
            return self._core.is_at_rest

    @property
    def is_in_step(self) -> bool:
        """Whether data was taken that no step has been reported of. Always False without data leases."""
        with self._lock:
            course, is_training = self._core.course, self._core.state is LearnerState.TRAINING
            return is_training and course is not None and course.samples != self._core.samples

    @property
    def is_waiting(self) -> bool:
        """Whether there will be a next inner step once the parameters are here, or data."""
        with self._lock:
            return self._core.is_at_rest or self._core.state in _LOADING

    # ------------------------------------------------------------------------------------- training thread

    def take(self, count: int) -> tuple[Grant, ...]:
        """The next places that this learner was granted, to be trained in the step that begins or has begun.

        Raises:
            LocalProtocolError: there are none; ask ``may_step`` first.
        """
        with self._lock:
            assert self._core.course is not None, "this learner takes no data leases"
            return self._core.course.take(count)

    def wait_until_may_step(self, timeout_s: float | None = None) -> bool:
        """Wait until the parameters are loaded (True), or the run is over or the time is up (False).

        While the run drains its last rounds this also hands over what is asked for.
        """
        with self._changed:
            self._changed.wait_for(self._advance, timeout_s)
            return self._core.may_step

    def finish_step(self, stats: StepStats) -> None:
        """One inner step is done. Snapshots and adoptions happen in here; nothing in here waits for the network."""
        with self._lock:
            now_ns = self._now_ns()
            started_ns, self._boundary_ns = self._boundary_ns, now_ns
            step_ns = 0 if started_ns is None else now_ns - started_ns
            self._core.receive(StepFinished(stats.tokens, step_ns, stats.loss), now_ns)
            self._take_actions()
            self._advance()
            if self._core.is_at_rest:
                self._boundary_ns = None  # Waiting for data is no part of a step.

    def ask_to_leave(self) -> None:
        """Go in order, between two steps: once what is here has been handed over. Asked again: at once; what has not
        been handed over is declared dropped."""
        with self._lock:
            self._core.receive(LeaveRequested(), self._now_ns())
            self._take_actions()
            self._advance()

    def leave(self, timeout_s: float) -> None:
        """The same, waiting for the syncer to say what it wants, no longer than this."""
        self.ask_to_leave()
        with self._changed:
            self._changed.wait_for(self._advance, timeout_s)
        if self._done is None:
            self.ask_to_leave()

    def note_checkpoint(self, of: Moment) -> None:
        """The inner optimizer has been loaded from a file, before the first step: who has written it, and when."""
        with self._lock:
            self._core.receive(CheckpointLoaded(of), self._now_ns())

    # ------------------------------------------------------------------------------------- going on elsewhere

    def state(self) -> LoopState | None:
        """What another process needs, beside the model as it is now, to go on from here; None where no step may begin,
        unless that is because there is no syncer any more. Between two steps."""
        with self._lock:
            is_alone = self._done is not None and self._done.is_alone
            if not (self.may_step or is_alone):
                return None
            return LoopState(self._core.record(), self._holdings.anchors)

    def resume(self, state: LoopState) -> None:
        """Go on where the loop stopped of which ``state`` was taken; the store holds that loop's model. Before the link
        is started.

        This is for a process that takes the place of one that has stopped for good at that boundary: with the same
        messages it trains on and hands over as the other would have, bit for bit. After a crash the syncer has heard
        of later steps, and a new process has to join as a new incarnation.
        """
        with self._lock:
            self._core.resume(state.record)
            self._holdings.resume(state.anchors, [known.has_snapshot for known in state.record.fragments])

    # ------------------------------------------------------------------------------------- carrying out

    def _take_actions(self) -> None:
        """Queue what the core wants and carry out, in order, what does not need the training thread."""
        self._queue.extend(self._core.take_actions())
        while self._queue and not isinstance(self._queue[0], _AT_BOUNDARY):
            self._carry_out(self._queue.popleft())
        self._changed.notify_all()

    def _advance(self) -> bool:
        """Carry out everything queued, in the training thread; True when a step may begin or nothing will come."""
        while self._queue:
            self._carry_out(self._queue.popleft())
        if self._core.may_step and self._boundary_ns is None:
            self._boundary_ns = self._now_ns()
        return self._core.may_step or self._done is not None

    def _carry_out(self, action: LearnerAction) -> None:
        match action:
            case Send(message):
                self._link.send(message)
            case Fetch(notice):
                self._link.fetch(notice)
            case TakeSnapshot(fragment):
                self._holdings.copy(fragment)
            case Upload():
                self._upload(action)
            case Resend(handed_over, incarnation):
                self._link.upload(replace(self._unsettled[handed_over], incarnation=incarnation))
            case Forget(handed_over):
                self._unsettled.pop(handed_over, None)
                self._link.forget(handed_over)
            case Adopt():
                self._adopt(action)
            case UploadSeed(fragment):
                values = self._holdings.seed(fragment)
                if (unfit := self._holdings.not_finite(fragment, values)) is not None:
                    self._fail(f"tensor {unfit} of the model is not finite; mend it, or keep it out of the run")
                    return
                core = self._core
                self._link.upload_seed(core.run_id, core.learner, core.incarnation, fragment, values)
            case TakeState():
                self._take_state(action)
            case FetchState():
                self._link.fetch_state(action)
            case LoadState():
                self._tell_core(self._load_state(action))
            case ResetOptimizer():
                self._reset_optimizer()
                self._boundary_ns = None  # What comes before the next step is no part of it.
            case Discard(payload):
                self._link.discard(payload)
            case Done():
                self._done = action
                self._unsettled.clear()

    def _fail(self, reason: str) -> None:
        self._queue.clear()
        self._tell_core(HostFailed(reason))

    def _tell_core(self, message: LearnerInput) -> None:
        """What has come of an action."""
        self._core.receive(message, self._now_ns())
        self._queue.extend(self._core.take_actions())

    def _take_state(self, action: TakeState) -> None:
        """Copy everything as it is at this boundary. What is not finite is given to nobody."""
        assert self._inner is not None, "who has no state is not asked for it"
        fragments = self._holdings.values()
        is_sound = all(self._holdings.not_finite(fragment, values) is None for fragment, values in enumerate(fragments))
        try:
            donated = Donated(action.notices, action.clock, fragments, self._inner.inner_state(), action.of)
        except UsageError:
            is_sound = False
        if not is_sound:
            self._tell_core(StateNotTaken(action.ticket))
            return
        core = self._core
        self._link.upload_state(core.run_id, core.learner, core.incarnation, action.ticket, donated)

    def _load_state(self, action: LoadState) -> StateLoaded | StateUnfit:
        """All of it, or nothing. What the donor has trained is an anchor here: it is the donor's to hand over."""
        donated = self._link.take_state(action.payload)
        assert self._inner is not None, "who has no state asks for none"
        for fragment in action.fragments:
            if (unfit := self._holdings.not_finite(fragment, donated.fragments[fragment])) is not None:
                return StateUnfit(f"its tensor {unfit} is not finite")
        try:
            self._inner.load_inner_state(donated.inner)
        except UsageError as error:
            return StateUnfit(str(error))
        for fragment in action.fragments:
            # A copy: as long as somebody holds a part of the state, all of it stays in memory.
            self._holdings.load(fragment, donated.fragments[fragment].copy())
        return StateLoaded()

    def _upload(self, upload: Upload) -> None:
        handed_out = self._holdings.hand_over(upload.fragment)
        contribution = Contribution(
            run_id=self._core.run_id,
            learner=self._core.learner,
            incarnation=upload.incarnation,
            round=upload.round,
            fragment=upload.fragment,
            base_version=upload.base_version,
            c_steps=upload.c_steps,
            c_tokens=upload.c_tokens,
            tokens=upload.tokens,
            anchor=handed_out.anchor,
            local=handed_out.local,
            position=upload.position,
            samples=upload.samples,
            loads=handed_out.loads,
            codec=upload.codec,
            steps=upload.steps,
            deed=upload.deed,
        )
        self._unsettled[HandedOver(upload.round, upload.fragment, upload.tokens)] = contribution
        self._link.upload(contribution)

    def _adopt(self, action: Adopt) -> None:
        new = self._link.take(action.payload)
        if action.load:
            self._holdings.load(action.fragment, new)
        else:
            self._holdings.adopt(action.fragment, new)
