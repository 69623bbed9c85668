"""A story that fails is made small, and goes on failing in the same way."""

from __future__ import annotations

import msgspec
import pytest

from unlockstep import tape as tapes
from unlockstep.sim import story as stories
from unlockstep.sim.canaries import canary
from unlockstep.sim.network import Costs, LinkModel
from unlockstep.sim.shrink import shrink
from unlockstep.sim.story import Story
from unlockstep.sim.swarm import Outcome, Verdict, play


def pretended(story: Story) -> Outcome:
    """Fails whenever learner-1 is stopped and continued after that while the quorum is two."""
    kinds = [type(action) for action in story.tape.actions if action.target == "learner-1"]
    stopped = tapes.Stop in kinds and tapes.Continue in kinds
    failing = stopped and story.config.protocol.quorum == 2
    return Outcome(seed=story.seed, verdict=Verdict.SAFETY if failing else Verdict.PASSED, rule="pretence")


def long_story() -> Story:
    """A story of many actions that ``pretended`` finds fault with."""
    found = (story for story in map(stories.draw, range(5000)) if len(story.tape.actions) >= 10)
    return next(story for story in found if pretended(story).failed)


def test_what_is_not_needed_is_left_out() -> None:
    story = long_story()
    small, outcome = shrink(story, pretended(story), pretended)
    assert outcome.failed
    assert [(type(action), action.target) for action in small.tape.actions] == [
        (tapes.Stop, "learner-1"),
        (tapes.Continue, "learner-1"),
    ]
    assert len(small.step_ns) == 2
    assert (small.costs, small.links, small.diverges) == (Costs(), LinkModel(), {})
    usual = msgspec.structs.replace(type(small.config.protocol)(), quorum=2)
    assert small.config.protocol == usual


def test_a_failure_of_another_kind_is_not_taken_for_it() -> None:
    """Without any action it would fail too, but otherwise."""

    def play_it(story: Story) -> Outcome:
        found = pretended(story)
        empty = msgspec.structs.replace(found, verdict=Verdict.LIVENESS)
        return found if story.tape.actions else empty

    story = long_story()
    small, outcome = shrink(story, play_it(story), play_it)
    assert (outcome.verdict, len(small.tape.actions)) == (Verdict.SAFETY, 2)


def test_it_is_given_up_after_so_many_plays_with_the_smallest_so_far() -> None:
    story, plays = long_story(), list[Story]()

    def counted(candidate: Story) -> Outcome:
        plays.append(candidate)
        return pretended(candidate)

    told: list[int] = []
    small, outcome = shrink(
        story, pretended(story), counted, plays_max=3, watch=lambda count, smallest: told.append(count)
    )
    assert (len(plays), told) == (3, [1, 2, 3])
    assert pretended(small).failed and outcome.failed


def test_a_real_failure_becomes_a_file_that_fails_alike() -> None:
    broken = canary("lost_timer")

    def play_it(story: Story) -> Outcome:
        return play(story, make_core=broken.make_core)

    story, outcome = next(
        (story, outcome) for story, outcome in ((s, play_it(s)) for s in map(stories.draw, range(50))) if outcome.failed
    )
    small, found = shrink(story, outcome, play_it, plays_max=60)
    assert len(stories.dumps(small)) < len(stories.dumps(story))
    again = play_it(stories.loads(stories.dumps(small)))
    assert again == found and again.is_like(outcome)


@pytest.mark.parametrize("seed", range(0, 400, 40))
def test_a_story_is_what_its_file_says(seed: int) -> None:
    story = stories.draw(seed)
    assert stories.loads(stories.dumps(story)) == story
    assert story == stories.draw(seed) != stories.draw(seed + 1)
