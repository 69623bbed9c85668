"""Stories in which much goes wrong, done once more from their logs: every version has the bits it had, or the first
one that has not is named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.replays import recorded, replayed
from unlockstep.config import Durability
from unlockstep.core.adoption import Adoption
from unlockstep.core.deeds import AdoptionNotice, Source
from unlockstep.core.errors import UsageError
from unlockstep.core.events import (
    ContributionAccepted,
    Event,
    FragmentAdopted,
    FragmentCommitted,
    LearnerDid,
    Merged,
    RolledBack,
    StateHandedOver,
    StepReported,
    SyncerResumed,
)
from unlockstep.replay.divergence import Divergence
from unlockstep.sim import story as stories
from unlockstep.sim.story import Story
from unlockstep.sim.swarm import Verdict

BLOCK = 30

EVENTFUL = 105
"""The syncer dies in it, and learners take states of others."""


def is_lost(event: Event) -> bool:
    """Somebody had a version that the syncer lost when it died."""
    is_adoption = isinstance(event, LearnerDid) and isinstance(event.deed, AdoptionNotice)
    return is_adoption and event.deed.source is Source.LOST  # type: ignore[union-attr]


@pytest.mark.parametrize("first", [0, 30, 60, 90])
def test_every_version_of_a_story_has_the_bits_it_had(first: int, tmp_path: Path) -> None:
    happened: Counter[type[Event]] = Counter()
    adoptions: set[Adoption] = set()
    for seed in range(first, first + BLOCK):
        story = msgspec.structs.replace(stories.draw(seed), diverges={})
        outcome, events = recorded(story, tmp_path)
        assert outcome.verdict in (Verdict.PASSED, Verdict.HOPELESS)
        again = replayed(story, events)
        if again.divergence is None:
            assert again.commits == outcome.commits
        else:
            assert story.config.durability.mode is Durability.INTERVAL and any(map(is_lost, events)), (seed, again)
            assert "lost when it died" in again.divergence.sentence
        happened.update(map(type, events))
        adoptions.add(story.config.adoption.mode)
    assert adoptions == set(Adoption)
    assert happened[FragmentCommitted] > 300
    assert all(happened[kind] for kind in (SyncerResumed, RolledBack, StateHandedOver))


def test_a_learner_that_was_shut_out_and_begins_anew_goes_on_with_its_data(tmp_path: Path) -> None:
    begun_anew = 0
    for seed in range(400):
        story = stories.draw(seed)
        if not story.diverges or story.config.durability.mode is Durability.INTERVAL:
            continue
        outcome, events = recorded(story, tmp_path)
        again = replayed(story, events)
        assert again.divergence is None, (seed, again)
        assert again.commits == outcome.commits
        begun_anew += any(isinstance(e, LearnerDid) and getattr(e.deed, "after", 0) for e in events)
    assert begun_anew > 3


def test_a_replay_ends_with_the_round_it_is_told_to(tmp_path: Path) -> None:
    story = stories.draw(EVENTFUL)
    _, events = recorded(story, tmp_path)
    commits = [event for event in events if isinstance(event, FragmentCommitted)]
    again = replayed(story, events, until_round=commits[4].round)
    assert (again.divergence, again.commits) == (None, 5)
    newest = {commit.fragment: commit.version for commit in commits[:5]}
    assert {fragment: again.kept[fragment].version for fragment in newest} == newest
    assert {again.kept[commit.fragment].digest for commit in commits[:5]} >= {commits[4].digest}


# ------------------------------------------------------------------------------------------- what is told


def changed(events: Sequence[Event], index: int, **fields: Any) -> list[Event]:
    """The log with one event changed."""
    return [*events[:index], msgspec.structs.replace(events[index], **fields), *events[index + 1 :]]


def first(events: Sequence[Event], kind: type[Event], skip: int, fits: Callable[[Any], bool] = lambda e: True) -> int:
    """Where the event of this kind is that comes after so many others."""
    return [index for index, event in enumerate(events) if isinstance(event, kind) and fits(event)][skip]


def next_float(value: float) -> float:
    """The nearest one above."""
    return math.nextafter(value, math.inf)


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> tuple[Story, list[Event]]:
    story = msgspec.structs.replace(stories.draw(EVENTFUL), diverges={})
    events = recorded(story, tmp_path_factory.mktemp("eventful"))[1]
    assert replayed(story, events).divergence is None
    return story, events


def divergence(story: Story, events: Sequence[Event]) -> Divergence:
    found = replayed(story, events).divergence
    assert found is not None
    return found


def test_one_bit_of_a_weight(eventful: tuple[Story, list[Event]]) -> None:
    story, events = eventful
    index = first(events, FragmentCommitted, 6, lambda commit: len(commit.weights) > 1)
    commit = events[index]
    assert isinstance(commit, FragmentCommitted)
    learner = min(commit.weights)
    weights = {**commit.weights, learner: next_float(commit.weights[learner])}
    found = divergence(story, changed(events, index, weights=weights))
    assert (found.round, found.fragment, found.version) == (commit.round, commit.fragment, commit.version)
    assert "do not follow from what was trained" in found.sentence


def test_one_bit_of_a_loss(eventful: tuple[Story, list[Event]]) -> None:
    story, events = eventful
    index = first(events, StepReported, 9, lambda step: step.loss == step.loss)
    step = events[index]
    assert isinstance(step, StepReported)
    found = divergence(story, changed(events, index, loss=next_float(step.loss)))
    assert (found.learner, found.step) == (step.learner, step.steps)
    assert "the loss of step" in found.sentence


def test_one_bit_of_a_norm(eventful: tuple[Story, list[Event]]) -> None:
    story, events = eventful
    index = first(events, ContributionAccepted, 7)
    made = events[index]
    assert isinstance(made, ContributionAccepted)
    found = divergence(story, changed(events, index, norm=next_float(made.norm)))
    assert (found.learner, found.round, found.fragment) == (made.learner, made.round, made.fragment)


def test_one_digit_of_a_digest(eventful: tuple[Story, list[Event]]) -> None:
    story, events = eventful
    index = first(events, FragmentCommitted, 5)
    commit = events[index]
    assert isinstance(commit, FragmentCommitted)
    digest = ("1" if commit.digest[0] == "0" else "0") + commit.digest[1:]
    found = divergence(story, changed(events, index, digest=digest))
    assert (found.round, found.version) == (commit.round, commit.version)
    assert "some numbers in it are others" in found.sentence


@pytest.mark.parametrize("by", [-1, 1])
def test_an_adoption_one_step_off(eventful: tuple[Story, list[Event]], by: int) -> None:
    """The next thing that is known of the learner gives it away: the loss of the step it has moved over, or behind."""
    story, events = eventful
    index = first(events, FragmentAdopted, 3, lambda adopted: adopted.source is Source.ADOPTED and adopted.steps > 1)
    adopted = events[index]
    assert isinstance(adopted, FragmentAdopted)
    found = divergence(story, changed(events, index, steps=adopted.steps + by))
    assert found.learner == adopted.learner and found.step is not None
    assert 0 <= found.step - adopted.steps <= 2


def test_a_contribution_that_never_came(eventful: tuple[Story, list[Event]]) -> None:
    story, events = eventful
    index = first(events, ContributionAccepted, 0, lambda made: made.round == first_merged(events).round)
    with pytest.raises(UsageError, match="had never come, or merges it twice; it is damaged"):
        replayed(story, [*events[:index], *events[index + 1 :]])


def first_merged(events: Sequence[Event]) -> Merged:
    return next(event.merged[0] for event in events if isinstance(event, FragmentCommitted))


def test_what_nobody_heard_of_is_said_with_the_difference_it_makes(eventful: tuple[Story, list[Event]]) -> None:
    story, events = eventful
    index = first(events, FragmentAdopted, 3, lambda adopted: adopted.source is Source.ADOPTED)
    adopted = events[index]
    assert isinstance(adopted, FragmentAdopted)
    found = divergence(story, [*events[:index], *events[index + 1 :]])
    assert found.learner == adopted.learner
    assert f"(deed {adopted.deed} of" in found.sentence


def test_a_log_that_does_not_say_what_was_merged_cannot_be_replayed(eventful: tuple[Story, list[Event]]) -> None:
    story, events = eventful
    index = first(events, FragmentCommitted, 0)
    with pytest.raises(UsageError, match="earlier version of unlockstep, and cannot be replayed"):
        replayed(story, changed(events, index, merged=()))
