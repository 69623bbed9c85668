"""Which part of the corpus is whose: every place of every epoch is dealt out, trained, or waits to be dealt out again.

Decides what a learner is granted next, and what becomes of it when the learner goes. Does not decide when a learner is
granted more or counts as gone (``syncer``), nor which sequence is at a place (``data.stream``).

The corpus is S sequences. An epoch is the places 0 to S - 1 of one permutation of them; a *grant* is a range of places
of one epoch, at first a whole chunk. What a process was ever granted, one grant after the other, is its *course*; it
trains along it, and its *position* says how far it has come. Hence one number per process, never going back, tells what
became of each of its grants, and a message that is lost loses nothing::

    course   |  grant  |  grant  |~~taken away~~|  grant  |
             0        4096      8192           12288     16384
                          ^ reached   ^ position

*Reached* is the position of the newest contribution that counts: what lies before it is trained for good. What lies
behind it when the process goes is returned and granted anew, before anything that never was. A process that was only
silent is given back what nobody has taken meanwhile; the rest of its course it passes over. So *samples*, what it has
really trained, tells what was trained twice::

    dealt   = reached + held + waiting      every place that ever left the corpus is in one class
    granted = reached + held + returned
    trained = reached + ahead + repeated    ahead: held, and trained by what its holder says

Everything said to a learner here must be durable first (docs/data.md): then the book that a restarted syncer reads
knows every grant that any learner knows.
"""

from __future__ import annotations

from bisect import insort

import msgspec

from unlockstep.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError


class Grant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Places ``start`` up to, but not including, ``stop`` of one epoch, for one process to train."""

    at: int
    """Where on the course of the process it begins."""
    epoch: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def end(self) -> int:
        """Where on the course of the process it ends."""
        return self.at + self.size

    def beyond(self, position: int) -> Grant:
        """What is left of it at that position of the course; of size 0 if nothing is."""
        passed = min(max(position - self.at, 0), self.size)
        return Grant(self.at + passed, self.epoch, self.start + passed, self.stop)


def beyond(grants: tuple[Grant, ...], position: int) -> tuple[Grant, ...]:
    """What is left of ``grants``, in order, for a process that has come to ``position``."""
    return tuple(grant.beyond(position) for grant in grants if grant.end > position)


def size(grants: tuple[Grant, ...]) -> int:
    """Sequences in ``grants``."""
    return sum(grant.size for grant in grants)


class Holding(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The newest process of a learner that was granted anything, and what it has not reached yet."""

    process: int
    """Which one: the number of its first incarnation."""
    granted: int = 0
    """Length of its course."""
    position: int = 0
    """How far it has come, by what it says."""
    samples: int = 0
    """Sequences it has trained, by what it says."""
    is_ended: bool = False
    """It is silent or dead: what it held is returned."""
    grants: tuple[Grant, ...] = ()
    """In the order of its course."""


class Returned(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A grant that waits to be granted anew, and to whom it may be given back."""

    learner: str
    """Empty: to nobody, because its process has trained it and goes on behind it."""
    process: int
    grant: Grant

    def belongs_to(self, learner: str, process: int) -> bool:
        return self.learner == learner and self.process == process


class DataBookState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Everything a ``DataBook`` knows. Ranges, never sequences: its size is that of the chunks begun and not finished,
    and of one line for each name whose last process did not leave in order."""

    sequences: int
    dealt: int = 0
    granted: int = 0
    returned: int = 0
    reached: int = 0
    trained: int = 0
    holdings: dict[str, Holding] = {}
    waiting: tuple[Returned, ...] = ()


class DataStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How far the data has come; sequences, summed over epochs. The balances are in the docstring of the module."""

    sequences: int
    """Of one epoch."""
    epochs: int
    """To be trained; 0: without end."""
    epoch: float
    """Epochs reached."""
    dealt: int
    granted: int
    returned: int
    reached: int
    held: int
    """Granted to a process that is here, and not reached."""
    ahead: int
    waiting: int
    trained: int
    repeated: int
    """Trained once more than the corpus asks for: what a process trained behind what it had reached, and what then was
    lost with it, or taken from it."""


class DataBook:
    """The corpus of one run and who holds what of it.

    Every method that takes ``process`` does nothing for another than the newest process of the learner. ``position``
    and ``samples`` are cumulative; an older one may arrive after a newer one.

    Args:
        sequences: S, sequences of the corpus.
        chunk_sequences: size of a grant that comes fresh from the corpus; the last of an epoch may be smaller.
        epochs: times each sequence is to be trained; 0: without end.

    Raises:
        ConfigError: a number out of range.
    """

    def __init__(self, sequences: int, chunk_sequences: int, epochs: int) -> None:
        if sequences < 1:
            raise ConfigError("data.source holds no training sequence: give a longer corpus")
        if chunk_sequences < 1:
            raise ConfigError(f"data.chunk_sequences is {chunk_sequences}; it must be at least 1")
        if epochs < 0:
            raise ConfigError(f"data.epochs is {epochs}; give how often to train each sequence, or 0 for no end")
        self._sequences = sequences
        self._chunk_sequences = chunk_sequences
        self._epochs = epochs
        self._dealt = self._granted = self._returned = self._reached = self._trained = 0
        self._holdings: dict[str, Holding] = {}
        self._waiting: list[Returned] = []
        """The oldest places first."""

    # --------------------------------------------------------------------------------------------- what is granted

    def grant(self, learner: str, process: int, wanted: int) -> tuple[Grant, ...]:
        """Grants of at least ``wanted`` sequences together, behind what the process holds; fewer when nothing is left.

        To be told only when it is durable.

        Raises:
            LocalProtocolError: an earlier process of the learner still holds grants; end it first.
        """
        holding = self._holdings.get(learner)
        if holding is None or (holding.process < process and holding.is_ended):
            holding = Holding(process)
        elif holding.process != process or holding.is_ended:
            raise LocalProtocolError(
                f"process {process} of {learner} cannot be granted data: process {holding.process} "
                f"{'has ended' if holding.is_ended else 'holds some'}"
            )
        new: list[Grant] = []
        course = holding.granted
        while course - holding.granted < wanted and not self.is_exhausted:
            epoch, start, stop = self._next_range()
            new.append(Grant(course, epoch, start, stop))
            course += stop - start
        self._granted += course - holding.granted
        self._holdings[learner] = msgspec.structs.replace(
            holding, granted=course, grants=(*holding.grants, *new), is_ended=False
        )
        return tuple(new)

    def _next_range(self) -> tuple[int, int, int]:
        """(epoch, start, stop): what was returned comes before what never was granted."""
        if self._waiting:
            grant = self._waiting.pop(0).grant
            return grant.epoch, grant.start, grant.stop
        epoch, start = divmod(self._dealt, self._sequences)
        stop = min(start + self._chunk_sequences, self._sequences)
        self._dealt += stop - start
        return epoch, start, stop

    def held(self, learner: str, process: int) -> tuple[Grant, ...]:
        """All that the process holds and has not reached, in order: what a ``Welcome`` says. What it knows of beside
        this was taken from it."""
        holding = self._find(learner, process)
        return () if holding is None else holding.grants

    def length(self, learner: str, process: int) -> int:
        """Of its course: all it was ever granted."""
        holding = self._find(learner, process)
        return 0 if holding is None else holding.granted

    def holder(self, learner: str) -> int | None:
        """The process of the learner that has a course and has not ended; None if there is none."""
        holding = self._holdings.get(learner)
        return None if holding is None or holding.is_ended else holding.process

    def untrained(self, learner: str, process: int) -> int:
        """Sequences that the process holds and has not trained yet, by what it says."""
        holding = self._find(learner, process)
        return 0 if holding is None else size(beyond(holding.grants, holding.position))

    # --------------------------------------------------------------------------------------------- how far they come

    def trained(self, learner: str, process: int, position: int, samples: int) -> None:
        """The process says how far it has come, and what it has trained on the way.

        Raises:
            RemoteProtocolError: it says more than it was granted.
        """
        holding = self._find(learner, process)
        if holding is None:
            return
        if not 0 <= samples <= position <= holding.granted:
            raise RemoteProtocolError(
                f"{learner} says it has trained {samples} sequences and come to position {position} of "
                f"{holding.granted} it was granted"
            )
        self._trained += max(0, samples - holding.samples)
        self._holdings[learner] = msgspec.structs.replace(
            holding, position=max(holding.position, position), samples=max(holding.samples, samples)
        )

    def reached(self, learner: str, process: int, position: int, samples: int) -> None:
        """A contribution counts that its process handed over at ``position``, with ``samples`` trained.

        Raises:
            RemoteProtocolError: it says more than it was granted.
        """
        self.trained(learner, process, position, samples)
        self._pass(learner, process, position)

    def _pass(self, learner: str, process: int, position: int) -> None:
        holding = self._find(learner, process)
        if holding is None:
            return
        left = beyond(holding.grants, position)
        self._reached += size(holding.grants) - size(left)
        self._holdings[learner] = msgspec.structs.replace(holding, grants=left)

    # --------------------------------------------------------------------------------------------- going, coming back

    def ended(self, learner: str, process: int) -> None:
        """The process is silent, dead or superseded: what it has not reached is to be granted to others."""
        holding = self._find(learner, process)
        if holding is None:
            return
        for grant in holding.grants:
            insort(self._waiting, Returned(learner, process, grant), key=_age)
        self._returned += size(holding.grants)
        self._holdings[learner] = msgspec.structs.replace(holding, is_ended=True, grants=())

    def lost(self, learner: str, process: int) -> tuple[Grant, ...]:
        """What the process has trained behind what it has reached will not arrive any more, though it is still here (a
        syncer that crashed had accepted it, or it was refused, and the process has handed over all it had): to be
        trained anew. Returns what that is."""
        holding = self._find(learner, process)
        if holding is None:
            return ()
        left = beyond(holding.grants, holding.position)
        trained = [
            msgspec.structs.replace(grant, stop=min(grant.stop, grant.start + holding.position - grant.at))
            for grant in holding.grants
            if grant.at < holding.position
        ]
        for grant in trained:
            insort(self._waiting, Returned("", 0, grant), key=_age)
        self._returned += size(holding.grants) - size(left)
        self._holdings[learner] = msgspec.structs.replace(holding, grants=left)
        return tuple(trained)

    def left(self, learner: str, process: int, position: int) -> None:
        """The process goes in order; ``position``: where it last handed over. It will not come back."""
        self._pass(learner, process, position)
        self.ended(learner, process)
        if self._find(learner, process) is not None:
            del self._holdings[learner]

    def came_back(self, learner: str, process: int, position: int, samples: int) -> tuple[Grant, ...]:
        """The process was only silent: it holds again what nobody has taken, and all of that is returned, in order.

        What it has trained of it in silence is not trained anew. Also right for one that had not ended.

        Raises:
            RemoteProtocolError: it says more than it was granted.
        """
        self.trained(learner, process, position, samples)
        holding = self._find(learner, process)
        if holding is None or not holding.is_ended:
            return self.held(learner, process)
        mine = [returned.grant for returned in self._waiting if returned.belongs_to(learner, process)]
        self._waiting = [returned for returned in self._waiting if not returned.belongs_to(learner, process)]
        grants = tuple(sorted(mine, key=lambda grant: grant.at))
        self._granted += size(grants)
        self._holdings[learner] = msgspec.structs.replace(holding, is_ended=False, grants=grants)
        return grants

    def _find(self, learner: str, process: int) -> Holding | None:
        holding = self._holdings.get(learner)
        return holding if holding is not None and holding.process == process else None

    # --------------------------------------------------------------------------------------------- as a whole

    @property
    def sequences(self) -> int:
        """S."""
        return self._sequences

    @property
    def is_exhausted(self) -> bool:
        """Nothing can be granted now. It can again when somebody goes before it has reached the end of its grants."""
        return not self._waiting and 0 < self._epochs * self._sequences <= self._dealt

    @property
    def is_trained(self) -> bool:
        """Everything is trained, by what the learners say: it is time to collect the last contributions."""
        return self.is_exhausted and all(
            not beyond(holding.grants, holding.position) for holding in self._holdings.values()
        )

    @property
    def is_finished(self) -> bool:
        """Everything is trained for good."""
        return self.is_exhausted and not any(holding.grants for holding in self._holdings.values())

    def status(self) -> DataStatus:
        """For people and for checks."""
        holdings = self._holdings.values()
        held = sum(size(holding.grants) for holding in holdings)
        ahead = held - sum(size(beyond(holding.grants, holding.position)) for holding in holdings)
        return DataStatus(
            sequences=self._sequences,
            epochs=self._epochs,
            epoch=self._reached / self._sequences,
            dealt=self._dealt,
            granted=self._granted,
            returned=self._returned,
            reached=self._reached,
            held=held,
            ahead=ahead,
            waiting=sum(returned.grant.size for returned in self._waiting),
            trained=self._trained,
            repeated=self._trained - self._reached - ahead,
        )

    def state(self) -> DataBookState:
        """All of it, to be written down. What happens afterwards does not change it."""
        return DataBookState(
            sequences=self._sequences,
            dealt=self._dealt,
            granted=self._granted,
            returned=self._returned,
            reached=self._reached,
            trained=self._trained,
            holdings=dict(self._holdings),
            waiting=tuple(self._waiting),
        )

    def restore(self, state: DataBookState) -> None:
        """Go on from ``state``. Learners that are still there say how far they have come meanwhile.

        Raises:
            ConfigError: the corpus has another number of sequences now.
        """
        if state.sequences != self._sequences:
            raise ConfigError(
                f"data.source holds {self._sequences} training sequences and held {state.sequences} when the run "
                "began: give the same corpus, or start the run anew"
            )
        self._dealt, self._granted, self._returned = state.dealt, state.granted, state.returned
        self._reached, self._trained = state.reached, state.trained
        self._holdings, self._waiting = dict(state.holdings), list(state.waiting)


def _age(returned: Returned) -> tuple[int, int]:
    return returned.grant.epoch, returned.grant.start
