"""What the network does to messages and bodies, by closed formulas."""

from __future__ import annotations

import random

import pytest

from unlockstep.sim.clock import VirtualClock
from unlockstep.sim.network import RESEND_NS, SECOND_NS, SILENCE_NS, Costs, Fate, LinkModel, Pipe, Way, Wire

COSTS = Costs(message_ns=10, body_ns=100, commit_ns=0)
BOTH = (Way.UP, Way.DOWN)


def wire(**model: float) -> Wire:
    return Wire(VirtualClock(), COSTS, LinkModel(**model), random.Random(0))  # type: ignore[arg-type]


def play(link: Wire, until_ns: int) -> None:
    while (next_ns := link.clock.next_ns()) is not None and next_ns <= until_ns:
        link.clock.step()


class Ears:
    """Says at the other end of a pipe what it hears, and when."""

    def __init__(self, link: Wire, pipe: Pipe) -> None:
        self.heard: list[tuple[int, str]] = []
        self._clock, self._pipe = link.clock, pipe

    def say(self, word: str) -> None:
        self._pipe.put(lambda: self.heard.append((self._clock.now_ns(), word)))


def ears(link: Wire, way: Way = Way.UP) -> Ears:
    return Ears(link, link.pipe(way))


def test_a_message_takes_its_time() -> None:
    link = wire()
    ear = ears(link)
    ear.say("a")
    play(link, SECOND_NS)
    assert ear.heard == [(10, "a")]


def test_a_lost_packet_holds_up_what_follows_and_order_is_kept() -> None:
    link = wire(loss=0.5, jitter_ns=50)
    ear = ears(link)
    words = [str(number) for number in range(200)]
    for number, word in enumerate(words):
        link.clock.at(20 * number, lambda w=word: ear.say(w))  # type: ignore[misc]
    play(link, 10 * SECOND_NS)
    times = [at_ns for at_ns, _ in ear.heard]
    assert [word for _, word in ear.heard] == words
    assert times == sorted(times)
    assert times[-1] >= RESEND_NS


def test_a_cut_holds_up_what_is_sent_until_it_is_healed() -> None:
    link = wire()
    up, down = ears(link, Way.UP), ears(link, Way.DOWN)
    up.say("on its way")
    link.cut((Way.UP,), lambda: None)
    up.say("held")
    down.say("passes")
    assert link.is_cut(Way.UP) and not link.is_cut(Way.DOWN)
    play(link, 1000)
    assert [word for _, word in up.heard] == ["on its way"] and len(down.heard) == 1
    link.heal()
    play(link, 2000)
    assert [word for _, word in up.heard] == ["on its way", "held"]


def test_what_stood_in_line_when_a_connection_breaks_is_lost_with_it() -> None:
    link = wire()
    pipe = link.pipe(Way.UP)
    ear = Ears(link, pipe)
    link.cut(BOTH, lambda: None)
    ear.say("held")
    pipe.close()
    link.heal()
    ear.say("too late")
    play(link, SECOND_NS)
    assert ear.heard == []


@pytest.mark.parametrize(("healed_ns", "calls"), [(None, 1), (SILENCE_NS - 1, 0)])
def test_a_cut_that_lasts_is_noticed_once(healed_ns: int | None, calls: int) -> None:
    link, noticed = wire(), list[int]()
    link.cut(BOTH, lambda: noticed.append(link.clock.now_ns()))
    if healed_ns is not None:
        link.clock.at(healed_ns, link.heal)
    play(link, 10 * SILENCE_NS)
    assert noticed == [SILENCE_NS] * calls


def test_a_second_cut_counts_from_its_own_beginning() -> None:
    link, noticed = wire(), list[int]()
    link.cut(BOTH, lambda: noticed.append(1))
    link.clock.at(SILENCE_NS // 2, link.heal)
    link.clock.at(SILENCE_NS // 2, lambda: link.cut(BOTH, lambda: noticed.append(2)))
    play(link, 10 * SILENCE_NS)
    assert noticed == [2] and link.clock.now_ns() == SILENCE_NS // 2 + SILENCE_NS


def test_bodies_share_the_rate_of_a_link_and_each_way_has_its_own() -> None:
    """1000 bits a second: 125 bytes take a second; a second body waits for the first."""
    link = wire(bits_per_s=1000)
    assert link.body_arrives_ns(Way.UP, 125) == SECOND_NS + 10
    assert link.body_arrives_ns(Way.UP, 125) == 2 * SECOND_NS + 10
    assert link.body_arrives_ns(Way.DOWN, 125) == SECOND_NS + 10
    assert wire().body_arrives_ns(Way.UP, 10**12) == 100


def test_shares_of_lost_and_repeated_bodies_are_as_asked() -> None:
    link = wire(loss=0.25, repeats=0.5)
    fates = [link.fate() for _ in range(4000)]
    assert fates.count(Fate.LOST) == pytest.approx(1000, abs=100)
    assert fates.count(Fate.UNANSWERED) == pytest.approx(1500, abs=100)
    assert {wire().fate() for _ in range(10)} == {Fate.ARRIVED}


def test_no_body_passes_a_cut() -> None:
    link = wire()
    link.cut((Way.DOWN,), lambda: None)
    assert link.fate() is Fate.LOST
