"""What the syncer says waits until what it promises is saved: the order of saving and sending, for every host.

Decides which messages wait for which save, and when a save is due. Does not decide what is promised (the core, by
``Save``), what a save holds or where it goes, nor how messages travel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from unlockstep.core.actions import Save

Delivery = Callable[[], None]


class Promises:
    """A queue of messages in front of the network.

    Args:
        commits_lost_max: how many commits may have been told of that no save holds; 0: none is told of before it is
            saved. With more, a save is due when half of them are; other promises wait in any case.
    """

    def __init__(self, commits_lost_max: int) -> None:
        self._commits_lost_max = commits_lost_max
        self._commits = self._commits_saving = 0
        """Not covered by a save that has ended, and of these by the one that goes on."""
        self._needed = self._saving = self._saved = 0
        """Promises made that messages wait for, of these covered by the save that began last, and by the one that ended
        last."""
        self._is_saving = False
        self._waiting: deque[tuple[int, Delivery]] = deque()

    def need(self, save: Save) -> None:
        """Whatever is sent from now on waits for a save that begins from now on; commits may be exempt."""
        self._commits += save.is_commit
        if not save.is_commit or self._commits > self._commits_lost_max:
            self._needed += 1

    def send(self, deliver: Delivery) -> None:
        """Deliver now, or once what was promised is saved; in any case in order."""
        if self._needed > self._saved:
            self._waiting.append((self._needed, deliver))
        else:
            deliver()

    @property
    def is_waiting(self) -> bool:
        """Whether any message is held back."""
        return bool(self._waiting)

    def begin_save(self) -> bool:
        """Whether a save is due and none is under way. If so it begins: it must hold everything as it is now."""
        is_due = self._needed > self._saved or self._commits > self._commits_lost_max // 2
        if self._is_saving or not is_due:
            return False
        self._is_saving, self._saving, self._commits_saving = True, self._needed, self._commits
        return True

    def end_save(self) -> None:
        """What it holds will not be forgotten."""
        self._is_saving, self._saved = False, self._saving
        self._commits -= self._commits_saving
        while self._waiting and self._waiting[0][0] <= self._saved:
            self._waiting.popleft()[1]()
