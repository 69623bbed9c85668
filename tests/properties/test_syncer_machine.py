"""Any history of a run, rule by rule: the syncer among honest learners whose processes, connections and bodies fail,
and which dies itself.

Learners are the real ones, so that what they hand over is what they hold; the wire delays, loses and repeats what a
real one may. Beside them a model that only counts tokens. Safety holds after every rule; at the end the world is
healed, and the run must then make progress and end with its books in balance.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.core_builders import LEASE_NS, MS, options
from support.core_pair import CorePair, Process
from unlockstep.checkers import SAFETY, check, imbalances
from unlockstep.core.adoption import Adoption
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    FragmentCommitted,
    RoundOpened,
    RunFinished,
    TokensOverwritten,
)
from unlockstep.core.messages import EndRun, LeaveRequested
from unlockstep.core.options import Late, Participation
from unlockstep.core.reasons import RefusalReason
from unlockstep.core.run_states import RunState

NAMES = ("a", "b", "c")
numbers = st.integers(0, 7)


class Run(RuleBasedStateMachine):
    """Processes are picked by number among those a rule applies to; a rule that applies to none does nothing."""

    @initialize(
        shape=st.sampled_from([(1, 2, 2), (2, 4, 2), (3, 3, 2), (4, 3, 3)]),
        quorum=st.integers(1, 2),
        participation=st.sampled_from(Participation),
        late=st.sampled_from(Late),
        adoption=st.sampled_from(Adoption),
        staleness_max=st.sampled_from([1, 16]),
        seeded=st.sampled_from([True, True, True, False]),
    )
    def begin(
        self,
        shape: tuple[int, int, int],
        quorum: int,
        participation: Participation,
        late: Late,
        adoption: Adoption,
        staleness_max: int,
        seeded: bool,
    ) -> None:
        fragments, interval_steps, overlap_steps = shape
        protocol = options(
            fragments=fragments,
            interval_steps=interval_steps,
            overlap_steps=overlap_steps,
            quorum=quorum,
            participation=participation,
            late=late,
            staleness_max=staleness_max,
        )
        self.pair = CorePair(protocol, adoption)
        self.pair.start(*NAMES)
        if seeded:
            self.pair.exchange()
            self.everybody_steps(10)

    def pick(self, number: int, applies: Callable[[Process], object]) -> Process | None:
        candidates = [process for process in self.pair.processes if applies(process)]
        return candidates[number % len(candidates)] if candidates else None

    # ------------------------------------------------------------------------------------------- training

    @rule(number=numbers, tokens=st.sampled_from([10, 10, 7, 0]))
    def step(self, number: int, tokens: int) -> None:
        if process := self.pick(number, lambda p: p.may_run and p.core.may_step):
            self.pair.end_step(process, tokens)

    @rule(tokens=st.sampled_from([10, 7]))
    def everybody_steps(self, tokens: int) -> None:
        for process in self.pair.processes:
            if process.may_run and process.core.may_step:
                self.pair.end_step(process, tokens)
        self.pair.exchange()

    @rule(number=numbers)
    def leave(self, number: int) -> None:
        if process := self.pick(number, lambda p: p.may_run and p.is_connected):
            self.pair.hear(process, LeaveRequested())

    # ------------------------------------------------------------------------------------------- the wire

    @rule()
    def exchange(self) -> None:
        self.pair.exchange()

    @rule(names=st.sets(st.sampled_from(NAMES)), what=st.sampled_from(["uploads", "fetches", "commits", "saves"]))
    def hold(self, names: set[str], what: str) -> None:
        """From now on these bodies arrive one by one, as the rules below let them."""
        match what:
            case "uploads":
                self.pair.holds_uploads = names
            case "fetches":
                self.pair.holds_fetches = names
            case "commits":
                self.pair.holds_commits = bool(names)
            case "saves":
                self.pair.holds_saves = bool(names)

    @rule(number=numbers)
    def message(self, number: int) -> None:
        if process := self.pick(number, lambda p: p.outgoing or (p.incoming and p.may_run)):
            self.pair.carry_message(process)

    @rule(number=numbers, twice=st.booleans())
    def upload_arrives(self, number: int, twice: bool) -> None:
        if process := self.pick(number, lambda p: p.uploads):
            self.pair.arrive(process, keep=twice)

    @rule(number=numbers, defect=st.sampled_from([RefusalReason.DIGEST_MISMATCH, RefusalReason.NON_FINITE]))
    def upload_is_defective(self, number: int, defect: RefusalReason) -> None:
        if process := self.pick(number, lambda p: p.uploads):
            self.pair.arrive(process, defect)

    @rule(number=numbers)
    def upload_fails(self, number: int) -> None:
        if process := self.pick(number, lambda p: p.uploads and p.may_run):
            self.pair.lose_upload(process)

    @rule(number=numbers, fails=st.booleans())
    def fetch_ends(self, number: int, fails: bool) -> None:
        if process := self.pick(number, lambda p: p.fetches and p.may_run):
            self.pair.fetch(process, fails)

    @rule()
    def commit_is_durable(self) -> None:
        if self.pair.commits:
            self.pair.commit()

    @rule()
    def it_is_on_disk(self) -> None:
        if self.pair.saving is not None:
            self.pair.end_save()

    # ------------------------------------------------------------------------------------------- what goes wrong

    @rule(saves=st.booleans(), delivers=st.booleans())
    def syncer_dies(self, saves: bool, delivers: bool) -> None:
        """Whoever is connected or comes back has what it was told, and the syncer has it too."""
        self.pair.die(saves=saves, delivers=delivers)
        for process in [process for process in self.pair.processes if process.may_run and process.core.may_step]:
            held = dict(enumerate(process.core.versions))
            assert all(version <= self.pair.versions[fragment] for fragment, version in held.items())

    @rule(number=numbers)
    def cut(self, number: int) -> None:
        if process := self.pick(number, lambda p: p.may_run and p.is_connected):
            self.pair.cut(process)

    @rule(number=numbers)
    def connect(self, number: int) -> None:
        if process := self.pick(number, lambda p: p.may_run and not p.is_connected):
            self.pair.connect(process)

    @rule(number=numbers)
    def kill(self, number: int) -> None:
        if process := self.pick(number, lambda p: p.is_up):
            self.pair.kill(process)

    @rule(name=st.sampled_from(NAMES))
    def start(self, name: str) -> None:
        """Perhaps beside an older process of the same name."""
        if len([process for process in self.pair.processes if process.is_up]) < 5:
            self.pair.start(name)

    @rule(number=numbers)
    def freeze(self, number: int) -> None:
        if process := self.pick(number, lambda p: p.may_run):
            self.pair.freeze(process)

    @rule(number=numbers)
    def thaw(self, number: int) -> None:
        if process := self.pick(number, lambda p: p.is_up and p.is_frozen):
            self.pair.thaw(process)

    @rule(duration_ns=st.sampled_from([MS, 60 * MS, 100 * MS, LEASE_NS // 2, LEASE_NS]), exchanging=st.booleans())
    def wait(self, duration_ns: int, exchanging: bool) -> None:
        self.pair.wait(duration_ns, exchanging)

    @rule()
    def look_too_early(self) -> None:
        """Calling before a deadline does no harm: nothing was left undone."""
        self.pair.syncer.on_deadline(self.pair.now_ns)
        assert self.pair.syncer.take_actions() == []
        assert self.pair.syncer.take_events() == []

    # ------------------------------------------------------------------------------------------- what must hold

    @invariant()
    def the_protocol_is_kept(self) -> None:
        if hasattr(self, "pair"):
            assert check(self.pair.events, self.pair.options, rules=SAFETY) == []
            assert self.pair.syncer.next_deadline_ns() > self.pair.now_ns

    @invariant()
    def no_token_is_counted_twice(self) -> None:
        if hasattr(self, "pair"):
            assert list(imbalances(self.pair.ledger)) == []

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.heal()
            self.progress()
            self.end()

    def heal(self) -> None:
        """From here on everything works: all processes run and are connected, and nothing is held back."""
        self.pair.holds_uploads, self.pair.holds_fetches, self.pair.holds_commits = set(), set(), False
        self.pair.holds_saves = False
        self.it_is_on_disk()
        for process in [process for process in self.pair.processes if process.is_up]:
            if process.is_frozen:
                self.pair.thaw(process)
            if process.may_run and not process.is_connected:
                self.pair.connect(process)
        self.pair.wait(2 * LEASE_NS)
        for name in ("d", "e"):  # Names nobody has spoiled: at least K learners take part.
            self.pair.start(name)
        self.pair.wait(2 * LEASE_NS)

    def progress(self) -> None:
        """Within two intervals every fragment is asked for and committed."""
        before = self.pair.versions
        for _ in range(4 * self.pair.options.interval_steps + 4):
            self.pair.wait(100 * MS)
            self.everybody_steps(10)
        self.pair.wait(LEASE_NS)
        working = [process.name for process in self.pair.processes if process.is_up and process.done is None]
        assert len(working) == len(set(working)), f"{working}: one of two trains on unheard"
        self.what_is_in_flight_is_with_the_learners()
        assert all(now > then for now, then in zip(self.pair.versions, before, strict=True)), (
            f"versions went from {before} to {self.pair.versions}: "
            f"{[each.sentence for each in self.pair.syncer.status(self.pair.now_ns).rounds]}"
        )

    def what_is_in_flight_is_with_the_learners(self) -> None:
        """Nothing is under way: the books must agree with the learners to the token."""
        pair = self.pair
        holding = [process for process in pair.processes if process.is_up and process.done is None]
        held = sum(sum(process.held) for process in holding)
        assert not any(process.uploads for process in holding)
        accepted = sum(event.c_tokens for event in pair.of(ContributionAccepted)) - pair.voided
        merged = sum(event.tokens for event in pair.of(FragmentCommitted))
        assert round(pair.ledger.in_flight * pair.options.fragments) == held + accepted - merged

    def end(self) -> None:
        pair = self.pair
        pair.tell(EndRun("enough"))
        pair.exchange()
        self.everybody_steps(10)
        pair.wait(3 * LEASE_NS)
        assert pair.syncer.state is RunState.FINISHED
        self.the_protocol_is_kept_to_the_end()

    def the_protocol_is_kept_to_the_end(self) -> None:
        pair, ledger = self.pair, self.pair.ledger
        assert check(pair.events, pair.options, rules=SAFETY) == []
        assert list(imbalances(ledger)) == []
        assert ledger.in_flight == 0
        assert [event.tokens_under_way for event in pair.of(RunFinished)] == [0]
        assert pair.payloads == set()
        assert all(not process.bodies for process in pair.processes if process.done)
        # The model: what was trained, merged, refused and overwritten, counted from the outside.
        fragments = pair.options.fragments
        merged = sum(event.tokens for event in pair.of(FragmentCommitted))
        overwritten = sum(event.tokens for event in pair.of(TokensOverwritten))
        refused = sum(
            event.c_tokens
            for event in pair.of(ContributionRefused)
            if event.reason not in (RefusalReason.DUPLICATE, RefusalReason.RUN_FINISHED)
        )
        accepted = sum(event.c_tokens for event in pair.of(ContributionAccepted)) - pair.voided
        assert round((ledger.merged + ledger.merged_late) * fragments) == merged
        assert round(ledger.overwritten * fragments) == overwritten
        given_up = ledger.refused.get("run_finished", 0.0)
        assert round((sum(ledger.refused.values()) - given_up) * fragments) <= refused
        assert accepted == round((ledger.merged + ledger.merged_late + given_up) * fragments)
        assert ledger.trained <= sum(process.trained for process in pair.processes)
        assert len(pair.of(RoundOpened)) == len({event.round for event in pair.of(RoundOpened)}) + pair.reopened


Run.TestCase.settings = settings(max_examples=150, stateful_step_count=80)
test_any_history_keeps_the_protocol = Run.TestCase
