"""A learner's process under virtual time: ``LearnerLoop``, what it trains, and its way to the syncer.

Decides what ``net.clients.learner`` decides in a real run (when to connect again, how often to try an upload) and how
long inner steps take. Does not decide how long messages and bodies take (``network``) or who breaks what (``world``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unlockstep.config import RunConfig
from unlockstep.core import messages
from unlockstep.core.actions import FetchState
from unlockstep.core.course import Course
from unlockstep.core.data_book import Grant
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Fenced,
    Fetched,
    FetchFailed,
    HandedOver,
    JoinRefused,
    LearnerInput,
    LearnerMessage,
    Leave,
    SeedStored,
    StateFetched,
    StateFetchFailed,
    StateNotTaken,
    SyncerMessage,
    UploadArrived,
    UploadFailed,
    VersionNotice,
)
from unlockstep.core.run_states import RunState
from unlockstep.learners.backend import Backend, FloatArray, InnerState
from unlockstep.learners.state_body import Donated
from unlockstep.loop import Contribution, LearnerLoop
from unlockstep.sim.cargo import Freight, Parcel
from unlockstep.sim.life import Alarm, Life
from unlockstep.sim.network import MILLISECOND_NS, SECOND_NS, Costs, Fate, Way, Wire
from unlockstep.sim.syncer_host import Connection, SyncerProcess
from unlockstep.sim.undeliverable import Undeliverable

BACKOFF_NS_MIN = 50 * MILLISECOND_NS
BACKOFF_NS_MAX = 1 * SECOND_NS
UPLOAD_ATTEMPTS_MAX = 5
FLUSH_NS_MAX = 2 * SECOND_NS
"""Given to what is under way when a process ends in order."""

FLUSH_LOOK_NS = 10 * MILLISECOND_NS
"""How often it is looked whether anything is."""

StepTime = Callable[[int], int]
"""Number of the step, from 0 -> its duration in nanoseconds."""

Arrive = Callable[[SyncerProcess, int], None]
"""The syncer that a body has come to, and how long that took."""

Overhear = Callable[["LearnerProcess", SyncerMessage], None]
"""Process, and what it is told."""

Feed = Callable[[Backend, tuple[Grant, ...]], None]
"""What is trained, and the places of the corpus its next step is trained on."""


class LearnerHost:
    """What outlives a learner's processes: its name, its way to the syncer, and how slow the machine is."""

    def __init__(self, name: str, wire: Wire) -> None:
        self.name = name
        self.wire = wire
        self.slowdown = 1.0
        self.bodies_to_damage = 0
        self.process: LearnerProcess | None = None

    def uploaded(self, parcel: Parcel) -> Parcel:
        """What arrives of a body it sends: damaged by chance, or as often as it was told to."""
        by_chance = self.wire.damages()
        if self.bodies_to_damage == 0:
            return parcel.damaged() if by_chance else parcel
        self.bodies_to_damage -= 1
        return parcel.damaged()

    def fall_silent(self) -> None:
        """The link has been cut for too long: a connection over it breaks."""
        if self.process is not None:
            self.process.silence()

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.life.is_alive


class LearnerProcess:
    """One start of a learner; also its ``loop.Link``.

    Args:
        host: where it runs.
        life: of this process.
        config: sections ``protocol`` and ``adoption`` are read.
        costs: how long things take.
        backend: what it trains.
        step_ns: how long its steps take on a host that is not slowed down.
        freight: what its bodies are.
        syncer: the process of the syncer that answers at the address, whenever asked; None while there is none.
        course: of a process that takes data leases.
        feed: called when such a process begins a step.
        overhear: called with whatever the syncer says to it.
        inner: what its inner optimizer remembers; None: it takes no other learner's, and gives nobody its own.
        about: what the run log should know of it.
        start_ns: how long it takes to start, on a host that is not slowed down: until then it is not there.
    """

    def __init__(
        self,
        host: LearnerHost,
        life: Life,
        config: RunConfig,
        costs: Costs,
        backend: Backend,
        step_ns: StepTime,
        freight: Freight,
        syncer: Callable[[], SyncerProcess | None],
        overhear: Overhear,
        course: Course | None = None,
        feed: Feed = lambda backend, grants: None,
        inner: InnerState | None = None,
        about: Mapping[str, str] | None = None,
        start_ns: int = 0,
    ) -> None:
        layout = build_layout(backend.tensors(), config.protocol.fragments, LayoutMethod(config.protocol.layout))
        backend.bind(layout)
        self.name, self.life, self.backend = host.name, life, backend
        self.steps = 0
        self.loop = LearnerLoop.create(
            host.name,
            layout,
            backend,
            self,
            protocol=config.protocol,
            adoption=config.adoption.mode,
            blend_alpha=config.adoption.blend_alpha,
            now_ns=life.clock.now_ns,
            course=course,
            inner=inner,
            reset_optimizer=backend.reset_optimizer,
            about=about,
            stands_still=True,  # All the arithmetic of a step is done at its end.
        )
        self._course, self._feed = course, feed
        self.taken: list[Grant] = []
        """What it has trained, or is training."""
        self._host = host
        self._costs, self._step_ns, self._syncer, self._overhear = costs, step_ns, syncer, overhear
        self._codecs = freight.codecs(layout, config, backend)
        self._connection: Connection | None = None
        self._backoff_ns = BACKOFF_NS_MIN
        self._not_before_ns = 0
        """It was told not to come back before."""
        self._transfers = self._next_payload = 0
        self._uploads: dict[HandedOver, Contribution] = {}
        """Under way, each at its newest attempt."""
        self.undeliverable = Undeliverable()
        self._payloads: dict[int, FloatArray] = {}
        self._states: dict[int, Donated] = {}
        self._alarm = Alarm(life, self._on_deadline)
        self._is_leaving = self._is_ending = False
        self.is_starting = start_ns > 0
        """It is not there yet."""
        self._start(start_ns)

    def _start(self, start_ns: int) -> None:
        if self.is_starting:
            self.life.work(round(start_ns * self._host.slowdown), self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        """It has started: here it is."""
        self.is_starting = False
        self.life.after(self._costs.message_ns, self._connect)

    @property
    def is_uploading(self) -> bool:
        """Whether a body of its is on its way to the syncer."""
        return self._transfers > 0

    # ------------------------------------------------------------------------------------------- what is done to it

    def leave(self) -> None:
        """It is asked to go, in order: between two steps. One that is still starting just ends."""
        self._is_leaving = True
        if self.is_starting:
            self._end()
        elif not self.life.is_working:
            self._depart()

    def kill(self) -> None:
        """The process is gone without a word; its connection breaks."""
        self._end()

    def _end(self) -> None:
        self.life.end()
        self._hang_up()

    # ------------------------------------------------------------------------------------------- the connection

    def _connect(self) -> None:
        syncer = self._syncer()
        if self.loop.done is not None:
            return
        if syncer is None or not syncer.life.is_running or not self._host.wire.is_whole:
            self._connect_later()
            return
        self._backoff_ns = BACKOFF_NS_MIN
        wire = self._host.wire
        self._connection = Connection(self, syncer, wire.pipe(Way.UP), wire.pipe(Way.DOWN))
        syncer.accept(self._connection)
        self._deliver(Connected())

    def _connect_later(self) -> None:
        pause_ns = round(self._backoff_ns * self._host.wire.draw.uniform(0.5, 1.0))
        self._backoff_ns = min(2 * self._backoff_ns, BACKOFF_NS_MAX)
        self.life.at(max(self.life.clock.now_ns() + pause_ns, self._not_before_ns), self._connect)

    def hear(self, connection: Connection, message: SyncerMessage) -> None:
        """What the syncer has said."""
        if connection is self._connection:
            if isinstance(message, Fenced | JoinRefused):
                self._not_before_ns = self.life.clock.now_ns() + message.retry_ns
            self._overhear(self, message)
            self._deliver(message)

    def lose(self, connection: Connection) -> None:
        """The connection has ended, whoever ended it."""
        if connection is not self._connection:
            return
        self._hang_up()
        self.undeliverable.connection_lost()
        self._deliver(Disconnected())
        self._connect_later()

    def _hang_up(self) -> None:
        """Close our end; the syncer's host notices when word of it arrives."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.to_syncer(lambda: connection.syncer.gone(connection))

    def silence(self) -> None:
        """The link has been cut for so long that both ends give the connection up, each by itself."""
        connection = self._connection
        if connection is not None:
            connection.close()
            connection.syncer.life.happen(lambda: connection.syncer.gone(connection))
            self.life.happen(lambda: self.lose(connection))

    def _deliver(self, message: LearnerInput) -> None:
        self.loop.deliver(message)
        self._go_on()

    # ------------------------------------------------------------------------------------------- steps

    def _go_on(self) -> None:
        """Begin the next step if it may begin, and keep the deadline armed."""
        if not self.life.is_working and self.loop.wait_until_may_step(timeout_s=0):
            if self.steps == 0 and self.loop.steps_before > 0:
                self.backend.seek(self.loop.steps_before)
            if self._course is not None:
                grants = self.loop.take(self._course.step_sequences)
                self.taken += grants
                self._feed(self.backend, grants)
            self.life.work(round(self._step_ns(self.steps) * self._host.slowdown), self._end_step)
        self._alarm.set(self.loop.next_deadline_ns())
        if self.loop.done is not None and not self._is_ending:
            self._is_ending = True
            self._end_in_order(self.life.clock.now_ns() + FLUSH_NS_MAX)

    def _on_deadline(self) -> None:
        self.loop.on_deadline()
        self._go_on()

    def _end_step(self) -> None:
        if self.loop.done is not None:
            return
        stats = self.backend.inner_step(self.loop.clock)
        self.steps += 1
        self.loop.finish_step(stats)
        if self._is_leaving:
            self._depart()
        else:
            self._go_on()

    def _depart(self) -> None:
        if self.loop.done is None:
            self.loop.ask_to_leave()
            self.life.after(FLUSH_NS_MAX, self._go_now)
        self._go_on()

    def _go_now(self) -> None:
        """It has waited long enough for the syncer to say what it wants."""
        if self.loop.done is None:
            self.loop.ask_to_leave()
            self._go_on()

    def _end_in_order(self, until_ns: int) -> None:
        """Close the connection once nothing is under way, or after a while."""
        if self._transfers and self.life.clock.now_ns() < until_ns:
            self.life.after(FLUSH_LOOK_NS, lambda: self._end_in_order(until_ns))
        else:
            self._end()

    # ------------------------------------------------------------------------------------------- loop.Link

    def send(self, message: LearnerMessage) -> None:
        if isinstance(message, Leave):
            self._say_goodbye(message, self.life.clock.now_ns() + FLUSH_NS_MAX // 2)
        else:
            self._say(message)

    def _say(self, message: LearnerMessage) -> None:
        connection = self._connection
        if connection is None:
            return
        data, declared = messages.encode(message), self.undeliverable.say(message)

        def arrive() -> None:
            if connection.syncer.core.state is not RunState.FINISHED:
                self.undeliverable.read(declared)
            connection.syncer.hear(connection, data)

        connection.to_syncer(arrive)

    def _say_goodbye(self, goodbye: Leave, until_ns: int) -> None:
        """When the uploads under way have arrived: after it they would be refused."""
        if self._transfers and self.life.clock.now_ns() < until_ns:
            self.life.after(FLUSH_LOOK_NS, lambda: self._say_goodbye(goodbye, until_ns))
        else:
            self._say(goodbye)

    def fetch(self, notice: VersionNotice) -> None:
        """The syncer takes hold of a body when it is asked: what is committed while it travels does it no harm."""
        arrives_ns = self._host.wire.body_arrives_ns(Way.DOWN, self._codecs.size(notice.fragment))
        giver = self._syncer()
        given = giver.give(notice) if giver is not None and giver.life.is_running else None
        self.life.at(arrives_ns, lambda: self._end_fetch(notice, giver, given))

    def _end_fetch(self, notice: VersionNotice, giver: SyncerProcess | None, given: Parcel | None) -> None:
        wire, parcel, values = self._host.wire, None, None
        if giver is not None and giver is self._syncer() and giver.life.is_running and wire.fate() is not Fate.LOST:
            parcel = given
            if parcel is not None:
                giver.passed(self.name, self.loop.incarnation, down_bytes=parcel.size)
        if parcel is not None:
            values = self._codecs.unpack(notice, parcel.damaged() if wire.damages() else parcel)
        if values is None:
            self._deliver(FetchFailed(notice.fragment, notice.version))
            return
        payload = self._new_payload()
        self._payloads[payload] = values
        self._deliver(Fetched(notice.fragment, notice.version, notice.digest, payload))

    def _new_payload(self) -> int:
        self._next_payload += 1
        return self._next_payload

    def upload(self, contribution: Contribution) -> None:
        c, parcel = contribution, self._codecs.pack(contribution)
        key = HandedOver(c.round, c.fragment, c.tokens)
        self._uploads[key] = contribution

        def fail() -> None:
            if self._uploads.get(key) is contribution:  # else it has been handed over once more since
                del self._uploads[key]
                self.undeliverable.fail(key)
                self._deliver(UploadFailed(c.round, c.fragment, c.c_tokens, c.tokens))

        def hear() -> None:
            if self._uploads.get(key) is contribution:
                del self._uploads[key]
                self._deliver(UploadArrived(c.round, c.fragment, c.tokens))

        def arrive(peer: SyncerProcess, took_ns: int) -> None:
            sent = self._host.uploaded(parcel)

            def take() -> None:
                is_taken = peer.take_upload(contribution, sent, took_ns)
                self.life.happen(hear if is_taken else fail)

            peer.life.happen(take)

        self._carry(parcel.size, arrive, fail)

    def forget(self, handed_over: HandedOver) -> None:
        self._codecs.forget(handed_over)

    def upload_seed(self, run_id: str, learner: str, incarnation: int, fragment: int, values: FloatArray) -> None:
        def fail() -> None:
            if self._connection is not None:
                self.lose(self._connection)

        def arrive(peer: SyncerProcess, took_ns: int) -> None:
            def take() -> None:
                is_taken = peer.take_seed(run_id, learner, incarnation, fragment, values)
                self.life.happen(lambda: self._deliver(SeedStored(fragment)) if is_taken else fail())

            peer.life.happen(take)

        self._carry(values.nbytes, arrive, fail)

    def _carry(self, size: int, arrive: Arrive, fail: Callable[[], None]) -> None:
        """Bring a body to the syncer: in as many attempts as a real learner makes."""
        self._transfers += 1
        self._attempt(1, size, arrive, fail)

    def _attempt(self, attempt: int, size: int, arrive: Arrive, fail: Callable[[], None]) -> None:
        wire, began_ns = self._host.wire, self.life.clock.now_ns()

        def end() -> None:
            syncer = self._syncer()
            fate = Fate.LOST if syncer is None else wire.fate()
            if syncer is not None and fate is not Fate.LOST:
                arrive(syncer, self.life.clock.now_ns() - began_ns)
            if fate is Fate.ARRIVED:
                self._transfers -= 1
            elif attempt >= (wire.attempts or UPLOAD_ATTEMPTS_MAX):
                self._transfers -= 1
                fail()
            else:
                pause_ns = round(BACKOFF_NS_MIN * 4**attempt * wire.draw.uniform(0.5, 1.0))
                self.life.after(pause_ns, lambda: self._attempt(attempt + 1, size, arrive, fail))

        self.life.at(wire.body_arrives_ns(Way.UP, size), end)

    def take(self, payload: int) -> FloatArray:
        return self._payloads.pop(payload)

    def upload_state(self, run_id: str, learner: str, incarnation: int, ticket: int, donated: Donated) -> None:
        parcel = self._codecs.pack_state(donated)

        def fail() -> None:
            self._deliver(StateNotTaken(ticket))

        def arrive(peer: SyncerProcess, took_ns: int) -> None:
            sent = self._host.uploaded(parcel)

            def take() -> None:
                if not peer.take_state(run_id, learner, incarnation, ticket, sent):
                    self.life.happen(fail)

            peer.life.happen(take)

        self._carry(parcel.size, arrive, fail)

    def fetch_state(self, action: FetchState) -> None:
        arrives_ns = self._host.wire.body_arrives_ns(Way.DOWN, action.size_bytes)
        self.life.at(arrives_ns, lambda: self._end_fetch_state(action))

    def _end_fetch_state(self, action: FetchState) -> None:
        syncer, wire, parcel, donated = self._syncer(), self._host.wire, None, None
        if syncer is not None and syncer.life.is_running and wire.fate() is not Fate.LOST:
            parcel = syncer.give_state(action.ticket)
        if parcel is not None:
            donated = self._codecs.unpack_state(action.digest, parcel.damaged() if wire.damages() else parcel)
        if donated is None:
            self._deliver(StateFetchFailed(action.ticket))
            return
        payload = self._new_payload()
        self._states[payload] = donated
        self._deliver(StateFetched(action.ticket, donated.notices, donated.clock, payload, donated.of))

    def take_state(self, payload: int) -> Donated:
        return self._states.pop(payload)

    def discard(self, payload: int) -> None:
        self._payloads.pop(payload, None)
        self._states.pop(payload, None)
