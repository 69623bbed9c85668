"""The rules of ``support.invariants`` would see it: histories made wrong by hand, and cores broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from support import invariants
from support.core_builders import options
from support.ring_story import end, random_story
from unlockstep.core import rounds, sync_round, window
from unlockstep.core.events import (
    ContributionAccepted,
    Event,
    FragmentAdopted,
    FragmentCommitted,
    LearnerJoined,
    RoundClosed,
    RoundOpened,
    StepReported,
)
from unlockstep.core.ledger import Ledger
from unlockstep.core.membership import Membership
from unlockstep.core.reasons import WindowReason
from unlockstep.core.schedule import Schedule
from unlockstep.core.status import LedgerStatus
from unlockstep.core.sync_round import SyncRound

# ----------------------------------------------------------------------------------------------- by hand

OPENED = RoundOpened(10, 0, 0, clock=2, live=1, asked=("a",))
ACCEPTED = ContributionAccepted(
    11, 0, 0, "a", 1, base_version=0, staleness=0, c_steps=2, c_tokens=20, tokens=20, norm=1.0, late=False
)
CLOSED = RoundClosed(12, 0, 0, WindowReason.EVERYONE_IN, "closes", ("a",), live=1, open_ns=2, quorum_ns=1, grace_ns=1)
COMMITTED = FragmentCommitted(13, 0, 0, 1, "digest", norm=1.0, weights={"a": 1.0}, tokens=20, commit_ns=1)
ADOPTED = FragmentAdopted(14, "a", 1, 0, 1, "digest")
STEP = StepReported(0, "a", 1, clock=1, steps=1, tokens=10, step_ns=100, loss=1.0)
JOINED = LearnerJoined(0, "a", 1, resumed=False)
GOOD: list[Event] = [JOINED, STEP, OPENED, ACCEPTED, CLOSED, COMMITTED, ADOPTED]


def changed(event: Event, **fields: Any) -> list[Event]:
    """The good history with this event of it changed."""
    return [msgspec.structs.replace(each, **fields) if each is event else each for each in GOOD]


def test_a_good_history_passes() -> None:
    invariants.check(GOOD, options())


@pytest.mark.parametrize(
    "events",
    [
        changed(COMMITTED, version=2),
        changed(COMMITTED, weights={"a": 0.9}),
        changed(COMMITTED, weights={"a": 1.5, "b": -0.5}),
        changed(COMMITTED, weights={"b": 1.0}),
        changed(COMMITTED, weights={"a": float("nan")}),
        changed(COMMITTED, tokens=40),
        changed(ADOPTED, digest="another"),
        changed(ACCEPTED, late=True),
        changed(CLOSED, open_ns=3),
        changed(CLOSED, open_ns=0),
        changed(CLOSED, grace_ns=101),
        changed(OPENED, fragment=1),
        changed(ADOPTED, at_ns=12),
        changed(JOINED, incarnation=2),
        [*GOOD, msgspec.structs.replace(JOINED, at_ns=20)],
        [*GOOD, msgspec.structs.replace(OPENED, at_ns=20)],
        [*GOOD, msgspec.structs.replace(COMMITTED, at_ns=20)],
        [*GOOD[:4], ACCEPTED, *GOOD[4:]],
        [*GOOD[:3], msgspec.structs.replace(OPENED, round=1, fragment=1), *GOOD[3:]],
    ],
    ids=lambda events: str(next((each for each in events if each not in GOOD), "twice"))[:60],
)
def test_a_wrong_history_does_not(events: list[Event]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        invariants.check(events, options())


BALANCED = LedgerStatus(100.0, 40.0, 10.0, {"late": 5.0}, 15.0, 5.0, 5.0, in_flight=20.0)


def test_balanced_books_pass_and_others_do_not() -> None:
    invariants.check_ledger(BALANCED)
    for wrong in ({"in_flight": 21.0}, {"merged": 39.0}, {"refused": {}}, {"lost": -5.0, "dropped": 15.0}):
        with pytest.raises(AssertionError):
            invariants.check_ledger(msgspec.structs.replace(BALANCED, **wrong))


# ----------------------------------------------------------------------------------------------- broken on purpose


def no_quorum(patch: pytest.MonkeyPatch) -> None:
    """Rounds close on the first contribution, whatever K says."""
    whole = rounds.Rounds._note_quorum

    def hasty(self: rounds.Rounds, collecting: SyncRound, now_ns: int) -> None:
        if collecting.quorum_at_ns is None:
            collecting.quorum_at_ns = now_ns
        whole(self, collecting, now_ns)

    patch.setattr(rounds.Rounds, "_note_quorum", hasty)


def forgets_duplicates(patch: pytest.MonkeyPatch) -> None:
    """Late contributions are put into the next round twice."""
    whole = rounds.Rounds._open_due

    def twice(self: rounds.Rounds, now_ns: int) -> None:
        for late in self._late.values():
            late.extend(late[:1])
        whole(self, now_ns)

    patch.setattr(rounds.Rounds, "_open_due", twice)


def loses_the_timer(patch: pytest.MonkeyPatch) -> None:
    """Windows end only when a message comes."""
    patch.setattr(rounds.Rounds, "next_deadline_ns", lambda self: window.NEVER_NS)


def weighs_wrongly(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sync_round, "normalised", lambda weights: [weight / max(weights) for weight in weights])


def skips_fragments(patch: pytest.MonkeyPatch) -> None:
    whole = Schedule.open

    def skipping(self: Schedule, clock: int) -> int:
        number = whole(self, clock)
        self.next_round += self.next_round % 5 == 4
        return number + 1

    patch.setattr(Schedule, "open", skipping)


def counts_late_as_lost(patch: pytest.MonkeyPatch) -> None:
    whole = Ledger.merged

    def merged(self: Ledger, learner: str, fragment: int, tokens: int, late: bool) -> None:
        whole(self, learner, fragment, tokens, late)
        if late:
            self.account(learner).lost[fragment] += tokens

    patch.setattr(Ledger, "merged", merged)


def reuses_incarnations(patch: pytest.MonkeyPatch) -> None:
    whole = Membership.join

    def join(self: Membership, learner: str, now_ns: int) -> Any:
        member = whole(self, learner, now_ns)
        member.incarnation = max(1, member.incarnation - 1)
        member.process_since = member.incarnation
        return member

    patch.setattr(Membership, "join", join)


CANARIES = [
    no_quorum,
    forgets_duplicates,
    loses_the_timer,
    weighs_wrongly,
    skips_fragments,
    counts_late_as_lost,
    reuses_incarnations,
]
STORIES = 40


@pytest.mark.parametrize("broken", CANARIES, ids=lambda broken: broken.__name__)
def test_a_core_broken_on_purpose_is_found_out(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is not, the stories are too tame or the rules too weak."""
    broken(monkeypatch)
    for story in range(STORIES):
        try:
            end(random_story(story, duration_ns=3_000_000_000))
        except Exception:
            return
    raise AssertionError(f"{STORIES} stories went by without a complaint")
