"""Laws of the data stream and of the split, for any size, seed and number of learners."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.data_book import DataBook
from unlockstep.data import Corpus, LeasedStream, TokenStream, split_corpus

sizes = st.integers(1, 400)
seeds = st.integers(0, 2**64 - 1)


def stream(sequence_count: int, batch_size: int, seed: int, shard: int = 0, shard_count: int = 1) -> TokenStream:
    tokens = np.arange(2 * sequence_count + 1, dtype=np.uint32)
    return TokenStream(tokens, 2, batch_size, seed, shard, shard_count)


@given(count=sizes, seed=seeds, epoch=st.integers(0, 1000))
def test_each_epoch_is_a_permutation(count: int, seed: int, epoch: int):
    whole_epoch = stream(count, count, seed)
    whole_epoch.seek(epoch)
    assert sorted(whole_epoch.sequence_indices().tolist()) == list(range(count))


@given(shard_count=st.integers(1, 9), share=st.integers(1, 40), rest=st.integers(0, 8), seed=seeds, epoch=sizes)
def test_shards_of_an_epoch_are_disjoint(shard_count: int, share: int, rest: int, seed: int, epoch: int):
    count = shard_count * share + rest % shard_count
    seen: list[int] = []
    for shard in range(shard_count):
        whole_share = stream(count, share, seed, shard, shard_count)
        whole_share.seek(epoch)
        seen += whole_share.sequence_indices().tolist()
    assert len(set(seen)) == shard_count * share
    assert set(seen) <= set(range(count))


@given(count=sizes, batch_size=st.integers(1, 50), seed=seeds, position=st.integers(0, 30))
def test_seeking_gives_what_reading_up_to_there_gives(count: int, batch_size: int, seed: int, position: int):
    read, sought = stream(count, batch_size, seed), stream(count, batch_size, seed)
    for _ in range(position):
        read.next()
    sought.seek(position)
    assert read.position == sought.position == position
    np.testing.assert_array_equal(read.next(), sought.next())


@given(count=sizes, seed=seeds, rows=st.lists(st.integers(1, 20), min_size=2, max_size=2))
def test_batch_size_does_not_change_the_order_of_sequences(count: int, seed: int, rows: list[int]):
    total = rows[0] * rows[1]
    orders = []
    for batch_size in rows:
        batches = stream(count, batch_size, seed)
        orders.append(np.concatenate([batches.next() for _ in range(total // batch_size)]))
    np.testing.assert_array_equal(*orders)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    sequence_length=st.integers(1, 20),
    share=st.floats(0.01, 0.5),
)
def test_split_puts_every_token_on_one_side_and_a_sequence_on_each(
    lengths: list[int], sequence_length: int, share: float
):
    token_count = sum(lengths) + 4 * sequence_length + 4
    corpus = Corpus(
        tokens=np.arange(token_count, dtype=np.uint16),
        document_starts=np.cumsum([0, *lengths, 4 * sequence_length + 4]),
        vocabulary_size=token_count,
        bytes_per_token=1.0,
        digest="",
        skipped_count=0,
        repeated_count=0,
    )
    training, validation = split_corpus(corpus, sequence_length, share)
    assert sorted([*training.tolist(), *validation.tolist()]) == list(range(token_count))
    assert min(training.size, validation.size) > sequence_length
    again = split_corpus(corpus, sequence_length, share)
    np.testing.assert_array_equal(training, again[0])


@given(
    count=st.integers(1, 60),
    seed=seeds,
    batch_size=st.integers(1, 20),
    chunk=st.integers(1, 25),
    taken=st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_however_it_is_granted_the_order_is_that_of_the_endless_stream(
    count: int, seed: int, batch_size: int, chunk: int, taken: list[int]
):
    book = DataBook(count, chunk, epochs=0)
    leased = LeasedStream(np.arange(2 * count + 1, dtype=np.uint32), 2, batch_size, seed)
    batches = []
    for wanted in taken:
        leased.add(book.grant("a", 1, wanted))
        while leased.ready(batch_size):
            batches.append(leased.next())
    if leased.remaining:
        batches.append(leased.next())
    read = np.concatenate(batches)
    assert leased.position == leased.samples == len(read) == book.status().dealt
    np.testing.assert_array_equal(read, stream(count, len(read), seed).next())
