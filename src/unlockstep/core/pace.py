"""Whether one direction of a learner's link keeps up with what it is given, and how much more it may be given.

Decides that of contributions (``hand_overs``) and of versions (``versions``) by the same rule. Does not decide what is
next.
"""

from __future__ import annotations

from collections.abc import Collection

BEHIND_STEPS = 2
"""A direction is behind if a body takes it so many step boundaries."""


class Pace:
    """Of one direction.

    Args:
        under_way_max: bodies on their way at once while it is behind. All share the same link: more bring nothing
            sooner, and what they bring is older when it arrives.
    """

    def __init__(self, under_way_max: int) -> None:
        self._under_way_max = under_way_max
        self._took_steps = 0
        """Step boundaries the last body took."""

    def ended(self, took_steps: int) -> None:
        """A body has arrived, or was given up after so long."""
        self._took_steps = took_steps

    def is_behind(self, under_way_steps: Collection[int]) -> bool:
        """By how many step boundaries ago each body set out that is under way, and by the last that has arrived."""
        return max((self._took_steps, *under_way_steps)) >= BEHIND_STEPS

    def room(self, under_way_steps: Collection[int], everything: int) -> int:
        """How many more may set out; ``everything`` if it keeps up."""
        return max(0, self._under_way_max - len(under_way_steps)) if self.is_behind(under_way_steps) else everything
