"""Until when a syncer could not know that something will never come."""

from __future__ import annotations

from unlockstep.core.messages import HandedOver, Heartbeat, Progress, Undelivered
from unlockstep.sim.undeliverable import Undeliverable

FIRST = HandedOver(round=0, fragment=0, tokens=10)
SECOND = HandedOver(round=1, fragment=1, tokens=10)


def report(*lost: HandedOver) -> Progress:
    undelivered = tuple(Undelivered(each.round, each.fragment, 10, each.tokens) for each in lost)
    return Progress("a", 1, 1, 1, 10, 1000, 1.0, (1, 1), (10, 10), (0, 0), undelivered=undelivered)


def failed(*lost: HandedOver) -> Undeliverable:
    here = Undeliverable()
    for each in lost:
        here.fail(each)
    return here


def test_a_failure_is_unknown_until_the_report_that_says_so_is_read() -> None:
    here = failed(FIRST, SECOND)
    first = here.say(report(FIRST, SECOND))
    assert here.unknown == {FIRST, SECOND}
    here.read(first)
    assert here.unknown == set()
    assert here.ever == {FIRST, SECOND}


def test_what_the_next_report_leaves_out_is_no_longer_excused() -> None:
    here = failed(FIRST, SECOND)
    here.say(report(FIRST))
    assert here.unknown == {FIRST}


def test_only_a_report_ends_the_excuse() -> None:
    here = failed(FIRST)
    here.read(here.say(Heartbeat("a", 1)))
    assert here.unknown == {FIRST}


def test_what_was_said_over_a_connection_that_broke_has_to_be_said_again() -> None:
    here = failed(FIRST)
    here.say(report(FIRST))
    here.connection_lost()
    assert here.unknown == {FIRST}
    here.say(report())
    assert here.unknown == set()


def test_what_was_read_stays_known_when_the_connection_breaks() -> None:
    here = failed(FIRST)
    here.read(here.say(report(FIRST)))
    here.connection_lost()
    assert here.unknown == set()
