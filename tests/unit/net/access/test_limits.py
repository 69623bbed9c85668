"""How much is too much: allowances that fill up, addresses that are remembered, answers that take longer each time."""

from __future__ import annotations

import pytest

from unlockstep.net.access.limits import Bucket, Limits, Visitor, Visitors, fitting, network_of


def test_an_allowance_is_used_up_and_fills_with_time() -> None:
    bucket = Bucket(rate=2.0, burst=3.0, now_s=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1.0) for _ in range(3)] == [True, True, False]
    assert [bucket.take(1_000.0) for _ in range(4)] == [True, True, True, False]


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = Bucket(rate=1.0, burst=1.0, now_s=10.0)
    assert bucket.take(10.0)
    assert not bucket.take(5.0) and not bucket.take(10.5) and bucket.take(11.0)


def test_the_first_wrong_tokens_are_answered_at_once_and_then_slower_and_slower() -> None:
    visitor = Visitor(Limits(failures_free=3, failure_s_min=0.1, failure_s_max=1.0), 0.0)
    waits = [visitor.failed(0.0) for _ in range(9)]
    assert waits == [0.0, 0.0, 0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_wrong_tokens_are_forgotten_in_time_however_many_there_were() -> None:
    limits = Limits(failures_free=3, failures_per_s=1.0, failure_s_min=0.1, failure_s_max=1.0)
    visitor = Visitor(limits, 0.0)
    for _ in range(10_000):
        visitor.failed(0.0)
    assert visitor.failed(8.0) == 0.0


def test_addresses_are_remembered_but_not_without_end() -> None:
    limits = Limits(addresses_max=100, connections_max=10)
    visitors = Visitors(limits)
    here = visitors.at("here", 0.0)
    here.connections = 1
    late = visitors.at("late", 0.0)
    for number in range(10_000):
        visitors.at(f"address-{number}", 0.0)
        visitors.at("late", 0.0)
        assert len(visitors) <= 111
    assert visitors.at("here", 0.0) is here, "who is connected is not forgotten"
    assert visitors.at("late", 0.0) is late, "nor who was here lately"


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("", ""),
        ("a socket", "a socket"),
    ],
)
def test_what_one_customer_is_given_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


def test_64_learners_at_one_address_may_all_come_at_once() -> None:
    """... each with a control connection and sixteen streams each way: none is refused, nor are their requests."""
    limits, connections = Limits(), 64 * (1 + 2 * 16)
    visitor = Visitor(limits, 0.0)
    assert connections <= min(limits.connections_max, limits.connections_per_address_max)
    assert all(visitor.accepts.take(0.0) for _ in range(connections))
    assert all(visitor.requests.take(0.0) for _ in range(2 * connections))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1"])
def test_through_a_tunnel_nobody_shuts_out_the_others(address: str) -> None:
    """All who come through it have its address: one who asks without end would leave them nothing."""
    limits = Limits(accepts_per_s=1.0, accepts_burst=3.0, requests_per_s=1.0, requests_burst=3.0)
    here, elsewhere = Visitors(limits).at(network_of(address), 0.0), Visitors(limits).at("192.0.2.1", 0.0)
    assert all(here.accepts.take(0.0) and here.requests.take(0.0) for _ in range(1000))
    assert [elsewhere.accepts.take(0.0) for _ in range(5)] == [True, True, True, False, False]


@pytest.mark.parametrize("open_files", [2, 24, 256, 1024, 4096])
def test_connections_leave_files_for_the_run_to_be_saved(open_files: int) -> None:
    """Strangers who fill the port must not end the run: it could not open a file to save itself."""
    limits = fitting(Limits(), open_files)
    assert limits.connections_max <= open_files - min(256, open_files // 2)
    assert 1 <= limits.unproven_per_address_max <= limits.unproven_max <= limits.connections_max
    assert limits.connections_per_address_max <= limits.connections_max


@pytest.mark.parametrize("open_files", [None, 20_000])
def test_where_files_are_plenty_the_limits_are_what_they_are(open_files: int | None) -> None:
    assert fitting(Limits(), open_files) == Limits()
