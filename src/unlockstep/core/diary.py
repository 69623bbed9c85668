"""What a process has done, numbered, and of that what the syncer has not heard.

Decides what is said with the next report, and what is said once more over a new connection. Does not decide what is a
deed (``deeds``), nor when there is a report (``learner``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from unlockstep.core.deeds import AdoptionNotice, Deed, Source

SAID_MAX = 1024
"""Deeds that are remembered after they were said: more than a process does on a connection that is dead already, which
is found out within half a minute. What has gone from here is in a log whose numbers have a gap."""

SAID_AT_ONCE_MAX = 1024
"""In one report."""


class Diary:
    """Of one process."""

    def __init__(self) -> None:
        self.count = 0
        """Number of the last deed."""
        self._unsaid: deque[Deed] = deque()
        self._said: deque[Deed] = deque(maxlen=SAID_MAX)
        """Over this connection: if it breaks, perhaps nobody heard."""

    @property
    def has_news(self) -> bool:
        """Whether there is something to say."""
        return bool(self._unsaid)

    def note(self, deed: Deed, steps: int) -> int:
        """The process, having taken so many steps, has done this; returns its number."""
        self.count += 1
        self._unsaid.append(msgspec.structs.replace(deed, number=self.count, steps=steps))
        return self.count

    def say(self) -> tuple[Deed, ...]:
        """What goes into a report."""
        count = min(len(self._unsaid), SAID_AT_ONCE_MAX)
        saying = tuple(self._unsaid.popleft() for _ in range(count))
        self._said.extend(saying)
        return saying

    def heard(self, number: int) -> None:
        """Over a new connection: the syncer knows every deed up to this one, and none of the later ones."""
        self._unsaid = deque(self._after(number))
        self._said.clear()

    def lose(self, kept: Sequence[int]) -> None:
        """The syncer has gone on from these versions, or from none, and what it had published beyond them is void."""
        self._unsaid = deque(
            msgspec.structs.replace(deed, source=Source.LOST)
            if isinstance(deed, AdoptionNotice) and (not kept or deed.version > kept[deed.fragment])
            else deed
            for deed in self._unsaid
        )

    def _after(self, number: int) -> Iterable[Deed]:
        return (deed for deed in (*self._said, *self._unsaid) if deed.number > number)

    def remaining(self) -> tuple[Deed, ...]:
        """What another process that goes on from here says, as far as it was not heard."""
        return (*self._said, *self._unsaid)

    def resume(self, count: int, remaining: Iterable[Deed]) -> None:
        """Go on from what remained."""
        self.count = count
        self._unsaid = deque(remaining)
