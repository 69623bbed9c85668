"""Safety: what no history may ever show, whatever the network, the hosts and the learners do.

Decides each rule on its own. None of them asks for patience: the limits are in the protocol's options and in the log.
The rules that ask for progress are in ``liveness``, the rules of the books in ``books``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from unlockstep.checkers.rule import Checker, Reactions
from unlockstep.core.deeds import Source
from unlockstep.core.events import (
    ContributionAccepted,
    DataCollecting,
    Event,
    FragmentAdopted,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLeaving,
    LearnerLive,
    LossSpiked,
    RolledBack,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
    RunFinished,
    RunFinishing,
    RunSeeded,
    StepReported,
    SyncerResumed,
    TokensOverwritten,
)
from unlockstep.core.ids import seconds
from unlockstep.core.reasons import WindowReason


class Time(Checker):
    """``at_ns`` never goes back, whichever life of the syncer tells it."""

    name = "time"
    meaning = "time never goes back"

    def goes_back(self, event: Event) -> None:
        """The event is earlier than the one before it."""
        now = seconds(self.history.now_ns)
        self.find(f"time goes back from {now} to {seconds(event.at_ns)} at {_kind(event)}")


class Incarnations(Checker):
    """A process that joins gets the number after its name's newest. One that comes back keeps its number if its
    connection only broke, and gets the next after its lease. Whatever a learner does, it does under its present
    number, while it is a member."""

    name = "incarnations"
    meaning = "every start of a learner gets the next incarnation, and only the newest one counts"

    def before(self) -> Reactions:
        return {
            LearnerJoined: self._joined,
            StepReported: self._stepped,
            **dict.fromkeys((LearnerLive, LearnerAway, LearnerLeaving, LearnerDeparted), self._acts),
            ContributionAccepted: self._acts,
            **dict.fromkeys((FragmentAdopted, TokensOverwritten), self._acts),
        }

    def _joined(self, event: LearnerJoined) -> None:
        known = self.history.learners.get(event.learner)
        if known is None:
            if event.incarnation != 1 or event.resumed:
                self.find(f"{event.learner} joins for the first time as incarnation {event.incarnation}")
            return
        newest = known.incarnation
        if event.incarnation != newest + 1 and not (event.resumed and event.incarnation == newest):
            self.find(f"{event.learner} joins as incarnation {event.incarnation} after {newest}")

    def _acts(
        self,
        event: LearnerLive | LearnerAway | LearnerLeaving | LearnerDeparted | ContributionAccepted | FragmentAdopted,
    ) -> None:
        known = self.history.learners.get(event.learner)
        if known is None or not known.is_present:
            self.find(f"{_kind(event)} of {event.learner}, which is no member")
        elif known.incarnation != event.incarnation:
            self.find(
                f"{_kind(event)} of incarnation {event.incarnation} of {event.learner}, whose present one is "
                f"{known.incarnation}"
            )

    def _stepped(self, event: StepReported) -> None:
        live = self.history.live.get(event.learner)
        if event.learner in self.history.leaving:
            return
        if live is None or live.incarnation != event.incarnation:
            self.find(f"a step of incarnation {event.incarnation} of {event.learner}, which is not live")


class Rotation(Checker):
    """Round r collects for fragment r mod P. Rounds open in order and none is left out, but for the last ones of a run,
    where a fragment nobody has anything for is passed over. At most max(1, floor(tau * P / H)) rounds are in flight, at
    most one per fragment, and a round asks live learners only, each once. It says how many are live."""

    name = "rotation"
    meaning = "round r collects for fragment r mod P, none is left out, and no more are in flight than tau allows"

    def before(self) -> Reactions:
        return {RoundOpened: self._opened}

    def _opened(self, event: RoundOpened) -> None:
        history, number = self.history, event.round
        if event.fragment != number % self.options.fragments:
            self.find(f"round {number} is opened for fragment {event.fragment} of {self.options.fragments}")
        newest, may_skip = history.round_newest, not history.is_scheduled or history.may_skip_rounds
        if number in history.reopening:
            follows = True
        elif newest is None:
            follows = number == 0 or may_skip
        else:
            follows = number == newest + 1 or (number > newest and may_skip)
        if not follows:
            self.find(f"round {number} is opened after round {'none' if newest is None else newest}")
        if len(history.rounds) >= self.options.rounds_in_flight_max:
            self.find(f"round {number} is opened while {len(history.rounds)} are in flight")
        if event.fragment in history.fragments_in_flight:
            self.find(f"round {number} is opened while another one of fragment {event.fragment} is in flight")
        for learner in event.asked:
            if learner not in history.live:
                self.find(f"round {number} asks {learner}, which is not live")
        if len(set(event.asked)) < len(event.asked):
            self.find(f"round {number} asks somebody twice: {_list(event.asked)}")
        if event.live != len(history.live):
            self.find(f"round {number} opens with {len(history.live)} learners live, not {event.live}")


class Opening(Checker):
    """A round opens at the very moment it is due and there is room for it: not before H/P steps of the syncer's clock
    have gone by since the previous one opened, and not after. The syncer's clock is the K-th highest that live learners
    have reported, and no clock goes back; the schedule keeps its rhythm if it is less than a step late, and starts a
    new one otherwise. A schedule that waits for certain steps of the clock waits for ever when speeds alias: it is
    found here."""

    name = "opening"
    meaning = "a round opens when it is due and there is room for it, neither before nor after"

    def begin(self) -> None:
        self._due = self.options.interval_steps
        """P times the clock at which the next round is due."""
        self._since_ns: int | None = None
        """Since when a round should have been opened."""
        self._clocks: dict[str, tuple[int, int]] = {}
        """Learner -> incarnation and clock of its latest report."""
        self._highest: dict[str, int] = {}
        """Learner -> the highest clock it has reported."""
        self._passed_clock: int | None = None
        """At which clock the last rounds passed over those that had nothing to collect, if the run has gone on."""

    def resume(self, event: SyncerResumed) -> None:
        self._since_ns = None
        self._passed_clock = event.clock
        self._look_at_clock("the run is resumed", event.clock)

    def roll_back(self, event: LossSpiked | RolledBack) -> None:
        if not self.history.is_going_back:
            self._judge()
        self._since_ns = None

    def before(self) -> Reactions:
        return {
            StepReported: self._stepped,
            RoundOpened: self._opened,
            DataCollecting: self._collecting,
            RunFinishing: self._finishing,
            RunFinished: self._finished,
        }

    def after(self) -> Reactions:
        changes = (StepReported, FragmentCommitted, RoundEmpty, RoundOpened, LearnerLive, DataCollecting)
        return {
            **dict.fromkeys(changes, self._look),
            **dict.fromkeys((LearnerJoined, LearnerAway, LearnerLeaving, LearnerDeparted), self._look_again),
        }

    def _stepped(self, event: StepReported) -> None:
        incarnation, clock = self._clocks.get(event.learner, (0, 0))
        if event.incarnation == incarnation and event.clock < clock:
            self.find(f"the clock of {event.learner} goes back from {clock} to {event.clock}")
        self._clocks[event.learner] = event.incarnation, event.clock
        if event.clock > self._highest.get(event.learner, 0):
            self._highest[event.learner] = event.clock

    def _opened(self, event: RoundOpened) -> None:
        if event.round in self.history.reopening:
            return
        history, fragments = self.history, self.options.fragments
        self._look_at_clock(f"round {event.round} opens", event.clock)
        is_scheduled = history.is_scheduled
        passed_clock = event.clock if self._passed_clock is None or not is_scheduled else self._passed_clock
        self._passed_clock = None
        newest = -1 if history.round_newest is None else history.round_newest
        for _ in range(event.round - newest - 1):
            self._move_on(passed_clock)
        if history.is_running:
            self._judge()
        if is_scheduled and event.clock * fragments < self._due:
            due_clock = -(-self._due // fragments)
            self.find(f"round {event.round} opens at step {event.clock}, but is due at step {due_clock}")
        self._move_on(event.clock)

    def _move_on(self, clock: int) -> None:
        """A round opens or is passed over at this clock: when the one after it is due."""
        position = clock * self.options.fragments
        keeps_rhythm = 0 <= position - self._due < self.options.fragments
        self._due = (self._due if keeps_rhythm else position) + self.options.interval_steps

    def _look_at_clock(self, what: str, clock: int) -> None:
        history = self.history
        if clock < history.clock:
            self.find(f"{what} at step {clock}, but the clock is at {history.clock}")
        elif clock > 0 and self._reached(clock) < self.options.quorum:
            self.find(f"{what} at step {clock}, which fewer than {self.options.quorum} have reached")

    def _reached(self, clock: int) -> int:
        """How many learners have ever reported a clock as high as this."""
        return sum(highest >= clock for highest in self._highest.values())

    def _look(self, event: object) -> None:
        history = self.history
        if self._since_ns is None and history.clock * self.options.fragments >= self._due and self._may_open():
            self._since_ns = history.now_ns

    def _look_again(self, event: object) -> None:
        if self._since_ns is not None and not self.history.live:
            self._judge()

    def _may_open(self) -> bool:
        history = self.history
        number = 0 if history.round_newest is None else history.round_newest + 1
        return (
            bool(history.live)
            and history.is_scheduled
            and not history.is_going_back
            and not history.reopening
            and len(history.rounds) < self.options.rounds_in_flight_max
            and number % self.options.fragments not in history.fragments_in_flight
        )

    def _judge(self) -> None:
        """What is waited for is here, or not wanted any more."""
        if self._since_ns is not None:
            waited_ns = self.history.now_ns - self._since_ns
            if waited_ns > self.allowance.timer_ns:
                newest = self.history.round_newest
                number = 0 if newest is None else newest + 1
                self.find(f"round {number} was due for {seconds(waited_ns)} and could have opened at once")
            self._since_ns = None

    def _collecting(self, event: DataCollecting) -> None:
        self._judge()

    def _finishing(self, event: RunFinishing) -> None:
        self._look_at_clock("the run is to end", event.clock)
        self._judge()

    def _finished(self, event: RunFinished) -> None:
        self._look_at_clock("the run ends", event.clock)

    def finish(self) -> None:
        self._judge()


class Rounds(Checker):
    """A round that has opened closes once and then ends once: by a commit, or empty. It closes empty only if all that
    is in it weighs nothing; without closing, it is given up only when the run ends. Nothing is open after the end. It
    names everyone who took part once, and says how many are live."""

    name = "rounds"
    meaning = "every round that opens closes once and ends once, by a commit or empty"

    def before(self) -> Reactions:
        return {
            RoundOpened: self._opened,
            RoundClosed: self._closed,
            FragmentCommitted: self._committed,
            RoundEmpty: self._empty,
            RunFinished: self._finished,
        }

    def _opened(self, event: RoundOpened) -> None:
        if self.history.has_finished:
            self.find(f"round {event.round} opens after the end of the run")

    def _closed(self, event: RoundClosed) -> None:
        collecting = self.history.rounds.get(event.round)
        if collecting is None or collecting.fragment != event.fragment:
            self.find(f"round {event.round} of fragment {event.fragment} closes and is not open")
        elif collecting.closed_ns is not None:
            self.find(f"round {event.round} closes a second time")
        elif sorted(event.participants) != sorted({made.learner for made in collecting.held}):
            self.find(
                f"round {event.round} closes with {_list(event.participants)}, but holds contributions of "
                f"{_list({made.learner for made in collecting.held})}"
            )
        if event.live != len(self.history.live):
            self.find(f"round {event.round} closes with {len(self.history.live)} learners live, not {event.live}")

    def _committed(self, event: FragmentCommitted) -> None:
        collecting = self.history.rounds.get(event.round)
        if collecting is None or collecting.fragment != event.fragment:
            self.find(f"round {event.round} of fragment {event.fragment} commits and is not in flight")
        elif collecting.closed_ns is None:
            self.find(f"round {event.round} commits before it has closed")

    def _empty(self, event: RoundEmpty) -> None:
        collecting = self.history.rounds.get(event.round)
        if collecting is None or collecting.fragment != event.fragment:
            self.find(f"round {event.round} of fragment {event.fragment} ends empty and is not in flight")
        elif collecting.closed_ns is None and self.history.is_running:
            self.find(f"round {event.round} is given up although the run goes on")
        elif collecting.closed_ns is not None and any(made.c_tokens for made in collecting.held):
            self.find(
                f"round {event.round} ends empty although it holds {sum(m.c_tokens for m in collecting.held)} tokens"
            )

    def _finished(self, event: RunFinished) -> None:
        for number in self.history.rounds:
            self.find(f"round {number} is still in flight at the end of the run")


class Window(Checker):
    """A round stays open until its quorum is in and then for its grace window at most, which is never longer than
    ``grace_cap_steps``, or gamma times tau, of the longest inner step reported. The rounds of the end wait for everyone
    they have asked: learners have a lease and two steps to report their last, and then another lease to hand over. A
    host may call ``allowance.timer_ns`` late. While the run is about to go back to a record, no round closes; if that
    cannot be had, they go on."""

    name = "window"
    meaning = "no round stays open past its quorum and its grace window"

    def begin(self) -> None:
        self._held_up: set[int] = set()
        """Rounds that were open when the run was about to go back, and did not."""

    def roll_back(self, event: LossSpiked | RolledBack) -> None:
        self._held_up = set(self.history.rounds) if isinstance(event, LossSpiked) else set()

    def before(self) -> Reactions:
        return {RoundClosed: self._closed, RunFinishing: self._look}

    def _closed(self, event: RoundClosed) -> None:
        collecting = self.history.rounds.get(event.round)
        if collecting is None:
            return
        if event.open_ns != event.at_ns - collecting.opened_ns:
            self.find(f"round {event.round} closes after {seconds(event.at_ns - collecting.opened_ns)}, not as it says")
        if collecting.quorum_ns is not None and event.quorum_ns != collecting.quorum_ns - collecting.opened_ns:
            self.find(f"round {event.round} had its quorum at another time than it says")
        if not 0 <= event.grace_ns <= self._grace_ns_max():
            self.find(
                f"round {event.round} was granted a grace of {seconds(event.grace_ns)}; the most is "
                f"{seconds(self._grace_ns_max())}"
            )
        limit_ns = event.quorum_ns + event.grace_ns
        if event.reason is WindowReason.GRACE_ENDED and event.open_ns < limit_ns:
            self.find(f"round {event.round} closes {seconds(limit_ns - event.open_ns)} before its grace has ended")
        if self.history.finishing_ns is not None:
            limit_ns = max(limit_ns, self._last_ns() - collecting.opened_ns)
        if event.open_ns > limit_ns + self.allowance.timer_ns and event.round not in self._held_up:
            self.find(f"round {event.round} stayed open {seconds(event.open_ns - limit_ns)} past its limit")

    def _grace_ns_max(self) -> int:
        options = self.options
        steps = min(options.grace_cap_steps, options.grace_factor * options.overlap_steps)
        return int(steps * self.history.step_ns) + 1  # factors multiplied in another order may round otherwise

    def _last_ns(self) -> int:
        """When the last rounds are over."""
        finishing_ns = self.history.finishing_ns
        assert finishing_ns is not None, "asked for only when the run ends"
        return finishing_ns + 2 * (self.options.lease_ns + self.history.step_ns)

    def _look(self, event: object = None) -> None:
        """At rounds that are open still."""
        for collecting in () if self.history.is_going_back else self.history.rounds.values():
            is_held_up = collecting.number in self._held_up
            if collecting.closed_ns is None and collecting.quorum_ns is not None and not is_held_up:
                limit_ns = collecting.quorum_ns + self._grace_ns_max()
                if self.history.finishing_ns is not None:
                    limit_ns = max(limit_ns, self._last_ns())
                over_ns = self.history.now_ns - limit_ns
                if over_ns > self.allowance.timer_ns:
                    self.find(f"round {collecting.number} is still open {seconds(over_ns)} past its limit")

    def finish(self) -> None:
        self._look()


class Quorum(Checker):
    """A round closes, and commits, with contributions of at least K learners made for this very round. When all data is
    trained and what learners hold is collected, and in the last rounds of a run, those that came late count too."""

    name = "quorum"
    meaning = "no round closes or commits below its quorum of K contributions"

    def before(self) -> Reactions:
        return {RoundClosed: self._look, FragmentCommitted: self._look}

    def begin(self) -> None:
        self._collected: set[int] = set()
        """Rounds that have closed when no later one would have counted what came late."""

    def _look(self, event: RoundClosed | FragmentCommitted) -> None:
        collecting = self.history.rounds.get(event.round)
        givers = {made.learner for made in collecting.held} if collecting is not None else set()
        is_last = self.history.is_collecting or self.history.finishing_ns is not None
        is_collected = isinstance(event, RoundClosed) and is_last
        if is_collected and len(givers) >= self.options.quorum:
            self._collected.add(event.round)
        if isinstance(event, FragmentCommitted) and event.round in self._collected:
            self._collected.remove(event.round)
        elif event.round in self._collected:
            return
        elif collecting is not None and len(collecting.on_time) < self.options.quorum:
            self.find(
                f"round {event.round} {'closes' if isinstance(event, RoundClosed) else 'commits'} with "
                f"{len(collecting.on_time)} of {self.options.quorum} contributions"
            )


class Versions(Checker):
    """The first commit of a fragment makes version 1, and each one after that the next. When the run goes back, every
    fragment gets its next version, none is left out, and no commit is under way. The run ends with these versions."""

    name = "versions"
    meaning = "the version of a fragment rises by one with every commit, and when the run goes back"

    def before(self) -> Reactions:
        return {FragmentCommitted: self._committed, RolledBack: self._rolled_back, RunFinished: self._finished}

    def _rolled_back(self, event: RolledBack) -> None:
        history = self.history
        expected = [version + 1 for version in history.versions]
        if list(event.versions) != expected:
            self.find(f"the run goes back with versions {list(event.versions)}, not {expected}")
        if not history.is_going_back:
            self.find(f"the run goes back to record {event.record} without a reason")
        for number, collecting in sorted(history.rounds.items()):
            if collecting.closed_ns is not None:
                self.find(f"the run goes back while round {number} commits")

    def _committed(self, event: FragmentCommitted) -> None:
        history, fragment = self.history, event.fragment
        if not history.fragment_exists(fragment):
            self.find(f"fragment {fragment} of {self.options.fragments} is committed")
            return
        newest = history.versions[fragment]
        if event.version != newest + 1:
            self.find(f"version {event.version} of fragment {fragment} is committed after version {newest}")

    def _finished(self, event: RunFinished) -> None:
        if event.versions and list(event.versions) != self.history.versions:
            self.find(f"the run ends with versions {list(event.versions)}, but committed {self.history.versions}")


class Restart(Checker):
    """When another life of the syncer takes the run up, it begins with the newest version of every fragment that was
    committed, and what has its parameters is not seeded again. Rounds that were in flight begin anew before anything
    else happens."""

    name = "restart"
    meaning = "nothing that was published is lost when the syncer is started again"

    def begin(self) -> None:
        self._life = 1

    def resume(self, event: SyncerResumed) -> None:
        kept, versions = list(event.versions), self.history.versions
        if event.life <= self._life:
            self.find(f"life {event.life} of the syncer follows life {self._life}")
        self._life = event.life
        if self.history.is_seeded and kept != versions:
            self.find(f"the run is resumed with versions {kept}, but {versions} were published before")
        if not self.history.is_seeded and kept:
            self.find(f"the run is resumed with versions {kept}, and had no parameters before")

    def before(self) -> Reactions:
        others = (LearnerJoined, LearnerDeparted, RunFinishing, RunFinished)
        return {RunSeeded: self._seeded, RoundOpened: self._opened, **dict.fromkeys(others, self._look)}

    def _seeded(self, event: RunSeeded) -> None:
        if self.history.is_seeded:
            self.find(f"the run is seeded again by {event.learner}, after versions {self.history.versions}")

    def _opened(self, event: RoundOpened) -> None:
        if event.round not in self.history.reopening:
            self._look(event)

    def _look(self, event: object) -> None:
        for number in sorted(self.history.reopening):
            self.find(f"round {number} was in flight when the syncer died, and does not begin anew")
        self.history.reopening.clear()


class Adoption(Checker):
    """A learner adopts versions that were committed, with the digest they were committed with, and each process of it
    only ever newer ones. With a version it takes over the clock that the syncer had when it committed it."""

    name = "adoption"
    meaning = "what a learner adopts is what the syncer committed, and never an older version than before"

    def begin(self) -> None:
        self._newest: dict[tuple[str, int], int] = {}
        """(learner, fragment) -> the version its process has adopted last."""
        self._committed_at: OrderedDict[tuple[int, int], int] = OrderedDict()
        """(fragment, version) -> the syncer's clock at the commit, at least, of the newest ones."""
        self._clock: dict[str, int] = {}
        """Learner -> what its clock must have reached."""
        self._may_load_again: Counter[tuple[str, int]] = Counter()
        """(learner, fragment) -> how often it may load the version that it has, once for each return of the run."""

    def roll_back(self, event: LossSpiked | RolledBack) -> None:
        """The same of a learner that had adopted what is void."""
        self._let_all_load_again()

    def resume(self, event: SyncerResumed) -> None:
        """A learner that had adopted what is lost loads all versions once more, those too that it has."""
        self._let_all_load_again()

    def _let_all_load_again(self) -> None:
        fragments = range(self.options.fragments)
        self._may_load_again.update((name, fragment) for name in self.history.learners for fragment in fragments)

    def before(self) -> Reactions:
        return {
            FragmentCommitted: self._committed,
            FragmentAdopted: self._adopted,
            StepReported: self._stepped,
            LearnerJoined: self._joined,
        }

    def _committed(self, event: FragmentCommitted) -> None:
        self._committed_at[event.fragment, event.version] = self.history.clock
        if len(self._committed_at) > self.options.fragments * self.options.closed_rounds_max:
            self._committed_at.popitem(last=False)

    def _stepped(self, event: StepReported) -> None:
        reached = self._clock.get(event.learner, 0)
        if event.clock < reached:
            what = f"and has adopted what was committed at step {reached}"
            self.find(f"the clock of {event.learner} is at step {event.clock}, {what}")

    def _joined(self, event: LearnerJoined) -> None:
        if not event.resumed:
            self._clock.pop(event.learner, None)
            for fragment in range(self.options.fragments):
                self._newest.pop((event.learner, fragment), None)

    def _adopted(self, event: FragmentAdopted) -> None:
        history, fragment, version = self.history, event.fragment, event.version
        if not history.fragment_exists(fragment):
            self.find(f"{event.learner} adopts fragment {fragment} of {self.options.fragments}")
            return
        digests = history.digests[fragment]
        digest = digests.get(version)
        if digest is None:
            is_forgotten = bool(digests) and version < next(iter(digests))
            if not is_forgotten and version > 0:
                self.find(f"{event.learner} adopts version {version} of fragment {fragment}, which was not committed")
        elif digest != event.digest:
            self.find(
                f"{event.learner} adopts version {version} of fragment {fragment} with digest {event.digest[:12]}, "
                f"but it was committed with {digest[:12]}"
            )
        key = event.learner, fragment
        before = self._newest.get(key, -1)
        if version == before and event.source is Source.LOADED and self._may_load_again[key] > 0:
            self._may_load_again[key] -= 1
        elif version <= before:
            self.find(f"{event.learner} adopts version {version} of fragment {fragment} after version {before}")
        self._newest[key] = version
        committed_at = self._committed_at.get((fragment, version), 0)
        self._clock[event.learner] = max(self._clock.get(event.learner, 0), committed_at)


def _kind(event: object) -> str:
    return type(event).__name__


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nobody"
