"""When the next round is due, and of which fragment: round r collects for fragment r mod P, every H/P steps.

Decides the rotation and its pace, counted on the syncer's clock. Does not decide whether a due round may open now: the
number of rounds in flight and the presence of learners are ``rounds``' business.

A round is due H/P steps after the previous one *opened*. When the syncer is late the rounds that follow slip with it;
none is skipped and none is made up for in a burst. (A rule of the kind "fragment p at steps t with t mod H = t_p"
needs the clock to stop at each of those steps: when speeds alias, the clock jumps over the same ones for ever and their
fragments are never merged.)
"""

from __future__ import annotations


class Schedule:
    """The rotation. Positions are kept in units of 1/P steps, so that H/P need not be whole.

    Args:
        fragment_count: P.
        interval_steps: H, inner steps between two rounds of the same fragment.
    """

    def __init__(self, fragment_count: int, interval_steps: int) -> None:
        self._fragment_count = fragment_count
        self._interval_steps = interval_steps
        self._due = interval_steps  # P times the clock at which the next round is due
        self.next_round = 0

    def saved(self) -> tuple[int, int]:
        """(next round, position at which it is due)."""
        return self.next_round, self._due

    def restore(self, next_round: int, due: int) -> None:
        """Go on from what was ``saved``."""
        self.next_round, self._due = next_round, due

    @property
    def next_fragment(self) -> int:
        return self.next_round % self._fragment_count

    @property
    def due_clock(self) -> int:
        """The clock at which the next round is due."""
        return -(-self._due // self._fragment_count)

    def is_due(self, clock: int) -> bool:
        """Whether the next round is due at this clock, in steps."""
        return clock * self._fragment_count >= self._due

    def open(self, clock: int) -> int:
        """The next round opens now: returns its number and moves on.

        A round that opens within the step it was due in keeps the exact rhythm (so three fragments in eight steps
        open at 2.67, 5.33, 8); one that opens at another time starts a new rhythm from where it opened.
        """
        position = clock * self._fragment_count
        on_time = 0 <= position - self._due < self._fragment_count
        self._due = (self._due if on_time else position) + self._interval_steps
        self.next_round += 1
        return self.next_round - 1
