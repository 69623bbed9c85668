"""A ``SyncerCore`` and ``LearnerCore``s joined by a fake wire: what one sends is what the other hears, byte for byte.

Decides how a wire and hosts behave, in the simplest way that is true to the real ones:

* control messages of one connection arrive in order, or are lost with it;
* bodies (uploads, downloads, seeds, commits) travel on their own and arrive when the test says so;
* a stopped process (``freeze``) hears and says nothing until it is continued; a killed one never again;
* the syncer's state is on disk at once, or when the test says so, and messages wait for it; when the syncer dies it is
  started again with what is there.

Nothing happens by itself: ``exchange`` carries everything that is not held back, ``wait`` moves time by hand.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from support.core_builders import STEP_NS, learner_core, options
from support.learner_stage import notice
from unlockstep.core.actions import (
    Adopt,
    Announce,
    Commit,
    Discard,
    Done,
    Fetch,
    Forget,
    LearnerAction,
    Release,
    Resend,
    RunEnded,
    Save,
    Send,
    SendTo,
    SyncerAction,
    TakeSnapshot,
    Upload,
    UploadSeed,
)
from unlockstep.core.adoption import Adoption
from unlockstep.core.events import Event
from unlockstep.core.layout import Layout
from unlockstep.core.learner import LearnerCore
from unlockstep.core.messages import (
    Committed,
    Connected,
    ContributionArrived,
    Disconnected,
    Fetched,
    FetchFailed,
    HandedOver,
    Join,
    JoinRefused,
    LearnerInput,
    LeaveRequested,
    SeedArrived,
    SeedStored,
    StepFinished,
    SyncerInput,
    SyncerMessage,
    UploadArrived,
    UploadFailed,
    VersionNotice,
    Welcome,
    decode_learner_message,
    decode_syncer_message,
    encode,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import RefusalReason
from unlockstep.core.saved import SavedRun
from unlockstep.core.status import LedgerStatus
from unlockstep.core.syncer import SyncerCore
from unlockstep.promises import Promises

Kind = TypeVar("Kind")


@dataclass
class Process:
    """One process of a learner, with its connection and its bodies under way."""

    name: str
    core: LearnerCore
    is_up: bool = True
    is_frozen: bool = False
    is_connected: bool = False
    connection: int = 0
    """Counts its connections: what was said on one is not heard on the next."""
    is_to_notice: bool = False
    """Its connection has broken while it stood still."""
    address: int = 0
    """The incarnation under which the syncer reaches it by this connection; 0 before it was welcomed."""
    outgoing: deque[bytes] = field(default_factory=deque)
    incoming: deque[bytes] = field(default_factory=deque)
    uploads: deque[Upload] = field(default_factory=deque)
    answers: deque[UploadArrived] = field(default_factory=deque)
    """Of uploads that have arrived while it stood still."""
    given: dict[HandedOver, Upload] = field(default_factory=dict)
    """(fragment, tokens) -> handed over, and not forgotten."""
    fetches: deque[VersionNotice] = field(default_factory=deque)
    seeds: deque[int] = field(default_factory=deque)
    done: Done | None = None
    adopted: list[Adopt] = field(default_factory=list)
    trained: int = 0
    snapshots: set[int] = field(default_factory=set)
    bodies: set[int] = field(default_factory=set)

    @property
    def may_run(self) -> bool:
        return self.is_up and not self.is_frozen and self.done is None

    @property
    def held(self) -> tuple[int, ...]:
        """Tokens it has trained and not handed over, by fragment."""
        return tuple(fragment.c_tokens for fragment in self.core._fragments)


@dataclass(frozen=True)
class Saved:
    """What is on disk."""

    run: SavedRun
    layout: Layout | None
    events: int
    """Length of the run log."""
    voided: int
    reopened: int
    """What ``CorePair`` had counted by then."""


class CorePair:
    """The syncer and its learners.

    Args:
        protocol: settings of the run.
        adoption, alpha: how learners adopt.
        steps_max, tokens_max: where the run ends.
    """

    def __init__(
        self,
        protocol: ProtocolOptions | None = None,
        adoption: Adoption = Adoption.OVERWRITE,
        alpha: float = 0.5,
        steps_max: int = 0,
        tokens_max: int = 0,
    ) -> None:
        self.options = protocol or options()
        self.adoption, self.alpha = adoption, alpha
        self.syncer = SyncerCore("run", self.options, steps_max, tokens_max, "id")
        self.now_ns = 0
        self.processes: list[Process] = []
        self.events: list[Event] = []
        self.commits: deque[Commit] = deque()
        self.ended = False
        self.holds_commits = False
        self.holds_uploads: set[str] = set()
        self.holds_fetches: set[str] = set()
        self.payloads: set[int] = set()
        """Bodies of contributions the syncer's host still keeps."""
        self.holds_saves = False
        self.saving: Saved | None = None
        """A save under way."""
        self.saved: Saved | None = None
        """What is on disk."""
        self.life = 1
        self.voided = 0
        """By the log: tokens of contributions that were accepted, and gone with the syncer before they were merged."""
        self.reopened = 0
        """By the log: rounds that have begun anew."""
        self._ends = (steps_max, tokens_max)
        self._promises = Promises(commits_lost_max=0)
        self._next_payload = 0
        self._joining: Process | None = None

    # ------------------------------------------------------------------------------------------- looking

    def __getitem__(self, name: str | Process) -> Process:
        """The newest process of a learner; a process is itself."""
        if isinstance(name, Process):
            return name
        return next(process for process in reversed(self.processes) if process.name == name)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Events of one kind, oldest first."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def ledger(self) -> LedgerStatus:
        return self.syncer.status(self.now_ns).ledger

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(each.version for each in self.syncer.notices)

    def state(self, name: str) -> str:
        """As the syncer sees it."""
        return next(each.state for each in self.syncer.status(self.now_ns).learners if each.learner == name)

    # ------------------------------------------------------------------------------------------- processes

    def start(self, *names: str) -> None:
        """New processes connect, whether or not older ones of these names are still there."""
        for name in names:
            self.processes.append(Process(name, learner_core(name, self.options, self.adoption, self.alpha)))
            self.connect(name)

    def connect(self, name: str | Process) -> None:
        self[name].is_connected = True
        self[name].connection += 1
        self.hear(self[name], Connected())

    def cut(self, name: str | Process) -> None:
        """The connection breaks; what was on it is lost, and both hosts notice."""
        process = self[name]
        self._lose_connection(process)
        self.hear(process, Disconnected())

    def kill(self, name: str | Process) -> None:
        """The process is gone, with all that was on its way to or from it, except uploads that have left."""
        process = self[name]
        process.is_up = False
        self._lose_connection(process)

    def _lose_connection(self, process: Process) -> None:
        process.outgoing.clear()
        process.incoming.clear()
        process.is_connected = False
        address, process.address = process.address, 0
        self.tell(Disconnected(process.name, address))

    def freeze(self, name: str | Process) -> None:
        """SIGSTOP: the connection stands, the process does not run."""
        self[name].is_frozen = True

    def thaw(self, name: str | Process) -> None:
        """SIGCONT"""
        process = self[name]
        process.is_frozen = False
        while process.answers:
            self.hear(process, process.answers.popleft())
        if process.is_to_notice:
            process.is_to_notice = False
            self.hear(process, Disconnected())
        if process.core.next_deadline_ns() <= self.now_ns:
            process.core.on_deadline(self.now_ns)
            self._follow(process, at_boundary=False)

    def step(self, *names: str | Process, tokens: int = 10) -> None:
        """One inner step ends at each of these learners; then everything is exchanged."""
        for name in names:
            self.end_step(self[name], tokens)
        self.exchange()

    def end_step(self, process: Process, tokens: int = 10) -> None:
        """One inner step ends; nothing is exchanged."""
        assert process.may_run and process.core.may_step, f"{process.name} cannot step"
        process.trained += tokens
        self.hear(process, StepFinished(tokens, STEP_NS, 1.0))

    def leave(self, name: str | Process) -> None:
        self.hear(self[name], LeaveRequested())
        self.exchange()

    # ------------------------------------------------------------------------------------------- the wire

    def exchange(self) -> None:
        """Carry messages and bodies, except those held back, until all is quiet."""
        for _ in range(10_000):
            moved = [self.carry_message(process) or self.carry_body(process) for process in self.processes]
            if not any(moved) and not self.carry_commit():
                return
        raise AssertionError("the two sides never stop talking")

    def carry_message(self, process: Process) -> bool:
        """One control message in each direction; whether there was any."""
        moved = False
        if process.outgoing:
            self._joining = process
            self.tell(decode_learner_message(process.outgoing.popleft()))
            self._joining = None
            moved = True
        if process.incoming and process.may_run:
            self.hear(process, decode_syncer_message(process.incoming.popleft()))
            moved = True
        return moved

    def carry_body(self, process: Process) -> bool:
        """One body of each kind, unless held back; whether there was any."""
        moved = False
        if process.uploads and process.name not in self.holds_uploads:
            self.arrive(process)
            moved = True
        if process.seeds:
            fragment = process.seeds.popleft()
            self.tell(SeedArrived(process.name, process.core.incarnation, fragment, notice(fragment, 0).digest))
            self.hear(process, SeedStored(fragment))
            moved = True
        if process.fetches and process.may_run and process.name not in self.holds_fetches:
            self.fetch(process)
            moved = True
        return moved

    def carry_commit(self) -> bool:
        if not self.commits or self.holds_commits:
            return False
        self.commit()
        return True

    # ------------------------------------------------------------------------------------------- bodies, one by one

    def arrive(self, process: Process, defect: RefusalReason | None = None, keep: bool = False) -> None:
        """The oldest upload of a process arrives; with ``keep`` it will arrive once more."""
        upload = process.uploads[0] if keep else process.uploads.popleft()
        payload = -1
        if defect is None:
            payload, self._next_payload = self._next_payload, self._next_payload + 1
            self.payloads.add(payload)
        fields = {name: getattr(upload, name) for name in upload.__struct_fields__ if name != "codec"}
        self.tell(ContributionArrived(learner=process.name, norm=1.0, defect=defect, payload=payload, **fields))
        if not _is_tried_again(process, upload):
            process.answers.append(UploadArrived(upload.round, upload.fragment, upload.tokens))
        while process.answers and not process.is_frozen:
            self.hear(process, process.answers.popleft())

    def lose_upload(self, name: str | Process) -> None:
        """The oldest upload of a learner does not arrive, or its host does not hear that it did, and says so."""
        process = self[name]
        upload = process.uploads.popleft()
        if not _is_tried_again(process, upload):
            self.hear(process, UploadFailed(upload.round, upload.fragment, upload.c_tokens, upload.tokens))

    def fetch(self, process: Process, fails: bool = False) -> None:
        """The oldest download of a process ends."""
        wanted = process.fetches.popleft()
        if fails:
            self.hear(process, FetchFailed(wanted.fragment, wanted.version))
            return
        payload, self._next_payload = self._next_payload, self._next_payload + 1
        process.bodies.add(payload)
        self.hear(process, Fetched(wanted.fragment, wanted.version, wanted.digest, payload))

    def commit(self) -> None:
        """The oldest commit asked for is durable."""
        made = self.commits.popleft()
        for share in made.shares:
            assert self.payloads >= set(share.payloads), "a commit of what was released"
        digest = notice(made.fragment, made.version).digest
        self.tell(Committed(made.round, made.fragment, made.version, digest, norm=1.0))

    # ------------------------------------------------------------------------------------------- time

    def wait(self, duration_ns: int, exchanging: bool = True) -> None:
        """Time passes; every deadline is met when it comes, and everything is exchanged after it."""
        end_ns = self.now_ns + duration_ns
        for _ in range(100_000):
            if exchanging:
                self.exchange()
            running = [process for process in self.processes if process.may_run]
            deadlines_ns = [self.syncer.next_deadline_ns(), *(process.core.next_deadline_ns() for process in running)]
            if min(deadlines_ns) > end_ns:
                self.now_ns = end_ns
                return
            self.now_ns = max(self.now_ns, min(deadlines_ns))
            self.syncer.on_deadline(self.now_ns)
            self._serve()
            for process in running:
                process.core.on_deadline(self.now_ns)
                self._follow(process, at_boundary=False)
        raise AssertionError("a deadline stays in the past")

    # ------------------------------------------------------------------------------------------- lives

    def die(self, *, saves: bool = False, delivers: bool = False) -> None:
        """The syncer's process is killed, and started again with what is on disk, if anything is.

        Args:
            saves: a save that was under way is on disk.
            delivers: what it has said last still arrives.
        """
        if saves and self.saving is not None:
            self.saved = self.saving
        if self.saved is None:
            return
        self.saving = None
        for process in [process for process in self.processes if process.is_connected]:
            self._break_off(process, delivers)
        saved, self.life = self.saved, self.life + 1
        del self.events[saved.events :]
        self.payloads.clear()
        self.commits.clear()
        self._promises = Promises(commits_lost_max=0)
        self.syncer = SyncerCore("run", self.options, *self._ends, "another id")
        self.syncer.resume(saved.run, saved.layout, self.life, self.now_ns)
        self.voided = saved.voided + sum(each.c_tokens for each in saved.run.rounds.unmerged)
        self.reopened = saved.reopened + len(saved.run.rounds.open)
        self._serve()

    def _break_off(self, process: Process, delivers: bool) -> None:
        while delivers and process.incoming and process.may_run:
            self.hear(process, decode_syncer_message(process.incoming.popleft()))
        process.outgoing.clear()
        process.incoming.clear()
        process.is_connected, process.address = False, 0
        if process.is_frozen:
            process.is_to_notice = True
        else:
            self.hear(process, Disconnected())

    def end_save(self) -> None:
        """The save under way is on disk."""
        assert self.saving is not None, "no save is under way"
        self.saved, self.saving = self.saving, None
        self._promises.end_save()
        self._save_if_due()

    def _save_if_due(self) -> None:
        if not self._promises.begin_save():
            return
        run = self.syncer.saved(self.now_ns)
        again = msgspec.json.decode(msgspec.json.encode(run), type=SavedRun)
        assert again == run
        self.saving = Saved(again, self.syncer.layout, len(self.events), self.voided, self.reopened)
        if not self.holds_saves:
            self.end_save()

    # ------------------------------------------------------------------------------------------- the syncer's host

    def tell(self, message: SyncerInput) -> None:
        """The syncer receives something now."""
        self.syncer.receive(message, self.now_ns)
        self._serve()

    def _serve(self) -> None:
        self.events += self.syncer.take_events()
        for action in self.syncer.take_actions():
            self._carry_out(action)
        self._save_if_due()

    def _carry_out(self, action: SyncerAction) -> None:
        match action:
            case SendTo(learner, incarnation, message):
                self._send(learner, incarnation, message)
            case Announce(message):
                for process in self.processes:
                    if process.is_connected and process.address:
                        self._say(process, message)
            case Commit():
                self.commits.append(action)
            case Save():
                self._promises.need(action)
            case Release(payload):
                assert payload in self.payloads, f"contribution {payload} is released twice"
                self.payloads.remove(payload)
            case RunEnded():
                self.ended = True

    def _send(self, learner: str, incarnation: int, message: SyncerMessage) -> None:
        joining = self._joining if self._joining is not None and self._joining.name == learner else None
        if isinstance(message, Welcome) and joining is not None:
            joining.address = incarnation
        for process in self.processes:
            addressed = (process.name, process.address) == (learner, incarnation)
            answered = isinstance(message, JoinRefused) and process is joining
            if process.is_connected and (addressed or answered):
                self._say(process, message)

    def _say(self, process: Process, message: SyncerMessage) -> None:
        """On its present connection, once what it promises is saved."""
        data, connection = encode(message), process.connection

        def deliver() -> None:
            if process.is_connected and process.connection == connection:
                process.incoming.append(data)

        self._promises.send(deliver)

    # ------------------------------------------------------------------------------------------- a learner's host

    def hear(self, process: Process, message: LearnerInput) -> None:
        """A learner receives something now."""
        if not process.is_up:
            return
        at_boundary = isinstance(message, StepFinished) or not process.core.may_step
        process.core.receive(message, self.now_ns)
        self._follow(process, at_boundary)

    def _follow(self, process: Process, at_boundary: bool) -> None:
        if at_boundary:
            process.snapshots.clear()
        for action in process.core.take_actions():
            if isinstance(action, TakeSnapshot | Adopt | UploadSeed):
                assert at_boundary, f"{action} touches the model of {process.name} in the middle of a step"
            self._do(process, action)

    def _do(self, process: Process, action: LearnerAction) -> None:
        match action:
            case Send(message):
                if isinstance(message, Join):
                    process.outgoing.clear()  # Whatever was said before was said for an earlier start.
                if process.is_connected:
                    process.outgoing.append(encode(message))
            case Fetch(wanted):
                process.fetches.append(wanted)
            case TakeSnapshot(fragment):
                process.snapshots.add(fragment)
            case Upload(fragment=fragment):
                assert fragment in process.snapshots, f"{process.name} has no copy of fragment {fragment} to upload"
                process.snapshots.remove(fragment)
                process.uploads.append(action)
                process.given[HandedOver(action.round, fragment, action.tokens)] = action
            case Resend(handed_over, incarnation):
                again = msgspec.structs.replace(process.given[handed_over], incarnation=incarnation)
                process.uploads.append(again)
            case Forget(handed_over):
                process.given.pop(handed_over, None)
            case UploadSeed(fragment):
                process.seeds.append(fragment)
            case Adopt(fragment=fragment, payload=payload):
                process.snapshots.discard(fragment)
                process.bodies.remove(payload)
                process.adopted.append(action)
            case Discard(payload):
                process.bodies.remove(payload)
            case Done():
                process.done = action


def running(*names: str, adoption: Adoption = Adoption.OVERWRITE, steps_max: int = 0, **changes: object) -> CorePair:
    """All of these have loaded the parameters of the first and taken one step. The first round is due at clock 2."""
    pair = CorePair(options(**changes), adoption, steps_max=steps_max)
    for name in names:
        pair.start(name)
        pair.exchange()
    pair.step(*names)
    assert [pair.state(name) for name in names] == ["live"] * len(names)
    return pair


def _is_tried_again(process: Process, upload: Upload) -> bool:
    """A newer attempt at the same contribution is on its way: of this one the host says nothing."""
    return any((again.fragment, again.tokens) == (upload.fragment, upload.tokens) for again in process.uploads)
