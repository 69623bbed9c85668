"""What rounding takes is handed over with the next contribution: once, in order, and not beyond a load."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from unlockstep.core import feedback
from unlockstep.core.codec import FragmentCodec
from unlockstep.core.feedback import Encoder
from unlockstep.core.formats import Codec, Rounding
from unlockstep.core.layout import Layout, LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.core.messages import HandedOver

INTEGERS = (Codec.INT8, Codec.INT4, Codec.INT2)
SIZE = 150
LAYOUT = build_layout(
    [TensorSpec(name, (SIZE,), "float32", Role.PARAMETER) for name in ("a", "b")], 2, LayoutMethod.BALANCED
)


@dataclass(frozen=True)
class Made:
    """A contribution."""

    anchor: np.ndarray
    local: np.ndarray
    tokens: int
    fragment: int = 0
    round: int = 0
    loads: int = 1
    run_id: str = "id"
    learner: str = "a"

    @property
    def delta(self) -> np.ndarray:
        return self.anchor - self.local


def made(number: int, fragment: int = 0, **changes: int | str) -> Made:
    """Equal numbers make equal contributions."""
    anchor, local = np.random.default_rng(number).standard_normal((2, SIZE), np.float32)
    return replace(Made(anchor, local, number, fragment, 2 * number + fragment), **changes)


def encoder(feedback: bool = True, rounding: Rounding = Rounding.NEAREST) -> Encoder:
    return Encoder(LAYOUT, feedback=feedback, rounding=rounding)


def decoded(body: memoryview, codec: Codec, fragment: int = 0, of: Layout = LAYOUT) -> np.ndarray:
    return FragmentCodec(of, fragment, codec).decode(body)


def sent(by: Encoder, contribution: Made, codec: Codec = Codec.INT4) -> np.ndarray:
    """As the syncer decodes it."""
    return decoded(body_of(by, contribution, codec), codec, contribution.fragment)


def body_of(by: Encoder, contribution: Made, codec: Codec = Codec.INT4) -> memoryview:
    return by.encode(contribution, codec, contribution.anchor, contribution.local)


@pytest.mark.parametrize("codec", INTEGERS)
def test_the_next_contribution_holds_what_rounding_took_from_this_one(codec: Codec) -> None:
    mine = encoder()
    first = sent(mine, made(1), codec)
    lost = made(1).delta - first
    second = sent(mine, made(2), codec)
    expected = FragmentCodec(LAYOUT, 0, codec).encode(made(2).delta + lost)
    assert np.array_equal(second, decoded(expected, codec))
    assert not np.array_equal(second, sent(encoder(), made(2), codec))


def test_small_progress_that_rounding_always_takes_is_handed_over_in_the_end() -> None:
    """Beside an element of 1, with two bits, 0.2 is rounded to 0, 0.4 to 0.5, then 0.1 to 0 and 0.3 to 0.5."""
    pair = build_layout([TensorSpec("w", (2,), "float32", Role.PARAMETER)], 1, LayoutMethod.BALANCED)
    mine = Encoder(pair, feedback=True, rounding=Rounding.NEAREST)
    delta, nothing = np.array([1.0, 0.2], np.float32), np.zeros(2, np.float32)
    bodies = [body_of(mine, Made(delta, nothing, number, round=number), Codec.INT2) for number in range(4)]
    assert [decoded(body, Codec.INT2, of=pair)[1] for body in bodies] == [0.0, 0.5, 0.0, 0.5]


@pytest.mark.parametrize("rounding", Rounding)
def test_once_more_is_the_same_bytes_and_counts_once(rounding: Rounding) -> None:
    """Even after others have been encoded in between, and under whatever incarnation."""
    mine, other = encoder(rounding=rounding), encoder(rounding=rounding)
    bodies = [body_of(mine, made(number)) for number in (1, 2)]
    assert [body_of(mine, made(number)) for number in (1, 2)] == bodies
    for number in (1, 2):
        body_of(other, made(number))
    assert np.array_equal(sent(mine, made(3)), sent(other, made(3)))


def test_fragments_have_nothing_to_do_with_one_another() -> None:
    mine, other = encoder(), encoder()
    sent(mine, made(1))
    assert np.array_equal(sent(mine, made(2, fragment=1)), sent(other, made(2, fragment=1)))


def test_without_feedback_nothing_is_carried_on() -> None:
    mine = encoder(feedback=False)
    sent(mine, made(1))
    assert np.array_equal(sent(mine, made(2)), sent(encoder(feedback=False), made(2)))


@pytest.mark.parametrize("codec", [Codec.FLOAT32, Codec.BFLOAT16])
def test_a_finer_format_takes_along_what_is_left_and_leaves_nothing(codec: Codec) -> None:
    mine = encoder()
    lost = made(1).delta - sent(mine, made(1), Codec.INT2)
    expected = FragmentCodec(LAYOUT, 0, codec).encode(made(2).delta + lost)
    assert np.array_equal(sent(mine, made(2), codec), decoded(expected, codec))
    assert np.array_equal(sent(mine, made(2), codec), decoded(expected, codec))
    assert np.array_equal(sent(mine, made(3), Codec.INT2), sent(encoder(), made(3), Codec.INT2))


def test_where_a_fragment_was_loaded_what_was_lost_before_is_void() -> None:
    mine = encoder()
    sent(mine, made(1))
    assert np.array_equal(sent(mine, made(2, loads=2)), sent(encoder(), made(2, loads=2)))


def test_what_was_made_before_a_load_and_comes_after_it_takes_and_leaves_nothing() -> None:
    """It has waited for a worker meanwhile."""
    mine, other = encoder(), encoder()
    sent(mine, made(1, loads=2))
    sent(other, made(1, loads=2))
    assert np.array_equal(sent(mine, made(2)), sent(encoder(), made(2)))
    assert np.array_equal(sent(mine, made(3, loads=2)), sent(other, made(3, loads=2)))


def test_what_was_handed_over_before_a_load_is_handed_over_again_as_it_was() -> None:
    mine = encoder()
    sent(mine, made(1))
    before = sent(mine, made(2))
    sent(mine, made(3, loads=2))
    assert np.array_equal(sent(mine, made(2)), before)


def test_another_process_under_the_same_counts_makes_another_contribution() -> None:
    """It has begun anew, so the fragment was loaded: what was kept under these counts is not its."""
    mine = encoder()
    sent(mine, made(1))
    again = replace(made(7), tokens=1, round=2, loads=2)
    assert np.array_equal(sent(mine, again), sent(encoder(), again))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_poisons_no_later_contribution(bad: float) -> None:
    """Only its block is not to be read; the other blocks go on."""
    mine, broken = encoder(), made(1)
    broken.local[70] = bad
    first = sent(mine, broken)
    assert np.isfinite(first).tolist() == [True] * 64 + [False] * 64 + [True] * 22
    lost = np.where(np.isfinite(first), broken.delta - first, 0).astype(np.float32)
    expected = FragmentCodec(LAYOUT, 0, Codec.INT4).encode(made(2).delta + lost)
    assert np.array_equal(sent(mine, made(2)), decoded(expected, Codec.INT4))


def test_chance_depends_on_what_a_contribution_is_known_by_and_on_nothing_else() -> None:
    drawn = sent(encoder(False, Rounding.STOCHASTIC), made(1))
    assert np.array_equal(drawn, sent(encoder(False, Rounding.STOCHASTIC), made(1)))
    for changes in ({"run_id": "other"}, {"learner": "b"}, {"tokens": 5}, {"round": 9}):
        assert not np.array_equal(drawn, sent(encoder(False, Rounding.STOCHASTIC), made(1, **changes)))


def test_a_body_is_kept_until_it_is_settled() -> None:
    """Then it would be made anew, without what had been lost before: nobody asks for it any more."""
    mine = encoder()
    sent(mine, made(1))
    second = sent(mine, made(2))
    mine.forget(HandedOver(made(1).round, 0, 1))
    mine.forget(HandedOver(99, 1, 99))
    assert np.array_equal(sent(mine, made(2)), second)
    mine.forget(HandedOver(made(2).round, 0, 2))
    assert not np.array_equal(sent(mine, made(2)), second)


def test_what_was_handed_over_when_nothing_was_lost_does_not_take_what_a_later_one_has_lost() -> None:
    """In float32 nothing is lost, and no body kept; the format changes, and the first is handed over once more."""
    mine = encoder()
    first = sent(mine, made(1), Codec.FLOAT32)
    sent(mine, made(2), Codec.INT4)
    assert np.array_equal(sent(mine, made(1), Codec.FLOAT32), first)
    third = sent(mine, made(3), Codec.FLOAT32)
    assert not np.array_equal(third, sent(encoder(), made(3), Codec.FLOAT32))  # It takes what the second has lost.


def test_the_oldest_bodies_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "BODIES_KEPT_MAX", 2)
    mine = encoder()
    second, third = [sent(mine, made(number)) for number in (1, 2, 3)][1:]
    assert np.array_equal(sent(mine, made(2)), second)
    assert np.array_equal(sent(mine, made(3)), third)
