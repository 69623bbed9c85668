"""Links that are cut and healed: learners train on, come back soon, and nothing that was trained is lost count of.

A partition lasts for as many steps as every learner behind it takes on: that is what shows that they go on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.link_cable import Shape
from support.linked_run import LinkedRun, linked_config, linked_run
from support.links import star, why_not
from unlockstep.core.events import (
    ContributionAccepted,
    Event,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    StepReported,
)
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.reasons import DepartureReason

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

NOTICED_STEPS = 50
"""As long as a lease, and a moment more."""

HEAVY = ("--elements", "250000", "--noise", "0")
"""Four megabytes of bfloat16."""

BACK_S_MAX = 5.0
"""From the healing of a link until its learner takes part again."""

CROSS_COUNTRY = Shape(delay_ms=25, rate_mbit=100)


def take_part(run: LinkedRun, *names: str, since: int = 0) -> None:
    """Wait until each of these learners has contributed since a mark."""
    for name in names:
        run.log.wait(ContributionAccepted, since=since, learner=name)


def back_after_s(run: LinkedRun, name: str, since: int, healed_ns: int) -> float:
    """From the healing until a learner's first step that the syncer hears of as from a live one."""
    return (run.log.wait(StepReported, since=since, learner=name).at_ns - healed_ns) / NANOSECONDS_PER_SECOND


def is_missed(event: Event, name: str) -> bool:
    """Whether the syncer says here that it has lost this learner."""
    gone = isinstance(event, LearnerDeparted) and event.reason is not DepartureReason.LEFT
    return (gone or isinstance(event, LearnerAway)) and event.learner == name


def require_same_process(run: LinkedRun, name: str, events: list[Event]) -> None:
    """Whenever it came back it was the same process, which counts on."""
    assert run.learners[name].poll() is None or run.learners[name].returncode == 143
    joined = [event for event in events if isinstance(event, LearnerJoined) and event.learner == name]
    assert [event.resumed for event in joined] == [False] + [True] * (len(joined) - 1)
    steps = [event.steps for event in events if isinstance(event, StepReported) and event.learner == name]
    assert steps == sorted(steps) and len(set(steps)) == len(steps)


@pytest.mark.parametrize(
    ("lease_s", "steps"),
    [
        pytest.param(2.0, 80, id="longer_than_the_lease"),
        pytest.param(10.0, 100, id="shorter_than_the_lease", marks=pytest.mark.slow),
        pytest.param(10.0, 240, id="little_longer_than_the_lease", marks=pytest.mark.slow),
        pytest.param(10.0, 1200, id="a_minute", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
def test_all_learners_train_through_a_partition_and_come_back(lease_s: float, steps: int, tmp_path: Path) -> None:
    config = linked_config(lease_s=lease_s)
    with star(3, CROSS_COUNTRY) as site, linked_run(site, config, tmp_path, secured=True) as run:
        names = run.join_all()
        take_part(run, *names)
        for link in site.links:
            link.cut()
        run.step_on(steps, *names)
        mark = run.log.mark
        for link in site.links:
            link.heal()
        healed_ns = run.now_ns()
        assert [back_after_s(run, name, mark, healed_ns) < BACK_S_MAX for name in names] == [True] * 3
        take_part(run, *names, since=mark)
        events = run.end()
        for name in names:
            require_same_process(run, name, events)


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param({}, id="both_ways", marks=pytest.mark.slow),
        pytest.param({"down": False}, id="up"),
        pytest.param({"up": False}, id="down"),
    ],
)
def test_a_learner_that_is_cut_off_is_missed_and_comes_back(cut: dict[str, bool], tmp_path: Path) -> None:
    """One way, half open: each end believes in the connection, and one of them even hears the other for a while. Both
    notice; the other learner notices nothing."""
    with star(2, CROSS_COUNTRY) as site, linked_run(site, linked_config(), tmp_path) as run:
        stays, lost = run.join_all()
        take_part(run, stays, lost)
        mark = run.log.mark
        site.links[1].cut(**cut)
        run.log.until(lambda events: any(is_missed(event, lost) for event in events), mark)
        take_part(run, stays, since=run.log.mark)
        run.step_on(NOTICED_STEPS, lost)
        assert "trying again" in run.said(lost)
        mark = run.log.mark
        site.links[1].heal()
        assert back_after_s(run, lost, mark, run.now_ns()) < BACK_S_MAX
        take_part(run, stays, lost, since=run.log.mark)
        run.leave(lost)
        run.until_disconnected(1)
        events = run.end()
        require_same_process(run, lost, events)
        assert not any(is_missed(event, stays) for event in events)


@pytest.mark.slow
def test_nothing_is_kept_open_for_a_learner_that_vanishes(tmp_path: Path) -> None:
    """Its link is cut, then it dies: no packet of it ever says so, in the middle of transfers either way."""
    with star(2, CROSS_COUNTRY) as site, linked_run(site, linked_config(), tmp_path) as run:
        names = run.join_all(*HEAVY)
        take_part(run, *names)
        assert run.connections(1) > 0
        site.links[1].cut()
        run.learners[names[1]].kill()
        run.until_disconnected(1)
        take_part(run, names[0], since=run.log.mark)
        run.end()


def test_a_link_that_comes_and_goes_is_lived_with(tmp_path: Path) -> None:
    with star(2, CROSS_COUNTRY) as site, linked_run(site, linked_config(), tmp_path) as run:
        names = stays, shaken = run.join_all()
        take_part(run, *names)
        for _ in range(4):
            site.links[1].cut()
            run.step_on(10, shaken)
            site.links[1].heal()
            run.step_on(10, shaken)
        mark = run.log.mark
        assert back_after_s(run, shaken, mark, run.now_ns()) < BACK_S_MAX
        take_part(run, *names, since=mark)
        events = run.end()
        require_same_process(run, shaken, events)
        assert not any(is_missed(event, stays) for event in events)
