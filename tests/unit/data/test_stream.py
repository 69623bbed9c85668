"""Batches by position: their content, shards, seeking, and the fixed validation batches."""

from __future__ import annotations

import numpy as np
import pytest

from unlockstep.core.errors import UsageError
from unlockstep.data import TokenStream, validation_batches

TOKENS = np.arange(1001, dtype=np.uint16)


def test_rows_are_runs_of_tokens_with_the_targets_shifted_by_one():
    batch = TokenStream(TOKENS, sequence_length=10, batch_size=4, seed=0).next()
    assert batch.dtype == np.int64
    assert batch.shape == (4, 11)
    assert (batch[:, 0] % 10 == 0).all()
    np.testing.assert_array_equal(batch, batch[:, :1] + np.arange(11))


def test_an_epoch_holds_every_sequence_once_and_the_next_has_another_order():
    stream = TokenStream(TOKENS, sequence_length=10, batch_size=20, seed=0)
    first, second = (np.concatenate([stream.next()[:, 0] for _ in range(5)]) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(0, 1000, 10))
    assert first.tolist() != second.tolist()
    assert stream.epoch == 2.0


def test_a_batch_may_end_one_epoch_and_begin_the_next():
    stream = TokenStream(TOKENS[:31], sequence_length=10, batch_size=5, seed=0)
    starts = np.concatenate([stream.next()[:, 0] for _ in range(3)])
    for epoch in starts.reshape(5, 3):
        assert sorted(epoch) == [0, 10, 20]


def test_seeds_give_different_orders():
    orders = {tuple(TokenStream(TOKENS, 10, 50, seed).sequence_indices()) for seed in range(20)}
    assert len(orders) == 20


def test_joiner_beyond_the_shards_reads_a_share_in_an_order_of_its_own():
    streams = [TokenStream(TOKENS, 10, 50, seed=3, shard=shard, shard_count=2) for shard in range(4)]
    rows = [stream.sequence_indices() for stream in streams]
    assert set(rows[2]).isdisjoint(rows[3])
    assert set(rows[2]) not in (set(rows[0]), set(rows[1]))


def test_order_looks_random():
    """Of n shuffled places, neighbours are n / 3 apart in the mean: the mean of |x - y| over the unit square."""
    places = TokenStream(np.zeros(100_001, np.uint8), 1, 100_000, seed=0).sequence_indices()
    assert np.abs(np.diff(places)).mean() == pytest.approx(100_000 / 3, rel=0.02)
    assert abs(np.corrcoef(np.arange(100_000), places)[0, 1]) < 0.02


def test_order_is_pinned_so_that_learners_of_different_releases_agree():
    stream = TokenStream(TOKENS, sequence_length=10, batch_size=6, seed=7, shard=1, shard_count=3, position=4)
    assert stream.sequence_indices().tolist() == [39, 90, 2, 18, 75, 77]


def test_share_without_a_sequence_is_refused_with_the_length_that_fits():
    with pytest.raises(UsageError, match=r"= 128 makes 3 sequences of 400 training tokens, .* each of 4 .*at most 99"):
        TokenStream(TOKENS[:400], sequence_length=128, batch_size=1, seed=0, shard_count=4)
    TokenStream(TOKENS[:400], sequence_length=99, batch_size=1, seed=0, shard_count=4)


def test_validation_batches_spread_over_all_tokens_and_never_change():
    batches = validation_batches(TOKENS, sequence_length=10, batch_size=5, batches=4)
    starts = [batch[:, 0].tolist() for batch in batches]
    assert np.concatenate(starts).tolist() == list(range(0, 1000, 50))
    assert [batch.shape for batch in batches] == [(5, 11)] * 4


def test_validation_batches_are_fewer_where_tokens_are_few():
    assert [batch.shape for batch in validation_batches(TOKENS[:121], 10, 5, 4)] == [(5, 11)] * 2
    assert [batch.shape for batch in validation_batches(TOKENS[:21], 10, 5, 4)] == [(2, 11)]


def test_validation_without_a_sequence_is_refused():
    with pytest.raises(UsageError, match=r"length = 10 is longer than the 10 validation tokens .* most 9"):
        validation_batches(TOKENS[:10], 10, 5, 4)
