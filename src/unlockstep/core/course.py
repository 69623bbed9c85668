"""How far a process has come with what it was granted, and what comes next: a learner's side of ``data_book``.

Decides what the next places are, and whether there are enough of them for a step. Does not decide what is granted, nor
which sequence is at a place (``data.stream``). Knows no thread: whoever takes and holds guards it (``loop``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from unlockstep.core.data_book import Grant, beyond, size
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError


class CourseState(msgspec.Struct, frozen=True):
    """Where a process is on its course."""

    position: int = 0
    samples: int = 0
    grants: tuple[Grant, ...] = ()


BEGINNING = CourseState()


class Course:
    """What one process holds.

    Args:
        sequences: S, of the corpus.
        digest: tells the corpus from any other; equal for all learners of a run.
        step_sequences: what a full step takes.
        state: where to go on.
    """

    def __init__(self, sequences: int, digest: str, step_sequences: int, state: CourseState = BEGINNING) -> None:
        self.sequences = sequences
        self.digest = digest
        self.step_sequences = step_sequences
        self.resume(state)

    def resume(self, state: CourseState) -> None:
        """Go on where another process stopped."""
        self.position = state.position
        """How far along its course the process has come: all it was granted before it has taken, or it was taken away
        from it."""
        self.samples = state.samples
        """Sequences it has taken."""
        self.grants = state.grants
        """What is left of what it holds, in order."""
        self.is_exhausted = False
        """There is nothing to be granted at present: a last step may be short."""
        self.taken: tuple[Grant, ...] = ()
        """In the step that is under way."""

    def state(self) -> CourseState:
        """Where it is."""
        return CourseState(self.position, self.samples, self.grants)

    def hold(self, grants: Sequence[Grant], exhausted: bool, keep: int = 0) -> None:
        """Held from now on, in place of everything else; what was taken before stays taken.

        Args:
            grants: all that the process holds.
            exhausted: whether there is nothing more to be had at present.
            keep: so many sequences stay, whatever ``grants`` says: a step with them may have begun. Should others have
                been granted them, what is trained twice is counted.

        Raises:
            RemoteProtocolError: the grants overlap, are out of order, or lie outside the corpus.
        """
        for grant, following in pairwise(grants):
            if following.at < grant.end:
                raise RemoteProtocolError(
                    f"grant at {following.at} begins before the end at {grant.end} of the last one"
                )
        for grant in grants:
            if not 0 <= grant.start < grant.stop <= self.sequences:
                raise RemoteProtocolError(
                    f"places {grant.start} to {grant.stop} were granted of a corpus of {self.sequences} sequences"
                )
        kept = self.ahead(keep)
        self.grants = (*kept, *beyond(tuple(grants), kept[-1].end if kept else self.position))
        self.is_exhausted = exhausted

    @property
    def remaining(self) -> int:
        """Sequences that are held and not taken yet."""
        return size(self.grants)

    @property
    def is_ready(self) -> bool:
        """Whether a step can be taken: a full one, or a short one where there will be no more."""
        return self.remaining >= self.step_sequences or (self.is_exhausted and self.remaining > 0)

    def ahead(self, count: int) -> tuple[Grant, ...]:
        """The next ``count`` places, or as many as there are: grants and the beginning of one."""
        parts: list[Grant] = []
        left = count
        for grant in self.grants:
            if left == 0:
                break
            parts.append(msgspec.structs.replace(grant, stop=min(grant.stop, grant.start + left)))
            left -= parts[-1].size
        return tuple(parts)

    def take(self, count: int) -> tuple[Grant, ...]:
        """The next ``count`` places, or as many as there are, to be trained now.

        Raises:
            LocalProtocolError: nothing remains.
        """
        parts = self.ahead(count)
        if not parts:
            raise LocalProtocolError("a batch was taken of a learner that holds no data")
        self.taken += parts
        self.position = parts[-1].end
        self.samples += size(parts)
        self.grants = beyond(self.grants, self.position)
        return parts
