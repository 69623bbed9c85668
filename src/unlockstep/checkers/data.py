"""Safety of data leases: which place of the corpus was whose, computed from the events a second time.

Decides one rule. Shares nothing with ``core.data_book`` but what a grant is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec

from unlockstep.checkers.rule import Checker, Reactions
from unlockstep.core.data_book import DataStatus, Grant
from unlockstep.core.events import (
    ContributionAccepted,
    DataGranted,
    DataOpened,
    DataReturned,
    Event,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLeaving,
    RunFinished,
    RunFinishing,
    StepReported,
    SyncerResumed,
)
from unlockstep.core.leasing import EVERYTHING_TRAINED

Places = tuple[int, int, int]
"""(epoch, start, stop)"""


class _Holder:
    """The newest process of a learner that was granted anything."""

    __slots__ = ("granted", "grants", "position", "process", "reported", "samples")

    def __init__(self, process: int) -> None:
        self.process = process
        self.granted = self.position = self.samples = 0
        self.reported = 0, 0
        """Position and samples of its latest report."""
        self.grants: list[Grant] = []
        """Held, and not reached."""

    def pass_by(self, position: int) -> int:
        """It has reached this position; how many places that is in addition."""
        before = _size(self.grants)
        self.grants = [grant.beyond(position) for grant in self.grants if grant.end > position]
        return before - _size(self.grants)

    @property
    def ahead(self) -> int:
        """Of what it holds, what it has trained."""
        return sum(min(max(self.position - grant.at, 0), grant.size) for grant in self.grants)


def _size(grants: list[Grant]) -> int:
    return sum(grant.size for grant in grants)


class Data(Checker):
    """Places are granted in the order of the corpus, a chunk at a time and without a gap; what was returned comes
    before what never was granted, the oldest first. So nobody is granted what another one holds. What is returned was
    held. A process never goes back on its course, nor beyond what it was granted. It is topped up whenever it reports
    a step, as long as there is anything to be had. The run ends with the totals that follow from all this; if it ends
    because every sequence is trained, then every one is in a version, as often as asked for."""

    name = "data"
    meaning = "every place of the corpus is granted in order, to one process at a time, and trained as often as asked"

    def begin(self) -> None:
        self._opened: DataOpened | None = None
        self._holders: dict[str, _Holder] = {}
        self._waiting: list[Places] = []
        self._dealt = self._granted = self._returned = self._reached = self._trained = 0
        self._reported: tuple[int, str, int] | None = None
        """Time, learner and incarnation of the latest report, until it is looked whether it was topped up."""
        self._reason = ""

    def resume(self, event: SyncerResumed) -> None:
        self._reported, self._reason = None, ""

    def before(self) -> Reactions:
        reactions = dict[type[Any], Callable[[Any], None]]()
        reactions |= dict.fromkeys(get_args(Event), self._look)
        special: Reactions = {
            DataOpened: self._open,
            DataGranted: self._grant,
            DataReturned: self._return,
            StepReported: self._step,
            ContributionAccepted: self._accept,
            FragmentCommitted: self._commit,
            LearnerDeparted: self._forget_report,
            LearnerAway: self._forget_report,
            LearnerLeaving: self._forget_report,
            LearnerJoined: self._join,
            RunFinishing: self._finishing,
            RunFinished: self._finished,
        }
        return reactions | special

    # ------------------------------------------------------------------------------------------- what is whose

    def _open(self, event: DataOpened) -> None:
        self.begin()
        self._opened = event

    def _process(self, learner: str) -> int:
        known = self.history.learners.get(learner)
        return 0 if known is None else known.process_since

    def _grant(self, event: DataGranted) -> None:
        process = self._process(event.learner)
        holder = self._holders.get(event.learner)
        if holder is None or holder.process != process:
            if holder is not None and holder.grants:
                self.find(f"{event.learner} is granted data while its process {holder.process} holds some")
            holder = self._holders[event.learner] = _Holder(process)
        for grant in event.grants:
            if grant.at < holder.granted:
                self._take(event.learner, grant)
            else:
                self._take_next(event.learner, grant, holder)
                holder.granted = grant.end
            holder.grants.append(grant)
            self._granted += grant.size

    def _take(self, learner: str, grant: Grant) -> None:
        """It is given back what it had lost."""
        places = grant.epoch, grant.start, grant.stop
        if places in self._waiting:
            self._waiting.remove(places)
        else:
            self.find(f"{learner} is given back {_text(places)}, which is not to be had")

    def _take_next(self, learner: str, grant: Grant, holder: _Holder) -> None:
        """It is granted what comes next."""
        places = grant.epoch, grant.start, grant.stop
        if grant.at != holder.granted:
            self.find(
                f"{learner} is granted {_text(places)} at {grant.at} of its course, which ends at {holder.granted}"
            )
        if self._waiting:
            self._waiting.sort()
            expected = self._waiting[0]
            if places in self._waiting:
                self._waiting.remove(places)
        else:
            expected = self._next()
            self._dealt += grant.size
        if places != expected:
            self.find(f"{learner} is granted {_text(places)}, but {_text(expected)} is next")

    def _next(self) -> Places:
        """What comes fresh from the corpus."""
        assert self._opened is not None, "nothing is granted of a corpus that nobody has brought"
        epoch, start = divmod(self._dealt, self._opened.sequences)
        if 0 < self._opened.epochs <= epoch:
            self.find(f"more than {self._opened.epochs} epochs are dealt out")
        return epoch, start, min(start + self._opened.chunk_sequences, self._opened.sequences)

    def _return(self, event: DataReturned) -> None:
        holder = self._holders.get(event.learner)
        for grant in event.grants:
            held = None if holder is None or holder.process != event.process else _part(holder.grants, grant)
            if holder is None or held is None:
                self.find(f"{_text((grant.epoch, grant.start, grant.stop))} is returned and {event.learner} has it not")
                continue
            holder.grants.remove(held)
            if held.stop > grant.stop:
                holder.grants.insert(0, held.beyond(grant.end))
            self._waiting.append((grant.epoch, grant.start, grant.stop))
            self._returned += grant.size

    # ------------------------------------------------------------------------------------------- how far they come

    def _step(self, event: StepReported) -> None:
        self._look(event)
        self._hear(event)
        if self._opened is not None and event.learner in self._holders:
            self._reported = event.at_ns, event.learner, event.incarnation

    def _accept(self, event: ContributionAccepted) -> None:
        self._look(event)
        self._hear(event)

    def _hear(self, said: StepReported | ContributionAccepted | LearnerJoined) -> None:
        holder = self._holders.get(said.learner)
        is_of_holder = holder is not None and holder.process == self._process(said.learner)
        granted = holder.granted if holder is not None and is_of_holder else 0
        if not 0 <= said.samples <= said.position <= granted:
            self.find(
                f"{said.learner} has trained {said.samples} sequences up to position {said.position} of {granted}"
            )
        if holder is None or not is_of_holder:
            return
        if isinstance(said, StepReported):  # A body may overtake the report of its boundary.
            if said.position < holder.reported[0] or said.samples < holder.reported[1]:
                self.find(f"{said.learner} goes back from position {holder.reported[0]} to {said.position}")
            holder.reported = said.position, said.samples
        self._trained += max(0, said.samples - holder.samples)
        holder.position, holder.samples = max(holder.position, said.position), max(holder.samples, said.samples)

    def _commit(self, event: FragmentCommitted) -> None:
        self._look(event)
        merged = self.history.rounds.get(event.round)
        for made in () if merged is None else merged.held:
            holder = self._holders.get(made.learner)
            if holder is not None and made.incarnation >= holder.process:
                self._reached += holder.pass_by(made.position)

    def _join(self, event: LearnerJoined) -> None:
        self._forget_report(event)
        holder = self._holders.get(event.learner)
        if event.resumed and holder is not None and holder.process == self._process(event.learner):
            self._hear(event)

    def _forget_report(self, event: LearnerAway | LearnerJoined | LearnerLeaving | LearnerDeparted) -> None:
        self._look(event)
        if self._reported is not None and self._reported[1] == event.learner:
            self._reported = None

    # ------------------------------------------------------------------------------------------- as a whole

    @property
    def _is_exhausted(self) -> bool:
        opened = self._opened
        return opened is None or (not self._waiting and 0 < opened.epochs * opened.sequences <= self._dealt)

    def _look(self, event: Event) -> None:
        """Whoever has reported has been topped up."""
        if self._reported is None or event.at_ns == self._reported[0]:
            return
        _, learner, _ = self._reported
        self._reported = None
        holder = self._holders[learner]
        assert self._opened is not None, "nobody holds anything before"
        untrained = _size(holder.grants) - holder.ahead
        if untrained < self._opened.stock_sequences and not self._is_exhausted and self.history.is_running:
            self.find(f"{learner} has {untrained} sequences before it, and is granted no more")

    def _finishing(self, event: RunFinishing) -> None:
        self._reported = None
        self._reason = event.reason

    def _finished(self, event: RunFinished) -> None:
        self._reported = None
        if self._opened is None or event.data is None:
            return
        held = sum(_size(holder.grants) for holder in self._holders.values())
        ahead = sum(holder.ahead for holder in self._holders.values())
        expected = DataStatus(
            sequences=self._opened.sequences,
            epochs=self._opened.epochs,
            epoch=self._reached / self._opened.sequences,
            dealt=self._dealt,
            granted=self._granted,
            returned=self._returned,
            reached=self._reached,
            held=held,
            ahead=ahead,
            waiting=sum(stop - start for _, start, stop in self._waiting),
            trained=self._trained,
            repeated=self._trained - self._reached - ahead,
        )
        for field in msgspec.structs.fields(DataStatus):
            said, is_so = getattr(event.data, field.name), getattr(expected, field.name)
            if said != is_so:
                self.find(f"the run ends with {said} sequences {field.name}, by the log it is {is_so}")
        if expected.repeated < 0:
            self.find(f"{-expected.repeated} sequences are in a version and nobody has trained them")
        total = self._opened.epochs * self._opened.sequences
        if self._reason == EVERYTHING_TRAINED and self._reached < total:
            self.find(f"the run ends as if all were trained, and {total - self._reached} sequences are in no version")


def _part(held: list[Grant], returned: Grant) -> Grant | None:
    """The grant that begins as what is returned does, and is no smaller."""
    for grant in held:
        if (grant.at, grant.epoch, grant.start) == (returned.at, returned.epoch, returned.start):
            return grant if returned.stop <= grant.stop else None
    return None


def _text(places: Places) -> str:
    epoch, start, stop = places
    return f"places {start} to {stop} of epoch {epoch}"
