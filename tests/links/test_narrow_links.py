"""Bodies that fill a narrow link for many leases: nobody is given up for dead meanwhile, and no body begins again."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.link_cable import Shape
from support.linked_run import WAIT_S, LinkedRun, linked_config, linked_run
from support.links import Link, star, why_not
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    ContributionUndelivered,
    LearnerAway,
    LearnerDeparted,
    LearnerLive,
    RoundOpened,
    RunSeeded,
)
from unlockstep.core.ids import NANOSECONDS_PER_SECOND

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

WIDE = Shape(delay_ms=25, rate_mbit=100)
NARROW_MBIT = 10
BYTES_PER_S = NARROW_MBIT * 1e6 / 8
LAYERS, BFLOAT16_BYTES = 8, 2


def until_passed(link: Link, byte_count: int) -> None:
    """Wait until so much has gone up."""
    begin = link.report().up.delivered_bytes
    while link.report().up.delivered_bytes < begin + byte_count:
        pass


def go_through(run: LinkedRun, body_bytes: int) -> None:
    """One learner hands over a body on a link that turns narrow in the middle of it, another one joins on a link that
    is narrow from the beginning, and takes the whole model first."""
    links, lease_s = run.star.links, run.config.protocol.lease_s
    heavy = ("--elements", str(body_bytes // LAYERS // BFLOAT16_BYTES), "--noise", "0", "--step-s", "0.2")
    gives = run.join(0, *heavy)
    run.log.wait(RunSeeded)
    run.log.wait(RoundOpened)
    mark = run.log.mark
    links[1].change(rate_mbit=NARROW_MBIT)
    until_passed(links[0], body_bytes // 10)
    links[0].change(rate_mbit=NARROW_MBIT)
    begin = links[0].report().up.delivered_bytes
    takes = run.join(1, *heavy)
    patience_s = WAIT_S + 4 * body_bytes / BYTES_PER_S
    accepted = run.log.wait(ContributionAccepted, since=mark, timeout_s=patience_s, learner=gives)
    assert links[0].report().up.delivered_bytes - begin < 1.2 * body_bytes, "it has begun again"
    run.log.wait(LearnerLive, since=mark, timeout_s=patience_s, learner=takes)
    events = run.log.events[mark:]
    assert accepted.at_ns - events[0].at_ns > 3 * lease_s * NANOSECONDS_PER_SECOND, "the body was too small to tell"
    lost = LearnerAway | LearnerDeparted | ContributionUndelivered | ContributionRefused
    assert [event for event in events if isinstance(event, lost)] == []


def test_a_body_of_many_leases_costs_nobody_its_lease(tmp_path: Path) -> None:
    """C27"""
    with star(2, WIDE) as site, linked_run(site, linked_config(lease_s=1.2, fragments=1), tmp_path) as run:
        go_through(run, 6_000_000)
        run.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_megabytes_on_ten_megabits_cost_nobody_its_lease(tmp_path: Path) -> None:
    """C27"""
    with star(2, WIDE) as site, linked_run(site, linked_config(lease_s=10.0, fragments=1), tmp_path) as run:
        go_through(run, 200_000_000)
        run.end()
