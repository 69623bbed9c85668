"""Batches of token sequences by position: which sequence comes when, for which learner.

Decides the order of training and the fixed validation batches. Keeps no state but the position, so that a learner
that returns goes on where it was without replaying anything. Does not decide what a learner reads whose data is leased
(``leased``): the order is the same.

In each epoch the non-overlapping sequences of the corpus are permuted by (seed, epoch) and dealt out to the shards.
The permutation is computed entry by entry (a Feistel network) in plain integer arithmetic: any position costs the
same, nothing is stored, and learners with different numpy versions still agree on who reads what.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

from unlockstep.core.errors import UsageError
from unlockstep.core.words import counted

_PERMUTATION_ROUNDS = 4
_SEED_BITS = (1 << 64) - 1


class TokenStream:
    """An endless, seekable series of training batches for one learner.

    Args:
        tokens: unsigned integers [N], kept as a view.
        sequence_length: inputs per sequence, T.
        batch_size: sequences per batch, B.
        seed: the run's, equal for all learners: with it the shards of an epoch are disjoint.
        shard: which share of each epoch this learner reads. A learner beyond ``shard_count`` (a joiner) reads share
            ``shard % shard_count`` in the order of another seed: it overlaps with the first learners, not with
            the joiners of its own lap.
        shard_count: shares per epoch, M; each has (N - 1) // T // M sequences.
        position: batches consumed.

    Raises:
        UsageError: a share would hold no sequence.
    """

    remaining = None
    """It has no end."""

    __slots__ = ("_lap", "_seed", "_sequences", "_shard", "_shard_count", "_share", "batch_size", "position")

    def __init__(
        self,
        tokens: NDArray[np.unsignedinteger],
        sequence_length: int,
        batch_size: int,
        seed: int,
        shard: int = 0,
        shard_count: int = 1,
        position: int = 0,
    ) -> None:
        self._sequences = sequences(tokens, sequence_length)
        self._lap, self._shard = divmod(shard, shard_count)
        self._shard_count = shard_count
        self._share = len(self._sequences) // shard_count
        self._seed = seed
        if self._share == 0:
            raise UsageError(
                f"data.sequence_length = {sequence_length} makes {counted(len(self._sequences), 'sequence')} of "
                f"{tokens.size} training tokens, fewer than one for each of {shard_count} learners: give a longer "
                f"corpus or set it to at most {(tokens.size - 1) // shard_count}"
            )
        self.batch_size = batch_size
        self.position = position

    @property
    def epoch(self) -> float:
        """Passes over this learner's share so far."""
        return self.position * self.batch_size / self._share

    def seek(self, position: int) -> None:
        """Go to the place where ``position`` batches have been consumed, at the same cost for any."""
        self.position = position

    def next(self) -> NDArray[np.int64]:
        """The batch at ``position``, which then rises by one: int64 [B, T + 1], inputs and shifted targets."""
        batch = self._sequences[self.sequence_indices()].astype(np.int64)
        self.position += 1
        return batch

    def sequence_indices(self) -> NDArray[np.int64]:
        """Which sequences of the corpus the next batch holds: int64 [B]; sequence i starts at token i * T."""
        consumed = self.position * self.batch_size + np.arange(self.batch_size)
        epochs, places = np.divmod(consumed, self._share)
        places = places * self._shard_count + self._shard
        return sequences_at(epochs, places, len(self._sequences), self._seed, self._lap)


def validation_batches(
    tokens: NDArray[np.unsignedinteger], sequence_length: int, batch_size: int, batches: int
) -> list[NDArray[np.int64]]:
    """At most ``batches`` fixed batches of one size, evenly spread over ``tokens``: int64 [B, T + 1] each.

    Equal sizes make the mean of the batches' losses the mean over tokens. Fewer sequences than asked for give fewer
    batches, in the end one batch of fewer rows.

    Raises:
        UsageError: ``tokens`` hold no sequence.
    """
    all_sequences = sequences(tokens, sequence_length)
    count = len(all_sequences)
    if count == 0:
        raise UsageError(
            f"data.sequence_length = {sequence_length} is longer than the {tokens.size} validation tokens allow: "
            f"set it to at most {max(tokens.size - 1, 0)} or raise data.validation_share"
        )
    rows = min(batch_size, count)
    batch_count = min(batches, count // rows)
    chosen = np.arange(batch_count * rows) * count // (batch_count * rows)
    return list(all_sequences[chosen].astype(np.int64).reshape(batch_count, rows, -1))


def sequences(tokens: NDArray[np.unsignedinteger], sequence_length: int) -> NDArray[np.unsignedinteger]:
    """A view [(N - 1) // T, T + 1] of ``tokens`` [N]: row i has T inputs and ends in the first input of row i + 1."""
    if tokens.size <= sequence_length:
        return np.empty((0, sequence_length + 1), tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, sequence_length + 1)[::sequence_length]


def sequences_at(
    epochs: NDArray[np.int64], places: NDArray[np.int64], count: int, seed: int, lap: int = 0
) -> NDArray[np.int64]:
    """Which of ``count`` sequences comes at each place [0, count) of each epoch: int64 [n], as both arguments.

    Args:
        seed: the run's.
        lap: above 0: the order of another seed (for joiners that read what others read too).
    """
    return _permuted(places, count, _mix(_mix(epochs.astype(np.uint64), seed), lap))


def _permuted(places: NDArray[np.int64], count: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where each place of [0, count) goes in the permutation that its key names.

    A place is a cell of a table of about sqrt(count) rows and columns. Adding to its row a hash of its column, and to
    its column a hash of its row, can each be undone, hence so can all rounds: a permutation of the table. The few
    cells beyond ``count`` are followed until they land inside, which keeps it one.
    """
    rows = isqrt(count - 1) + 1
    columns = -(-count // rows)
    row, column = np.divmod(places.astype(np.uint64), np.uint64(columns))
    outside = np.ones(len(places), dtype=bool)
    while outside.any():
        r, c, key = row[outside], column[outside], keys[outside]
        for turn in range(_PERMUTATION_ROUNDS):
            r = (r + _mix(c ^ key, 2 * turn) % np.uint64(rows)) % np.uint64(rows)
            c = (c + _mix(r ^ key, 2 * turn + 1) % np.uint64(columns)) % np.uint64(columns)
        row[outside], column[outside] = r, c
        outside = row * np.uint64(columns) + column >= count
    return (row * np.uint64(columns) + column).astype(np.int64)


def _mix(values: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """A 64-bit hash of each value (the finalizer of splitmix64: Steele, Lea, Flood, OOPSLA 2014)."""
    x = values + np.uint64((salt * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _SEED_BITS)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
