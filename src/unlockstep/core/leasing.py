"""Data leases at the syncer: when a learner is granted more of the corpus, and when what it holds is somebody else's.

Decides these two, and when all data is trained. Does not decide what becomes of a place (``data_book``) nor what is a
member or a round (``syncer`` asks). A run without data leases has one of these that grants nothing.

A learner asks for nothing: with every report it is topped up to ``stock_sequences``, so that its next grant is there
before it is needed, and so are all that wait for data whenever some has come back. Whoever goes keeps what it holds
until its contributions that are here have been merged or refused; the rest is then granted anew.
"""

from __future__ import annotations

from unlockstep.core.data_book import DataBook, DataStatus, Grant
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.events import DataGranted, DataOpened, DataReturned
from unlockstep.core.membership import Member, Membership, MemberState
from unlockstep.core.messages import ContributionArrived, Granted, Join, Progress
from unlockstep.core.options import Dealing
from unlockstep.core.outbox import Outbox
from unlockstep.core.rounds import Rounds
from unlockstep.core.saved import SavedData
from unlockstep.core.sync_round import Held

EVERYTHING_TRAINED = "every sequence is trained"
"""Why a run ends whose data has an end, and is in its versions as often as asked for."""


class Leasing:
    """Who holds what of the corpus.

    Args:
        dealing: how it is dealt out; None: not at all.
        outbox: where messages and events go.
        book_type: what keeps the book.
    """

    def __init__(self, dealing: Dealing | None, outbox: Outbox, book_type: type[DataBook] = DataBook) -> None:
        self._dealing = dealing
        self._outbox = outbox
        self._book_type = book_type
        self._book: DataBook | None = None
        self._digest = ""
        self._told: dict[str, bool] = {}
        """Learners that take leases -> whether the last they were told was that there is nothing more to be had."""
        self._ready: set[str] = set()
        """Of these, who has reported over its present connection."""
        self._going: dict[str, bool] = {}
        """Gone, with contributions that are not settled -> whether in order."""

    # --------------------------------------------------------------------------------------------- joining

    def objection(self, join: Join) -> str | None:
        """Why the learner's corpus is not the run's; None if it is, or none is asked for."""
        if self._dealing is None or join.sequences == 0 or self._book is None:
            return None
        if (join.sequences, join.data_digest) == (self._book.sequences, self._digest):
            return None
        return (
            f"the learner's corpus has {join.sequences} sequences (digest {join.data_digest[:12]}) and the run's "
            f"{self._book.sequences} (digest {self._digest[:12]}); give both the same data.source, tokenizer, "
            "sequence_length and validation_share"
        )

    def check(self, said: Join | Progress | ContributionArrived, process: int) -> None:
        """Raises RemoteProtocolError if the process says it has trained more than it was granted."""
        granted = 0 if self._book is None else self._book.length(said.learner, process)
        if not 0 <= said.samples <= said.position <= granted:
            raise RemoteProtocolError(
                f"{said.learner} says it has trained {said.samples} sequences and come to position {said.position} of "
                f"{granted} it was granted"
            )

    def joined(self, member: Member, join: Join, is_new: bool, now_ns: int) -> None:
        """A process has joined, or has come back: then it holds again what nobody has taken."""
        learner, process = member.learner, member.process_since
        self._told.pop(learner, None)
        self._ready.discard(learner)
        if is_new:
            self._end(learner, now_ns)
        if self._dealing is None or join.sequences == 0:
            return
        if self._book is None:
            self._open(self._dealing, join, now_ns)
        assert self._book is not None, "it has just been opened"
        if not is_new:
            self._going.pop(learner, None)
            before = self._book.held(learner, process)
            held = self._book.came_back(learner, process, join.position, join.samples)
            if held and not before:
                self._outbox.log(DataGranted(now_ns, learner, member.incarnation, held))
        self._told[learner] = self._book.is_exhausted

    def _open(self, dealing: Dealing, join: Join, now_ns: int) -> None:
        self._book = self._book_type(join.sequences, dealing.chunk_sequences, dealing.epochs)
        self._digest = join.data_digest
        of = dealing
        self._outbox.log(
            DataOpened(now_ns, join.sequences, join.data_digest, of.epochs, of.chunk_sequences, of.stock_sequences)
        )

    def terms(self, member: Member) -> tuple[tuple[Grant, ...], bool]:
        """What a ``Welcome`` says: all that the process holds, and whether there is nothing more to be had."""
        if self._book is None or member.learner not in self._told:
            return (), False
        return self._book.held(member.learner, member.process_since), self._told[member.learner]

    # --------------------------------------------------------------------------------------------- how far they come

    def accepted(self, made: ContributionArrived, process: int) -> None:
        """A contribution is here, and may say more than any report."""
        if self._book is not None:
            self._book.trained(made.learner, process, made.position, made.samples)

    def reported(self, member: Member, progress: Progress) -> None:
        """A process reports how far it has come."""
        if self._book is not None:
            self._book.trained(member.learner, member.process_since, progress.position, progress.samples)
            if member.state is not MemberState.LEAVING and member.learner in self._told:
                self._ready.add(member.learner)

    def reached(self, merged: list[Held]) -> None:
        """Contributions are merged, and that is durable."""
        for held in merged if self._book is not None else ():
            self._book.reached(held.learner, held.process, held.position, held.samples)  # type: ignore[union-attr]

    def top_up(self, members: Membership, now_ns: int) -> None:
        """Grant to everybody who has less than its stock."""
        if self._book is None or self._dealing is None:
            return
        for learner in sorted(self._ready):
            member = members.get(learner)
            assert member is not None, "who has reported is a member"
            process, new = member.process_since, tuple[Grant, ...]()
            short = self._dealing.stock_sequences - self._book.untrained(learner, process)
            if short > 0 and not self._book.is_exhausted:
                new = self._book.grant(learner, process, short)
                self._outbox.save()
                self._outbox.log(DataGranted(now_ns, learner, member.incarnation, new))
            if new or self._told[learner] != self._book.is_exhausted:
                self._told[learner] = self._book.is_exhausted
                granted = Granted(self._book.held(learner, process), self._told[learner])
                self._outbox.send_to(learner, member.incarnation, granted)

    # --------------------------------------------------------------------------------------------- going

    def away(self, member: Member) -> None:
        """Its connection is broken, or it takes no more steps: what it holds stays its own until it is gone."""
        self._ready.discard(member.learner)

    def departed(self, member: Member, in_order: bool) -> None:
        """It is not a member any more."""
        self._told.pop(member.learner, None)
        self._ready.discard(member.learner)
        if self._book is not None and self._book.holder(member.learner) == member.process_since:
            self._going[member.learner] = in_order

    def settle(self, members: Membership, rounds: Rounds, now_ns: int, at_once: bool = False) -> None:
        """Whoever has gone and has nothing here that may still be merged holds nothing any more."""
        for learner in sorted(self._going):
            member = members.get(learner)
            assert member is not None, "who has gone was a member"
            if at_once or not rounds.held_of(learner, member.process_since):
                self._end(learner, now_ns)

    def _end(self, learner: str, now_ns: int) -> None:
        in_order = self._going.pop(learner, False)
        process = None if self._book is None else self._book.holder(learner)
        if self._book is None or process is None:
            return
        held = self._book.held(learner, process)
        if in_order:
            self._book.left(learner, process, position=0)
        else:
            self._book.ended(learner, process)
        if held:
            self._outbox.log(DataReturned(now_ns, learner, process, held))

    def take_back_lost(self, members: Membership, rounds: Rounds, now_ns: int) -> bool:
        """Nothing more can be collected as things stand. What was trained and will not arrive is to be trained anew:
        of who has gone, and of who is here and holds nothing that it has not handed over; whether there is any."""
        if self._book is None:
            return False
        self.settle(members, rounds, now_ns, at_once=True)
        for member in members.live():
            process = member.process_since
            if any(member.c_steps) or member.unsettled or rounds.held_of(member.learner, process):
                continue
            lost = self._book.lost(member.learner, process)
            if lost:
                self._outbox.log(DataReturned(now_ns, member.learner, process, lost))
        return not self._book.is_exhausted

    # --------------------------------------------------------------------------------------------- as a whole

    def is_idle(self, members: Membership) -> bool:
        """Everything is granted, and nobody who is live has any left: no step of theirs moves the clock."""
        if self._book is None or not self._book.is_exhausted:
            return False
        return not any(self._book.untrained(member.learner, member.process_since) for member in members.live())

    def is_trained(self, members: Membership) -> bool:
        """Everything is trained, by what the learners say, and nobody may come back with some of it."""
        if self._book is None or not self._book.is_trained:
            return False
        held = (self._book.held(m.learner, m.process_since) for m in members.present() if not m.is_live)
        return not any(held)

    @property
    def is_finished(self) -> bool:
        """Everything is trained for good."""
        return self._book is not None and self._book.is_finished

    @property
    def ends_run(self) -> bool:
        """The run ends when every sequence is trained as often as asked for."""
        return self._dealing is not None and self._dealing.epochs > 0

    def status(self) -> DataStatus | None:
        return None if self._book is None else self._book.status()

    def forget(self) -> None:
        """Nobody is left, and the run has no parameters: the next learner brings its own corpus."""
        self._book, self._digest = None, ""
        self._going.clear()

    def saved(self) -> SavedData | None:
        """What outlives the syncer's process."""
        return None if self._book is None else SavedData(self._digest, self._book.state())

    def restore(self, saved: SavedData | None, members: Membership, now_ns: int) -> None:
        """Go on from what was ``saved``. Whoever is not a member any more holds nothing: what it had here is gone."""
        if saved is None or self._dealing is None:
            return
        self._book = self._book_type(saved.book.sequences, self._dealing.chunk_sequences, self._dealing.epochs)
        self._book.restore(saved.book)
        self._digest = saved.digest
        for learner in sorted(saved.book.holdings):
            member = members.get(learner)
            is_here = member is not None and member.is_present
            if not is_here or self._book.holder(learner) != member.process_since:  # type: ignore[union-attr]
                self._end(learner, now_ns)
