"""Runs between sites that are far apart, on links that lose packets: all is as anywhere, joining and leaving too."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.link_cable import Shape
from support.linked_run import linked_config, linked_run
from support.links import star, why_not
from unlockstep.core.events import (
    ContributionAccepted,
    FragmentAdopted,
    FragmentCommitted,
    JoinWasRefused,
    LearnerDeparted,
    LearnerLive,
)
from unlockstep.core.reasons import DepartureReason

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

FAR = Shape(delay_ms=100, loss=0.01, rate_mbit=100)
"""A round trip of 200 ms; of a hundred packets one is lost."""


def test_sites_at_different_distances_all_contribute(tmp_path: Path) -> None:
    """Round trips of 50, 100 and 200 ms, and of a hundred packets one is lost; with TLS, to the end of the run."""
    with star(3) as site:
        for link, delay_ms in zip(site.links, (25, 50, 100), strict=True):
            link.be(Shape(delay_ms=delay_ms, loss=0.01, rate_mbit=100))
        with linked_run(site, linked_config(steps=100), tmp_path, secured=True) as run:
            names = run.join_all()
            for name in names:
                assert run.learners[name].wait(60) == 0, run.said(name)
            assert run.syncer.wait(60) == 0, run.said("syncer")
            events = run.events()
    given = {name: [e for e in events if isinstance(e, ContributionAccepted) and e.learner == name] for name in names}
    assert all(len(each) >= 4 for each in given.values())


def test_who_is_far_away_joins_a_run_whose_versions_live_for_less_than_a_round_trip(tmp_path: Path) -> None:
    """A fragment is merged every 80 ms; its announcement and the request for it take 200."""
    with star(2) as site, linked_run(site, linked_config(interval_steps=4), tmp_path) as run:
        site.links[1].be(FAR)
        near = run.join(0, "--step-s", "0.02")
        run.log.wait(LearnerLive, learner=near)
        far = run.join(1, "--step-s", "0.02")
        run.log.wait(LearnerLive, learner=far)
        run.log.wait(FragmentAdopted, since=run.log.mark, learner=far)
        run.end()


def test_another_model_is_refused_at_the_door_with_the_difference(tmp_path: Path) -> None:
    """C17: nothing of it is ever sent to be merged, and nobody else notices."""
    with star(2, FAR) as site, linked_run(site, linked_config(), tmp_path) as run:
        first = run.join(0)
        run.log.wait(LearnerLive, learner=first)
        other = run.join(1, "--elements", "65")
        assert run.learners[other].wait(60) == 1
        refused = run.log.wait(JoinWasRefused, learner=other)
        for told in (refused.detail, run.said(other)):
            assert "embedding.weight: shape 64 here, 65 there" in told
        run.log.wait(FragmentCommitted, since=run.log.mark)
        run.end()


def test_a_learner_far_away_leaves_in_order(tmp_path: Path) -> None:
    """C23: what it has it hands over or declares dropped; the other one goes on."""
    with star(2, FAR) as site, linked_run(site, linked_config(), tmp_path) as run:
        stays, goes = run.join_all()
        for name in (stays, goes):
            run.log.wait(ContributionAccepted, learner=name)
        run.leave(goes)
        run.log.wait(LearnerDeparted, learner=goes, reason=DepartureReason.LEFT)
        run.log.wait(ContributionAccepted, since=run.log.mark, learner=stays)
        run.end()


def test_a_learner_whose_link_is_cut_is_gone_in_time_all_the_same(tmp_path: Path) -> None:
    """C23: Ctrl-C, with nobody to say goodbye to; for the syncer it dies by its lease."""
    with star(2, FAR) as site, linked_run(site, linked_config(), tmp_path) as run:
        stays, goes = run.join_all()
        for name in (stays, goes):
            run.log.wait(ContributionAccepted, learner=name)
        site.links[1].cut()
        run.leave(goes, by=signal.SIGINT)
        run.log.wait(LearnerDeparted, learner=goes, reason=DepartureReason.LEASE_EXPIRED)
        run.log.wait(ContributionAccepted, since=run.log.mark, learner=stays)
        run.end()
