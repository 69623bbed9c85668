"""The process around a ``SyncerCore``: it hands the core what happens and carries out what the core wants.

Decides order and threads. The core, the connections and all bookkeeping belong to the event loop's thread; arrays are
read, checked and merged in worker threads (``storehouse``), commits one after the other in the order asked for. What
must outlive the process is saved in another one (``keeper``), and until it is, what promises it is not sent. Does not
decide anything about the run (the core) nor how requests look (``resources``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec
from aiohttp import WSCloseCode

from unlockstep.config import RunConfig
from unlockstep.core.actions import (
    Announce,
    Commit,
    ForgetState,
    GoBack,
    Release,
    RunEnded,
    Save,
    SendTo,
    SyncerAction,
)
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.events import LearnerDeparted
from unlockstep.core.ids import NANOSECONDS_PER_SECOND, NEVER_NS
from unlockstep.core.messages import (
    Committed,
    ContributionArrived,
    Disconnected,
    EndRun,
    Evaluation,
    Fenced,
    Join,
    JoinRefused,
    LearnerMessage,
    Published,
    Recorded,
    StateComing,
    Stop,
    SyncerInput,
    SyncerMessage,
    VersionNotice,
    Welcome,
    WentBack,
    encode,
)
from unlockstep.core.reasons import JoinRefusal
from unlockstep.core.status import Status
from unlockstep.core.syncer import SyncerCore
from unlockstep.core.traffic import SIGNS_PER_LEASE, PassingBytes
from unlockstep.keeper import Keeper, Snapshot, Taken
from unlockstep.net.access.audit import Audit, Peer, Refused
from unlockstep.net.access.gate import Gate
from unlockstep.net.access.security import OPEN
from unlockstep.net.syncer.buffers import Buffers
from unlockstep.net.syncer.connection import Connection
from unlockstep.net.syncer.holds import Holds
from unlockstep.net.syncer.news import told
from unlockstep.net.syncer.recent import Recent
from unlockstep.net.syncer.resources import application
from unlockstep.net.syncer.state_files import StateFiles
from unlockstep.net.syncer.uploads import Uploads
from unlockstep.net.wire.api import UPLOADS_REMEMBERED_MAX, state_path
from unlockstep.net.wire.listening import Endpoint
from unlockstep.net.wire.timeouts import derive, leases_of
from unlockstep.promises import Promises
from unlockstep.runlog import RunLogWriter
from unlockstep.store.fragment_files import Damaged
from unlockstep.storehouse import Inspection, Storehouse

STOP_S_MAX = 2.0
"""From a signal to stop until the process ends without the last rounds. An admin who ends the run waits for them."""

LINGER_S_MAX = 60.0
"""At the end of the run, observers (evaluators at work on the last version) are cut off once they have fetched nothing
for so long."""

FLUSH_S_MAX = 1.0
"""Given to connections to take their last messages."""

SWEEP_S = 5.0
"""Between two looks at what may be forgotten."""

BEATS_PER_LEASE = 3
"""Signs of life that a leading syncer leaves for others who might take over."""

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class SyncerService:
    """One run's syncer as a web service.

    Args:
        config: of the run.
        core: of the run; from here on only this object touches it.
        run_log: where events go.
        clock: monotonic nanoseconds; time zero of the run is the making of this object, or that of its first life.
        keeper: saves what must not be forgotten; None forgets everything, for tests.
        taken: what an earlier life has left; the core has not been told.
        gate: what is demanded of whoever connects, and where joins and refusals are told; None: nothing, on stderr.
    """

    def __init__(
        self,
        config: RunConfig,
        core: SyncerCore,
        run_log: RunLogWriter,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        keeper: Keeper | None = None,
        taken: Taken | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.config = config
        self._gate = Gate(OPEN, Audit()) if gate is None else gate
        self.storehouse: Storehouse | None = None
        """None until the first learner has brought the layout."""
        self.bytes_in = 0
        self.bytes_out = 0
        """Bytes of bodies, up and down."""
        self.over = asyncio.Event()
        """Set when the run has ended, or cannot go on."""
        self._ending = asyncio.Event()
        """Set when an admin asks for the end of the run."""
        self._end_reason = "the syncer was told to stop"
        self.answers: OrderedDict[str, tuple[int, str]] = OrderedDict()
        """Uploads that have reached the core, by all that was said of them, and what their sender was answered."""
        self.timeouts = derive(leases_of(config))
        """Of the syncer's end of every link."""
        self.states = StateFiles()
        self.uploads, self.holds, self.recent, self.buffers = Uploads(), Holds(), Recent(), Buffers()
        self._passing = PassingBytes(config.protocol.lease_ns)
        self._states_moved_ns: dict[int, int] = {}
        """By ticket, when the core was last told that a state is on its way."""
        self._core = core
        self._run_log = run_log
        self._clock = clock
        self._started_ns = clock() - (0 if taken is None else taken.now_ns)
        self._keeper = keeper
        self._promises = Promises(config.durability.commits_lost_max)
        self._save_wanted = asyncio.Event()
        self._learners: dict[tuple[str, int], Connection] = {}
        self._observers: set[Connection] = set()
        self._known: dict[str, Peer] = {}
        """Who has ever joined, and from where they have last."""
        self._seeder: tuple[str, int] | None = None
        self._joining: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_ns = NEVER_NS
        self._commits: asyncio.Queue[Commit | GoBack] = asyncio.Queue()
        self._failure: Exception | None = None
        self._versions_told: tuple[int, ...] = ()
        self._expects_observer = taken is not None
        """An evaluator of the life before may not have found this one yet."""
        self._observed = asyncio.Event()
        self._unobserved = asyncio.Event()
        self._unconnected = asyncio.Event()
        self._note_connections()
        self._make_threads(config.local.threads_syncer)
        if taken is not None:
            self._take_up(taken, 1 if keeper is None else keeper.life)

    @property
    def audit(self) -> Audit:
        """Where joins and refusals are told."""
        return self._gate.audit

    def _make_threads(self, merging: int) -> None:
        self.hashers = ThreadPoolExecutor(2, "unlockstep-hash")
        self._lent = ThreadPoolExecutor(merging, "unlockstep-numbers") if merging > 1 else None
        self._inspectors = ThreadPoolExecutor(2, "unlockstep-inspect")
        self._committer = ThreadPoolExecutor(1, "unlockstep-commit")
        self._saver = ThreadPoolExecutor(1, "unlockstep-save")

    def _take_up(self, taken: Taken, life: int) -> None:
        snapshot = taken.snapshot
        if snapshot.layout is not None and snapshot.kept:
            self.storehouse = Storehouse(snapshot.layout, self.config, self._lent)
            self.storehouse.restore(snapshot.kept, snapshot.norms)
        self._versions_told = tuple(notice.version for notice in snapshot.run.notices)
        self._known.update(dict.fromkeys((member.learner for member in snapshot.run.members), Peer("")))
        self._core.resume(snapshot.run, snapshot.layout, life, self.now_ns)

    # ------------------------------------------------------------------------------------------- lifetime

    async def serve(
        self,
        endpoint: Endpoint,
        stop: asyncio.Event,
        on_listening: Callable[[str], None] = lambda url: None,
    ) -> bool:
        """Serve until the run has ended or ``stop`` is set.

        Args:
            endpoint: where to listen.
            stop: set it to end the run in order, in at most ``STOP_S_MAX`` plus ``FLUSH_S_MAX``. An admin who ends it
                (``end``) leaves it the time that its last rounds take.
            on_listening: told the URL that others are told, once connections are accepted.

        Returns:
            Whether the run came to its end.

        Raises:
            UsageError: the endpoint cannot be listened on.
            Exception: a bug, or numbers that cannot be published; the run cannot go on.
        """
        async with self.listening(endpoint) as url:
            on_listening(url)
            await first_of(self.over, stop, self._ending)
            if not self.over.is_set():
                self.receive(EndRun(self._end_reason))
                if not stop.is_set():  # Nobody waits for this process to be gone: the core says when it is over.
                    await first_of(self.over, stop)
                if stop.is_set():
                    await first_of(self.over, timeout_s=STOP_S_MAX)
            if self.over.is_set() and self._failure is None and not stop.is_set():
                if self._expects_observer:
                    await first_of(self._observed, stop, timeout_s=self.timeouts.return_s)
                await self._linger(stop)
        if self._failure is not None:
            raise self._failure
        return self.over.is_set()

    async def _linger(self, stop: asyncio.Event) -> None:
        """Until no observer is there, or those that are have fetched nothing for long."""
        fetched = -1
        ends = self._unobserved, stop
        while not (any(end.is_set() for end in ends) or fetched == self.bytes_out):
            fetched = self.bytes_out
            await first_of(*ends, timeout_s=LINGER_S_MAX)

    @asynccontextmanager
    async def listening(self, endpoint: Endpoint) -> AsyncIterator[str]:
        """Accept connections, until the block ends; then say goodbye and release everything. Gives the URL that others
        are told."""
        app = application(self, self._gate.middleware)
        try:
            async with self._gate.open(app, endpoint, self.timeouts, FLUSH_S_MAX) as found:
                works = (self._carry_out_commits(), self._save_what_is_promised(), self._forget_what_is_idle())
                tasks = [asyncio.create_task(work) for work in works]
                try:
                    self._promises.need(Save())  # The first record: from here on it is this life that leads.
                    self._follow()
                    tasks.append(asyncio.create_task(self._show_signs_of_life(found.url)))
                    yield found.url
                finally:
                    await self._settle_promises()
                    await self._say_goodbye()
                    for task in tasks:
                        task.cancel()
                    if self._keeper is not None and self._failure is None:
                        with suppress(OSError):  # Then whoever comes next waits for a lease.
                            await asyncio.get_running_loop().run_in_executor(self._saver, self._keeper.resign)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for executor in (self.hashers, self._inspectors, self._committer, self._saver, self._lent):
                if executor is not None:
                    executor.shutdown(wait=True, cancel_futures=True)
            self.states.close()
            self._run_log.flush()

    async def _say_goodbye(self) -> None:
        for connection in [*self._learners.values(), *self._observers]:
            connection.close("the syncer stops", WSCloseCode.GOING_AWAY)
        await first_of(self._unconnected, timeout_s=FLUSH_S_MAX)
        for connection in [*self._learners.values(), *self._observers]:
            connection.cut()

    # ------------------------------------------------------------------------------------------- the core

    @property
    def now_ns(self) -> int:
        """Time of the run."""
        return self._clock() - self._started_ns

    def status(self) -> Status:
        """The state of the run, for people. Nobody hears of a version here before it has been announced."""
        return msgspec.structs.replace(self._core.status(self.now_ns), versions=self._versions_told)

    def receive(self, message: SyncerInput) -> None:
        """Tell the core, and do at once what follows.

        Raises:
            RemoteProtocolError: the message breaks the protocol; it had no effect.
        """
        try:
            self._core.receive(message, self.now_ns)
            self._follow()
        except RemoteProtocolError:
            raise
        except Exception as error:
            self._fail(error)
            raise

    def _on_timer(self) -> None:
        self._deadline_ns = NEVER_NS
        try:
            self._core.on_deadline(self.now_ns)
            self._follow()
        except Exception as error:
            self._fail(error)

    def _follow(self) -> None:
        """Take everything the core wants done, log what it says, and arm the timer anew."""
        if self.storehouse is None:
            self._build_storehouse()
        events = self._core.take_events()
        self._run_log.write(events)
        for event in events:
            if isinstance(event, LearnerDeparted):
                self.uploads.depart(event.learner, event.incarnation)
                peer = self._known.get(event.learner, Peer(""))
                self.audit.left(event.learner, event.incarnation, event.reason.value, peer)
            if not self.over.is_set() and (line := told(event)) is not None:
                _log.info("%s", line)
        self._run_log.flush()
        for action in self._core.take_actions():
            self._carry_out(action)
        self._save_wanted.set()
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns == self._deadline_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._deadline_ns = None, deadline_ns
        if deadline_ns < NEVER_NS:
            delay_s = max(0, deadline_ns - self.now_ns) / NANOSECONDS_PER_SECOND
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _carry_out(self, action: SyncerAction) -> None:
        match action:
            case SendTo(learner, incarnation, message):
                self._send_to(learner, incarnation, message)
            case Announce(message):
                frame = encode(message)
                versions = tuple(notice.version for notice in self._core.notices)
                self._promises.send(lambda: self._tell_versions(versions))
                for connection in [*self._learners.values(), *self._observers]:
                    self._send(connection, frame)
            case Commit() | GoBack():
                self._commits.put_nowait(action)
            case Save():
                self._promises.need(action)
            case Release(payload):
                self._storehouse().release(payload)
            case ForgetState(ticket):
                self.states.forget(ticket)
                self.uploads.forget_path(state_path(self.config.run.name, ticket))
                self._states_moved_ns.pop(ticket, None)
            case RunEnded():
                self._promises.send(self.over.set)

    async def _carry_out_commits(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                commit = await self._commits.get()
                storehouse = self._storehouse()
                if isinstance(commit, GoBack):
                    self.receive(WentBack(commit.record, await self._go_back(commit.record)))
                    continue
                prepared = await loop.run_in_executor(self._committer, storehouse.prepare, commit)
                before = storehouse.body(commit.fragment, commit.version - 1)
                notice = storehouse.publish(commit, prepared)
                if before is not None:
                    self.recent.add(commit.fragment, commit.version - 1, *before, self.now_ns)
                self.receive(Committed(commit.round, commit.fragment, notice.version, notice.digest, prepared.norm))
        except Exception as error:
            self._fail(error)

    async def _go_back(self, record: int) -> tuple[VersionNotice, ...]:
        """The new versions; none if the record cannot be read."""
        loop, storehouse = asyncio.get_running_loop(), self._storehouse()
        assert self._keeper is not None, "what was not kept is not asked for"
        try:
            kept, norms = await loop.run_in_executor(self._saver, self._keeper.read, record)
        except Damaged as error:
            _log.warning("%s: the run cannot go back to it", error)
            return ()
        prepared = await loop.run_in_executor(self._committer, storehouse.prepare_earlier, kept)
        return storehouse.publish_earlier(prepared, norms)

    # ------------------------------------------------------------------------------------------- saving

    def _send(self, connection: Connection, frame: bytes) -> None:
        """Once what it promises is saved."""
        self._promises.send(lambda: connection.send(frame))

    def _tell_versions(self, versions: tuple[int, ...]) -> None:
        self._versions_told = versions

    def _snapshot(self) -> Snapshot:
        storehouse = self.storehouse if self._core.notices else None
        self._run_log.flush()
        return Snapshot(
            run=self._core.saved(self.now_ns),
            layout=None if storehouse is None else storehouse.layout,
            kept={} if storehouse is None else storehouse.kept(),
            norms=() if storehouse is None else storehouse.norms,
            log=self._run_log.mark,
        )

    async def _save_what_is_promised(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._save_wanted.wait()
                self._save_wanted.clear()
                while self._promises.begin_save():
                    if self._keeper is not None:
                        snapshot = self._snapshot()
                        record = await loop.run_in_executor(self._saver, self._keeper.save, snapshot)
                        self._run_log.confirm()
                        if self._core.wants_records:
                            self.receive(Recorded(record, tuple(each.version for each in snapshot.run.notices)))
                    self._promises.end_save()
        except Exception as error:
            self._fail(error)

    async def _settle_promises(self) -> None:
        """Say what can still be said."""
        until_s = asyncio.get_running_loop().time() + FLUSH_S_MAX
        while self._promises.is_waiting and self._failure is None and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(0.005)

    async def _show_signs_of_life(self, url: str) -> None:
        if self._keeper is None:
            return
        try:
            while True:
                await asyncio.get_running_loop().run_in_executor(self._saver, self._keeper.beat, url)
                await asyncio.sleep(self.config.durability.lease_s / BEATS_PER_LEASE)
        except Exception as error:
            self._fail(error)

    async def _forget_what_is_idle(self) -> None:
        """Uploads that nobody goes on with, versions that nobody reads any more, memory that nobody needs."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.uploads.expire(self.now_ns)
            self.holds.expire(self.now_ns)
            self.recent.expire(self.now_ns)
            self.buffers.expire(self.now_ns)

    def _fail(self, error: Exception) -> None:
        """The run cannot go on: what the core or the numbers hold can no longer be trusted."""
        _log.error("the run cannot go on: %s", error)
        self._failure = error
        self.over.set()

    def _build_storehouse(self) -> None:
        if self._core.layout is not None:
            self.storehouse = Storehouse(self._core.layout, self.config, self._lent)

    def _storehouse(self) -> Storehouse:
        assert self.storehouse is not None, "the core speaks of arrays before any learner has brought a layout"
        return self.storehouse

    # ------------------------------------------------------------------------------------------- connections

    def _send_to(self, learner: str, incarnation: int, message: SyncerMessage) -> None:
        if isinstance(message, Welcome):
            self._admit(learner, message)
        joining = self._joining
        turned_away = isinstance(message, JoinRefused) and joining is not None and joining.name == learner
        connection = joining if turned_away else self._learners.get((learner, incarnation))
        if connection is None:
            return
        if isinstance(message, JoinRefused):
            self.audit.refused(Refused.TURNED_AWAY, connection.peer, f"{learner}: {message.detail}")
        self._send(connection, encode(message))
        if isinstance(message, JoinRefused | Fenced):
            self._promises.send(lambda: connection.close("not a member of this run", WSCloseCode.POLICY_VIOLATION))

    def _admit(self, learner: str, welcome: Welcome) -> None:
        """From here on this incarnation is reached by the connection that has just asked to join."""
        joining = self._joining
        if welcome.seed and self._seeder != (learner, welcome.incarnation):
            if self._seeder is not None:  # What an earlier one has brought is not mixed with what this one brings.
                self._build_storehouse()
            self._seeder = learner, welcome.incarnation
        if joining is None or joining.name != learner:  # It is welcomed once more, as the new seeder.
            return
        self._known[learner] = joining.peer
        replaced = self._learners.get((learner, welcome.incarnation))
        if replaced is not None:
            replaced.close("this learner has connected anew")
        self.audit.joined(learner, welcome.incarnation, joining.peer)
        joining.incarnation = welcome.incarnation
        self._learners[learner, welcome.incarnation] = joining
        self._note_connections()

    def join(self, connection: Connection, join: Join) -> None:
        """The first message of a learner's connection."""
        identity = connection.peer.identity
        if not identity.may_speak_for(join.learner):
            detail = f"the token {identity.token!r} may only speak for learners whose names begin {identity.learners!r}"
            self.audit.refused(Refused.NOT_ALLOWED, connection.peer, detail)
            connection.send(encode(JoinRefused(JoinRefusal.BAD_NAME, detail)))
            connection.close("not a member of this run", WSCloseCode.POLICY_VIOLATION)
            return
        self._joining = connection
        try:
            self.receive(join)
        finally:
            self._joining = None

    def hear(self, connection: Connection, message: LearnerMessage) -> None:
        """Any later one. Raises RemoteProtocolError if this learner may not say it."""
        if isinstance(message, Join | Evaluation) or message.learner != connection.name:
            raise RemoteProtocolError(f"{type(message).__name__} is not for learner {connection.name} to say here")
        if not connection.is_closing:
            self.receive(message)

    def end(self, peer: Peer) -> None:
        """An admin asks for the end of the run."""
        if not self._ending.is_set():
            self.audit.ended(peer)
            name = f"token {peer.identity.token!r}" if peer.identity.token else "a request"
            self._end_reason = f"{name} from {peer.address} has ended it"
            self._ending.set()

    @property
    def is_asked_to_end(self) -> bool:
        """Whether an admin has asked for the end of the run."""
        return self._ending.is_set()

    def observe(self, connection: Connection) -> None:
        """An observer is here: it is told the newest versions, and from then on every one that follows."""
        self._observers.add(connection)
        self._observed.set()
        self._note_connections()
        clock = self.status().clock
        for notice in self.storehouse.newest() if self.storehouse is not None else ():
            self._send(connection, encode(Published(notice, clock)))
        if self.over.is_set():
            self._send(connection, encode(Stop("the run is over")))

    def hear_observer(self, connection: Connection, message: LearnerMessage) -> None:
        """Raises RemoteProtocolError if it is anything but an evaluation under its own name."""
        if not isinstance(message, Evaluation) or message.source != connection.name:
            raise RemoteProtocolError(f"{type(message).__name__} is not for observer {connection.name} to say")
        self.receive(message)

    def gone(self, connection: Connection) -> None:
        """A connection has ended, whoever ended it."""
        key = (connection.name, connection.incarnation)
        self._observers.discard(connection)
        if self._learners.get(key) is connection:
            del self._learners[key]
            self.receive(Disconnected(*key))
        self._note_connections()

    def _note_connections(self) -> None:
        for event, is_so in (
            (self._unobserved, not self._observers),
            (self._unconnected, not self._observers and not self._learners),
        ):
            if is_so:
                event.set()
            else:
                event.clear()

    # ------------------------------------------------------------------------------------------- bodies

    @property
    def run_id(self) -> str:
        """Tells this run from any other of the same name."""
        return self._core.run_id

    def is_seeder(self, learner: str, incarnation: int) -> bool:
        """Whether this start of a learner was asked for version 0."""
        return self._seeder == (learner, incarnation)

    def knows(self, learner: str) -> bool:
        """Whether a learner of this name has ever joined."""
        return learner in self._known

    def is_donor(self, ticket: int, learner: str, incarnation: int) -> bool:
        """Whether this start of a learner has been asked for its state under this ticket, which is still wanted."""
        return self._core.donations.is_expected(ticket, learner, incarnation)

    def watch_state(self, ticket: int, learner: str, incarnation: int) -> Callable[[int], None]:
        """To be called with every piece of a state that comes in; raises RemoteProtocolError if it is not wanted."""

        def moved(count: int) -> None:
            if not self.is_donor(ticket, learner, incarnation):
                raise RemoteProtocolError(f"the state of {learner}.{incarnation} is not wanted under this ticket")
            self.state_moves(ticket)

        return moved

    def state_moves(self, ticket: int) -> None:
        """A piece of a state has come in or gone out; the core hears of it now and then."""
        if (
            self.now_ns - self._states_moved_ns.get(ticket, -NEVER_NS)
            >= self.config.protocol.lease_ns // SIGNS_PER_LEASE
        ):
            self._states_moved_ns[ticket] = self.now_ns
            self.receive(StateComing(ticket))

    def learner_moves(self, learner: str, incarnation: int, *, up: int = 0, down: int = 0) -> None:
        """Bytes of a body have come from this start of a learner, or gone to it; the core hears of it now and then."""
        if self.knows(learner):
            sign = self._passing.add(learner, incarnation, up, down, self.now_ns)
            if sign is not None:
                self.receive(sign)

    async def in_worker(self, work: Callable[..., Result], *arguments: object) -> Result:
        """The result of ``work``, computed off the event loop's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._inspectors, work, *arguments)

    def remember(self, upload: str, answer: tuple[int, str]) -> None:
        """Whoever sends this once more is answered the same."""
        self.answers[upload] = answer
        while len(self.answers) > UPLOADS_REMEMBERED_MAX:
            self.answers.popitem(last=False)

    def take_contribution(
        self, upload: str, made: ContributionArrived, inspection: Inspection, refused: int = 422
    ) -> tuple[int, str]:
        """Hand an inspected upload to the core, once; returns HTTP status (``refused`` if it has a defect) and sentence
        for its sender."""
        if upload in self.answers:
            return self.answers[upload]
        payload = self._storehouse().hold(made.fragment, inspection)
        answer = (202, "") if inspection.defect is None else (refused, inspection.sentence)
        self.remember(upload, answer)
        self.receive(msgspec.structs.replace(made, norm=inspection.norm, defect=inspection.defect, payload=payload))
        return answer


async def first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Return once one of the events is set, or the time is over."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
