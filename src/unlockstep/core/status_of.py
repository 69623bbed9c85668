"""Fills in ``Status`` from the syncer's parts, and keeps the few running totals that only the status needs.

Decides how the totals are counted (participation, downtime). Takes no part in the protocol.
"""

from __future__ import annotations

from collections import deque

from unlockstep.core.data_book import DataStatus
from unlockstep.core.events import EvaluationReported, RoundClosed
from unlockstep.core.layout import Layout
from unlockstep.core.ledger import Ledger
from unlockstep.core.membership import Member, Membership
from unlockstep.core.saved import SavedTally
from unlockstep.core.status import (
    ClosedRoundStatus,
    EvaluationStatus,
    LearnerStatus,
    NextRoundStatus,
    RoundStatus,
    Status,
)
from unlockstep.core.sync_round import SyncRound

EVALUATIONS_KEPT_MAX = 512


class Tally:
    """Totals over the run."""

    def __init__(self) -> None:
        self.rounds_committed = 0
        self.rounds_empty = 0
        self.rollbacks = 0
        self.round_closed: ClosedRoundStatus | None = None
        self._downtime_ns = 0
        self.evaluations: deque[EvaluationStatus] = deque(maxlen=EVALUATIONS_KEPT_MAX)
        self._participation_sum = 0.0
        self._participation_count = 0
        self._down_since_ns: int | None = None
        self._watching = False

    def closed(self, event: RoundClosed) -> None:
        """A round has closed. Participation is participants over live learners, at most 1."""
        self.round_closed = ClosedRoundStatus(
            event.round, event.fragment, event.participants, event.sentence, event.open_ns
        )
        if event.live > 0:
            self._participation_sum += min(1.0, len(event.participants) / event.live)
            self._participation_count += 1

    def saved(self, now_ns: int) -> SavedTally:
        """What outlives the syncer's process."""
        return SavedTally(
            rounds_committed=self.rounds_committed,
            rounds_empty=self.rounds_empty,
            participation_sum=self._participation_sum,
            participation_count=self._participation_count,
            downtime_ns=self.downtime_until_ns(now_ns),
            is_watching=self._watching,
            rollbacks=self.rollbacks,
        )

    def restore(self, saved: SavedTally, since_ns: int) -> None:
        """Go on from what was saved at ``since_ns``: until somebody is live again, all the time is downtime."""
        self.rounds_committed, self.rounds_empty = saved.rounds_committed, saved.rounds_empty
        self.rollbacks = saved.rollbacks
        self._participation_sum, self._participation_count = saved.participation_sum, saved.participation_count
        self._downtime_ns, self._watching = saved.downtime_ns, saved.is_watching
        self._down_since_ns = since_ns if saved.is_watching else None

    @property
    def participation(self) -> float | None:
        return self._participation_sum / self._participation_count if self._participation_count else None

    def watch_downtime(self, live: int, now_ns: int) -> None:
        """To be called after every change: time without a live learner counts from the first step of the run on."""
        if live > 0:
            self._watching = True
            if self._down_since_ns is not None:
                self._downtime_ns += now_ns - self._down_since_ns
                self._down_since_ns = None
        elif self._watching and self._down_since_ns is None:
            self._down_since_ns = now_ns

    def stop_watching(self, now_ns: int) -> None:
        """The run has reached its end: what follows is no downtime."""
        self._downtime_ns = self.downtime_until_ns(now_ns)
        self._down_since_ns = None

    def downtime_until_ns(self, now_ns: int) -> int:
        """The total, what is going on at present included."""
        return self._downtime_ns + (0 if self._down_since_ns is None else now_ns - self._down_since_ns)

    def evaluated(self, event: EvaluationReported) -> None:
        self.evaluations.append(
            EvaluationStatus(event.at_ns, event.clock, event.loss, event.nats_per_byte, event.scores)
        )


def status_of(
    *,
    run: str,
    state: str,
    now_ns: int,
    ends: tuple[int, int],
    members: Membership,
    rounds: list[SyncRound],
    round_next: NextRoundStatus,
    versions: tuple[int, ...],
    layout: Layout | None,
    ledger: Ledger,
    tally: Tally,
    data: DataStatus | None,
) -> Status:
    return Status(
        run=run,
        state=state,
        at_ns=now_ns,
        clock=members.clock,
        steps_max=ends[0],
        tokens_max=ends[1],
        learners=tuple(_learner(member, now_ns) for member in members),
        rounds=tuple(_round(collecting, now_ns) for collecting in rounds),
        round_closed=tally.round_closed,
        round_next=round_next,
        rounds_committed=tally.rounds_committed,
        rounds_empty=tally.rounds_empty,
        versions=versions,
        layout_digest=None if layout is None else layout.digest,
        participation=tally.participation,
        downtime_ns=tally.downtime_until_ns(now_ns),
        ledger=ledger.status(),
        evaluations=tuple(tally.evaluations),
        rollbacks=tally.rollbacks,
        refusals={reason.value: count for reason, count in sorted(ledger.refusals.items(), key=lambda i: i[0].value)},
        data=data,
        fragment_sizes=()
        if layout is None
        else tuple(layout.fragment_size(fragment) for fragment in range(layout.fragment_count)),
    )


def _learner(member: Member, now_ns: int) -> LearnerStatus:
    steps = member.steps_before + member.steps
    tokens = member.tokens_before + member.tokens
    return LearnerStatus(
        learner=member.learner,
        incarnation=member.incarnation,
        state=member.state.value,
        clock=member.clock,
        steps=steps,
        tokens=tokens,
        step_ns=member.step_average.value_ns,
        tokens_per_step=tokens / steps if steps else 0.0,
        loss=member.loss,
        last_round=member.last_round,
        rounds_merged=member.rounds_merged,
        strikes=member.strikes,
        silent_ns=now_ns - member.heard_ns,
        codec=member.codec.value,
        upload_bytes_per_s=member.upload_link.bytes_per_s,
    )


def _round(collecting: SyncRound, now_ns: int) -> RoundStatus:
    if collecting.is_open:
        sentence = collecting.decision.sentence if collecting.decision is not None else "has just opened"
    else:
        sentence = "merges and commits"
    return RoundStatus(
        round=collecting.round,
        fragment=collecting.fragment,
        state=collecting.state.value,
        contributions=tuple(sorted(collecting.contributions)),
        asked=tuple(sorted(collecting.asked)),
        reason=collecting.decision.reason if collecting.is_open and collecting.decision is not None else None,
        sentence=sentence,
        open_ns=now_ns - collecting.opened_ns,
    )
