"""Batches of what was granted: their order, their size at the end, and what becomes of grants that are taken away."""

from __future__ import annotations

import numpy as np
import pytest

from unlockstep.core.data_book import Grant
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError, UsageError
from unlockstep.data import LeasedStream, TokenStream

TOKENS = np.arange(1001, dtype=np.uint16)


def stream(batch_size: int = 4) -> LeasedStream:
    return LeasedStream(TOKENS, sequence_length=10, batch_size=batch_size, seed=7)


def test_batches_run_across_grants_without_a_gap():
    leased, whole = stream(), TokenStream(TOKENS, sequence_length=10, batch_size=4, seed=7)
    leased.add([Grant(0, 0, 0, 3), Grant(3, 0, 3, 4)])
    leased.add([Grant(4, 0, 4, 12)])
    for position in (4, 8, 12):
        np.testing.assert_array_equal(leased.next(), whole.next())
        assert (leased.position, leased.samples) == (position, position)
    assert leased.remaining == 0


def test_epochs_have_the_orders_of_the_endless_stream():
    leased, whole = stream(), TokenStream(TOKENS, sequence_length=10, batch_size=4, seed=7, position=50)
    leased.add([Grant(0, 2, 0, 4)])
    np.testing.assert_array_equal(leased.next(), whole.next())


def test_the_last_batch_is_as_short_as_what_is_left():
    leased = stream()
    leased.add([Grant(0, 0, 40, 46)])
    assert leased.ready(4) and leased.ready(6) and not leased.ready(7)
    leased.next()
    assert not leased.ready(4)
    batch = leased.next()
    assert batch.shape == (2, 11)
    assert batch.dtype == np.int64
    with pytest.raises(LocalProtocolError, match="holds no data"):
        leased.next()


def test_what_was_taken_away_is_passed_over_and_not_counted_as_trained():
    leased = stream()
    leased.add([Grant(0, 0, 0, 8), Grant(8, 0, 20, 30)])
    leased.next()
    leased.hold([Grant(8, 0, 20, 30)])
    assert leased.remaining == 10
    epochs, places = leased.places()
    assert (epochs.tolist(), places.tolist()) == ([0] * 4, [20, 21, 22, 23])
    leased.next()
    assert (leased.position, leased.samples) == (12, 8)


def test_what_is_held_still_is_gone_on_with_where_it_was():
    leased = stream()
    grants = [Grant(0, 0, 0, 8), Grant(8, 0, 20, 30)]
    leased.add(grants)
    leased.next()
    leased.hold(grants)
    assert leased.remaining == 14
    assert leased.places()[1].tolist() == [4, 5, 6, 7]


def test_a_stream_goes_on_from_its_state():
    leased = stream()
    leased.add([Grant(0, 0, 0, 8)])
    leased.next()
    again = LeasedStream(TOKENS, sequence_length=10, batch_size=4, seed=7, state=leased.state())
    np.testing.assert_array_equal(again.next(), leased.next())
    assert again.state() == leased.state()


@pytest.mark.parametrize(
    ("grants", "complaint"),
    [
        ([Grant(0, 0, 0, 8), Grant(7, 0, 8, 9)], "grant at 7 begins before the end at 8"),
        ([Grant(0, 0, 99, 101)], "places 99 to 101 were granted of a corpus of 100 sequences"),
        ([Grant(0, 0, -1, 1)], "places -1 to 1"),
        ([Grant(0, 0, 4, 4)], "places 4 to 4"),
    ],
)
def test_grants_that_cannot_be_are_refused(grants: list[Grant], complaint: str):
    leased = stream()
    leased.add([])
    with pytest.raises(RemoteProtocolError, match=complaint):
        leased.add(grants)
    assert leased.remaining == 0


def test_tokens_without_a_sequence_are_refused():
    with pytest.raises(UsageError, match=r"length = 10 is longer than the 10 training tokens .* at most 9"):
        LeasedStream(TOKENS[:10], sequence_length=10, batch_size=1, seed=0)


@pytest.mark.parametrize("tokens", [np.zeros(99), np.zeros(99, np.int64), np.zeros((2, 99), np.uint8)])
def test_tokens_are_one_row_of_unsigned_integers(tokens):
    with pytest.raises(UsageError, match="give one row of unsigned integers"):
        LeasedStream(tokens, sequence_length=10, batch_size=4, seed=7)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(UsageError, match="batch_size is 0; it must be at least 1"):
        stream(batch_size=0)
