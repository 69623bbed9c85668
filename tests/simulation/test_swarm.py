"""Many random stories: other settings, speeds and deaths each time. Safety always; and every run comes to its end."""

from __future__ import annotations

import pytest

from support.ring_story import end, random_story

REGRESSIONS = [
    450,  # ended with an upload under way
    891,  # a report overtaken by an upload
    1813,  # ended before the last report, of which an upload had told
]
"""Stories in which something was once wrong."""


@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, 200, 25)], ids=str)
def test_any_story_keeps_the_protocol_and_ends_with_its_books_in_balance(seeds: range) -> None:
    for seed in seeds:
        try:
            end(random_story(seed))
        except AssertionError as error:
            raise AssertionError(f"story {seed}: {error}") from error


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_story_that_once_went_wrong(seed: int) -> None:
    end(random_story(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(start, start + 500) for start in range(200, 6200, 500)], ids=str)
def test_many_more_stories(seeds: range) -> None:
    for seed in seeds:
        try:
            end(random_story(seed))
        except AssertionError as error:
            raise AssertionError(f"story {seed}: {error}") from error
