"""One history of the data of a run: learners that join, die, leave, fall silent and come back, a syncer that crashes.

Decides what happens, by seed, and what the world really saw: which process trained which place, and which of it is in
a contribution that counts. Knows nothing of how the book works: it plays the syncer and the network around it, with
messages held back until the state they rest on is on disk.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import numpy as np

from unlockstep.core.data_book import DataBook, DataBookState, Grant
from unlockstep.data.leased import LeasedStream

Place = tuple[int, int]
"""(epoch, place)"""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What a story is about."""

    sequences: int = 47
    chunk_sequences: int = 7
    epochs: int = 2
    batch_size: int = 3
    learners: int = 3
    happenings: int = 600
    silence: bool = True
    """Whether a lease may end that belongs to a process which is still there."""
    crashes: bool = True
    durable_first: bool = True


@dataclass(eq=False)
class Process:
    """One start of a learner."""

    name: str
    stream: LeasedStream
    number: int = 0
    """0: the syncer has not said yet."""
    incarnation: int = 0
    is_alive: bool = True
    session: int = 0
    """Of its connection; 0: none."""
    is_welcome: bool = False
    inbox: list[tuple[str, int, int, tuple[Grant, ...]]] = field(default_factory=list)
    trained: list[Place] = field(default_factory=list)
    handed_over: int = 0
    """Samples of its newest contribution."""


@dataclass
class Books:
    """What the syncer knows and writes to disk, and what is true only as long as it does."""

    present: dict[str, bool] = field(default_factory=dict)
    number: dict[str, int] = field(default_factory=dict)
    incarnation: dict[str, int] = field(default_factory=dict)
    counted: dict[int, int] = field(default_factory=dict)
    """By index of the process: how many of the sequences it trained are in contributions that were accepted."""
    lost: dict[int, list[range]] = field(default_factory=dict)
    """... but for these, which a crash took, and which were returned."""


class DataStory:
    """Plays a plot to its end: ``play`` returns when all data is trained for good."""

    def __init__(self, plot: Plot, seed: int, book_type: type[DataBook] = DataBook) -> None:
        self.plot = plot
        self.random = random.Random(seed)
        self.book_type = book_type
        self.book = self._new_book()
        self.books = Books()
        self.processes: list[Process] = []
        self.silenced: list[Process] = []
        """Whose lease ended while they lived."""
        self.under_way: list[tuple[Process, int, int, int]] = []
        """Contributions: (process, its incarnation, position, samples)."""
        self.held_back: list[tuple[Process, int, tuple[str, int, int, tuple[Grant, ...]]]] = []
        self.sessions = 0
        self.disk = (self._encoded(), copy.deepcopy(self.books))

    def _new_book(self) -> DataBook:
        return self.book_type(self.plot.sequences, self.plot.chunk_sequences, self.plot.epochs)

    def _encoded(self) -> bytes:
        return msgspec.msgpack.encode(self.book.state())

    # --------------------------------------------------------------------------------------------- the whole story

    def play(self) -> None:
        odds = {
            self.train: 24, self.report: 12, self.hand_over: 12, self.arrive: 16, self.read: 24, self.write_down: 12,
            self.start: 6, self.connect: 6, self.break_connection: 2, self.expire: 2, self.die: 1, self.leave: 1,
            self.give_up: 8,
            self.crash: int(self.plot.crashes),
        }  # fmt: skip
        for _ in range(self.plot.happenings):
            self.random.choices([*odds], weights=[*odds.values()])[0]()
            self.check()
        self.finish()

    def finish(self) -> None:
        """Nothing goes wrong any more."""
        places = self.plot.sequences * self.plot.epochs
        for _ in range(20 * places):
            if self.book.is_finished:
                self.check()
                return
            for name, is_present in self.books.present.items():
                if is_present and not any(p.name == name and p.is_alive for p in self.processes):
                    self.end(name)
            if not any(process.is_alive for process in self.processes):
                self.start()
            for process in [process for process in self.processes if process.is_alive]:
                self.connect(process)
                self.read(process)
                self.train(process)
                self.report(process)
                self.hand_over(process)
            while self.under_way:
                self.arrive()
            for process in [process for process in self.processes if process.is_alive]:
                self.give_up(process)
            self.write_down()
            self.check()
        raise AssertionError(f"the data did not come to its end: {self.book.status()}")

    def check(self) -> None:
        """What must hold at every moment."""
        s, state = self.book.status(), self.book.state()
        assert s.dealt == s.reached + s.held + s.waiting, s
        assert s.granted == s.reached + s.held + s.returned, s
        assert s.trained == s.reached + s.ahead + s.repeated, s
        assert min(msgspec.structs.astuple(s)) >= 0, s
        grants = [grant for holding in state.holdings.values() for grant in holding.grants]
        grants += [returned.grant for returned in state.waiting]
        assert len({(grant.epoch, grant.stop) for grant in grants}) == len(grants), "a chunk is in two pieces"
        assert len(state.holdings) <= self.plot.learners

    # --------------------------------------------------------------------------------------------- learners

    def _pick(self, process: Process | None) -> Process | None:
        alive = [process for process in self.processes if process.is_alive]
        return process or (self.random.choice(alive) if alive else None)

    def start(self) -> None:
        """A new process, under a name that may be in use."""
        if sum(process.is_alive for process in self.processes) < self.plot.learners:
            tokens = np.arange(self.plot.sequences + 1, dtype=np.uint16)
            stream = LeasedStream(tokens, 1, self.plot.batch_size, seed=0)
            self.processes.append(Process(f"learner-{self.random.randrange(self.plot.learners)}", stream))
            self.connect(self.processes[-1])

    def train(self, process: Process | None = None) -> None:
        process = self._pick(process)
        if process is not None and process.stream.remaining:
            epochs, places = process.stream.places()
            process.trained += zip(epochs.tolist(), places.tolist(), strict=True)
            process.stream.next()

    def report(self, process: Process | None = None) -> None:
        process = self._pick(process)
        if process is None or not process.is_welcome:
            return
        if self._is_current(process, process.incarnation):
            self.book.trained(process.name, process.number, process.stream.position, process.stream.samples)
            self._top_up(process)
        else:  # it is told so, and joins again
            self.break_connection(process)
            self.connect(process)

    def hand_over(self, process: Process | None = None) -> None:
        process = self._pick(process)
        if process is not None and process.is_welcome and process.stream.samples > process.handed_over:
            stream = process.stream
            process.handed_over = stream.samples
            self.under_way.append((process, process.incarnation, stream.position, stream.samples))

    def read(self, process: Process | None = None) -> None:
        """One message of the syncer's, in the order sent."""
        process = self._pick(process)
        if process is None or not process.inbox:
            return
        kind, number, incarnation, grants = process.inbox.pop(0)
        if kind == "welcome":
            process.number, process.incarnation, process.is_welcome = number, incarnation, True
            process.stream.hold(grants)
        else:
            process.stream.add(grants)

    def break_connection(self, process: Process | None = None) -> None:
        process = self._pick(process)
        if process is not None:
            process.session, process.is_welcome = 0, False
            process.inbox.clear()

    def die(self) -> None:
        process = self._pick(None)
        if process is not None:
            self.break_connection(process)
            process.is_alive = False

    def leave(self) -> None:
        """What it has handed over arrives, or some of it does not; then it goes."""
        process = self._pick(None)
        if process is None or not process.is_welcome:
            return
        if self.random.random() < 0.7:
            self.hand_over(process)
        mine = [made for made in self.under_way if made[0] is process]
        self.under_way = [made for made in self.under_way if made[0] is not process]
        delivered = [made for made in mine if self.random.random() < 0.9 and self._accept(*made)]
        if self._is_current(process, process.incarnation):
            self.book.trained(process.name, process.number, process.stream.position, process.stream.samples)
            self.book.left(process.name, process.number, max((made[2] for made in delivered), default=0))
            self.books.present[process.name] = False
        self.break_connection(process)
        process.is_alive = False

    # --------------------------------------------------------------------------------------------- the syncer

    def connect(self, process: Process | None = None) -> None:
        """A process without a connection makes one and joins."""
        process = self._pick(process)
        if process is None or process.session:
            return
        self.sessions += 1
        process.session = self.sessions
        name, books = process.name, self.books
        if process.number and books.number.get(name) != process.number:
            self.break_connection(process)
            process.is_alive = False  # another process has the name
            return
        position, samples = process.stream.position, process.stream.samples
        if process.number and books.present[name]:
            self.book.trained(name, process.number, position, samples)
        elif process.number:
            self.silenced.append(process)
            self.book.came_back(name, process.number, position, samples)
            books.incarnation[name] += 1
        else:
            self.end(name)
            books.incarnation[name] = books.number[name] = books.incarnation.get(name, 0) + 1
        books.present[name] = True
        number = books.number[name]
        self._send(process, ("welcome", number, books.incarnation[name], self.book.held(name, number)))

    def _is_current(self, process: Process, incarnation: int) -> bool:
        return self.books.present[process.name] and self.books.incarnation[process.name] == incarnation

    def _top_up(self, process: Process) -> None:
        if self.book.untrained(process.name, process.number) < self.plot.chunk_sequences:
            grants = self.book.grant(process.name, process.number, self.plot.chunk_sequences)
            self._send(process, ("grants", 0, 0, grants))

    def _send(self, process: Process, message: tuple[str, int, int, tuple[Grant, ...]]) -> None:
        self.held_back.append((process, process.session, message))
        if not self.plot.durable_first:
            self._release()

    def write_down(self) -> None:
        """The state is on disk: what rests on it may be said."""
        self.disk = (self._encoded(), copy.deepcopy(self.books))
        self._release()

    def _release(self) -> None:
        for process, session, message in self.held_back:
            if process.session == session:
                process.inbox.append(message)
        self.held_back.clear()

    def arrive(self) -> None:
        """Any contribution under way arrives."""
        if self.under_way:
            self._accept(*self.under_way.pop(self.random.randrange(len(self.under_way))))

    def _accept(self, process: Process, incarnation: int, position: int, samples: int) -> bool:
        if not self._is_current(process, incarnation):
            return False
        self.book.reached(process.name, process.number, position, samples)
        index = self.processes.index(process)
        self.books.counted[index] = max(samples, self.books.counted.get(index, 0))
        return True

    def give_up(self, process: Process | None = None) -> None:
        """Nothing of it is under way, and all is handed over: what the syncer does not have of it was lost in a crash,
        or arrived while its lease had ended."""
        process = self._pick(process)
        if process is None or not process.is_welcome or process.handed_over < process.stream.samples:
            return
        waits = any(made[0] is process for made in self.under_way)
        if not waits and self._is_current(process, process.incarnation):
            self.book.trained(process.name, process.number, process.stream.position, process.stream.samples)
            self.book.lost(process.name, process.number)
            index = self.processes.index(process)
            lost = range(self.books.counted.get(index, 0), process.stream.samples)
            self.books.lost.setdefault(index, []).append(lost)

    def expire(self) -> None:
        """The lease of somebody ends: of a dead one's name, or, in a story with silence, of anybody's."""
        names = [name for name, is_present in self.books.present.items() if is_present]
        if not self.plot.silence:
            names = [name for name in names if not any(p.name == name and p.is_alive for p in self.processes)]
        if names:
            self.end(self.random.choice(names))

    def end(self, name: str) -> None:
        if self.books.present.get(name):
            self.book.ended(name, self.books.number[name])
            self.books.present[name] = False

    def crash(self) -> None:
        """The syncer starts again from what is on disk: everybody's connection is broken."""
        self.held_back.clear()
        for process in self.processes:
            self.break_connection(process)
        state, books = self.disk
        self.books = copy.deepcopy(books)
        self.book = self._new_book()
        self.book.restore(msgspec.msgpack.decode(state, type=DataBookState))
        self.under_way = [made for made in self.under_way if self.random.random() < 0.5]

    # --------------------------------------------------------------------------------------------- what really happened

    def times_counted(self) -> Counter[Place]:
        """How many processes' accepted contributions hold each place."""
        return Counter(place for index in range(len(self.processes)) for place in self._counted(index))

    def times_counted_of_the_steady(self) -> Counter[Place]:
        """... of processes whose lease never ended while they lived."""
        steady = [index for index, process in enumerate(self.processes) if process not in self.silenced]
        return Counter(place for index in steady for place in self._counted(index))

    def _counted(self, index: int) -> list[Place]:
        trained = self.processes[index].trained[: self.books.counted.get(index, 0)]
        lost = self.books.lost.get(index, [])
        return [place for number, place in enumerate(trained) if not any(number in part for part in lost)]

    def times_trained(self) -> Counter[Place]:
        return Counter(place for process in self.processes for place in process.trained)
