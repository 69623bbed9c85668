"""Who leads, seen from a standby: the leader leaves a beat now and then, and a standby waits until there is none.

Decides when a leader counts as silent. That is a guess and may be wrong, of a leader that is only slow, without harm:
what makes somebody the leader is the next record (``RunStore.write_record``), and it fences the other. The clocks of
two machines are never compared: a beat carries a count and no time; its change is seen, by the watcher's own clock.
"""

from __future__ import annotations

import os
import socket

import msgspec

from unlockstep.store.place import HOST, Place

_NAME = "leader.json"


class Beat(msgspec.Struct, frozen=True):
    """A sign of life of the leader."""

    epoch: int
    """The leader's: that of the records it writes."""
    holder: str
    """What a person calls it."""
    url: str
    """Where learners find it."""
    count: int
    """Rises with every beat."""


def this_holder() -> str:
    """What this process is called as a leader: host, among which of its processes, and process."""
    return f"{socket.gethostname()}:{HOST}:{os.getpid()}"


def is_gone(beat: Beat) -> bool:
    """Whether its leader was a process of this host that is not there any more: then nobody need wait."""
    space, _, pid = beat.holder.rpartition(":")
    if space != this_holder().rpartition(":")[0] or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def write_beat(place: Place, beat: Beat) -> None:
    """Leave a beat, in place of the one before."""
    place.write(_NAME, [msgspec.json.encode(beat)])


def read_beat(place: Place) -> Beat | None:
    """The beat last left, by whoever believed to lead; None if there is none that can be read."""
    try:
        return msgspec.json.decode(place.read(_NAME), type=Beat)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def forget_beat(place: Place) -> None:
    """Nobody leads: the leader has gone in order."""
    place.delete(_NAME)


class LeaderWatch:
    """Whether the leader has been silent for a whole lease. Time is an argument, from one steady clock.

    Args:
        lease_ns: time without any sign of life after which the leader counts as silent.
    """

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._newest_number = 0
        self._since_ns: int | None = None
        self.leader: Beat | None = None
        """Last beat seen of the highest epoch seen."""

    def see(self, beat: Beat | None, newest_number: int, now_ns: int) -> None:
        """What a look at the store has shown. A beat of a lower epoch than one seen before is that of a late leader."""
        alive = self._since_ns is None
        if beat is not None and beat != self.leader and (self.leader is None or beat.epoch >= self.leader.epoch):
            self.leader = beat
            alive = True
        if newest_number > self._newest_number:
            self._newest_number = newest_number
            alive = True
        if alive:
            self._since_ns = now_ns

    def silent_at_ns(self) -> int | None:
        """When the leader will count as silent, unless a change is seen; None before the first look."""
        return None if self._since_ns is None else self._since_ns + self._lease_ns

    def is_silent(self, now_ns: int) -> bool:
        """Whether nothing has changed for a whole lease."""
        silent_at_ns = self.silent_at_ns()
        return silent_at_ns is not None and now_ns >= silent_at_ns
