"""Every deed of a process is in the run log once, whatever becomes of connections and of the syncer."""

from __future__ import annotations

from support.syncer_stage import SyncerStage, running
from unlockstep.core.deeds import AdoptionNotice, HandOverNotice, Source
from unlockstep.core.events import FragmentAdopted, LearnerDid
from unlockstep.core.formats import Codec
from unlockstep.core.messages import Welcome

ADOPTED = AdoptionNotice(1, 0, "digest-1-0", 5, clock=7, number=1, steps=2)
HANDED_OVER = HandOverNotice(0, 1, 30, Codec.INT4, number=2, steps=3)


def logged(stage: SyncerStage) -> list[int]:
    """Numbers of the deeds in the log."""
    deeds = [event for event in stage.events if isinstance(event, FragmentAdopted | LearnerDid)]
    return [event.deed.number if isinstance(event, LearnerDid) else event.deed for event in deeds]


def test_an_adoption_and_another_deed() -> None:
    stage = running("a")
    stage.step("a", deeds=(ADOPTED, HANDED_OVER))
    (adopted,) = [event for event in stage.events if isinstance(event, FragmentAdopted)]
    assert (adopted.steps, adopted.clock, adopted.source, adopted.deed) == (2, 7, Source.ADOPTED, 1)
    (did,) = [event for event in stage.events if isinstance(event, LearnerDid)]
    assert did.deed == HANDED_OVER


def test_what_is_said_again_is_logged_once() -> None:
    stage = running("a")
    stage.step("a", deeds=(ADOPTED,))
    stage.step("a", deeds=(ADOPTED, HANDED_OVER))
    assert logged(stage) == [1, 2]


def test_who_comes_back_is_told_what_was_heard() -> None:
    stage = running("a")
    stage.step("a", deeds=(ADOPTED, HANDED_OVER))
    stage.disconnect("a")
    stage.join("a", incarnation=1)
    assert stage.puppets["a"].heard_of(Welcome)[-1].deeds == 2


def test_of_another_process_nothing_was_heard() -> None:
    stage = running("a")
    stage.step("a", deeds=(ADOPTED, HANDED_OVER))
    stage.disconnect("a")
    stage.join("a")
    assert stage.puppets["a"].heard_of(Welcome)[-1].deeds == 0


def test_a_syncer_that_dies_asks_for_what_it_had_not_saved() -> None:
    stage = running("a")
    stage.step("a", deeds=(ADOPTED,))
    saved = stage.save()
    stage.step("a", deeds=(HANDED_OVER,))
    stage.die(saved)
    stage.join("a", incarnation=1)
    assert stage.puppets["a"].heard_of(Welcome)[-1].deeds == 1
