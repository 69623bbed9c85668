"""A run on this machine whose processes are killed: the others go on, and nobody stays behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from support.train_process import Train, is_gone
from unlockstep.core.events import FragmentCommitted, LearnerAway, LearnerDeparted, RoundClosed, RoundOpened
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.options import ProtocolOptions
from unlockstep.report.accounting import account

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the end of a process is waited for by its descriptor"),
]

GONE_S_MAX = 5.0
LEASE_S = 3.0
FOREVER = ("--steps", "1000000", "--set", "inner.schedule=constant", "--set", "local.evaluator=false")


def test_rounds_go_on_without_a_killed_learner(tmp_path: Path) -> None:
    """C18: quorum 1 of 3; the dead one is asked no more, and no round waits longer than a lease."""
    settings = ("--set", "local.restarts_max=0", "--set", f"protocol.lease_s={LEASE_S}")
    with Train(tmp_path, "--learners", "3", *settings, *FOREVER) as train:
        train.until("learner-0 trains", "learner-1 trains", "learner-2 trains")
        os.kill(train.pids()["learner-2"], signal.SIGKILL)
        train.until("learner-2 is counted no longer")
        train.process.send_signal(signal.SIGTERM)
        train.end()
    events = train.events()
    fate = [type(event) for event in events if isinstance(event, LearnerAway | LearnerDeparted)][:2]
    assert fate == [LearnerAway, LearnerDeparted]
    begin, end = (next(n for n, event in enumerate(events) if isinstance(event, kind)) for kind in fate)
    meanwhile = events[begin:end]
    assert sum(isinstance(event, FragmentCommitted) for event in meanwhile) >= 10
    assert not any("learner-2" in event.asked for event in events[begin:] if isinstance(event, RoundOpened))
    closed = [event for event in meanwhile if isinstance(event, RoundClosed)]
    assert max(event.open_ns for event in closed) < LEASE_S * NANOSECONDS_PER_SECOND
    accounting = account(events, options=ProtocolOptions(fragments=4))
    assert accounting.balance == 0
    assert accounting.absences[0].learner == "learner-2"
    assert "learner-2 went away and did not return" in train.output


def test_a_run_that_is_interrupted_is_gone_in_time(tmp_path: Path) -> None:
    """C23: Ctrl-C leaves no orphan, but a summary; tokens that were not handed over are declared dropped."""
    with Train(tmp_path, "--learners", "2", *FOREVER) as train:
        train.until("step ")
        pids = train.pids()
        assert set(pids) == {"syncer", "learner-0", "learner-1"}
        asked_s = time.monotonic()
        train.process.send_signal(signal.SIGINT)
        train.end()
        assert time.monotonic() - asked_s < GONE_S_MAX
        assert all(is_gone(pid) for pid in pids.values())
        assert train.process.returncode == 130
    assert "run: interrupted after" in train.output
    accounting = account(train.events(), options=ProtocolOptions(fragments=4))
    assert accounting.ended
    assert (accounting.ledger.lost, accounting.balance) == (0, 0)


def test_nobody_outlives_a_run_whose_first_process_is_killed(tmp_path: Path) -> None:
    """C23: SIGKILL leaves it no time to end the others; they notice."""
    with Train(tmp_path, "--learners", "1", *FOREVER) as train:
        train.until("learner-0 trains")
        pids = train.pids()
        train.process.kill()
        train.process.wait()
        assert all(is_gone(pid, GONE_S_MAX) for pid in pids.values())


def test_a_run_that_has_lost_every_learner_ends_and_says_so(tmp_path: Path) -> None:
    """C30"""
    with Train(tmp_path, "--learners", "2", "--set", "local.restarts_max=0", *FOREVER) as train:
        train.until("step ")
        pids = train.pids()
        for learner in ("learner-0", "learner-1"):
            os.kill(pids[learner], signal.SIGKILL)
        said = train.end(timeout_s=20)
        assert train.process.returncode == 1
        assert said.startswith("error: no learner is left, and none may be started again; ")
        assert all(is_gone(pid) for pid in pids.values())
    assert "run: failed after" in train.output


def test_a_killed_learner_returns_with_its_optimizer(tmp_path: Path) -> None:
    """Warm-up, moments and generators go on, its own if no donor is asked; nothing half-written is left."""
    with Train(tmp_path, "--learners", "2", "--set", "recovery.donor=false", *FOREVER) as train:
        while not (train.run / "learners" / "learner-1.safetensors").exists():
            train.until("step ")
        os.kill(train.pids()["learner-1"], signal.SIGKILL)
        train.until("learner-1 trains again")
        train.process.send_signal(signal.SIGTERM)
        train.end()
    said = (train.run / "logs" / "learner-1.log").read_text()
    assert "inner optimizer, random state and data position from " in said
    assert {path.name for path in (train.run / "learners").iterdir()} <= {
        f"learner-{index}.safetensors{suffix}" for index in range(2) for suffix in ("", ".previous")
    }


def test_learners_that_die_by_themselves_are_started_again(tmp_path: Path) -> None:
    """C30: with all of them gone the syncer idles, and goes on with the run when they return."""
    with Train(tmp_path, "--learners", "1", *FOREVER) as train:
        train.until("learner-0 trains")
        os.kill(train.pids()["learner-0"], signal.SIGKILL)
        train.until("learner-0 trains again")
        train.process.send_signal(signal.SIGTERM)
        train.end()
        assert train.process.returncode == 128 + signal.SIGTERM
    accounting = account(train.events(), options=ProtocolOptions(fragments=4))
    absence = accounting.absences[0]
    assert absence.joined_ns is not None
    assert accounting.downtime_ns >= absence.joined_ns - absence.gone_ns > 0
    assert accounting.balance == 0
