"""Every number of a run, computed from its events alone: pure functions, no wall clock, nothing but the run log.

Decides what each number means; the docstring of its field is its definition. Does not decide how numbers are shown
(``summary``). Works for a run that has ended, was cut short, or goes on.

Times are the syncer's (``at_ns``), except the duration of an inner step, which its learner has measured.
"""

from __future__ import annotations

import itertools
import math
import statistics
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from unlockstep.core.data_book import DataStatus, size
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    ContributionUndelivered,
    DataGranted,
    DataReturned,
    EvaluationReported,
    Event,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    RolledBack,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
    RunFinished,
    StepReported,
    SyncerResumed,
    TokensOverwritten,
)
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.ledger import Ledger
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import NOT_ENTERED, DepartureReason, RefusalReason
from unlockstep.core.status import LedgerStatus, Score
from unlockstep.core.sync_round import RoundMemory
from unlockstep.report.goodput import Goodput, RosterTime
from unlockstep.report.presence import Absence, Presence, Training, Union
from unlockstep.report.tape_time import TapeTime
from unlockstep.tape import Tape


class Spread(msgspec.Struct, frozen=True):
    """Durations, summed up."""

    count: int
    median_ns: int
    largest_ns: int


class DataAccount(msgspec.Struct, frozen=True):
    """What a learner was granted of the corpus, over all its processes; sequences."""

    granted: int
    """... in all; what was given back to it counts again."""
    returned: int
    """Of these, what it had not brought in when it went, or what was lost of it: granted to somebody else."""
    trained: int
    """Trained, by what it has said: may be more than once."""


class LearnerAccount(msgspec.Struct, frozen=True):
    """One learner, over all its incarnations."""

    learner: str
    starts: int
    """Processes that have joined under this name."""
    steps: int
    """Inner steps reported."""
    ledger: LedgerStatus
    rounds_merged: int
    """Closed rounds it had a part in."""
    rounds_live: int
    """Closed rounds that it had a part in, or that closed while it was live."""
    participation: float | None
    """``rounds_merged / rounds_live``; None if there was no such round."""
    gap: Spread
    """Time from the end of one inner step to the end of the next, of every step but the first of each process."""
    gap_ratio: float | None
    """``gap.largest_ns / gap.median_ns``; None without two steps."""
    gap_ratio_others_down: float | None
    """The same for gaps during which another learner was absent (``Absence``); None if there were none."""
    data: DataAccount | None = None
    """None if it was granted nothing."""
    goodput: Goodput | None = None
    """None if it was not on the roster."""


class Validation(msgspec.Struct, frozen=True):
    """One evaluation of the global model."""

    at_ns: int
    clock: int
    loss: float | None
    """None: it was not a number."""
    nats_per_byte: float | None
    scores: tuple[Score, ...] = ()
    """Beside the text."""


class Accounting(msgspec.Struct, frozen=True):
    """A whole run."""

    ended: bool
    """The log holds the end of the run."""
    duration_ns: int
    """From the first learner becoming live to the end of the run, or to the last event."""
    clock: int
    """The syncer's clock at the end; before it, the highest that opened a round."""
    ledger: LedgerStatus
    """Tokens by what became of them; means over fragments, which add up to ``trained``. After the end nothing is in
    flight: what a learner still held then was dropped."""
    balance: float
    """By how many tokens the ledger and the learners' last reports differed at the end, mean over fragments: what was
    under way and is entered as dropped. Exactly 0 for a run that ended in order and lost no commit that it had told
    of (``durability.mode = "interval"``, or a damaged record): the tokens of such a commit are in it."""
    learners: tuple[LearnerAccount, ...]
    """Ascending by name."""
    participation: float | None
    """Mean over closed rounds of participants over live learners, each at most 1."""
    downtime_ns: int
    """Time of ``duration_ns`` in which no learner trained, by all that was ever heard (``presence.Training``): one that
    trained on while it had no connection, or the run no syncer, counts as training once it has reported it."""
    rounds_committed: int
    rounds_empty: int
    staleness: dict[int, int]
    """Contributions accepted, by the versions between their base and the then newest."""
    refusals: dict[str, int]
    """Contributions refused, by reason, including those of rounds given up at the end."""
    commit: Spread
    """From the close of a round to its version being durable."""
    open_by_reason: dict[str, Spread]
    """From the opening of a round to its close, by the reason it closed for."""
    evaluations: tuple[Validation, ...]
    absences: tuple[Absence, ...]
    resumed: int = 0
    """How often the syncer died, or stopped, and another life of it went on."""
    rolled_back: int = 0
    """How often the run went back to an earlier state."""
    data: DataStatus | None = None
    """What became of the corpus, as the syncer has it at the end; None before, or if it was not dealt out."""
    data_balance: int = 0
    """By how many sequences the syncer's totals and the log differ at the end: granted and returned, summed over
    learners, and trained. Exactly 0."""
    uptime: float | None = None
    """Share of ``duration_ns`` in which at least one learner trained: 1 less ``downtime_ns`` of it; None if nobody ever
    was live."""
    without_syncer_ns: int = 0
    """Time of ``duration_ns`` from the last event of a life of the syncer to the beginning of the next."""
    goodput: Goodput | None = None
    """None if nobody was on the roster."""


def account(
    events: Iterable[Event],
    options: ProtocolOptions,
    tape: Tape | None = None,
    until_ns: int = 0,
    *,
    simulated: bool = True,
) -> Accounting:
    """What a run's events amount to.

    Args:
        events: of one run, in the order they were logged. After the end only evaluations
            count: everything else is over.
        options: protocol settings of the run.
        tape: what was done to it, if it is known: then its roster is that of the tape.
        until_ns: how long the run is known to have gone on where its log does not end, ns.
        simulated: whether its time was virtual: so it is known when the time of the tape began.
    """
    tape_time = TapeTime(tape, simulated)
    course, data, tokens, presence, steps, rounds = (
        _Course(), _Data(), _Tokens(options), Presence(tape_time), _Steps(), _Rounds()
    )  # fmt: skip
    training = Training()
    roster = RosterTime(tape_time, until_ns, training.take)
    for event in events:
        if not course.see(event):
            continue
        for reader in (tokens, data, presence, steps, tape_time, roster):
            reader.see(event)
        rounds.see(event, presence.live)
    presence.end(course.last_ns)
    ledgers = {name: mine.status() for name, mine in tokens.ledgers.items()}
    goodput, each = roster.account(ledgers)
    downtime_ns = training.missing_ns(presence.spans)
    duration_ns = 0 if presence.first_live_ns is None else course.last_ns - presence.first_live_ns
    shares = rounds.shares
    return Accounting(
        ended=course.ended,
        duration_ns=duration_ns,
        clock=course.clock,
        ledger=total(list(ledgers.values())),
        balance=course.under_way / options.fragments,
        learners=tuple(
            _learner(name, tokens, presence, steps, rounds, data, each.get(name)) for name in sorted(presence.starts)
        ),
        participation=sum(shares) / len(shares) if shares else None,
        downtime_ns=downtime_ns,
        without_syncer_ns=presence.without_syncer_ns,
        rounds_committed=len(rounds.commit_ns),
        rounds_empty=rounds.empty,
        staleness=dict(sorted(rounds.staleness.items())),
        refusals=dict(sorted(tokens.refusals.items())),
        commit=spread(rounds.commit_ns),
        open_by_reason={reason: spread(rounds.open_ns[reason]) for reason in sorted(rounds.open_ns)},
        evaluations=tuple(course.evaluations),
        absences=presence.told(),
        resumed=course.happened[SyncerResumed],
        rolled_back=course.happened[RolledBack],
        data=course.dealt,
        data_balance=0 if course.dealt is None else data.difference(course.dealt),
        uptime=1 - downtime_ns / duration_ns if duration_ns else None,
        goodput=goodput,
    )


def total(ledgers: Sequence[LedgerStatus]) -> LedgerStatus:
    """Class by class."""
    refused: Counter[str] = Counter()
    for ledger in ledgers:
        refused.update(ledger.refused)
    return LedgerStatus(
        trained=sum(ledger.trained for ledger in ledgers),
        merged=sum(ledger.merged for ledger in ledgers),
        merged_late=sum(ledger.merged_late for ledger in ledgers),
        refused=dict(sorted(refused.items())),
        overwritten=sum(ledger.overwritten for ledger in ledgers),
        dropped=sum(ledger.dropped for ledger in ledgers),
        lost=sum(ledger.lost for ledger in ledgers),
        in_flight=sum(ledger.in_flight for ledger in ledgers),
    )


def spread(durations_ns: Sequence[int]) -> Spread:
    """Count, median (the mean of the middle two of an even number) and largest; all 0 for no durations."""
    if not durations_ns:
        return Spread(0, 0, 0)
    return Spread(len(durations_ns), round(statistics.median(durations_ns)), max(durations_ns))


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _learner(
    name: str,
    tokens: _Tokens,
    presence: Presence,
    steps: _Steps,
    rounds: _Rounds,
    data: _Data,
    goodput: Goodput | None,
) -> LearnerAccount:
    others_down = Union(
        (absence.gone_ns, NEVER_NS if absence.live_ns is None else absence.live_ns)
        for absence in presence.absences
        if absence.learner != name
    )
    ends_ns, gaps_ns = steps.gaps.get(name, (array("q"), array("q")))
    gap = spread(gaps_ns)
    meanwhile = [
        step_ns for at_ns, step_ns in zip(ends_ns, gaps_ns, strict=True) if others_down.overlap(at_ns - step_ns, at_ns)
    ]
    merged, live = rounds.merged[name], rounds.live[name]
    return LearnerAccount(
        learner=name,
        starts=presence.starts[name],
        steps=steps.count(name),
        ledger=tokens.ledger(name).status(),
        rounds_merged=merged,
        rounds_live=live,
        participation=merged / live if live else None,
        gap=gap,
        gap_ratio=gap.largest_ns / gap.median_ns if gap.median_ns else None,
        gap_ratio_others_down=max(meanwhile) / gap.median_ns if meanwhile and gap.median_ns else None,
        data=data.account(name),
        goodput=goodput,
    )


class _Course:
    """How far the run has come, and whether it has ended."""

    def __init__(self) -> None:
        self.last_ns, self.clock, self.ended, self.under_way = 0, 0, False, 0
        self.dealt: DataStatus | None = None
        self.evaluations: list[Validation] = []
        self.happened = Counter[type[Event]]()

    def see(self, event: Event) -> bool:
        """Whether it still counts: after the end only evaluations do."""
        self.happened[type(event)] += 1
        if isinstance(event, EvaluationReported):
            loss, nats_per_byte = _number(event.loss), _number(event.nats_per_byte)
            self.evaluations.append(Validation(event.at_ns, event.clock, loss, nats_per_byte, event.scores))
        if self.ended and not isinstance(event, SyncerResumed):
            return False
        self.ended, self.last_ns = isinstance(event, RunFinished), event.at_ns
        if isinstance(event, RoundOpened | RunFinished):
            self.clock = max(self.clock, event.clock)
        if isinstance(event, RunFinished):
            self.under_way, self.dealt = event.tokens_under_way, event.data
        return True


class _Data:
    """Grants, and what was trained of them."""

    def __init__(self) -> None:
        self._granted: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self._trained: Counter[str] = Counter()
        self._samples: Counter[str] = Counter()
        """Trained by the present process of each learner."""

    def see(self, event: Event) -> None:
        match event:
            case DataGranted():
                self._granted[event.learner] += size(event.grants)
            case DataReturned():
                self._returned[event.learner] += size(event.grants)
            case LearnerJoined(resumed=False):
                self._samples[event.learner] = 0
            case LearnerJoined() | StepReported() | ContributionAccepted():
                new = max(0, event.samples - self._samples[event.learner])
                self._samples[event.learner] += new
                self._trained[event.learner] += new

    def account(self, learner: str) -> DataAccount | None:
        if learner not in self._granted:
            return None
        return DataAccount(self._granted[learner], self._returned[learner], self._trained[learner])

    def difference(self, dealt: DataStatus) -> int:
        """How far the syncer's totals are from the log."""
        return (
            abs(self._granted.total() - dealt.reached - dealt.held - dealt.returned)
            + abs(self._returned.total() - dealt.returned)
            + abs(self._trained.total() - dealt.reached - dealt.ahead - dealt.repeated)
        )


class _Tokens:
    """The syncer's ledger kept a second time, from the log alone; one ledger per learner.

    The log does not say what a learner still holds at the end: everything of its that is neither settled nor pending is
    entered as dropped then.
    """

    def __init__(self, options: ProtocolOptions) -> None:
        self.ledgers: dict[str, Ledger] = {}
        self.refusals: Counter[str] = Counter()
        self._fragment_count = options.fragments
        self._before: Counter[str] = Counter()
        """Tokens of earlier processes."""
        self._now: Counter[str] = Counter()
        """Tokens of the present one."""
        self._process: dict[str, range] = {}
        """Incarnations of the present process."""
        self._present: set[str] = set()
        self._away: set[str] = set()
        """Of those present, who has lost its connection."""
        self._held: dict[int, list[ContributionAccepted]] = {}
        """By round, open or committing."""
        self._open: dict[int, int] = {}
        """Fragment -> its open round."""
        self._late: dict[int, list[ContributionAccepted]] = {}
        """Fragment -> contributions that wait for its next round."""
        self._memory = RoundMemory(options.rounds_remembered_max)
        self._rounds_saved_max = options.rounds_saved_max
        self._round_next = 0
        self._has_ended = False

    def ledger(self, learner: str) -> Ledger:
        return self.ledgers.setdefault(learner, Ledger(self._fragment_count))

    def see(self, event: Event) -> None:
        match event:
            case SyncerResumed():
                self._resumed()
            case LearnerJoined():
                self._joined(event)
            case LearnerAway():
                self._away.add(event.learner)
            case LearnerDeparted():
                self._present.discard(event.learner)
                self._away.discard(event.learner)
                if event.reason is DepartureReason.LEFT:
                    self.ledger(event.learner).left(event.learner, event.tokens_dropped)
                else:
                    self.ledger(event.learner).died(event.learner)
            case StepReported():
                self._trained(event.learner, event.tokens)
            case ContributionAccepted():
                self._accepted(event)
            case ContributionRefused():
                self._refused(event)
            case ContributionUndelivered():
                self._enter(event)
                self.ledger(event.learner).undelivered(event.learner, event.fragment, event.c_tokens)
            case RoundOpened():
                self._memory.open(event.round)
                self._round_next = max(self._round_next, event.round + 1)
                self._held[event.round] = self._late.pop(event.fragment, [])
                self._open[event.fragment] = event.round
            case RoundClosed():
                del self._open[event.fragment]
            case FragmentCommitted():
                self._settle(event.round)
            case RoundEmpty():
                self._empty(event)
            case TokensOverwritten():
                self.ledger(event.learner).overwritten(event.learner, event.fragment, event.tokens)
            case RolledBack():
                self._give_up_all(RefusalReason.ROLLED_BACK, *self._held.values(), *self._late.values())
                self._held.clear()
                self._late.clear()
            case RunFinished():
                self._end()

    def _resumed(self) -> None:
        """The syncer has died: what was accepted and not merged is with its learner again, or lost with it."""
        for learner in sorted(self.ledgers.keys() - self._present):
            self.ledger(learner).goes_with_the_syncer(learner)
        for made in [*itertools.chain(*self._held.values()), *itertools.chain(*self._late.values())]:
            process = self._process.get(made.learner, range(0))
            self._memory.forget(made.round, made.learner, process.start, made.tokens)
            may_return = made.incarnation in process
            self.ledger(made.learner).voided(made.learner, made.fragment, made.c_tokens, may_return)
        self._memory.keep_newest(self._rounds_saved_max)
        self._memory.expect(range(self._round_next, self._round_next + self._rounds_saved_max))
        self._held.clear()
        self._open.clear()
        self._late.clear()
        if self._has_ended:
            for learner in sorted(self._present):
                self.ledger(learner).go_on(learner)
        self._has_ended = False
        self._away = set(self._present)

    def _joined(self, event: LearnerJoined) -> None:
        name = event.learner
        if not event.resumed:
            self._before[name] += self._now[name]
            self._now[name] = 0
            self.ledger(name).opened(name)
        elif name not in self._present:
            self.ledger(name).came_back(name)
        first = self._process[name].start if event.resumed and name in self._process else event.incarnation
        self._process[name] = range(first, event.incarnation + 1)
        self._present.add(name)
        self._away.discard(name)

    def _trained(self, learner: str, tokens: int) -> None:
        """Its present process has trained so many, by a report or by what it hands over; either may come first."""
        self._now[learner] = max(self._now[learner], tokens)
        self.ledger(learner).trained(learner, self._before[learner] + self._now[learner])

    def _accepted(self, made: ContributionAccepted) -> None:
        self._enter(made)
        self._trained(made.learner, made.tokens)
        self.ledger(made.learner).accepted(made.learner, made.fragment, made.c_tokens)
        following = self._open.get(made.fragment)
        if not made.late:
            self._held[made.round].append(made)
        elif following is not None and following > made.round:
            self._held[following].append(made)
        else:
            self._late.setdefault(made.fragment, []).append(made)

    def _refused(self, made: ContributionRefused) -> None:
        """Counted always; entered as the core enters it, if round and process are known."""
        self.refusals[made.reason.value] += 1
        name = made.learner
        if made.reason in NOT_ENTERED:
            return
        if made.incarnation not in self._process.get(name, ()) or not 0 <= made.c_tokens <= made.tokens:
            return
        if not self._enter(made):
            return
        self._trained(name, made.tokens)
        ledger = self.ledger(name)
        enter = ledger.refused_after_death if ledger.is_closed(name) else ledger.refused
        enter(name, made.fragment, made.c_tokens, made.reason)

    def _enter(self, made: ContributionAccepted | ContributionRefused | ContributionUndelivered) -> bool:
        """Whether this contribution is new: one that was refused may come again, and be refused for another reason."""
        process = self._process.get(made.learner, range(0)).start
        return self._memory.enter(made.round, made.learner, process, made.tokens)

    def _settle(self, round: int) -> None:
        for made in self._held.pop(round):
            self.ledger(made.learner).merged(made.learner, made.fragment, made.c_tokens, late=made.round != round)

    def _empty(self, event: RoundEmpty) -> None:
        """A round that has closed without weight is settled; one that never closed was given up at the end."""
        if self._open.get(event.fragment) != event.round:
            self._settle(event.round)
            return
        del self._open[event.fragment]
        self._give_up_all(RefusalReason.RUN_FINISHED, self._held.pop(event.round))

    def _give_up_all(self, reason: RefusalReason, *contributions: list[ContributionAccepted]) -> None:
        for made in itertools.chain(*contributions):
            self.ledger(made.learner).abandoned(made.learner, made.fragment, made.c_tokens, reason)
            self.refusals[reason.value] += 1

    def _end(self) -> None:
        """What came too late for the last round is given up; what the away held is lost, what the others, dropped."""
        self._give_up_all(RefusalReason.RUN_FINISHED, *self._late.values())
        self._late.clear()
        for learner in sorted(self.ledgers):
            if learner in self._away:
                self.ledger(learner).died(learner)
            else:
                self.ledger(learner).finish({})
        self._has_ended = True


class _Steps:
    """How long inner steps took."""

    def __init__(self) -> None:
        self.gaps: dict[str, tuple[array[int], array[int]]] = {}
        """Learner -> ends, and durations, of each step but the first of every process, nanoseconds."""
        self._before: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        self._is_first: dict[str, bool] = {}

    def see(self, event: Event) -> None:
        match event:
            case LearnerJoined(resumed=False):
                self._before[event.learner] += self._now[event.learner]
                self._now[event.learner] = 0
                self._is_first[event.learner] = True
            case StepReported():
                self._now[event.learner] = event.steps
                if not self._is_first.get(event.learner, True):
                    ends_ns, gaps_ns = self.gaps.setdefault(event.learner, (array("q"), array("q")))
                    ends_ns.append(event.at_ns)
                    gaps_ns.append(event.step_ns)
                self._is_first[event.learner] = False

    def count(self, learner: str) -> int:
        return self._before[learner] + self._now[learner]


class _Rounds:
    """Who took part in what, and how long it took."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        """Participation of each closed round in which somebody was live."""
        self.merged: Counter[str] = Counter()
        self.live: Counter[str] = Counter()
        self.open_ns: dict[str, list[int]] = {}
        self.commit_ns: list[int] = []
        self.empty = 0
        self.staleness: Counter[int] = Counter()
        self._closed: set[int] = set()

    def see(self, event: Event, live: set[str]) -> None:
        match event:
            case ContributionAccepted():
                self.staleness[event.staleness] += 1
            case RoundClosed():
                self._close(event, live)
            case RoundEmpty():
                self.empty += event.round in self._closed
            case FragmentCommitted():
                self.commit_ns.append(event.commit_ns)

    def _close(self, event: RoundClosed, live: set[str]) -> None:
        self._closed.add(event.round)
        if event.live:
            self.shares.append(min(1.0, len(event.participants) / event.live))
        self.merged.update(event.participants)
        self.live.update(live.union(event.participants))
        self.open_ns.setdefault(event.reason.value, []).append(event.open_ns)
