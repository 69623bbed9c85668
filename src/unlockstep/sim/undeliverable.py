"""What a learner could not hand over, and whether the syncer could know of it; for judging, in the room ``sim``.

Decides until when word of a failure is on its way. Does not decide what is declared (``core.hand_overs``), nor what may
be missing at the end of a run (``promised``).
"""

from __future__ import annotations

from unlockstep.core.messages import HandedOver, LearnerMessage, Progress


class Undeliverable:
    """Of one process."""

    def __init__(self) -> None:
        self.ever: set[HandedOver] = set()
        """What could not be handed over, at least once."""
        self._unsaid: set[HandedOver] = set()
        """What the next report has to say."""
        self._unread: set[HandedOver] = set()
        """What reports have said over this connection, and no syncer has read while its run went on."""

    @property
    def unknown(self) -> set[HandedOver]:
        """What the syncer could not know of: word of it is on its way, or waits for the next report."""
        return self._unsaid | self._unread

    def fail(self, handed_over: HandedOver) -> None:
        """It could not be delivered."""
        self.ever.add(handed_over)
        self._unsaid.add(handed_over)

    def say(self, message: LearnerMessage) -> frozenset[HandedOver]:
        """The process says something; returns what that declares. What a report leaves out, it should have said."""
        if not isinstance(message, Progress):
            return frozenset()
        declared = frozenset(HandedOver(lost.round, lost.fragment, lost.tokens) for lost in message.undelivered)
        self._unsaid.clear()
        self._unread |= declared
        return declared

    def read(self, declared: frozenset[HandedOver]) -> None:
        """A syncer whose run goes on reads it."""
        self._unread -= declared

    def connection_lost(self) -> None:
        """What was on its way has to be said again."""
        self._unsaid |= self._unread
        self._unread.clear()
