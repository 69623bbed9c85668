"""Who may join: every refusal, with the sentence a person reads."""

from __future__ import annotations

from typing import Any

import pytest

from support.core_builders import join, layout, options, tensors
from unlockstep.core.admission import DIFFERENCES_SHOWN_MAX, examine
from unlockstep.core.ids import PROTOCOL_VERSION
from unlockstep.core.layout import Layout, LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.core.membership import MemberMove, Membership
from unlockstep.core.messages import Join, JoinRefused
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import JoinRefusal


def examined(
    request: Join,
    protocol: ProtocolOptions | None = None,
    members: Membership | None = None,
    agreed: Layout | None = None,
    finished: bool = False,
) -> Layout | JoinRefused:
    protocol = protocol or options()
    return examine(request, "id", protocol, members or Membership(protocol), agreed, finished)


def refused(request: Join, **context: Any) -> JoinRefused:
    verdict = examined(request, **context)
    assert isinstance(verdict, JoinRefused)
    return verdict


def model(*specs: TensorSpec, fragment_count: int = 2) -> Join:
    """A learner with this model, whose digest is right for it."""
    made = build_layout(specs, fragment_count, LayoutMethod.BALANCED)
    return join("b", layout_digest=made.digest, tensors=made.specs())


def test_the_first_learner_brings_the_layout() -> None:
    assert examined(join("a")) == layout()


def test_a_learner_with_the_run_s_model_agrees_with_it() -> None:
    assert examined(join("b"), agreed=layout()) is layout()


def test_another_protocol_version_is_refused_with_both_numbers() -> None:
    verdict = refused(join("a", protocol_version=PROTOCOL_VERSION + 1))
    assert verdict.reason is JoinRefusal.PROTOCOL_VERSION
    assert verdict.detail == (
        f"the learner speaks protocol {PROTOCOL_VERSION + 1}, the syncer {PROTOCOL_VERSION}; "
        "install the same version of unlockstep on both"
    )


@pytest.mark.parametrize("name", ["", "-a", "_a", "a b", "a/b", "a.b", "ä", "a\n", "a" * 65])
def test_a_name_that_cannot_be_part_of_a_url_is_refused(name: str) -> None:
    assert refused(join(name)).reason is JoinRefusal.BAD_NAME


@pytest.mark.parametrize("name", ["a", "0", "A-b_9", "a" * 64])
def test_letters_digits_and_two_marks_make_a_name(name: str) -> None:
    assert examined(join(name)) == layout()


def test_an_overlong_name_is_not_repeated_in_full() -> None:
    assert len(refused(join("x" * 10_000)).detail) < 300


def test_a_run_that_ends_takes_nobody() -> None:
    assert refused(join("a"), finished=True) == JoinRefused(
        JoinRefusal.RUN_FINISHED, "the run is over; start a new one"
    )


def test_a_run_that_has_ended_does_not_even_take_back_who_was_in_it() -> None:
    protocol = options()
    members = Membership(protocol)
    members.join("a", 0)
    back = join("a", incarnation=1)
    assert examine(back, "id", protocol, members, layout(), finished=True) == layout()
    verdict = examine(back, "id", protocol, members, layout(), finished=True, is_over=True)
    assert isinstance(verdict, JoinRefused) and verdict.reason is JoinRefusal.RUN_FINISHED


@pytest.mark.parametrize("known", [False, True], ids=["by a new name", "by a name that has joined anew"])
def test_a_process_of_an_earlier_life_of_the_syncer_is_told_that_its_run_is_lost(known: bool) -> None:
    """C34: its parameters are of no version that this syncer knows, whatever their numbers."""
    members = Membership(options())
    if known:
        members.join("a", 0)
    verdict = refused(join("a", incarnation=1, run_id="another"), members=members, agreed=layout())
    assert verdict.reason is JoinRefusal.UNKNOWN_PROCESS
    assert "has lost the run's parameters; start the run anew" in verdict.detail


def test_a_quarantined_learner_stays_out() -> None:
    """C9"""
    members = Membership(options())
    member = members.join("a", now_ns=0)
    member.strikes = 3
    members.quarantine(member, 0)
    verdict = refused(join("a"), members=members)
    assert (verdict.reason, verdict.retry_ns) == (JoinRefusal.QUARANTINED, 60 * 10**9)
    assert verdict.detail == "contributions of a were refused 3 times in a row; it may join again in 60 s"


def test_a_learner_is_quarantined_for_good_if_the_pause_is_zero() -> None:
    """C9"""
    members = Membership(options(quarantine_s=0))
    member = members.join("a", now_ns=0)
    member.strikes = 3
    members.quarantine(member, 0)
    verdict = refused(join("a"), members=members)
    assert (verdict.reason, verdict.retry_ns) == (JoinRefusal.QUARANTINED, 0)
    assert verdict.detail == "contributions of a were refused 3 times in a row; see the syncer's run log"


def test_one_more_than_the_limit_is_refused_and_those_present_may_return() -> None:
    """C25"""
    protocol = options(learners_max=2)
    members = Membership(protocol)
    members.join("a", now_ns=0)
    members.join("b", now_ns=0)
    verdict = refused(join("c"), protocol=protocol, members=members)
    assert verdict.reason is JoinRefusal.TOO_MANY_LEARNERS
    assert verdict.detail == "2 learners are present; raise protocol.learners_max or stop one"
    assert examined(join("b"), protocol=protocol, members=members) == layout()


def test_a_learner_that_left_makes_room() -> None:
    """C25"""
    protocol = options(learners_max=1)
    members = Membership(protocol)
    members.join("a", now_ns=0).move(MemberMove.DEPART)
    assert examined(join("c"), protocol=protocol, members=members) == layout()
    members.join("c", now_ns=0)
    assert refused(join("a"), protocol=protocol, members=members).reason is JoinRefusal.TOO_MANY_LEARNERS


TENSORS = (
    TensorSpec("layers.0.weight", (2, 3), "float32", Role.PARAMETER),
    TensorSpec("layers.1.weight", (3, 3), "float32", Role.PARAMETER),
)
AGREED = build_layout(TENSORS, 2, LayoutMethod.BALANCED)


@pytest.mark.parametrize(
    ("theirs", "difference"),
    [
        (
            (TensorSpec("layers.0.weight", (3, 2), "float32", Role.PARAMETER), TENSORS[1]),
            "layers.0.weight: shape 2x3 here, 3x2 there (transposed)",
        ),
        (
            (*TENSORS, TensorSpec("layers.2.weight", (4,), "float32", Role.PARAMETER)),
            "layers.2.weight: there with shape 4, missing here",
        ),
        (
            (TensorSpec("layers.0.weight", (2, 3), "bfloat16", Role.PARAMETER), TENSORS[1]),
            "layers.0.weight: dtype float32 here, bfloat16 there",
        ),
        (
            tuple(TensorSpec(f"module.{t.name}", t.shape, t.dtype, t.role) for t in TENSORS),
            "2 of 2 tensors carry the prefix 'module.' there only: strip it",
        ),
    ],
)
def test_another_model_is_refused_with_a_readable_difference(theirs: tuple[TensorSpec, ...], difference: str) -> None:
    """C17"""
    verdict = refused(model(*theirs), agreed=AGREED)
    assert verdict.reason is JoinRefusal.LAYOUT_MISMATCH
    assert verdict.detail == f"the model is not the run's (here: the run, there: this learner): {difference}"


def test_the_same_model_cut_differently_is_refused_with_what_to_do() -> None:
    """C17"""
    other_cut = build_layout(TENSORS, 1, LayoutMethod.BALANCED)
    verdict = refused(join("b", layout_digest=other_cut.digest, tensors=other_cut.specs()), agreed=AGREED)
    assert verdict.reason is JoinRefusal.LAYOUT_MISMATCH
    assert "take protocol.fragments and protocol.layout from the syncer" in verdict.detail


def test_a_long_difference_is_cut_short() -> None:
    """C17"""
    extra = tuple(TensorSpec(f"extra.{n}", (1,), "float32", Role.PARAMETER) for n in range(DIFFERENCES_SHOWN_MAX + 5))
    assert refused(model(*TENSORS, *extra), agreed=AGREED).detail.endswith("; and 5 more")


def test_a_first_model_that_cannot_be_cut_is_refused() -> None:
    request = join("a", tensors=tensors(1))
    verdict = refused(request)
    assert verdict.reason is JoinRefusal.LAYOUT_MISMATCH
    assert verdict.detail.startswith("protocol.fragments is 2, but this model has 1 trainable tensors")


@pytest.mark.parametrize("agreed", [None, layout()])
def test_a_model_that_nobody_should_go_through_is_refused_whatever_the_run_has(agreed: Layout | None) -> None:
    """Its size, or how it differs, would take minutes to find out."""
    shapes = TensorSpec("a", (2**63,) * 100_000, "float32", Role.PARAMETER)
    names = TensorSpec("." * 4_000_000, (1,), "float32", Role.PARAMETER)
    for tensor in (shapes, names):
        verdict = refused(join("a", tensors=(tensor,)), agreed=agreed)
        assert verdict.reason is JoinRefusal.LAYOUT_MISMATCH and len(verdict.detail) < 300
