"""What a learner hands over, what of that it has not heard of, and what of it could not be delivered.

Decides how much is on its way at once and what waits for that, which copies are made ahead of being asked for, what a
contribution says, what is kept until it is settled, what is handed over once more, and what is declared undelivered to
the syncer (again, if perhaps nobody heard). Does not decide what is asked for, nor when the learner is at a step
boundary (``learner``).

A link may carry less than is asked for. Then pulls wait, and training goes on: a fragment that is handed over later
has more in it, from a base that is as recent as the learner's own. What would be refused when it arrives, since too
many versions of its fragment have been published by then, waits for a newer base. So a slow link costs the run nothing
of what its learner trains, and the learner no memory that grows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from unlockstep.core.actions import Forget, LearnerAction, Resend, TakeSnapshot, Upload
from unlockstep.core.deeds import Deed, HandOverNotice
from unlockstep.core.learner_states import FragmentState
from unlockstep.core.messages import HandedOver, Pull, Undelivered, UploadFailed
from unlockstep.core.pace import Pace

UNDER_WAY_MAX = 2
"""Contributions on their way at once over a link that is behind: while one is carried, the next can be made ready."""

DECLARED_MAX = 64
"""Undelivered contributions remembered to be declared again; the syncer enters each once."""


class _Departure(NamedTuple):
    """When something was handed over: the steps of the process, and the newest version of its fragment."""

    steps: int
    newest: int


class Contributor(Protocol):
    """What this part needs of its learner (``learner.LearnerCore``)."""

    incarnation: int
    steps: int
    tokens: int
    position: int
    samples: int

    @property
    def may_fetch(self) -> bool:
        """Newer versions come."""
        ...

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
        staleness_max: versions a contribution may be behind when it arrives.
    """

    def __init__(self, learner: Contributor, fragments: Sequence[FragmentState], staleness_max: int) -> None:
        self._learner = learner
        self._fragments = fragments
        self._staleness_max = staleness_max
        self.next_round = 0
        """The first one it has not been asked for."""
        self.pulls_in_step = 0
        """How often it was asked since the last step boundary."""
        self._pulls: dict[int, Pull] = {}
        """By fragment, what it was asked for last and has not answered."""
        self._under_way: dict[HandedOver, _Departure] = {}
        """What is with the link."""
        self._pace = Pace(UNDER_WAY_MAX)
        """Of the way up."""
        self._aged_versions = 0
        """How many versions of its fragment were published while the last contribution was on its way."""
        self._ended_in_step = 0
        """How many ceased to be since the last step boundary."""
        self._resends: dict[HandedOver, None] = {}
        """Wanted once more, and not with the link yet; in order."""
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
        """It is asked for a fragment. A newer pull takes the place of an older one."""
        self.next_round = max(self.next_round, pull.round + 1)
        self.pulls_in_step += 1
        self._pulls[pull.fragment] = pull
        self.proceed(is_at_boundary)

    def end(self, pulls: Iterable[Pull], is_at_boundary: bool) -> None:
        """It goes: whatever it was asked for it hands over at once, since nobody is there to do so later. That is one
        contribution of a fragment at most."""
        self._pulls.update({pull.fragment: pull for pull in pulls})
        self.proceed(is_at_boundary, is_last=True)

    def proceed(self, is_at_boundary: bool, is_last: bool = False) -> None:
        """Hand over what may be. In the middle of a step only a copy made ahead can be given; what waits for the
        boundary keeps its place, so that no fragment is overtaken for ever."""
        left = max(0, UNDER_WAY_MAX - len(self._under_way))
        for again in [*self._resends][: len(self._resends) if is_last else left]:
            del self._resends[again]
            self._depart(again)
            self._learner.act(Resend(again, self._learner.incarnation))
        for index in [*self._pulls] if is_last else self._turns()[: self._free]:
            if self._fragments[index].c_steps == 0:
                continue
            if is_at_boundary:
                self._learner.act(TakeSnapshot(index))
            if is_at_boundary or self._fragments[index].has_snapshot:
                self._hand_over(self._pulls[index])

    def _turns(self) -> list[int]:
        """The fragments whose turn it is, in order: handed over longest ago first, whatever connections have broken
        since. Of those that a newer base can come for, the ones that will not be too old when they arrive; if nothing
        is on its way, else the least old, since the link may have become faster."""
        waiting = [index for index in self._pulls if self._fragments[index].c_steps > 0]
        waiting.sort(key=lambda index: self._fragments[index].handed_over_steps)
        if not self._learner.may_fetch:
            return waiting
        in_time = [index for index in waiting if self._behind_on_arrival(index) <= self._staleness_max]
        if in_time or self._under_way:
            return in_time
        least = min(waiting, key=lambda index: self._fragments[index].versions_behind, default=None)
        if least is None or self._fragments[least].versions_behind > self._staleness_max:
            return []
        return [least]

    def _behind_on_arrival(self, index: int) -> int:
        """Versions, as far as one can know: as many will have been published as while the last contribution was on its
        way."""
        return self._fragments[index].versions_behind + self._aged_versions

    @property
    def _free(self) -> int:
        """How many more may be on their way. A link that keeps up takes whatever is asked for in a step: at most one
        contribution of every fragment. What is to go once more fills it before."""
        under_way_steps = [self._learner.steps - departure.steps for departure in self._under_way.values()]
        return self._pace.room(under_way_steps, everything=0 if self._resends else len(self._fragments))

    def _depart(self, handed_over: HandedOver) -> None:
        self._under_way[handed_over] = _Departure(self._learner.steps, self._fragments[handed_over.fragment].newest)

    def copy_ahead(self) -> None:
        """Copy the fragments that will be asked for before the next boundary: as many as in the step before, and one
        more. Asked for another one, the learner answers at the boundary. While the link is full it copies none."""
        count, ahead = len(self._fragments), max(1, self.pulls_in_step) + 1
        if self._free + self._ended_in_step <= 0:
            ahead = 0
        self.pulls_in_step = self._ended_in_step = 0
        coming = [number % count for number in range(self.next_round, self.next_round + count)]
        for index in [*self._turns(), *(index for index in coming if index not in self._pulls)][:ahead]:
            if self._fragments[index].c_steps > 0:
                self._fragments[index].has_snapshot = True
                self._learner.act(TakeSnapshot(index))

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
        handed_over = HandedOver(pull.round, pull.fragment, learner.tokens)
        self._kept[handed_over] = fragment.c_tokens
        self._depart(handed_over)
        del self._pulls[pull.fragment]
        fragment.c_steps = fragment.c_tokens = 0
        fragment.handed_over_steps = learner.steps
        fragment.has_snapshot = False
        fragment.is_shared = True

    # ------------------------------------------------------------------------------------------- what becomes of it

    def arrive(self, handed_over: HandedOver) -> None:
        """It is on its way no more, whatever becomes of it: the link has room for another one."""
        departure = self._under_way.pop(handed_over, None)
        if departure is not None:
            self._ended_in_step += 1
            self._pace.ended(self._learner.steps - departure.steps)
            self._aged_versions = self._fragments[handed_over.fragment].newest - departure.newest

    def settle(self, handed_over: HandedOver) -> None:
        """The syncer has said what became of it, or nobody needs it: the host may forget it."""
        self.arrive(handed_over)
        self._stranded.discard(handed_over)
        self._resends.pop(handed_over, None)
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
        self.arrive(handed_over)
        if handed_over not in self._kept:
            return False  # The syncer has said what became of it; or it was an earlier start's, and is lost with that.
        if handed_over in self._resends:
            return False  # It will be tried again.
        if is_away:
            self._stranded.add(handed_over)
            return False
        self.settle(handed_over)
        self._undelivered.append(Undelivered(failed.round, failed.fragment, failed.c_tokens, failed.tokens))
        return True

    def again(self, wanted: Iterable[HandedOver], everything: bool) -> None:
        """What the syncer has not. What it said it could not deliver is handed over once more, or everything, if what
        is on its way will not count; the rest will arrive."""
        if everything:
            self._under_way.clear()
        resent = [each for each in wanted if each in self._kept and (everything or each in self._stranded)]
        self._stranded.difference_update(resent)
        self._resends.update(dict.fromkeys(resent))
        self.proceed(is_at_boundary=False)

    # ------------------------------------------------------------------------------------------- what is declared

    def declare(self) -> tuple[Undelivered, ...]:
        """What is to be declared undelivered now."""
        declared, self._undelivered = tuple(self._undelivered), []
        self._declared.extend(declared)
        return declared

    def void(self) -> None:
        """What it was asked for does not count any more; it will be asked again."""
        self._pulls.clear()
        self._stranded.update(self._resends)
        self._resends.clear()

    def connection_lost(self) -> None:
        """What it was asked for is void, and perhaps nobody has heard what was declared."""
        self.void()
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
