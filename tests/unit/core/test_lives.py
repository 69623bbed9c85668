"""Which versions survive which death of the syncer."""

from __future__ import annotations

from unlockstep.core.lives import LIVES_MAX, Lives


def lived(*begun_with: tuple[int, ...]) -> Lives:
    """Lives from the second on, each taken up from what the one before has saved."""
    lives = Lives()
    for life, versions in enumerate(begun_with, start=2):
        before, lives = lives.saved(), Lives()
        lives.resume(before, life, versions)
    return lives


def test_in_the_first_life_nothing_was_lost() -> None:
    assert Lives().kept_since(0) == Lives().kept_since(1) == ()


def test_who_knows_the_life_before_has_lost_what_this_one_did_not_begin_with() -> None:
    assert lived((7, 6)).kept_since(1) == (7, 6)
    assert lived((7, 6)).kept_since(2) == ()


def test_a_number_that_was_lost_in_a_life_one_has_missed_is_lost_though_there_is_one_again() -> None:
    """Life 2 had published version 75 and not saved it; life 3 has published another version 75."""
    lives = lived((74, 80), (75, 79))
    assert lives.kept_since(1) == (74, 79)
    assert lives.kept_since(2) == (75, 79)


def test_a_life_without_parameters_has_kept_nothing() -> None:
    assert lived((), (3, 3)).kept_since(1) == ()
    assert lived((), (3, 3)).kept_since(2) == (3, 3)


def test_of_very_old_lives_the_least_is_remembered() -> None:
    lives = lived(*((100 - number, 100 + number) for number in range(2 * LIVES_MAX)))
    assert len(lives.saved()) == LIVES_MAX
    newest = 2 * LIVES_MAX + 1
    assert lives.kept_since(1) == (100 - 2 * LIVES_MAX + 1, 100)
    assert lives.kept_since(newest - 1) == (100 - 2 * LIVES_MAX + 1, 100 + 2 * LIVES_MAX - 1)
