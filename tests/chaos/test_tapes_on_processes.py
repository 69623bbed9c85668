"""Tapes played on real processes: what each action does to them, as the run log tells it.

Times in a tape are long against what a busy machine adds, and asserted on is what must have happened, never when.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support.tape_run import SECOND_NS, TapeRun, toy_config
from unlockstep import tape as tapes
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    Event,
    LearnerDeparted,
    LearnerJoined,
    RoundOpened,
    RunFinished,
    RunSeeded,
    SyncerResumed,
)
from unlockstep.core.reasons import DepartureReason, RefusalReason
from unlockstep.launch import local, restarts
from unlockstep.launch.local import Ending
from unlockstep.tape import Action, Tape

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(sys.platform != "linux", reason="limits on others are Linux's")]

TESTS = Path(__file__).parents[1]

_Event = TypeVar("_Event", bound=Event)


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "POLL_S", 0.05)
    monkeypatch.setattr(restarts, "RESTART_S", 0.05)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))


def at(seconds: float) -> int:
    return round(seconds * SECOND_NS)


def play(
    folder: Path,
    *actions: Action,
    learners: Sequence[str] = ("a", "b"),
    lease_s: float = 10.0,
    enough: Callable[[TapeRun], bool] = lambda run: True,
    **protocol: Any,
) -> TapeRun:
    """A run that ends when all take part again after the last action; its rules are kept, its tokens accounted for."""
    tape = Tape(name="night", learners=tuple(learners), actions=actions, end_ns=actions[-1].at_ns)
    run = TapeRun(folder, tape, toy_config(len(learners), lease_s, **protocol), enough)
    outcome = run.play()
    assert outcome.ending is Ending.FINISHED, (outcome.sentence, run.notes)
    run.check()
    return run


def of(kind: type[_Event], run: TapeRun, learner: str) -> list[_Event]:
    return [event for event in run.events if isinstance(event, kind) and getattr(event, "learner", "") == learner]


def joins(run: TapeRun, learner: str) -> list[tuple[int, bool]]:
    return [(event.incarnation, event.resumed) for event in of(LearnerJoined, run, learner)]


def expired(run: TapeRun, learner: str) -> int:
    reasons = [event.reason for event in of(LearnerDeparted, run, learner)]
    return reasons.count(DepartureReason.LEASE_EXPIRED)


def merges_all(run: TapeRun, learner: str) -> bool:
    """Whether all that it handed over while it was given up for dead was merged after it was back, and nothing is
    lost. Rounds have gone by in hundreds: they are remembered, and no version is too long ago (``PATIENT``)."""
    refused = {(event.round, event.tokens) for event in of(ContributionRefused, run, learner)}
    accepted = {(event.round, event.tokens) for event in of(ContributionAccepted, run, learner)}
    (finished,) = [event for event in run.events if isinstance(event, RunFinished)]
    return refused <= accepted and (finished.ledger.lost, finished.ledger.refused) == (0, {})


PATIENT = {"staleness_max": 100_000, "closed_rounds_max": 100_000}


def test_a_killed_learner_stays_dead_until_the_tape_starts_it_again(tmp_path: Path) -> None:
    run = play(tmp_path, tapes.Kill(at_ns=at(0.3), target="b"), tapes.Restart(at_ns=at(1.5), target="b"))
    assert joins(run, "a") == [(1, False)] and joins(run, "b") == [(1, False), (2, False)]
    assert "b was killed (SIGKILL) by the tape" in run.notes and "b is started again" in run.notes
    assert [type(action) for action in run.played.actions] == [tapes.Kill, tapes.Restart]


def test_a_stopped_learner_is_silent_until_it_is_continued(tmp_path: Path) -> None:
    """Its lease ends, which it would not if it had said anything; the same process is back at once."""
    stop, go_on = tapes.Stop(at_ns=at(0.3), target="b"), tapes.Continue(at_ns=at(4.0), target="b")
    run = play(tmp_path, stop, go_on, lease_s=1.5, **PATIENT)
    assert expired(run, "b") >= 1
    assert run.events.index(of(LearnerDeparted, run, "b")[0]) < run.events.index(of(LearnerJoined, run, "b")[1])
    assert joins(run, "b")[:2] == [(1, False), (2, True)]  # the same process, as another incarnation
    assert merges_all(run, "b")


@pytest.mark.parametrize("direction", ["both", "up"])
def test_a_learner_behind_a_cut_is_not_heard_until_it_is_healed(tmp_path: Path, direction: str) -> None:
    cut = tapes.Cut(at_ns=at(0.3), target="b", direction=direction)  # type: ignore[arg-type]
    run = play(tmp_path, cut, tapes.Heal(at_ns=at(4.0), target="b"), lease_s=1.5, **PATIENT)
    assert expired(run, "b") >= 1
    assert joins(run, "b")[:2] == [(1, False), (2, True)]  # the same process, as another incarnation
    assert merges_all(run, "b")


def test_on_a_bad_link_a_run_goes_on_and_every_damaged_body_is_noticed(tmp_path: Path) -> None:
    run = play(
        tmp_path,
        tapes.Delay(at_ns=at(0.2), target="b", seconds=0.05),
        tapes.Corrupt(at_ns=at(0.2), target="b", bodies=3),
        tapes.Throttle(at_ns=at(1.0), target="b", mbit_per_s=1.0),
        tapes.Delay(at_ns=at(2.0), target="b", seconds=0),
        tapes.Throttle(at_ns=at(2.0), target="b", mbit_per_s=0),
        enough=lambda run: run.supervisor.damaged["b"] == 3,
    )
    assert run.supervisor.damaged["b"] == 3
    assert expired(run, "b") == 0
    refused = {event.reason for event in run.events if isinstance(event, ContributionRefused)}
    assert RefusalReason.DIGEST_MISMATCH not in refused, "it is sent again"


def test_a_syncer_that_is_killed_is_started_again_when_the_tape_says_so(tmp_path: Path) -> None:
    run = play(
        tmp_path,
        tapes.Kill(at_ns=at(0.5), target="syncer"),
        tapes.Restart(at_ns=at(1.5), target="syncer"),
        tapes.Stop(at_ns=at(3.0), target="syncer"),
        tapes.Continue(at_ns=at(4.0), target="syncer"),
        lease_s=4.0,
    )
    assert [event.life for event in run.events if isinstance(event, SyncerResumed)] == [2]
    assert len(joins(run, "a")) >= 2 and len(joins(run, "b")) >= 2


def test_a_full_disk_ends_the_syncer_and_room_brings_it_back(tmp_path: Path) -> None:
    """Whatever it had told anybody by then is still there: the checks of the run log say so."""
    fill, free = tapes.Fill(at_ns=at(0.5), target="syncer"), tapes.Free(at_ns=at(2.0), target="syncer")
    run = play(tmp_path, fill, free, lease_s=4.0)
    (note,) = [note for note in run.notes if ": its disk " in note]
    assert note.startswith("the syncer exited with code ")
    assert run.notes.index(note) < run.notes.index("the syncer is started again")
    assert [event.life for event in run.events if isinstance(event, SyncerResumed)] == [2]


def test_clocks_that_jump_by_a_day_change_nothing(tmp_path: Path) -> None:
    day_s = 86_400.0
    jumps = [
        tapes.Jump(at_ns=at(0.3 + 0.3 * number), target=target, seconds=seconds)
        for number, (target, seconds) in enumerate(
            [("a", day_s), ("syncer", day_s), ("b", -day_s), ("syncer", -2 * day_s), ("a", -day_s)]
        )
    ]
    run = play(tmp_path, *jumps)
    assert joins(run, "a") == joins(run, "b") == [(1, False)]
    assert expired(run, "a") == expired(run, "b") == 0
    assert run.events[-1].at_ns < 3600 * SECOND_NS
    rounds = [event.at_ns for event in run.events if isinstance(event, RoundOpened)]
    assert rounds == sorted(rounds)


def test_learners_join_leave_and_are_replaced(tmp_path: Path) -> None:
    run = play(
        tmp_path,
        tapes.Join(at_ns=at(0.2), target="c"),
        tapes.Replace(at_ns=at(0.4), target="b"),
        tapes.Leave(at_ns=at(5.0), target="c"),
    )
    assert joins(run, "c") == [(1, False)]
    assert [event.reason for event in of(LearnerDeparted, run, "c")][:1] == [DepartureReason.LEFT]
    assert (2, False) in joins(run, "b")
    assert any(note.startswith("b.old-1 ") and "its name is another one's" in note for note in run.notes)


def test_a_name_that_joins_again_waits_until_its_process_is_gone(tmp_path: Path) -> None:
    tape = Tape(
        name="late",
        learners=("a", "b"),
        actions=(
            tapes.Leave(at_ns=at(0.2), target="b"),
            tapes.Join(at_ns=at(0.2), target="b"),
            tapes.Slow(at_ns=at(0.2), target="b", factor=2.0),
        ),
        end_ns=at(1.0),
    )
    run = TapeRun(tmp_path, tape, toy_config(2))
    assert run.play().ending is Ending.FINISHED
    assert len(joins(run, "b")) == 2
    assert [type(action) for action in run.played.actions] == [tapes.Leave, tapes.Join, tapes.Slow]
    assert run.played.learners == tape.learners and run.played.end_ns >= run.played.actions[-1].at_ns
    seeded = [event for event in run.events if isinstance(event, RunSeeded)]
    assert len(seeded) == 1


def test_a_run_that_ends_before_its_tape_says_how_much_was_not_played(tmp_path: Path) -> None:
    tape = Tape(name="long", learners=("a",), actions=(tapes.Kill(at_ns=at(3600), target="a"),))
    run = TapeRun(tmp_path, tape, toy_config(1, steps=60))
    assert run.play().ending is Ending.FINISHED
    assert "ended before the tape was over: 1 of its 1 action was not played" in run.notes
    assert run.played.actions == () and 0 < run.played.end_ns < at(3600)


def test_a_tape_that_leaves_the_run_without_a_syncer_fails_it(tmp_path: Path) -> None:
    tape = Tape(name="gone", learners=("a",), actions=(tapes.Kill(at_ns=at(0.2), target="syncer"),))
    run = TapeRun(tmp_path, tape, toy_config(1))
    outcome = run.play()
    assert outcome.ending is Ending.FAILED
    assert outcome.sentence.startswith("the tape is over and has left the run without a syncer")


def test_a_tape_that_leaves_nobody_to_train_fails_the_run(tmp_path: Path) -> None:
    tape = Tape(name="gone", learners=("a",), actions=(tapes.Kill(at_ns=at(0.2), target="a"),))
    run = TapeRun(tmp_path, tape, toy_config(1), enough=lambda run: False)
    outcome = run.play()
    assert outcome.ending is Ending.FAILED and outcome.sentence.startswith("no learner is left")
