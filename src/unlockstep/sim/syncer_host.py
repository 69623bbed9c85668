"""The syncer's process under virtual time: ``SyncerCore``, its arrays and the connections of its learners.

Decides what ``net.syncer.service`` decides in a real run: which connection a message goes to, when a connection is
closed and who may still be heard on it, and what is on disk when it dies. Does not decide how long anything takes
(``network``) or who breaks what (``world``).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unlockstep.config import RunConfig
from unlockstep.core import messages
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
from unlockstep.core.events import Event
from unlockstep.core.layout import Layout
from unlockstep.core.messages import (
    Disconnected,
    Fenced,
    Join,
    JoinRefused,
    Recorded,
    SeedArrived,
    StateArrived,
    StateComing,
    StateLost,
    SyncerInput,
    UploadMeasured,
    VersionNotice,
    Welcome,
    WentBack,
)
from unlockstep.core.saved import SavedRun
from unlockstep.core.syncer import SyncerCore
from unlockstep.core.traffic import PassingBytes
from unlockstep.learners.backend import FloatArray
from unlockstep.loop import Contribution
from unlockstep.promises import Promises
from unlockstep.sim.cargo import Cargo, Freight, Parcel
from unlockstep.sim.life import Alarm, Happening, Life
from unlockstep.sim.network import Costs, Pipe

if TYPE_CHECKING:
    from unlockstep.sim.learner_host import LearnerProcess

MakeCore = Callable[[RunConfig, str], SyncerCore]
"""Settings and run id -> a syncer's core."""


def production_core(config: RunConfig, run_id: str) -> SyncerCore:
    """The core as a real syncer builds it."""
    run = config.run
    return SyncerCore(
        run.name,
        config.protocol,
        run.steps,
        run.tokens,
        run_id,
        dealing=config.data.dealing,
        rollback=config.rollback,
        codecs=config.codec.uploads,
    )


class Connection:
    """One control connection, from one process of a learner to one process of the syncer."""

    def __init__(self, learner: LearnerProcess, syncer: SyncerProcess, up: Pipe, down: Pipe) -> None:
        self.learner = learner
        self.syncer = syncer
        self.incarnation = 0
        """As the syncer knows its learner: set with the answer to its joining."""
        self.is_closing = False
        """The syncer has said its last word on it, and hears no more."""
        self._up = up
        self._down = down

    def to_syncer(self, do: Happening) -> None:
        """Put something in line that will happen to the syncer's process."""
        self._up.put(lambda: self.syncer.life.happen(do))

    def to_learner(self, do: Happening) -> None:
        """The same, to the learner's."""
        self._down.put(lambda: self.learner.life.happen(do))

    def close_up(self) -> None:
        """The syncer hears no more; what it has said last is still brought to the learner."""
        self._up.close()

    def close(self) -> None:
        """Nothing more passes; what stood in line is lost."""
        self._up.close()
        self._down.close()


@dataclass(frozen=True, slots=True)
class Saved:
    """What one save holds: everything as it was at one moment."""

    run: SavedRun
    layout: Layout | None
    arrays: object | None
    events: int
    """Length of this life's run log: what was logged later is void if this is taken up."""


class Disk:
    """What outlives the processes of a syncer: one run.

    Args:
        draw: decides whether a save that is under way when the process dies is on disk.
        run_id: of the run that is begun where nothing is saved.
    """

    def __init__(self, draw: random.Random, run_id: str) -> None:
        self.draw = draw
        self.run_id = run_id
        self.is_full = False
        self.lives = 0
        """Processes that have used it."""
        self.saved: Saved | None = None
        self.records: dict[int, Saved] = {}
        """Number -> the two newest saves, and those the run may go back to."""
        self._count = 0

    def keep(self, saved: Saved) -> int:
        """From now on this is what the next life takes up; returns its number."""
        self.saved = saved
        self._count += 1
        wanted = {each.record for each in saved.run.evaluations} | {self._count - 1}
        self.records = {number: each for number, each in self.records.items() if number in wanted}
        self.records[self._count] = saved
        return self._count


class SyncerProcess:
    """One life of the syncer. It goes on from what the one before has saved.

    Args:
        life: of this process.
        config: of the run.
        costs: how long a commit takes.
        make_core: what makes its core.
        disk: what the one before has left, and this one leaves.
        freight: what its bodies are.
        executor: threads lent to the merge.
        on_end: called when the run has come to its end.
    """

    def __init__(
        self,
        life: Life,
        config: RunConfig,
        costs: Costs,
        make_core: MakeCore,
        disk: Disk,
        freight: Freight,
        executor: Executor | None,
        on_end: Callable[[], None],
    ) -> None:
        self.life = life
        self.core = make_core(config, disk.run_id)
        self.cargo: Cargo | None = None
        """None until the first learner has brought the layout."""
        self.events: list[Event] = []
        """The run log of this life, as far as nobody has taken it (``take_events``)."""
        self._config = config
        self._costs = costs
        self._freight = freight
        self._executor = executor
        self._on_end = on_end
        self._connections: list[Connection] = []
        self._members: dict[tuple[str, int], Connection] = {}
        self._joining: Connection | None = None
        """Who has said what the core is hearing: the answer to a ``Join`` goes there, whoever bears the name now."""
        self._seeder: tuple[str, int] | None = None
        self._seeded: dict[int, str] = {}
        """Digests of what the seeder has brought; it sends it again if its connection breaks."""
        self._states: dict[int, Parcel] = {}
        """By ticket, what learners have uploaded for others."""
        self._passing = PassingBytes(config.protocol.lease_ns)
        self._alarm = Alarm(life, self._on_deadline)
        self._promises = Promises(config.durability.commits_lost_max)
        self._disk = disk
        self._saving: Saved | None = None
        self.is_starved = False
        """It has ended because there was no room for what it had to save: it is started again when there is."""
        self._logged = self._taken = self._kept = 0
        """Events logged in this life, of these taken by ``take_events``, and covered by a save."""
        disk.lives += 1
        saved = disk.saved
        if saved is not None:
            if saved.layout is not None and saved.arrays is not None:
                self.cargo = freight.cargo(saved.layout, config, executor, saved.arrays)
            self.core.resume(saved.run, saved.layout, disk.lives, self.now_ns)
            self._follow()

    @property
    def now_ns(self) -> int:
        """Time of the run, which its events carry."""
        return self.life.clock.now_ns()

    def take_events(self, is_over: bool = False) -> list[Event]:
        """What has happened for good since the last call: what was logged since the last save may still be void, unless
        the run is over."""
        is_settled = is_over or not self.life.is_alive
        count = (self._logged if is_settled else self._kept) - self._taken
        taken, self.events = self.events[:count], self.events[count:]
        self._taken += count
        return taken

    # ------------------------------------------------------------------------------------------- the core

    def tell(self, message: SyncerInput) -> None:
        """The core receives something now."""
        self.core.receive(message, self.now_ns)
        self._follow()

    def _follow(self) -> None:
        if self.cargo is None and self.core.layout is not None:
            self.cargo = self._freight.cargo(self.core.layout, self._config, self._executor)
        events = self.core.take_events()
        self._logged += len(events)
        self.events.extend(events)
        for action in self.core.take_actions():
            self._carry_out(action)
        self._save_if_due()
        self._alarm.set(self.core.next_deadline_ns())

    def _on_deadline(self) -> None:
        self.core.on_deadline(self.now_ns)
        self._follow()

    def _carry_out(self, action: SyncerAction) -> None:
        match action:
            case SendTo(learner, incarnation, message):
                self._send_to(learner, incarnation, message)
            case Announce(message):
                data = messages.encode(message)
                heard = messages.decode_syncer_message(data)
                for key in sorted(self._members):
                    self._say(self._members[key], heard)
            case Commit():
                self.life.after(self._costs.commit_ns, lambda: self.tell(self.loaded.commit(action)))
            case GoBack(record):
                self.life.after(self._costs.commit_ns, lambda: self._go_back(record))
            case Save():
                self._promises.need(action)
            case Release(payload):
                self.loaded.release(payload)
            case ForgetState(ticket):
                self._states.pop(ticket, None)
            case RunEnded():
                self._promises.send(lambda: self.life.after(2 * self._costs.message_ns, self._on_end))

    # ------------------------------------------------------------------------------------------- saving

    def _save_if_due(self) -> None:
        if self._promises.begin_save():
            arrays = None if self.cargo is None or not self.core.notices else self.cargo.saved()
            self._saving = Saved(self.core.saved(self.now_ns), self.core.layout, arrays, self._logged)
            self.life.after(self._costs.save_ns, self._end_save)

    def _end_save(self) -> None:
        if self._disk.is_full:
            self._saving, self.is_starved = None, True
            self.die()
            return
        record = self._keep()
        if self.core.wants_records and self._disk.saved is not None:
            self.tell(Recorded(record, tuple(notice.version for notice in self._disk.saved.run.notices)))
        self._promises.end_save()
        self._save_if_due()

    def _keep(self) -> int:
        """What was being saved is on disk; returns the number of its record."""
        saving, self._saving = self._saving, None
        if saving is None:
            return 0
        self._kept = saving.events
        return self._disk.keep(saving)

    def _go_back(self, record: int) -> None:
        there = self._disk.records.get(record)
        arrays = None if there is None else there.arrays
        self.tell(WentBack(record, () if arrays is None else self.loaded.go_back(arrays)))

    @property
    def loaded(self) -> Cargo:
        assert self.cargo is not None, "the core speaks of arrays before any learner has brought a layout"
        return self.cargo

    # ------------------------------------------------------------------------------------------- connections

    def accept(self, connection: Connection) -> None:
        """A learner has connected; it will say who it is."""
        self._connections.append(connection)

    def hear(self, connection: Connection, data: bytes) -> None:
        """What a learner has said."""
        if connection.is_closing:
            return
        message = messages.decode_learner_message(data)
        self._joining = connection if isinstance(message, Join) else None
        self.tell(message)
        self._joining = None

    def gone(self, connection: Connection) -> None:
        """A connection has ended, whoever ended it. What was said on it last is still brought to the learner."""
        connection.close_up()
        if connection in self._connections:
            self._connections.remove(connection)
        key = connection.learner.name, connection.incarnation
        if self._members.get(key) is connection:
            del self._members[key]
            self.tell(Disconnected(*key))

    def die(self) -> None:
        """The process is gone; every learner's connection breaks."""
        self.life.end()
        if self._disk.draw.random() < 0.5:
            self._keep()
        del self.events[self._kept - self._taken :]
        self._logged = self._kept
        self.cargo = None  # Its memory is gone, too.
        self._states.clear()
        for connection in self._connections:
            self._put_end(connection)

    def _send_to(self, learner: str, incarnation: int, message: messages.SyncerMessage) -> None:
        if isinstance(message, Welcome):
            self._admit(learner, message)
        joining = self._joining
        turned_away = isinstance(message, JoinRefused) and joining is not None and joining.learner.name == learner
        connection = joining if turned_away else self._members.get((learner, incarnation))
        if connection is None or connection.is_closing:
            return
        self._say(connection, messages.decode_syncer_message(messages.encode(message)))
        if isinstance(message, JoinRefused | Fenced):
            connection.is_closing = True
            self._promises.send(lambda: self._close(connection))

    def _admit(self, learner: str, welcome: Welcome) -> None:
        """From here on this incarnation is reached by the connection that has just asked to join."""
        key = learner, welcome.incarnation
        if welcome.seed and self._seeder != key:
            if self._seeder is not None:
                self.loaded.seed_anew()
            self._seeder = key
            self._seeded.clear()
        joining = self._joining
        if joining is None or joining.learner.name != learner:  # It is welcomed once more, as the new seeder.
            return
        replaced = self._members.get(key)
        if replaced is not None and replaced is not joining:
            self._close(replaced)
        joining.incarnation = welcome.incarnation
        self._members[key] = joining

    def _say(self, connection: Connection, message: messages.SyncerMessage) -> None:
        """Once what it promises is saved."""
        self._promises.send(lambda: self._put(connection, message))

    def _put(self, connection: Connection, message: messages.SyncerMessage) -> None:
        connection.to_learner(lambda: connection.learner.hear(connection, message))

    def _put_end(self, connection: Connection) -> None:
        connection.to_learner(lambda: connection.learner.lose(connection))

    def _close(self, connection: Connection) -> None:
        """Say goodbye; what the learner still says is not heard."""
        connection.is_closing = True
        self._put_end(connection)
        self.life.after(2 * self._costs.message_ns, lambda: self.gone(connection))

    # ------------------------------------------------------------------------------------------- bodies

    def passed(self, learner: str, incarnation: int, *, up_bytes: int = 0, down_bytes: int = 0) -> None:
        """A body has come from this start of a learner, or gone to it. What has no size is nothing on a wire."""
        if up_bytes or down_bytes:
            sign = self._passing.add(learner, incarnation, up_bytes, down_bytes, self.now_ns)
            if sign is not None:
                self.tell(sign)

    def take_upload(self, made: Contribution, parcel: Parcel, took_ns: int) -> bool:
        """An upload is complete, and how long it took; whether it was made for this run."""
        if self.cargo is None or made.run_id != self.core.run_id:
            return False
        self.passed(made.learner, made.incarnation, up_bytes=parcel.size)
        self.tell(UploadMeasured(made.learner, made.incarnation, parcel.size, took_ns))
        self.tell(self.cargo.receive(made, parcel))
        return True

    def take_seed(self, run_id: str, learner: str, incarnation: int, fragment: int, values: FloatArray) -> bool:
        """Version 0 of a fragment is here; whether it was this learner's to bring."""
        if run_id != self.core.run_id or self._seeder != (learner, incarnation):
            return False
        if fragment not in self._seeded:
            self._seeded[fragment] = self.loaded.seed(fragment, values).digest
        self.tell(SeedArrived(learner, incarnation, fragment, self._seeded[fragment]))
        return True

    def take_state(self, run_id: str, learner: str, incarnation: int, ticket: int, parcel: Parcel) -> bool:
        """A learner's state is here; whether it was wanted, and is what was sent."""
        if run_id != self.core.run_id or not self.core.donations.is_expected(ticket, learner, incarnation):
            return False
        if not parcel.is_what_was_sent:
            self.tell(StateLost(ticket, "what came is not what was sent"))
            return False
        self._states[ticket] = parcel
        self.tell(StateArrived(ticket, parcel.digest, parcel.size))
        return True

    def give_state(self, ticket: int) -> Parcel | None:
        """It is fetched; None if it is not to be had (any more)."""
        if ticket in self._states:
            self.tell(StateComing(ticket))
        return self._states.get(ticket)

    @property
    def states_kept(self) -> int:
        """How many there are."""
        return len(self._states)

    def give(self, notice: VersionNotice) -> Parcel | None:
        """The body of a version; None if it is not to be had."""
        return None if self.cargo is None else self.cargo.body(notice)
