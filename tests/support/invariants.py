"""What must hold in every history of a run, checked on its events: the safety rules of the protocol.

Decides nothing about how a history came about. Each rule names what it found.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from unlockstep.core.events import (
    ContributionAccepted,
    Event,
    FragmentAdopted,
    FragmentCommitted,
    LearnerJoined,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
    RunFinishing,
    StepReported,
)
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.status import LedgerStatus


def check(events: Sequence[Event], options: ProtocolOptions) -> None:
    """All rules that events alone can show."""
    time_goes_on(events)
    versions_rise_by_one(events)
    rounds_rotate_and_end_once(events, options)
    contributions_count_once(events)
    no_commit_below_quorum(events, options)
    weights_are_shares(events)
    no_round_outlasts_its_window(events, options)
    what_is_adopted_was_committed(events)
    incarnations_rise(events)


def check_ledger(ledger: LedgerStatus) -> None:
    """No class is negative, and all of them together are what was trained."""
    classes = {
        "merged": ledger.merged,
        "merged late": ledger.merged_late,
        **{f"refused {reason}": tokens for reason, tokens in ledger.refused.items()},
        "overwritten": ledger.overwritten,
        "dropped": ledger.dropped,
        "lost": ledger.lost,
        "in flight": ledger.in_flight,
    }
    for name, tokens in classes.items():
        assert tokens >= -1e-9, f"{name} is {tokens}: {ledger}"
    assert math.isclose(sum(classes.values()), ledger.trained, abs_tol=1e-6), ledger


def of(kind: type, events: Sequence[Event]) -> list:  # type: ignore[type-arg]
    return [event for event in events if isinstance(event, kind)]


def time_goes_on(events: Sequence[Event]) -> None:
    times = [event.at_ns for event in events]
    assert times == sorted(times)


def versions_rise_by_one(events: Sequence[Event]) -> None:
    versions: dict[int, int] = defaultdict(int)
    for event in of(FragmentCommitted, events):
        assert event.version == versions[event.fragment] + 1, event
        versions[event.fragment] = event.version


def rounds_rotate_and_end_once(events: Sequence[Event], options: ProtocolOptions) -> None:
    """Round r collects for fragment r mod P; never more than allowed at once; no two for one fragment."""
    in_flight: dict[int, int] = {}
    newest = -1
    for event in events:
        if isinstance(event, RoundOpened):
            assert event.round > newest and event.fragment == event.round % options.fragments, event
            assert event.fragment not in in_flight.values(), event
            newest = event.round
            in_flight[event.round] = event.fragment
            assert len(in_flight) <= options.rounds_in_flight_max, event
        elif isinstance(event, FragmentCommitted | RoundEmpty):
            assert in_flight.pop(event.round) == event.fragment, event


def contributions_count_once(events: Sequence[Event]) -> None:
    """A learner is in a round once; what is merged is what was accepted for it, on time or late for an earlier one."""
    accepted: dict[int, int] = defaultdict(int)
    waiting: dict[int, int] = defaultdict(int)
    on_time: set[tuple[str, int]] = set()
    for event in events:
        if isinstance(event, ContributionAccepted):
            if event.late:
                waiting[event.fragment] += event.c_tokens
            else:
                assert (event.learner, event.round) not in on_time, event
                on_time.add((event.learner, event.round))
                accepted[event.round] += event.c_tokens
        elif isinstance(event, RoundClosed):
            accepted[event.round] += waiting.pop(event.fragment, 0)
        elif isinstance(event, FragmentCommitted):
            assert event.tokens == accepted[event.round], event


def no_commit_below_quorum(events: Sequence[Event], options: ProtocolOptions) -> None:
    on_time = Counter(event.round for event in of(ContributionAccepted, events) if not event.late)
    for event in of(FragmentCommitted, events):
        assert on_time[event.round] >= options.quorum, event


def weights_are_shares(events: Sequence[Event]) -> None:
    participants = {event.round: event.participants for event in of(RoundClosed, events)}
    for event in of(FragmentCommitted, events):
        assert math.isclose(sum(event.weights.values()), 1.0, abs_tol=1e-9), event
        assert all(0 < weight <= 1 + 1e-9 for weight in event.weights.values()), event
        assert set(event.weights) <= set(participants[event.round]), event


def no_round_outlasts_its_window(events: Sequence[Event], options: ProtocolOptions) -> None:
    """Open until the quorum and its grace window, which is never longer than the cap allows. Rounds that are open when
    the run ends wait for everyone they have asked, a lease at most after the last steps."""
    longest_ns = max((event.step_ns for event in of(StepReported, events)), default=0)
    ends_ns = min((event.at_ns for event in of(RunFinishing, events)), default=NEVER_NS)
    for event in of(RoundClosed, events):
        assert 0 <= event.quorum_ns <= event.open_ns, event
        assert event.open_ns <= event.quorum_ns + event.grace_ns or event.at_ns > ends_ns, event
        assert event.grace_ns <= options.grace_cap_steps * longest_ns, event


def what_is_adopted_was_committed(events: Sequence[Event]) -> None:
    digests = {(event.fragment, event.version): event.digest for event in of(FragmentCommitted, events)}
    for event in of(FragmentAdopted, events):
        if event.version == 0:
            digests.setdefault((event.fragment, 0), event.digest)
        assert digests[event.fragment, event.version] == event.digest, event


def incarnations_rise(events: Sequence[Event]) -> None:
    """A process that only lost its connection keeps its number; every other start gets the next one."""
    newest: dict[str, int] = defaultdict(int)
    for event in of(LearnerJoined, events):
        assert event.incarnation in (newest[event.learner], newest[event.learner] + 1), event
        assert event.resumed or event.incarnation == newest[event.learner] + 1, event
        newest[event.learner] = event.incarnation
