"""The timeline: how stretches become columns, and that nothing gets lost in them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from support.logs import GOOD, joined, live, step
from unlockstep.core.events import Event, LearnerAway, LearnerDeparted, StepReported, SyncerResumed
from unlockstep.core.reasons import DepartureReason
from unlockstep.report.figures import standalone
from unlockstep.report.timeline import Row, Timeline, TimelineReader, read_timeline, timeline_svg
from unlockstep.tape import Kill, Restart, Slow, Tape

MS = 1_000_000


def timeline(events: tuple[Event, ...] = GOOD, end: int = 600, tape: Tape | None = None) -> Timeline:
    steps_ns = {"a": 100 * MS, "b": 100 * MS}
    return read_timeline(events, begin_ns=0, end_ns=end * MS, learners=("a", "b"), undisturbed_ns=steps_ns, tape=tape)


def spent_ms(row: Row) -> dict[str, float]:
    return {kind: pytest.approx(sum(cells) / MS) for kind, cells in row.spent_ns.items() if sum(cells)}


def test_a_stretch_is_shared_out_over_the_columns_it_lies_in() -> None:
    row = Row(4)
    row.add("down", 0.25, 2.5, 100.0)
    assert row.spent_ns["down"] == [75.0, 100.0, 50.0, 0.0]
    row.add("down", 2.75, 2.9, 100.0)
    assert row.spent_ns["down"][2] == pytest.approx(65.0)


def test_what_lies_outside_is_cut_off() -> None:
    row = Row(2)
    row.add("down", -5.0, 0.5, 10.0)
    row.add("down", 1.5, 9.0, 10.0)
    row.add("down", 3.0, 4.0, 10.0)
    assert row.spent_ns["down"] == [5.0, 5.0]


def test_a_row_holds_all_the_time_of_its_learner() -> None:
    assert spent_ms(timeline().rows["a"]) == {"computing": 500}


def test_a_step_that_takes_longer_than_twice_the_usual_is_slowed_in_its_first_part() -> None:
    long = StepReported(500 * MS, "a", 1, 2, 2, 20, 400 * MS, 1.0)
    story = (joined(0, "a"), live(100, "a"), step(100, "a", 1), long)
    assert spent_ms(timeline(story).rows["a"]) == {"computing": 200, "slowed": 300}


def test_a_learner_that_is_gone_is_down_and_says_so() -> None:
    story = (joined(0, "a"), live(100, "a"), step(100, "a", 1), LearnerAway(110 * MS, "a", 1),
             LearnerDeparted(200 * MS, "a", 1, DepartureReason.LEASE_EXPIRED), joined(400, "a", 2),
             step(600, "a", 1))  # fmt: skip
    row = timeline(story).rows["a"]
    assert spent_ms(row) == {"computing": 200, "down": 300, "recovering": 100}
    assert [(span.what, span.begin_ns, span.end_ns) for span in row.incidents] == [
        ("a: down", 100 * MS, 400 * MS),
        ("a: recovering", 400 * MS, 500 * MS),
    ]


def test_rounds_are_cut_into_collecting_grace_and_merging() -> None:
    read = timeline()
    first = read.spans[0]
    assert (first.opened_ns, first.quorum_ns, first.closed_ns, first.durable_ns, first.grace_until_ns) == tuple(
        at * MS for at in (200, 210, 220, 230, 260)
    )
    assert read.rounds_seen == 4


def test_a_syncer_that_was_gone_has_a_row() -> None:
    story = (*GOOD[:8], SyncerResumed(400 * MS, 2, 2, (0, 0)))
    assert spent_ms(timeline(story).syncer) == {"down": 200}
    assert "life 2" in timeline_svg(timeline(story), "t")
    assert timeline().syncer.incidents == []


def test_what_a_tape_does_is_a_mark_on_its_row() -> None:
    slow = [Slow(at_ns=at * MS, target="b", factor=factor) for at, factor in ((250, 4.0), (300, 1.0))]
    told = timeline(tape=Tape(name="dawn", learners=("a", "b"), actions=tuple(slow))).marks[:2]
    assert [(mark.what, mark.learner, mark.at_ns) for mark in told] == [
        ("tape: slow b (factor 4)", "b", 250 * MS),
        ("tape: slow b (factor 1: its own speed)", "b", 300 * MS),
    ]


def test_the_tape_of_a_real_run_is_drawn_from_when_all_have_taken_a_step() -> None:
    tape = Tape(name="dawn", learners=("a", "b"), actions=(Kill(at_ns=250 * MS, target="b"),))
    reader = TimelineReader(begin_ns=0, end_ns=600 * MS, learners=("a", "b"), tape=tape, simulated=False)
    for event in GOOD:
        reader.see(event)
    assert reader.timeline().marks[0].at_ns == 350 * MS
    late = TimelineReader(begin_ns=0, end_ns=600 * MS, learners=("a", "b", "c"), tape=None, simulated=False)
    assert late.timeline().marks == []


def test_what_nobody_heard_of_in_time_is_drawn_as_computing_with_a_line() -> None:
    story = (joined(0, "a"), live(100, "a"), step(100, "a", 1), LearnerAway(110 * MS, "a", 1),
             joined(400, "a", resumed=True), step(500, "a", 4))  # fmt: skip
    row = timeline(story).rows["a"]
    assert spent_ms(row) == {"computing": 400, "unheard": 200, "away": 100}
    assert 'fill="var(--unheard)"' in timeline_svg(timeline(story), "t")


def test_slow_steps_of_which_nobody_heard_are_drawn_as_slowed_in_part() -> None:
    slow = [StepReported(at * MS, "a", 1, n, n, 10 * n, 400 * MS, 1.0) for n, at in ((1, 400), (2, 800))]
    last = StepReported(2400 * MS, "a", 1, 6, 6, 60, 400 * MS, 1.0)
    story = (joined(0, "a"), live(400, "a"), *slow, LearnerAway(810 * MS, "a", 1),
             joined(1900, "a", resumed=True), last)  # fmt: skip
    row = timeline(story, 2400).rows["a"]
    assert spent_ms(row) == {"computing": 600, "slowed": 1800, "unheard": 1200}


def test_of_too_many_marks_those_of_single_learners_are_left_out() -> None:
    kills = [kind(at_ns=at * MS // 2, target="b") for at in range(0, 600, 2) for kind in (Kill, Restart)]
    read = timeline(tape=Tape(name="dawn", learners=("a", "b"), actions=tuple(kills)))
    assert [mark.what for mark in read.marks] == ["the run begins to finish: enough"]
    assert read.marks_left_out == 600


def test_a_picture_stands_alone() -> None:
    root = ElementTree.fromstring(standalone(timeline_svg(timeline(), 'a "title" & more')))
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.get("aria-label") == 'a "title" & more'
    assert len(root.findall(".//{http://www.w3.org/2000/svg}path[@class='mark']")) >= 2


def test_a_day_of_fifty_learners_is_a_picture_of_bounded_size() -> None:
    names = [f"learner-{number}" for number in range(50)]
    events: list[Event] = [joined(0, name) for name in names]
    for number in range(1, 200):
        for index, name in enumerate(names):
            wait_ns = (index * 7 + number * 13) % 400 * MS
            length_ns = 500 * MS - wait_ns
            events.append(StepReported(number * 500 * MS, name, 1, number, number, number, length_ns, 1.0))
    read = read_timeline(events, begin_ns=0, end_ns=100_000 * MS, learners=names)
    assert len(timeline_svg(read, "t")) < 2_000_000
