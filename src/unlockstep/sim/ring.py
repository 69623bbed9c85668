"""The whole ring in one process: a syncer and its learners under virtual time, with real arrays.

Decides how long things take (step times, message and body transfer, merge), and who dies and returns when it is told
to. Everything else is the production code: ``SyncerCore``, ``LearnerCore``, ``LearnerLoop``, ``Storehouse``, the real
message encoder. One history per set of arguments: what is bit-equal once is bit-equal always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

from unlockstep.config import RunConfig
from unlockstep.core import messages
from unlockstep.core.actions import Announce, Commit, Release, RunEnded, SendTo, SyncerAction
from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.events import Event
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.core.messages import (
    Committed,
    Connected,
    ContributionArrived,
    Disconnected,
    Fetched,
    FetchFailed,
    JoinRefused,
    LearnerMessage,
    SeedArrived,
    SeedStored,
    SyncerInput,
    SyncerMessage,
    VersionNotice,
    Welcome,
)
from unlockstep.core.outer_gradient import outer_gradient
from unlockstep.core.syncer import SyncerCore
from unlockstep.learners.backend import Backend, FloatArray
from unlockstep.loop import Contribution, LearnerLoop
from unlockstep.sim.clock import VirtualClock
from unlockstep.storehouse import Storehouse

MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Costs:
    """How long things take, nanoseconds."""

    message_ns: int = MILLISECOND_NS
    body_ns: int = 20 * MILLISECOND_NS
    """One fragment, one way."""
    commit_ns: int = 10 * MILLISECOND_NS


StepTime = Callable[[int], int]
"""Number of the step, from 0 -> its duration in nanoseconds."""


@dataclass(slots=True)
class _Place:
    """Where a learner is attached: one process of it."""

    name: str
    backend: Backend
    loop: LearnerLoop
    step_ns: StepTime
    up: bool = True
    incarnation: int = 0
    """As the syncer knows it: set with the answer to its joining."""
    steps: int = 0
    payloads: dict[int, FloatArray] = field(default_factory=dict)
    waiting: bool = True
    armed_ns: int = NEVER_NS


class Ring:
    """A syncer and its learners.

    Args:
        config: sections ``run``, ``protocol``, ``outer``, ``codec``, ``limits`` and ``adoption`` are read.
        costs: how long things take.
        executor: threads lent to the merge; None computes in the calling thread.
    """

    def __init__(self, config: RunConfig, costs: Costs | None = None, executor: Executor | None = None) -> None:
        self.config = config
        self.clock = VirtualClock()
        self.core = SyncerCore(config.run.name, config.protocol, config.run.steps, config.run.tokens)
        self.events: list[Event] = []
        self.ended = False
        self._costs = costs or Costs()
        self._executor = executor
        self._storehouse: Storehouse | None = None
        self._asking: _Place | None = None
        """Who has said what the syncer is hearing: the answer to a ``Join`` goes there, whoever bears the name now."""
        self._seeder: tuple[str, int] | None = None
        self._places: dict[str, _Place] = {}
        self._armed_ns = NEVER_NS

    # ------------------------------------------------------------------------------------------- learners

    def join(self, name: str, backend: Backend, step_ns: StepTime | int) -> None:
        """A learner's process starts now: it connects, loads, trains. A process of the same name must be dead."""
        assert name not in self._places or not self._places[name].up, f"{name} is already running"
        protocol, adoption = self.config.protocol, self.config.adoption
        layout = build_layout(backend.tensors(), protocol.fragments, LayoutMethod(protocol.layout))
        backend.bind(layout)
        link = _Link(self)
        loop = LearnerLoop.create(
            name,
            layout,
            backend,
            link,
            protocol=protocol,
            adoption=adoption.mode,
            blend_alpha=adoption.blend_alpha,
            now_ns=self.clock.now_ns,
        )
        duration = step_ns if callable(step_ns) else lambda _: step_ns
        place = link.place = _Place(name, backend, loop, duration)
        self._places[name] = place
        self.clock.after(self._costs.message_ns, lambda: self._deliver(place, Connected()))

    def kill(self, name: str) -> None:
        """The learner's process is gone, without a word; its connection breaks."""
        place = self._places[name]
        place.up = False
        incarnation = place.incarnation
        self.clock.after(self._costs.message_ns, lambda: self.tell(Disconnected(name, incarnation)))

    def backend(self, name: str) -> Backend:
        """What the learner trains."""
        return self._places[name].backend

    # ------------------------------------------------------------------------------------------- time

    def run(self, until_ns: int = NEVER_NS) -> None:
        """Let time pass until the run has ended or ``until_ns`` is reached."""
        for _ in self.play(until_ns):
            pass

    def play(self, until_ns: int = NEVER_NS) -> Iterator[int]:
        """The same, yielding the time after everything that happens."""
        while not self.ended:
            next_ns = self.clock.next_ns()
            if next_ns is None or next_ns > until_ns:
                return
            self.clock.step()
            yield self.clock.now_ns()

    # ------------------------------------------------------------------------------------------- the syncer's host

    def tell(self, message: SyncerInput) -> None:
        """The syncer receives something now."""
        self.core.receive(message, self.clock.now_ns())
        self._serve()

    def hear(self, place: _Place, data: bytes) -> None:
        """The syncer receives what a learner has said."""
        self._asking = place
        self.tell(messages.decode_learner_message(data))
        self._asking = None

    def global_values(self, fragment: int) -> FloatArray:
        """The syncer's present value of a fragment."""
        assert self._storehouse is not None, "the run has no parameters yet"
        return self._storehouse.values(fragment)

    def _serve(self) -> None:
        if self._storehouse is None and self.core.layout is not None:
            self._storehouse = Storehouse(self.core.layout, self.config, self._executor)
        self.events.extend(self.core.take_events())
        for action in self.core.take_actions():
            self._carry_out(action)
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns < self._armed_ns or self._armed_ns < self.clock.now_ns():
            self._armed_ns = deadline_ns
            if deadline_ns != NEVER_NS:
                self.clock.at(deadline_ns, self._on_deadline)

    def _on_deadline(self) -> None:
        self._armed_ns = NEVER_NS
        if not self.ended:
            self.core.on_deadline(self.clock.now_ns())
            self._serve()

    def _carry_out(self, action: SyncerAction) -> None:
        assert self._storehouse is not None or isinstance(action, SendTo | Announce | RunEnded)
        match action:
            case SendTo(learner, incarnation, message):
                place = self._places.get(learner)
                asking = self._asking
                if isinstance(message, Welcome | JoinRefused) and asking is not None and asking.name == learner:
                    place = asking
                    place.incarnation = incarnation
                if isinstance(message, Welcome) and message.seed:
                    self._seeder = learner, incarnation
                    self._storehouse = Storehouse(self.storehouse.layout, self.config, self._executor)
                if place is not None and place.incarnation == incarnation:
                    self._send(place, message)
            case Announce(message):
                for name in sorted(self._places):
                    self._send(self._places[name], message)
            case Commit():
                self.clock.after(self._costs.commit_ns, lambda: self._commit(action))
            case Release(payload):
                self.storehouse.release(payload)
            case RunEnded():
                self.clock.after(2 * self._costs.message_ns, self._end)

    @property
    def storehouse(self) -> Storehouse:
        assert self._storehouse is not None, "the run has no parameters yet"
        return self._storehouse

    def _end(self) -> None:
        self.ended = True

    def _commit(self, commit: Commit) -> None:
        prepared = self.storehouse.prepare(commit)
        notice = self.storehouse.publish(commit, prepared)
        self.tell(Committed(commit.round, commit.fragment, notice.version, notice.digest, prepared.norm))

    def _send(self, place: _Place, message: SyncerMessage) -> None:
        data = messages.encode(message)
        self.clock.after(self._costs.message_ns, lambda: self._deliver(place, messages.decode_syncer_message(data)))

    # ------------------------------------------------------------------------------------------- learners' hosts

    def _deliver(self, place: _Place, message: messages.LearnerInput) -> None:
        if place.up:
            place.loop.deliver(message)
            self._look_after(place)

    def _look_after(self, place: _Place) -> None:
        """Begin the next step if it may begin, and keep the learner's deadline armed."""
        if place.waiting and place.loop.wait_until_may_step(timeout_s=0):
            if place.steps == 0 and place.loop.steps_before > 0:
                place.backend.seek(place.loop.steps_before)
            place.waiting = False
            self.clock.after(place.step_ns(place.steps), lambda: self._end_step(place))
        deadline_ns = place.loop.next_deadline_ns()
        if deadline_ns != NEVER_NS and place.armed_ns != deadline_ns:
            place.armed_ns = deadline_ns
            self.clock.at(deadline_ns, lambda: self._on_learner_deadline(place))

    def _on_learner_deadline(self, place: _Place) -> None:
        if place.up and place.loop.next_deadline_ns() <= self.clock.now_ns():
            place.loop.on_deadline()
            self._look_after(place)

    def _end_step(self, place: _Place) -> None:
        if not place.up or place.loop.done is not None:
            return
        stats = place.backend.inner_step(place.loop.clock)
        place.steps += 1
        place.loop.finish_step(stats)
        place.waiting = True
        self._look_after(place)


class _Link:
    """A learner's way to the syncer, as long as virtual transfers take."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._next_payload = 0
        self.place: _Place

    def send(self, message: LearnerMessage) -> None:
        data = messages.encode(message)
        ring = self._ring
        ring.clock.after(ring._costs.message_ns, lambda: ring.hear(self.place, data))

    def fetch(self, notice: VersionNotice) -> None:
        self._ring.clock.after(self._ring._costs.body_ns, lambda: self._finish_fetch(notice))

    def _finish_fetch(self, notice: VersionNotice) -> None:
        ring = self._ring
        found = ring.storehouse.body(notice.fragment, notice.version)
        if found is None:
            ring._deliver(self.place, FetchFailed(notice.fragment, notice.version))
            return
        body, digest = found
        assert digest == notice.digest == body_digest(body)
        codec = FragmentCodec(ring.storehouse.layout, notice.fragment, ring.config.codec.download)
        payload, self._next_payload = self._next_payload, self._next_payload + 1
        self.place.payloads[payload] = codec.decode(body)
        ring._deliver(self.place, Fetched(notice.fragment, notice.version, digest, payload))

    def upload(self, contribution: Contribution) -> None:
        self._ring.clock.after(self._ring._costs.body_ns, lambda: self._finish_upload(contribution))

    def _finish_upload(self, made: Contribution) -> None:
        ring, house = self._ring, self._ring.storehouse
        codec = FragmentCodec(house.layout, made.fragment, ring.config.codec.upload)
        body = codec.encode(outer_gradient(made.anchor, made.local))
        inspection = house.inspect(
            made.fragment, body, body_digest(body), made.c_steps, made.c_tokens, house.norm_bound(made.fragment)
        )
        arrived = ContributionArrived(
            learner=made.learner,
            incarnation=made.incarnation,
            round=made.round,
            fragment=made.fragment,
            base_version=made.base_version,
            c_steps=made.c_steps,
            c_tokens=made.c_tokens,
            tokens=made.tokens,
            norm=inspection.norm,
            defect=inspection.defect,
            payload=house.hold(made.fragment, inspection),
        )
        ring.tell(arrived)

    def upload_seed(self, learner: str, incarnation: int, fragment: int, values: FloatArray) -> None:
        ring = self._ring

        def finish() -> None:
            if ring._seeder != (learner, incarnation) or not self.place.up:
                return
            notice = ring.storehouse.seed(fragment, values)
            ring.tell(SeedArrived(learner, incarnation, fragment, notice.digest))
            ring._deliver(self.place, SeedStored(fragment))

        ring.clock.after(ring._costs.body_ns, finish)

    def take(self, payload: int) -> FloatArray:
        return self.place.payloads.pop(payload)

    def discard(self, payload: int) -> None:
        self.place.payloads.pop(payload, None)
