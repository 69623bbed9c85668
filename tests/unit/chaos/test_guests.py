"""What becomes of a tape whose learners cannot be started, with stand-ins for them and for the syncer's answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.statuses import learner_status, status
from unlockstep.chaos.guests import Guests
from unlockstep.core.status import Status
from unlockstep.launch import local
from unlockstep.launch.local import Ending
from unlockstep.tape import Kill, Restart, Tape, read


@pytest.fixture
def guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guests:
    monkeypatch.setattr(local, "POLL_S", 0.01)
    (tmp_path / "stand_in.py").write_text("import signal; signal.pause()")
    folder = tmp_path / "guests"
    folder.mkdir()

    def note(text: str) -> None:
        if text.startswith("the tape: kill"):
            (folder / "logs").rename(tmp_path / "logs")
            (folder / "logs").write_text("")

    again = (Kill(at_ns=0, target="a"), Restart(at_ns=1, target="a"))
    return Guests(
        Tape(name="once", learners=("a",), actions=again, end_ns=2**62),
        "http://127.0.0.1:9",
        folder,
        folder / "tape.jsonl",
        before=status(learners=()),
        read_status=lambda url: status(learners=(learner_status("a"),)),
        note=note,
        program=(sys.executable, str(tmp_path / "stand_in.py")),
    )


def test_a_tape_whose_learner_cannot_be_started_again_has_failed_and_what_was_played_is_there(
    guests: Guests, tmp_path: Path
) -> None:
    outcome = guests.run()
    assert outcome.ending is Ending.FAILED
    assert outcome.sentence.startswith("the tape cannot be played on: a cannot be started (")
    assert [type(action) for action in read(tmp_path / "guests" / "tape.jsonl").actions] == [Kill, Restart]


def test_who_cannot_be_started_at_the_beginning_has_something_to_mend(guests: Guests, tmp_path: Path) -> None:
    (tmp_path / "guests" / "logs").write_text("")
    outcome = guests.run()
    assert outcome.ending is Ending.REFUSED
    assert outcome.sentence.startswith("a cannot be started (")


def test_everybody_is_told_to_end_whatever_goes_wrong_here(guests: Guests, tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text(
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); print('here', flush=True)\n"
        "print(signal.sigwait([15]).name)"
    )
    log = tmp_path / "guests" / "logs" / "a.log"

    def show(seen: Status) -> None:
        if log.exists() and log.read_text():
            raise ZeroDivisionError

    guests._show = show
    with pytest.raises(ZeroDivisionError):
        guests.run()
    assert log.read_text() == "here\nSIGTERM\n"
