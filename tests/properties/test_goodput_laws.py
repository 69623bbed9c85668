"""Goodput and what it lacks are shares and add up to 1, whatever is in a log."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.events import (
    Event,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    RunFinishing,
    StepReported,
    SyncerResumed,
    TokensOverwritten,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import DepartureReason
from unlockstep.report.accounting import account
from unlockstep.report.goodput import Goodput, Shares
from unlockstep.tape import Join, Kill, Leave, Restart, Slow, Tape

SECOND = 1_000_000_000

LEARNERS = ("a", "b", "c")
MOVES = ("join", "return", "step", "steps", "away", "die", "leave", "overwrite", "syncer")


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """Logs in order of time, of learners who come, train, break and go as they like."""
    at_ns, events = 0, list[Event]()
    trained = dict.fromkeys(LEARNERS, 0)
    for move, learner, pause_ns, length_ns in draw(
        st.lists(
            st.tuples(
                st.sampled_from(MOVES),
                st.sampled_from(LEARNERS),
                st.integers(0, 5 * SECOND),
                st.integers(0, 3 * SECOND),
            ),
            max_size=40,
        )
    ):
        at_ns += pause_ns
        match move:
            case "join":
                trained[learner] = 0
                events.append(LearnerJoined(at_ns, learner, 1, False))
            case "return" if any(isinstance(each, LearnerJoined) and each.learner == learner for each in events):
                events.append(LearnerJoined(at_ns, learner, 1, True))
            case "step" | "steps":
                trained[learner] += 1 if move == "step" else 4
                count = trained[learner]
                events.append(StepReported(at_ns, learner, 1, count, count, 10 * count, length_ns, 1.0))
            case "away":
                events.append(LearnerAway(at_ns, learner, 1))
            case "die":
                events.append(LearnerDeparted(at_ns, learner, 1, DepartureReason.LEASE_EXPIRED))
            case "leave":
                events.append(LearnerDeparted(at_ns, learner, 1, DepartureReason.LEFT, (0,)))
            case "overwrite" if trained[learner]:
                events.append(TokensOverwritten(at_ns, learner, 1, 0, 1))
            case "syncer":
                events.append(SyncerResumed(at_ns, 2, 0, (0,)))
    if draw(st.booleans()):
        events.append(RunFinishing(at_ns, 1, "enough"))
    return events


TAPE = Tape(
    name="some",
    learners=("a", "b"),
    actions=(
        Slow(at_ns=SECOND, target="a", factor=3.0),
        Kill(at_ns=4 * SECOND, target="b"),
        Join(at_ns=5 * SECOND, target="c"),
        Restart(at_ns=9 * SECOND, target="b"),
        Leave(at_ns=20 * SECOND, target="c"),
    ),
    end_ns=40 * SECOND,
)


def is_whole(found: Goodput) -> bool:
    parts = [getattr(found.shares, name) for name in Shares.__struct_fields__]
    return math.isclose(math.fsum(parts), 1, abs_tol=1e-9) and all(0 <= part <= 1 for part in parts)


@given(logs(), st.sampled_from([None, TAPE]), st.integers(0, 60 * SECOND), st.booleans())
def test_goodput_and_what_it_lacks_add_up_to_one(
    events: list[Event], tape: Tape | None, until_ns: int, simulated: bool
) -> None:
    accounting = account(events, ProtocolOptions(fragments=1), tape, until_ns, simulated=simulated)
    assert accounting.uptime is None or 0 <= accounting.uptime <= 1
    each = [learner.goodput for learner in accounting.learners if learner.goodput is not None]
    for found in (*each, *(() if accounting.goodput is None else (accounting.goodput,))):
        assert is_whole(found)
        assert found.goodput == found.shares.merged + found.shares.merged_late
        assert found.roster_ns > 0
