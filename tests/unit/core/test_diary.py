"""What a process has done is said once, and once more where perhaps nobody has heard."""

from __future__ import annotations

from unlockstep.core.deeds import AdoptionNotice, Deed, HandOverNotice, Source
from unlockstep.core.diary import SAID_AT_ONCE_MAX, Diary
from unlockstep.core.formats import Codec


def adoption(fragment: int, version: int) -> AdoptionNotice:
    return AdoptionNotice(fragment, version, "00", 0)


def diary(*deeds: Deed) -> Diary:
    kept = Diary()
    for steps, deed in enumerate(deeds):
        assert kept.note(deed, steps) == steps + 1
    return kept


THREE = (adoption(0, 1), HandOverNotice(4, 1, 70, Codec.INT8), adoption(1, 2))


def test_deeds_are_numbered_and_dated_and_said_once() -> None:
    kept = diary(*THREE)
    said = kept.say()
    assert [(deed.number, deed.steps) for deed in said] == [(1, 0), (2, 1), (3, 2)]
    assert kept.say() == () and not kept.has_news


def test_over_a_new_connection_it_says_what_was_not_heard() -> None:
    kept = diary(*THREE)
    kept.say()
    kept.note(adoption(0, 2), 9)
    kept.heard(2)
    assert [deed.number for deed in kept.say()] == [3, 4]
    kept.heard(4)
    assert kept.say() == ()


def test_another_life_of_the_syncer_may_have_heard_less_than_the_one_before() -> None:
    kept = diary(*THREE)
    kept.say()
    kept.heard(3)
    assert kept.say() == ()
    again = diary(*THREE)
    again.say()
    again.heard(0)
    assert [deed.number for deed in again.say()] == [1, 2, 3]


def test_versions_that_the_syncer_has_lost_are_told_as_lost() -> None:
    kept = diary(*THREE)
    kept.lose((1, 1))
    first, _, last = kept.say()
    assert isinstance(first, AdoptionNotice) and first.source is Source.ADOPTED
    assert isinstance(last, AdoptionNotice) and last.source is Source.LOST


def test_a_life_without_parameters_has_lost_all_versions() -> None:
    kept = diary(*THREE)
    kept.lose(())
    assert [deed.source for deed in kept.say() if isinstance(deed, AdoptionNotice)] == [Source.LOST, Source.LOST]


def test_another_process_goes_on_with_its_numbers() -> None:
    kept = diary(*THREE)
    kept.say()
    other = Diary()
    other.resume(kept.count, kept.remaining())
    assert other.note(adoption(0, 3), 8) == 4
    other.heard(3)
    assert [deed.number for deed in other.say()] == [4]


def test_a_report_says_so_many_at_once() -> None:
    kept = diary(*[adoption(0, 1)] * (SAID_AT_ONCE_MAX + 1))
    assert len(kept.say()) == SAID_AT_ONCE_MAX
    assert kept.has_news
    assert len(kept.say()) == 1
