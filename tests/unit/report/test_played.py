"""How a tape went: until when, what was left of it, and how long processes took to start."""

from __future__ import annotations

from support.logs import GOOD, joined, step
from unlockstep.core.events import Event
from unlockstep.report.played import Played, PlayedReader
from unlockstep.report.tape_time import TapeTime
from unlockstep.tape import Action, Join, Kill, Restart, Tape

MS = 1_000_000


def played(*story: Event, actions: tuple[Action, ...] = (), simulated: bool = True) -> Played | None:
    reader = PlayedReader(TapeTime(Tape(name="dawn", learners=("a", "b"), actions=actions), simulated))
    for event in story:
        reader.see(event)
    return reader.played()


def test_a_tape_is_played_until_the_run_begins_to_finish() -> None:
    actions = (Kill(at_ns=300 * MS, target="b"), Join(at_ns=400 * MS, target="c"))
    assert played(*GOOD, actions=actions) == Played(0, 490 * MS, 0, 2, None, 0)
    assert played(*GOOD, actions=actions, simulated=False) == Played(100 * MS, 390 * MS, 1, 2, None, 0)


def test_a_played_tape_begins_when_it_says() -> None:
    """The supervisor hears of the last first step a moment after the syncer."""
    tape = Tape(name="dawn", learners=("a", "b"), began_ns=130 * MS)
    for simulated, begin_ns in ((False, 130 * MS), (True, 0)):
        reader = PlayedReader(TapeTime(tape, simulated))
        for event in GOOD:
            reader.see(event)
        told = reader.played()
        assert told is not None and told.begin_ns == begin_ns


def test_a_tape_whose_learners_have_not_all_taken_a_step_has_not_begun() -> None:
    assert played(joined(0, "a"), step(100, "a", 1), simulated=False) is None


def test_how_long_a_process_takes_to_start_is_told_by_those_that_the_tape_started() -> None:
    story = (joined(20, "a"), joined(20, "b"), step(150, "a", 1), step(150, "b", 1))
    assert played(*story) == Played(0, 150 * MS, 0, 0, None, 20 * MS)
    actions = (Kill(at_ns=200 * MS, target="b"), Restart(at_ns=300 * MS, target="b"))
    again = played(*story, joined(700, "b", 2), step(900, "b", 1), actions=actions)
    assert again is not None and again.start_ns == 400 * MS
