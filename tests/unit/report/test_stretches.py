"""What a learner did when: reports that come late, steps that nobody reported, processes that died unheard."""

from __future__ import annotations

from support.logs import joined, live, step
from unlockstep.core.events import Event, LearnerAway, LearnerDeparted, SyncerResumed
from unlockstep.core.reasons import DepartureReason
from unlockstep.report.stretches import Attendance, Stretch
from unlockstep.report.tape_time import TapeTime
from unlockstep.tape import Cut, Heal, Kill, Restart, Tape

MS = 1_000_000


def told(*story: Event, tape: Tape | None = None) -> list[Stretch]:
    found: list[Stretch] = []
    time = TapeTime(tape, simulated=True)
    attendance = Attendance(found.append, time)
    for event in story:
        time.see(event)
        attendance.see(event)
    attendance.finish()
    return found


def short(stretches: list[Stretch]) -> list[tuple[str, int, int]]:
    """Neighbours of one kind joined; what nobody heard of in time has a star."""
    said: list[tuple[str, int, int]] = []
    for one in stretches:
        name = one.doing.value + "*" * one.unheard
        begin, end = one.begin_ns // MS, one.end_ns // MS
        if said and said[-1][0] == name and said[-1][2] == begin:
            said[-1] = (name, said[-1][1], end)
        elif end > begin:
            said.append((name, begin, end))
    return said


def away(at: int) -> LearnerAway:
    return LearnerAway(at * MS, "a", 1)


BEGINNING = (joined(0, "a"), live(100, "a"), *(step(100 * number, "a", number) for number in range(1, 5)))
"""Four steps of 100 ms, until 400 ms."""


def test_reports_that_a_cut_held_up_are_of_steps_before() -> None:
    """Five come at once, and the next as ever. One that is less than two steps late is not worth a word."""
    story = (*BEGINNING, *(step(950, "a", number) for number in range(5, 10)), step(1050, "a", 10))
    assert short(told(*story)) == [
        ("computing", 0, 400),
        ("waiting", 400, 450),
        ("computing*", 450, 650),
        ("computing", 650, 1050),
    ]


def test_reports_that_come_a_little_late_do_not_overlap() -> None:
    story = (joined(0, "a"), live(115, "a"), step(115, "a", 1), step(205, "a", 2), step(310, "a", 3))
    assert short(told(*story)) == [("recovering", 0, 5), ("computing", 5, 205), ("waiting", 205, 210),
                                   ("computing", 210, 310)]  # fmt: skip


def test_who_trains_on_without_a_connection_computes() -> None:
    """It stands still after three steps more, as far as anybody knows."""
    story = (*BEGINNING, away(420), joined(1000, "a", resumed=True), step(1100, "a", 8))
    assert short(told(*story)) == [
        ("computing", 0, 400),
        ("computing*", 400, 700),
        ("away", 700, 1000),
        ("computing", 1000, 1100),
    ]
    assert sum(stretch.tokens for stretch in told(*story)) == 80


def test_steps_without_a_syncer_that_were_faster_than_usual_fill_the_time_and_no_more() -> None:
    resumed = SyncerResumed(900 * MS, 2, 4, (0, 0))
    story = (*BEGINNING, resumed, joined(950, "a", resumed=True), step(1000, "a", 20))
    assert short(told(*story)) == [("computing", 0, 400), ("computing*", 400, 900), ("computing", 900, 1000)]


def test_a_new_process_that_is_heard_of_late_has_recovered_before_it_trained() -> None:
    story = (joined(0, "a"), away(50), joined(700, "a", resumed=True), step(800, "a", 4))
    assert short(told(*story)) == [("recovering", 0, 400), ("computing*", 400, 700), ("computing", 700, 800)]


def killed(*at: int) -> Tape:
    actions = [kind(at_ns=ms * MS, target="a") for ms in at for kind in (Kill, Restart)]
    return Tape(name="night", learners=("a",), actions=tuple(actions))


def test_a_process_that_was_killed_unheard_is_down_from_then() -> None:
    """The syncer died after 400 ms; at 700 ms the tape killed the learner, which had not been back."""
    story = (*BEGINNING, SyncerResumed(900 * MS, 2, 4, (0, 0)), joined(1000, "a", 2), step(1200, "a", 1))
    after = [("recovering", 1000, 1100), ("computing", 1100, 1200)]
    assert short(told(*story)) == [("computing", 0, 400), ("down", 400, 1000), *after]
    assert short(told(*story, tape=killed(700))) == [
        ("computing", 0, 400), ("away", 400, 700), ("down", 700, 1000), *after
    ]  # fmt: skip


def test_a_process_that_was_killed_while_it_was_heard_is_down_from_its_last_step() -> None:
    story = (*BEGINNING, away(460), LearnerDeparted(900 * MS, "a", 1, DepartureReason.LEASE_EXPIRED))
    assert short(told(*story, tape=killed(450))) == [("computing", 0, 400), ("down", 400, 900)]


def test_what_a_tape_does_to_a_link_kills_nobody() -> None:
    tape = Tape(name="cut", learners=("a",), actions=(Cut(at_ns=MS, target="a"), Heal(at_ns=500 * MS, target="a")))
    story = (*BEGINNING, away(460), LearnerDeparted(900 * MS, "a", 1, DepartureReason.LEASE_EXPIRED))
    assert short(told(*story, tape=tape)) == [("computing", 0, 400), ("down", 400, 900)]
