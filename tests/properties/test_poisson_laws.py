"""Laws of tapes that are drawn: valid, the same for a seed, as frequent as asked, and whole again at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlockstep import poisson
from unlockstep import tape as tapes
from unlockstep.core.errors import UsageError
from unlockstep.poisson import BEGINS_AND_ENDS, Trouble, draw
from unlockstep.tape import SYNCER, Kill, LinkState, Standing, TargetState

VALUES = {
    "slow": {"factor": 5.0},
    "throttle": {"mbit_per_s": 10.0},
    "delay": {"seconds": 0.2},
    "jump": {"seconds": 9.0},
}
OF_SYNCER = ("kill", "stop", "fill", "jump")

means = st.floats(0.5, 100.0)
lasting = st.floats(0.0, 50.0)


def troubles_of(kinds: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Trouble]]:
    return st.lists(kinds, unique=True, max_size=5).flatmap(
        lambda names: st.fixed_dictionaries(
            {name: st.builds(Trouble, means, lasting, st.just(VALUES.get(name))) for name in names}
        )
    )


@given(
    st.integers(1, 4),
    st.floats(0.01, 300.0),
    st.integers(0, 2**64),
    troubles_of(st.sampled_from(sorted(BEGINS_AND_ENDS))),
    troubles_of(st.sampled_from(OF_SYNCER)),
)
def test_a_drawn_tape_is_valid_and_everything_is_whole_at_its_end(
    learners: int, duration_s: float, seed: int, troubles: dict[str, Trouble], syncers: dict[str, Trouble]
) -> None:
    names = tuple(f"learner-{number}" for number in range(learners))
    drawn = draw("drawn", names, duration_s, seed, troubles, syncers)
    assert drawn == draw("drawn", names, duration_s, seed, troubles, syncers)
    assert tapes.loads(tapes.dumps_lines(drawn), "jsonl") == drawn
    standing, levels = Standing(names), {}
    for action in drawn.actions:
        standing.move(action)
        if isinstance(action, tapes.Fill | tapes.Free):
            levels[action.target] = isinstance(action, tapes.Fill)
    for name in (*names, SYNCER):
        assert standing.process(name) is TargetState.RUNNING and standing.link(name) is LinkState.WHOLE
    assert not any(levels.values())


@given(st.integers(0, 2**32))
def test_one_more_kind_and_one_more_learner_leave_the_others_as_they_were(seed: int) -> None:
    cut = {"cut": Trouble(20.0, 5.0)}
    alone = draw("x", ("a",), 100.0, seed, cut).actions
    both = draw("x", ("a", "b"), 100.0, seed, {**cut, "throttle": Trouble(30.0, 5.0, {"mbit_per_s": 1.0})}).actions
    assert [each for each in both if each.target == "a" and not isinstance(each, tapes.Throttle)] == list(alone)


def test_there_are_as_many_as_the_mean_says() -> None:
    """A renewal process of mean gap 40 s + 10 s has 200 beginnings in 10 000 s, with a spread below their root: of 50
    learners 10 000, give or take 100; four times that is allowed."""
    names = tuple(f"learner-{number}" for number in range(50))
    drawn = draw("x", names, 10_000.0, 1, {"kill": Trouble(40.0, 10.0)})
    assert sum(isinstance(action, Kill) for action in drawn.actions) == pytest.approx(10_000, abs=400)
    down_ns = sum(-action.at_ns if isinstance(action, Kill) else action.at_ns for action in drawn.actions)
    assert down_ns / (50 * drawn.end_ns) == pytest.approx(10 / 50, abs=0.008)


@pytest.mark.parametrize(
    ("trouble", "duration_s", "sentence"),
    [
        (Trouble(0.0, 1.0), 10.0, "give a mean above 0"),
        (Trouble(1.0, -1.0), 10.0, "a duration of at least 0"),
        (Trouble(float("nan"), 1.0), 10.0, "give a mean above 0"),
        (Trouble(float("inf"), 1.0), 10.0, "give a mean above 0"),
        (Trouble(1.0, 1.0), 0.0, "it must be above 0"),
        (Trouble(1.0, 1.0), 1e12, "less than a century"),
        (Trouble(0.001, 0.001), 1e6, "make it shorter"),
    ],
)
def test_what_nobody_could_play_is_refused(trouble: Trouble, duration_s: float, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        draw("x", ("a",), duration_s, 0, {"kill": trouble})


def test_every_trouble_is_an_action_and_those_that_last_have_an_end() -> None:
    assert {begins.__name__.lower() for begins, _ in poisson.BEGINS_AND_ENDS.values()} == set(BEGINS_AND_ENDS)
