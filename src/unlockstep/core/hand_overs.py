"""What a learner hands over, what of that it has not heard of, and what of it could not be delivered.

Decides which copies are made ahead of being asked for, what a contribution says, what is kept until it is settled, what
is handed over once more, and what is declared undelivered to the syncer (again, if perhaps nobody heard). Does not
decide what is asked for, nor when the learner is at a step boundary (``learner``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from unlockstep.core.actions import Forget, LearnerAction, TakeSnapshot, Upload
from unlockstep.core.deeds import Deed, HandOverNotice
from unlockstep.core.learner_states import FragmentState
from unlockstep.core.messages import HandedOver, Pull, Undelivered, UploadFailed

DECLARED_MAX = 64
"""Undelivered contributions remembered to be declared again; the syncer enters each once."""


class Contributor(Protocol):
    """What this part needs of its learner (``learner.LearnerCore``)."""

    incarnation: int
    steps: int
    tokens: int
    position: int
    samples: int

    def note(self, deed: Deed) -> int:
        """To be reported with the next progress; returns its number."""
        ...

    def act(self, action: LearnerAction) -> None:
        """Have the host do it."""
        ...


class HandOvers:
    """Of one process.

    Args:
        learner: whose they are.
        fragments: its fragments; shared with it.
    """

    def __init__(self, learner: Contributor, fragments: Sequence[FragmentState]) -> None:
        self._learner = learner
        self._fragments = fragments
        self.next_round = 0
        """The first one it has not been asked for."""
        self.pulls_in_step = 0
        """How often it was asked since the last step boundary."""
        self._kept: dict[HandedOver, int] = {}
        """Not settled -> tokens in it."""
        self._stranded: set[HandedOver] = set()
        """Of these, what could not be delivered because the syncer was away."""
        self._undelivered: list[Undelivered] = []
        self._declared: deque[Undelivered] = deque(maxlen=DECLARED_MAX)
        """What was declared undelivered over this connection: if it breaks, perhaps nobody heard."""

    @property
    def unsettled(self) -> tuple[HandedOver, ...]:
        """What the syncer has said nothing of, in the order in which it was handed over."""
        return tuple(self._kept)

    # ------------------------------------------------------------------------------------------- handing over

    def pull(self, pull: Pull, is_at_boundary: bool) -> None:
        """It is asked for a fragment. In the middle of a step only a copy made ahead can be given."""
        fragment = self._fragments[pull.fragment]
        self.next_round = max(self.next_round, pull.round + 1)
        self.pulls_in_step += 1
        fragment.pulled = pull
        if is_at_boundary:
            self.answer_pulls()
        elif fragment.has_snapshot and fragment.c_steps > 0:
            self._hand_over(pull)

    def answer_pulls(self) -> None:
        """At a step boundary: whatever had to wait for one."""
        for index, fragment in enumerate(self._fragments):
            if fragment.pulled is not None and fragment.c_steps > 0:
                self._learner.act(TakeSnapshot(index))
                self._hand_over(fragment.pulled)

    def copy_ahead(self) -> None:
        """Copy the fragments that will be asked for before the next boundary: as many as in the step before, and one
        more. Asked for another one, the learner answers at the boundary."""
        ahead = max(1, self.pulls_in_step) + 1
        self.pulls_in_step = 0
        count = len(self._fragments)
        for number in range(self.next_round, self.next_round + min(ahead, count)):
            fragment = self._fragments[number % count]
            if fragment.c_steps > 0:
                fragment.has_snapshot = True
                self._learner.act(TakeSnapshot(number % count))

    def _hand_over(self, pull: Pull) -> None:
        fragment, learner = self._fragments[pull.fragment], self._learner
        deed = learner.note(HandOverNotice(pull.round, pull.fragment, learner.tokens, pull.codec))
        learner.act(
            Upload(
                round=pull.round,
                fragment=pull.fragment,
                incarnation=learner.incarnation,
                base_version=fragment.version,
                c_steps=fragment.c_steps,
                c_tokens=fragment.c_tokens,
                tokens=learner.tokens,
                position=learner.position,
                samples=learner.samples,
                codec=pull.codec,
                steps=learner.steps,
                deed=deed,
            )
        )
        self._kept[HandedOver(pull.round, pull.fragment, learner.tokens)] = fragment.c_tokens
        fragment.c_steps = fragment.c_tokens = 0
        fragment.pulled = None
        fragment.has_snapshot = False
        fragment.is_shared = True

    # ------------------------------------------------------------------------------------------- what becomes of it

    def settle(self, handed_over: HandedOver) -> None:
        """The syncer has said what became of it, or nobody needs it: the host may forget it."""
        self._stranded.discard(handed_over)
        if self._kept.pop(handed_over, None) is not None:
            self._learner.act(Forget(handed_over))

    def settle_all(self) -> None:
        """It is all lost with this process."""
        for handed_over in self.unsettled:
            self.settle(handed_over)

    def fail(self, failed: UploadFailed, is_away: bool) -> bool:
        """It could not be delivered. While the syncer is away it is kept, for when it is back; otherwise it is the body
        that cannot be had. Returns whether there is something to declare."""
        handed_over = HandedOver(failed.round, failed.fragment, failed.tokens)
        if handed_over not in self._kept:
            return False  # The syncer has said what became of it; or it was an earlier start's, and is lost with that.
        if is_away:
            self._stranded.add(handed_over)
            return False
        self.settle(handed_over)
        self._undelivered.append(Undelivered(failed.round, failed.fragment, failed.c_tokens, failed.tokens))
        return True

    def again(self, wanted: Iterable[HandedOver], everything: bool) -> list[HandedOver]:
        """Of what the syncer wants: what is to be handed over once more; the rest is on its way."""
        resent = [each for each in wanted if each in self._kept and (everything or each in self._stranded)]
        self._stranded.difference_update(resent)
        return resent

    # ------------------------------------------------------------------------------------------- what is declared

    def declare(self) -> tuple[Undelivered, ...]:
        """What is to be declared undelivered now."""
        declared, self._undelivered = tuple(self._undelivered), []
        self._declared.extend(declared)
        return declared

    def connection_lost(self) -> None:
        """Perhaps nobody has heard what was declared."""
        self._undelivered = [*self._declared, *self._undelivered]
        self._declared.clear()

    def remaining(self) -> tuple[Undelivered, ...]:
        """What another process that goes on from here declares: all that it cannot hand over once more. What has
        arrived all the same counts."""
        kept = (Undelivered(each.round, each.fragment, tokens, each.tokens) for each, tokens in self._kept.items())
        return (*self._declared, *self._undelivered, *kept)

    def resume(self, undelivered: tuple[Undelivered, ...], next_round: int, pulls_in_step: int) -> None:
        """Go on from what remained."""
        self._undelivered = list(undelivered)
        self.next_round, self.pulls_in_step = next_round, pulls_in_step
