"""Batches of the places a learner was granted, in the order granted, without a gap between one grant and the next.

Decides what the next batch holds. Does not decide who is granted what (``core.data_book``), which places come next
(``core.course``), nor which sequence is at a place (``stream``: the same for every learner). Knows no thread: the host
that adds grants and takes batches guards it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from unlockstep.core.course import BEGINNING, Course, CourseState
from unlockstep.core.data_book import Grant
from unlockstep.core.errors import UsageError
from unlockstep.data.stream import sequences, sequences_at

_DIGEST_TOKENS = 2**20
"""Tokens hashed at once."""


class LeasedStream:
    """Training batches for one process of a learner, as far as it was granted any (``torch_backend.Batches``).

    Args:
        tokens: unsigned integers [N], kept as a view; the same for all learners.
        sequence_length: inputs per sequence, T.
        batch_size: sequences per batch, B.
        seed: the run's.
        batches_per_step: batches that one inner step takes.
        state: where to go on.

    Raises:
        UsageError: the tokens do not make one sequence, or are no row of whole numbers; a batch of nothing.
    """

    __slots__ = ("_sequences", "_take", "batch_size", "course", "seed")

    def __init__(
        self,
        tokens: NDArray[np.unsignedinteger],
        sequence_length: int,
        batch_size: int,
        seed: int,
        *,
        batches_per_step: int = 1,
        state: CourseState = BEGINNING,
    ) -> None:
        tokens = np.asarray(tokens)
        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.unsignedinteger):
            shape = list(tokens.shape)
            raise UsageError(f"the tokens are {tokens.dtype}{shape}; give one row of unsigned integers, as uint16[N]")
        for name, count in {
            "sequence_length": sequence_length,
            "batch_size": batch_size,
            "batches_per_step": batches_per_step,
        }.items():
            if count < 1:
                raise UsageError(f"{name} is {count}; it must be at least 1")
        self._sequences = sequences(tokens, sequence_length)
        if len(self._sequences) == 0:
            raise UsageError(
                f"data.sequence_length = {sequence_length} is longer than the {tokens.size} training tokens allow: "
                f"set it to at most {max(tokens.size - 1, 0)} or give a longer corpus"
            )
        self.seed = seed
        self.batch_size = batch_size
        digest = corpus_digest(tokens, sequence_length)
        self.course = Course(len(self._sequences), digest, batch_size * batches_per_step, state)
        """What it holds."""
        self._take: Callable[[int], tuple[Grant, ...]] = self.course.take

    def take_by(self, take: Callable[[int], tuple[Grant, ...]]) -> None:
        """Batches are taken by ``take`` from now on: by ``LearnerLoop.take``, where a link's thread adds grants."""
        self._take = take

    @property
    def position(self) -> int:
        """How far along its course the process has come."""
        return self.course.position

    @property
    def samples(self) -> int:
        """Sequences taken by ``next``."""
        return self.course.samples

    def seek(self, position: int) -> None:
        """What a process trains is granted to it: no earlier one has left it a place to go on from."""

    def add(self, grants: Sequence[Grant]) -> None:
        """Granted in addition, behind what is held. Raises RemoteProtocolError as ``Course.hold`` does."""
        self.course.hold((*self.course.grants, *grants), exhausted=False)

    def hold(self, grants: Sequence[Grant]) -> None:
        """Held from now on, in place of everything else. Raises RemoteProtocolError as ``Course.hold`` does."""
        self.course.hold(grants, exhausted=False)

    @property
    def remaining(self) -> int:
        """Sequences that are held and not taken yet."""
        return self.course.remaining

    def ready(self, count: int) -> bool:
        """Whether ``count`` sequences can be taken without any more grants."""
        return self.remaining >= count

    def next(self) -> NDArray[np.int64]:
        """The next batch, taken: int64 [B, T + 1], inputs and shifted targets; of fewer rows if fewer remain.

        Never waits: ask ``ready`` first, unless there will be no more.

        Raises:
            LocalProtocolError: nothing remains.
        """
        return self._sequences[self._indices(self._take(self.batch_size))].astype(np.int64)

    def sequence_indices(self) -> NDArray[np.int64]:
        """Which sequences of the corpus the next batch holds: int64 [B] or fewer."""
        return self._indices(self.course.ahead(self.batch_size))

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(epochs, places) of the next batch, int64 [B] or fewer each."""
        return _places(self.course.ahead(self.batch_size))

    def _indices(self, parts: tuple[Grant, ...]) -> NDArray[np.int64]:
        epochs, places = _places(parts)
        return sequences_at(epochs, places, len(self._sequences), self.seed)

    def state(self) -> CourseState:
        """Where it is, for a checkpoint."""
        return self.course.state()


def _places(parts: tuple[Grant, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    epochs = np.repeat([part.epoch for part in parts], [part.size for part in parts])
    places = [np.arange(part.start, part.stop, dtype=np.int64) for part in parts]
    return epochs.astype(np.int64), np.concatenate([np.empty(0, np.int64), *places])


def corpus_digest(tokens: NDArray[np.unsignedinteger], sequence_length: int) -> str:
    """SHA-256 of the tokens, whatever their dtype, and of how they are cut into sequences; hexadecimal."""
    digest = hashlib.sha256(f"{tokens.size} {sequence_length}".encode())
    for start in range(0, tokens.size, _DIGEST_TOKENS):
        digest.update(tokens[start : start + _DIGEST_TOKENS].astype("<u4").data)
    return digest.hexdigest()
