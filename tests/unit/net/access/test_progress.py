"""When a connection takes too long: the clock is moved by hand."""

from __future__ import annotations

from unlockstep.net.access.limits import Limits
from unlockstep.net.access.progress import Progress

LIMITS = Limits(head_s_max=10, unproven_s_max=30, rate_min=1000, rate_window_s=20, unread_s_max=60)


def opened(now_s: float) -> Progress:
    progress = Progress(LIMITS)
    progress.opened(now_s)
    return progress


def test_before_it_is_open_nothing_is_due() -> None:
    progress = Progress(LIMITS)
    progress.received(100, 0.0)
    assert progress.overdue(1e6, True) is None


def test_who_says_nothing_is_cut() -> None:
    progress = opened(100.0)
    assert progress.overdue(110.0, False) is None
    assert progress.overdue(110.1, False) == "a request did not come within 10 s"


def test_who_sends_a_head_byte_by_byte_is_cut() -> None:
    progress = opened(0.0)
    for second in range(11):
        assert progress.overdue(float(second), False) is None
        progress.received(1, float(second))
    assert progress.overdue(10.1, False) is not None


def test_between_two_requests_there_is_time_but_not_in_the_middle_of_one() -> None:
    progress = opened(0.0)
    progress.received(100, 1.0)
    progress.begins(1.0)
    progress.ends()
    progress.is_proven = True
    assert progress.overdue(500.0, False) is None
    progress.received(10, 500.0)
    assert progress.overdue(510.0, False) is None
    assert progress.overdue(510.1, False) is not None


def test_who_never_makes_a_request_that_it_may_make_is_cut_however_busy_it_is() -> None:
    progress = opened(0.0)
    for second in range(31):
        progress.received(100, float(second))
        progress.begins(float(second))
        progress.ends()
        assert progress.overdue(float(second), False) is None
    assert progress.overdue(30.1, False) == "no request that it may make came within 30 s"
    progress.is_proven = True
    assert progress.overdue(30.1, False) is None


def test_a_body_that_comes_too_slowly_is_cut_and_one_that_is_fast_enough_is_not() -> None:
    for rate, verdict in ((999, "a body came with 999 bytes a second, 1000 at least"), (1000, None)):
        progress = opened(0.0)
        progress.begins(0.0)
        for second in range(1, 20):
            progress.received(rate, float(second))
            assert progress.overdue(float(second), True) is None
        progress.received(rate, 20.0)
        assert progress.overdue(20.0, True) == verdict


def test_a_window_that_was_good_is_no_credit_for_the_next() -> None:
    progress = opened(0.0)
    progress.begins(0.0)
    progress.received(10**9, 1.0)
    assert progress.overdue(20.0, True) is None
    assert progress.overdue(40.0, True) == "a body came with 0 bytes a second, 1000 at least"


def test_while_it_is_us_who_do_not_read_nobody_is_too_slow() -> None:
    progress = opened(0.0)
    progress.begins(0.0)
    for second in range(100):
        assert progress.overdue(float(second), False) is None
    assert progress.overdue(110.0, True) is None  # Since it was last asked too much of: 11 s.


def test_who_does_not_read_its_answer_is_cut() -> None:
    progress = opened(0.0)
    progress.begins(0.0)
    progress.is_unread(5.0)
    assert progress.overdue(65.0, False) is None
    assert progress.overdue(65.1, False) == "an answer was not read for 60 s"
    progress.is_read()
    assert progress.overdue(65.1, False) is None
