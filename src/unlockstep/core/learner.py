"""A learner's half of the protocol, without sockets, clocks or arrays.

Decides what a learner says, when it hands progress over, when it adopts a commit, and when it may take a step. Does not
decide how arrays are copied, encoded or written (the loop, the link, the store), nor how the inner step is taken.

The outside is the syncer's verbs, without ``take_events``. The host reports every inner step by ``StepFinished``; the
actions ``TakeSnapshot`` and ``Adopt`` touch the model and are only ever issued where no step is in progress: in answer
to ``StepFinished``, or in a state in which ``may_step`` is False.

What happens at a step boundary, in this order:

1. counters: every fragment has one step and this step's tokens more that were not handed over yet;
2. pulls that had to wait for a complete step are answered;
3. versions that have arrived are adopted (see ``_may_adopt``);
4. the syncer is told (``Progress``: clock, counters, adoptions, in one message);
5. the fragments due next are copied to the host, so that a pull in the middle of the coming step is answered at once.

Handing over moves the anchor: what is uploaded is the progress since the last adoption *or the last hand-over*,
whichever is later, and its counters start again from zero. So no token is ever in two contributions, even if a learner
is asked twice before it sees the result of the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from unlockstep.core.actions import (
    Adopt,
    Discard,
    Done,
    Fetch,
    LearnerAction,
    Send,
    TakeSnapshot,
    Upload,
    UploadSeed,
)
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.ids import NEVER_NS, PROTOCOL_VERSION
from unlockstep.core.layout import Layout
from unlockstep.core.messages import (
    AdoptionNotice,
    Connected,
    Disconnected,
    Fenced,
    Fetched,
    FetchFailed,
    Finish,
    Heartbeat,
    HostFailed,
    Join,
    JoinRefused,
    LearnerInput,
    LearnerMessage,
    Leave,
    LeaveRequested,
    Progress,
    Published,
    Pull,
    SeedStored,
    Settled,
    StepFinished,
    Stop,
    Undelivered,
    UploadFailed,
    VersionNotice,
    Welcome,
)
from unlockstep.core.reasons import DepartureReason, JoinRefusal, RefusalReason

HEARTBEATS_PER_LEASE = 3

DECLARED_MAX = 64
"""Undelivered contributions remembered to be declared again; the syncer enters each once."""

Kept = Callable[[int, int], tuple[int, int]]
"""(c_steps, c_tokens) not handed over -> those that survive an adoption (``adoption.kept``)."""


class LearnerState(Enum):
    JOINING = "joining"
    SEEDING = "seeding"
    LOADING = "loading"
    TRAINING = "training"
    FINISHING = "finishing"
    DONE = "done"


class LearnerMove(Enum):
    WELCOME = "welcome"
    WELCOME_SEED = "welcome_seed"
    LOADED = "loaded"
    FINISH = "finish"
    STOP = "stop"


MOVES: dict[LearnerState, dict[LearnerMove, LearnerState]] = {
    LearnerState.JOINING: {
        LearnerMove.WELCOME: LearnerState.LOADING,
        LearnerMove.WELCOME_SEED: LearnerState.SEEDING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.SEEDING: {
        LearnerMove.WELCOME: LearnerState.LOADING,
        LearnerMove.WELCOME_SEED: LearnerState.SEEDING,
        LearnerMove.LOADED: LearnerState.TRAINING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.LOADING: {
        LearnerMove.WELCOME: LearnerState.LOADING,
        LearnerMove.WELCOME_SEED: LearnerState.SEEDING,
        LearnerMove.LOADED: LearnerState.TRAINING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.TRAINING: {
        LearnerMove.WELCOME: LearnerState.TRAINING,
        LearnerMove.FINISH: LearnerState.FINISHING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.FINISHING: {
        LearnerMove.WELCOME: LearnerState.FINISHING,
        LearnerMove.STOP: LearnerState.DONE,
    },
    LearnerState.DONE: {},
}


class _Fragment:
    """What a learner knows of one fragment."""

    def __init__(self) -> None:
        self.version = -1
        """The version adopted; -1 before the first."""
        self.is_seeded = False
        """While this learner seeds: the run has taken what it has brought."""
        self.c_steps = 0
        self.c_tokens = 0
        self.overwritten = 0
        """Tokens that adoptions have discarded so far."""
        self.is_shared = False
        """Progress made since the last adoption has been handed over at least once."""
        self.notice: VersionNotice | None = None
        """The newest version announced."""
        self.notice_clock = 0
        """The syncer's clock in that announcement."""
        self.announced_ns = 0
        self.fetching: int | None = None
        """The version being fetched."""
        self.fetching_clock = 0
        self.fetching_since_ns = 0
        self.arrived: Fetched | None = None
        """A fetched version that waits for a step boundary."""
        self.arrived_clock = 0
        self.fetch_ns = 0
        self.has_snapshot = False
        """The host holds a copy as of the last step boundary."""
        self.pulled: int | None = None
        """A round that waits for a complete step."""


class LearnerCore:
    """One start of one learner.

    Args:
        learner: its name, unique in the run.
        layout: how its model is cut.
        waits_for_pull: under ``latest`` with ``overwrite`` or ``blend``, progress is handed over before a newer version
            overwrites it, see ``_may_adopt``.
        kept: which counts survive an adoption.
    """

    def __init__(self, learner: str, layout: Layout, *, waits_for_pull: bool, kept: Kept) -> None:
        self.learner = learner
        self.incarnation = 0
        self.run_id = ""
        """Which run it is a member of; empty before the first welcome."""
        self.clock = 0
        self.steps = 0
        self.tokens = 0
        self.steps_before = 0
        """Inner steps that earlier processes of this learner had taken: where the data goes on."""
        self.layout = layout
        self._waits_for_pull = waits_for_pull
        self._kept = kept
        self._state = LearnerState.JOINING
        self._welcomed = False
        self._fragments = [_Fragment() for _ in range(layout.fragment_count)]
        self._adopted: list[AdoptionNotice] = []
        self._undelivered: list[Undelivered] = []
        self._declared: deque[Undelivered] = deque(maxlen=DECLARED_MAX)
        """What was declared undelivered over this connection: if it breaks, perhaps nobody heard."""
        self._refusal: RefusalReason | None = None
        self._finish_asked = False
        self._next_round = 0
        self._pulls_in_step = 0
        self._lease_ns = NEVER_NS
        self._sent_ns = 0
        self._fetch_again_ns = NEVER_NS
        """When a fetch that has failed is tried again."""
        self._actions: list[LearnerAction] = []
        self._reactions: dict[type[Any], Callable[[Any, int], None]] = {
            Connected: self._on_connected,
            Disconnected: self._on_disconnected,
            Welcome: self._on_welcome,
            JoinRefused: self._on_join_refused,
            SeedStored: self._on_seed_stored,
            Published: self._on_published,
            Fetched: self._on_fetched,
            FetchFailed: self._on_fetch_failed,
            StepFinished: self._on_step_finished,
            Pull: self._on_pull,
            Settled: self._on_settled,
            UploadFailed: self._on_upload_failed,
            Fenced: self._on_fenced,
            Finish: self._on_finish,
            Stop: self._on_stop,
            HostFailed: self._on_host_failed,
            LeaveRequested: self._on_leave_requested,
        }

    # --------------------------------------------------------------------------------------------- outside

    def receive(self, message: LearnerInput, now_ns: int) -> None:
        """Something was said by the syncer, or has happened in this process. After the end nothing has an effect."""
        if self._state is not LearnerState.DONE:
            self._reactions[type(message)](message, now_ns)

    def next_deadline_ns(self) -> int:
        """When a fetch that has failed is tried again, or the next heartbeat is due if nothing else is said before;
        NEVER_NS if never."""
        if not self._welcomed or self._state is LearnerState.DONE:
            return NEVER_NS
        return min(self._fetch_again_ns, self._sent_ns + self._heartbeat_ns)

    def on_deadline(self, now_ns: int) -> None:
        """Say that we are alive, or ask again for what could not be fetched."""
        if now_ns < self.next_deadline_ns():
            return
        if now_ns >= self._fetch_again_ns:
            self._fetch_missing()
        if now_ns >= self._sent_ns + self._heartbeat_ns:
            self._send(Heartbeat(self.learner, self.incarnation), now_ns)

    @property
    def _heartbeat_ns(self) -> int:
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
        """Whether the next inner step may begin: all parameters are here and the end is not."""
        return self._state is LearnerState.TRAINING

    @property
    def versions(self) -> tuple[int, ...]:
        """The version adopted of every fragment; -1 before the first."""
        return tuple(fragment.version for fragment in self._fragments)

    # --------------------------------------------------------------------------------------------- joining

    def _on_connected(self, _: Connected, now_ns: int) -> None:
        self._join(now_ns)

    def _join(self, now_ns: int) -> None:
        """Ask to take part. Until the answer is here nothing else is said: it would be said for the wrong start."""
        self._welcomed = False
        join = Join(
            self.learner, self.incarnation, PROTOCOL_VERSION, self.layout.digest, self.layout.specs(), self.run_id
        )
        self._actions.append(Send(join))

    def _on_disconnected(self, _: Disconnected, now_ns: int) -> None:
        """Training goes on. What was asked or promised over the old connection is void."""
        self._welcomed = False
        self._undelivered = [*self._declared, *self._undelivered]
        self._declared.clear()
        for fragment in self._fragments:
            fragment.pulled = None
            fragment.fetching = None

    def _on_welcome(self, welcome: Welcome, now_ns: int) -> None:
        if self.steps == 0:
            self.steps_before = welcome.steps_before
            self.clock = max(self.clock, welcome.clock)
        self.incarnation, self.run_id = welcome.incarnation, welcome.run_id
        self._lease_ns = welcome.lease_ns
        self._welcomed = True
        self._sent_ns = now_ns
        if not welcome.seed:
            if self._state is LearnerState.SEEDING:
                self._take_back_seed()
            if any(notice.version < self._fragments[notice.fragment].version for notice in welcome.versions):
                self._done(
                    "the syncer has gone back behind what this learner has adopted; start the run anew", failed=True
                )
                return
            self._move(LearnerMove.WELCOME)
            for notice in welcome.versions:
                self._note(notice, welcome.clock, now_ns)
            self._fetch_missing()
            if self._state is LearnerState.FINISHING:
                self._report(now_ns, step_ns=0, loss=float("nan"))
        elif LearnerMove.WELCOME_SEED in MOVES[self._state]:
            self._move(LearnerMove.WELCOME_SEED)
            self._take_back_seed()
            for index in range(len(self._fragments)):
                self._actions.append(UploadSeed(index))
        else:
            self._done("the syncer has lost the run's parameters; start the run anew", failed=True)

    def _take_back_seed(self) -> None:
        """Another learner's parameters may become version 0: what was stored of ours means nothing."""
        for fragment in self._fragments:
            fragment.version = -1
            fragment.is_seeded = False

    def _on_seed_stored(self, stored: SeedStored, now_ns: int) -> None:
        if self._state is LearnerState.SEEDING:
            self._fragments[stored.fragment].version = 0
            self._begin_if_seeded(now_ns)

    def _begin_if_seeded(self, now_ns: int) -> None:
        """Everything is stored, and the run has begun with it: until it has, it may begin with another's."""
        if all(fragment.version == 0 and fragment.is_seeded for fragment in self._fragments):
            self._move(LearnerMove.LOADED)
            self._report(now_ns, step_ns=0, loss=float("nan"))

    def _on_join_refused(self, refused: JoinRefused, now_ns: int) -> None:
        """That the run has ended is no failure."""
        self._done(refused.detail, failed=refused.reason is not JoinRefusal.RUN_FINISHED)

    def _on_fenced(self, fenced: Fenced, now_ns: int) -> None:
        """This start no longer counts. After a lost lease it joins again and goes on with the progress it has."""
        if fenced.reason is DepartureReason.LEASE_EXPIRED:
            if self._welcomed:
                for fragment in self._fragments:
                    fragment.pulled = None
                self._join(now_ns)
        elif fenced.reason is DepartureReason.SUPERSEDED:
            self._done(f"another process has joined under the name {self.learner}", failed=True)
        else:
            last = "" if self._refusal is None else f", the last one as {self._refusal.value}"
            self._done(f"the syncer refused too many of this learner's contributions{last}", failed=True)

    # --------------------------------------------------------------------------------------------- versions

    def _on_published(self, published: Published, now_ns: int) -> None:
        self._note(published.notice, published.clock, now_ns)
        self._fetch_missing()
        if self._state is LearnerState.SEEDING and self._welcomed:
            self._fragments[published.notice.fragment].is_seeded = True
            self._begin_if_seeded(now_ns)

    def _note(self, notice: VersionNotice, clock: int, now_ns: int) -> None:
        fragment = self._fragments[notice.fragment]
        known = fragment.version if fragment.notice is None else max(fragment.version, fragment.notice.version)
        if notice.version > known:
            fragment.notice, fragment.notice_clock, fragment.announced_ns = notice, clock, now_ns

    def _fetch_missing(self) -> None:
        """Fetch every fragment's newest version unless it is here, on its way, or of no use any more."""
        self._fetch_again_ns = NEVER_NS
        if not self._welcomed or self._state not in (LearnerState.LOADING, LearnerState.TRAINING):
            return
        for fragment in self._fragments:
            notice = fragment.notice
            if notice is None or fragment.fetching is not None:
                continue
            here = fragment.version if fragment.arrived is None else fragment.arrived.version
            if notice.version > here:
                fragment.fetching = notice.version
                fragment.fetching_clock = fragment.notice_clock
                fragment.fetching_since_ns = fragment.announced_ns
                self._actions.append(Fetch(notice))

    def _on_fetched(self, fetched: Fetched, now_ns: int) -> None:
        fragment = self._fragments[fetched.fragment]
        expected = fragment.fetching == fetched.version
        if not expected or self._state not in (LearnerState.LOADING, LearnerState.TRAINING):
            self._actions.append(Discard(fetched.payload))
            return
        fragment.fetching = None
        if fragment.arrived is not None:
            self._actions.append(Discard(fragment.arrived.payload))
        fragment.arrived, fragment.arrived_clock = fetched, fragment.fetching_clock
        fragment.fetch_ns = now_ns - fragment.fetching_since_ns
        self._fetch_missing()
        if self._state is LearnerState.LOADING and all(f.arrived is not None for f in self._fragments):
            self._load(now_ns)

    def _load(self, now_ns: int) -> None:
        """Every fragment is here: take them all, before the first step."""
        for index in range(len(self._fragments)):
            self._adopt(index, load=True)
        self._move(LearnerMove.LOADED)
        self._report(now_ns, step_ns=0, loss=float("nan"))

    def _on_fetch_failed(self, failed: FetchFailed, now_ns: int) -> None:
        """A newer version is asked for at once; the same one again after a while, whether or not there are steps to
        report in between."""
        fragment = self._fragments[failed.fragment]
        if fragment.fetching != failed.version:
            return
        fragment.fetching = None
        if fragment.notice is not None and fragment.notice.version > failed.version:
            self._fetch_missing()
        else:
            self._fetch_again_ns = min(self._fetch_again_ns, now_ns + self._heartbeat_ns)

    def _may_adopt(self, fragment: _Fragment) -> bool:
        """Whether the version that has arrived may be written now.

        ``carry`` keeps local progress, so always. ``overwrite`` and ``blend`` discard it: then progress that was never
        handed over is handed over first. (A learner many times slower than the others would otherwise lose every step
        of its to the next version before any round could ask for it. It is asked within H steps of the syncer.)
        """
        if fragment.arrived is None:
            return False
        return fragment.is_shared or fragment.c_steps == 0 or not self._waits_for_pull

    def _adopt(self, index: int, load: bool) -> None:
        fragment = self._fragments[index]
        arrived = fragment.arrived
        assert arrived is not None, "only what has arrived is adopted"
        steps, tokens = (0, 0) if load else self._kept(fragment.c_steps, fragment.c_tokens)
        fragment.overwritten += fragment.c_tokens - tokens
        fragment.c_steps, fragment.c_tokens = steps, tokens
        fragment.version, fragment.arrived = arrived.version, None
        fragment.is_shared = fragment.has_snapshot = False
        self.clock = max(self.clock, fragment.arrived_clock)
        self._actions.append(Adopt(index, arrived.version, arrived.payload, load))
        self._adopted.append(AdoptionNotice(index, arrived.version, arrived.digest, fragment.fetch_ns))

    # --------------------------------------------------------------------------------------------- a step boundary

    def _on_step_finished(self, step: StepFinished, now_ns: int) -> None:
        if not self.may_step:
            raise LocalProtocolError(f"an inner step was reported while the learner is {self._state.value}")
        self.clock += 1
        self.steps += 1
        self.tokens += step.tokens
        for fragment in self._fragments:
            fragment.c_steps += 1
            fragment.c_tokens += step.tokens
            fragment.has_snapshot = False
        self._answer_pulls()
        for index, fragment in enumerate(self._fragments):
            if self._may_adopt(fragment):
                self._adopt(index, load=False)
        if self._finish_asked:
            self._move(LearnerMove.FINISH)
        self._report(now_ns, step.step_ns, step.loss)
        if self.may_step:
            self._copy_ahead()

    def _answer_pulls(self) -> None:
        for index, fragment in enumerate(self._fragments):
            if fragment.pulled is not None and fragment.c_steps > 0:
                self._actions.append(TakeSnapshot(index))
                self._hand_over(index, fragment.pulled)

    def _copy_ahead(self) -> None:
        """Copy the fragments that will be asked for before the next boundary: as many as in the step before, and one
        more. Asked for another one, the learner answers at the boundary."""
        ahead = max(1, self._pulls_in_step) + 1
        self._pulls_in_step = 0
        count = len(self._fragments)
        for number in range(self._next_round, self._next_round + min(ahead, count)):
            fragment = self._fragments[number % count]
            if fragment.c_steps > 0:
                fragment.has_snapshot = True
                self._actions.append(TakeSnapshot(number % count))

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
            adopted=tuple(self._adopted),
            undelivered=tuple(self._undelivered),
            last=self._state is LearnerState.FINISHING,
        )
        self._declared.extend(self._undelivered)
        self._adopted.clear()
        self._undelivered.clear()
        self._send(progress, now_ns)

    # --------------------------------------------------------------------------------------------- handing over

    def _on_pull(self, pull: Pull, now_ns: int) -> None:
        fragment = self._fragments[pull.fragment]
        self._next_round = max(self._next_round, pull.round + 1)
        self._pulls_in_step += 1
        fragment.pulled = pull.round
        if self._state is LearnerState.FINISHING:
            self._answer_pulls()
        elif fragment.has_snapshot and fragment.c_steps > 0:
            self._hand_over(pull.fragment, pull.round)

    def _hand_over(self, index: int, round: int) -> None:
        fragment = self._fragments[index]
        self._actions.append(
            Upload(
                round=round,
                fragment=index,
                incarnation=self.incarnation,
                base_version=fragment.version,
                c_steps=fragment.c_steps,
                c_tokens=fragment.c_tokens,
                tokens=self.tokens,
            )
        )
        fragment.c_steps = fragment.c_tokens = 0
        fragment.pulled = None
        fragment.has_snapshot = False
        fragment.is_shared = True

    def _on_settled(self, settled: Settled, now_ns: int) -> None:
        """Merged or not is for the syncer to enter; a learner only remembers why it was refused."""
        self._refusal = settled.refusal or self._refusal

    def _on_upload_failed(self, failed: UploadFailed, now_ns: int) -> None:
        self._undelivered.append(Undelivered(failed.round, failed.fragment, failed.c_tokens, failed.tokens))
        if self._state is LearnerState.FINISHING:
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
        """Go in order: what was not handed over is declared dropped. To be asked for between two steps."""
        if self._welcomed:
            self._report(now_ns, step_ns=0, loss=float("nan"))
            dropped = tuple(fragment.c_tokens for fragment in self._fragments)
            self._send(Leave(self.learner, self.incarnation, dropped), now_ns)
        self._done("left the run", failed=False)

    def _done(self, reason: str, failed: bool) -> None:
        self._move(LearnerMove.STOP)
        for fragment in self._fragments:
            if fragment.arrived is not None:
                self._actions.append(Discard(fragment.arrived.payload))
                fragment.arrived = None
        self._actions.append(Done(reason, failed))

    def _move(self, move: LearnerMove) -> None:
        target = MOVES[self._state].get(move)
        if target is None:
            raise LocalProtocolError(f"a learner cannot {move.value} while it is {self._state.value}")
        self._state = target

    def _send(self, message: LearnerMessage, now_ns: int) -> None:
        self._sent_ns = now_ns
        self._actions.append(Send(message))
