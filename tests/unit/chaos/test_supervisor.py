"""What a supervisor leaves out, and what it writes down, with stand-ins for processes and a clock moved by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.full_disk import files_of_at_most
from support.statuses import learner_status, status
from unlockstep import tape as tapes
from unlockstep.chaos.supervisor import PlayedTape, Supervisor
from unlockstep.core.errors import UsageError
from unlockstep.launch.breaker import Hands
from unlockstep.launch.processes import Processes, Wakeup
from unlockstep.tape import Continue, Join, Jump, Kill, Restart, Stop, Tape

SECOND_NS = 1_000_000_000


def test_what_cannot_be_done_any_more_is_left_out_and_what_was_done_is_a_tape(tmp_path: Path) -> None:
    """``b`` has ended by itself: it cannot be stopped, and so not be continued; nor is it dead, for the tape."""
    tape = Tape(
        name="late",
        learners=("a", "b"),
        actions=(
            Stop(at_ns=1 * SECOND_NS, target="b"),
            Continue(at_ns=2 * SECOND_NS, target="b"),
            Jump(at_ns=3 * SECOND_NS, target="b", seconds=60.0),
            Kill(at_ns=3 * SECOND_NS, target="b"),
            Restart(at_ns=4 * SECOND_NS, target="b"),
            Kill(at_ns=5 * SECOND_NS, target="a"),
        ),
    )
    now_ns, notes, launched = [100 * SECOND_NS], [], []
    supervisor = Supervisor(tape, tmp_path, tmp_path / "tape.jsonl", lambda: now_ns[0])
    trained = status(learners=(learner_status("a"), learner_status("b")))
    with Wakeup() as wakeup, Processes(tmp_path, wakeup) as processes:
        supervisor.enter(Hands(processes, launched.append, notes.append))
        processes.start("a", ("sleep", "60"))
        supervisor.started("a")
        supervisor.act(status(learners=(learner_status("a"), learner_status("b", steps=0))), 0, is_ending=False)
        assert not supervisor.has_more, "b has not taken a step: the tape has not begun"
        supervisor.act(trained, 40_000_000, is_ending=False)
        for _ in range(12):
            now_ns[0] += SECOND_NS // 2 + 1
            supervisor.act(trained, 0, is_ending=False)
        (exited,) = _exits(processes, wakeup)
        claim = supervisor.claims(exited, trained)
        assert claim is not None and claim.sentence == "was killed (SIGKILL) by the tape"
        supervisor.release()
        supervisor.close()
    assert [note for note in notes if note.startswith("left out")] == [
        "left out: stop b, for b is not there",
        "left out: continue b, for b is not there",
        "left out: kill b, for b is not there",
        "left out: restart b, for b is running",
    ]
    assert launched == [] and supervisor.is_over
    played = tapes.read(tmp_path / "tape.jsonl")
    assert [type(action) for action in played.actions] == [Jump, Kill]
    assert played.began_ns == trained.at_ns + 40_000_000, "in the log of the run"
    assert played.end_ns >= played.actions[-1].at_ns >= 5 * SECOND_NS


def test_a_tape_waits_for_its_own_learners_and_not_for_what_others_of_that_name_did(tmp_path: Path) -> None:
    tape = Tape(name="again", learners=("a",), end_ns=SECOND_NS)
    before = status(learners=(learner_status("a", steps=40, state="left"),))
    notes: list[str] = []
    supervisor = Supervisor(tape, tmp_path, tmp_path / "tape.jsonl", before=before)
    with Wakeup() as wakeup, Processes(tmp_path, wakeup) as processes:
        supervisor.enter(Hands(processes, notes.append, notes.append))
        supervisor.act(before, 0, is_ending=False)
        supervisor.act(status(learners=(learner_status("a", steps=40),)), 0, is_ending=False)
        supervisor.act(status(learners=(learner_status("a", steps=41, state="away"),)), 0, is_ending=False)
        assert notes == [] and not supervisor.has_more
        supervisor.act(status(learners=(learner_status("a", steps=41),)), 0, is_ending=False)
        assert supervisor.has_more
        supervisor.release()
        supervisor.close()
    assert notes == ["the tape again begins; it lasts 1 s"], "nothing was left to play"


def test_a_tape_that_cannot_be_written_ends_nothing_and_is_made_good_when_there_is_room(tmp_path: Path) -> None:
    actions = tuple(Jump(at_ns=number * SECOND_NS, target="a", seconds=1.0) for number in range(1, 6))
    path, notes = tmp_path / "tape.jsonl", []
    played = PlayedTape(Tape(name="long", learners=("a",), actions=actions), path, notes.append)
    played.begin(7)
    played.add(actions[0], SECOND_NS)
    with files_of_at_most(path.stat().st_size + 10):
        for action in actions[1:3]:
            played.add(action, action.at_ns)
        played.end(3 * SECOND_NS)
    assert notes == [
        f"{path} cannot be written (No space left on device); the run goes on, and it lacks what is played"
    ]
    assert [entry.name for entry in tmp_path.iterdir()] == ["tape.jsonl"]
    assert tapes.read(path).actions == actions[:1], "and the beginning of a line"
    played.add(actions[3], 4 * SECOND_NS)
    played.add(actions[4], 5 * SECOND_NS)
    assert tapes.read(path).actions == actions
    assert len(notes) == 1


def test_who_is_there_at_the_start_is_written_down_before_anybody_is_started(tmp_path: Path) -> None:
    """A run that is resumed has no other way to know, and its disk may be full from then on."""
    tape = Tape(name="early", learners=("a", "b"), actions=(Kill(at_ns=SECOND_NS, target="b"),))
    path, notes = tmp_path / "tape.jsonl", []
    _enter(tape, tmp_path, notes)
    assert tapes.read(path) == Tape(name="early", learners=("a", "b"))
    played = PlayedTape(tape, path, notes.append)
    with files_of_at_most(10):
        played.begin(7)
        played.add(tape.actions[0], SECOND_NS)
    assert tapes.read(path).learners == ("a", "b") and len(notes) == 1
    played.end(2 * SECOND_NS)
    assert tapes.read(path) == Tape(
        name="early", learners=("a", "b"), actions=tape.actions, end_ns=2 * SECOND_NS, began_ns=7
    )


def test_a_tape_that_begins_with_nobody_is_one_when_somebody_has_joined(tmp_path: Path) -> None:
    _enter(Tape(name="later", learners=(), actions=(Join(at_ns=SECOND_NS, target="a"),)), tmp_path, [])
    assert list(tmp_path.glob("*.jsonl")) == []


def test_without_room_for_a_tape_nothing_begins(tmp_path: Path) -> None:
    tape = Tape(name="early", learners=("a",), end_ns=SECOND_NS)
    with files_of_at_most(10), pytest.raises(UsageError, match=r"cannot be written \(.+\); free some space"):
        _enter(tape, tmp_path, [])
    assert list(tmp_path.glob("*.jsonl")) == []


def _enter(tape: Tape, folder: Path, notes: list[str]) -> None:
    supervisor = Supervisor(tape, folder, folder / "tape.jsonl")
    with Wakeup() as wakeup, Processes(folder, wakeup) as processes:
        try:
            supervisor.enter(Hands(processes, notes.append, notes.append))
        finally:
            supervisor.close()


def _exits(processes: Processes, wakeup: Wakeup) -> list:  # type: ignore[type-arg]
    while not (ended := processes.take_exits()):
        wakeup.wait(60.0)
    return ended
