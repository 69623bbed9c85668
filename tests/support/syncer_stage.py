"""A ``SyncerCore`` and learners played by hand: every message is written by the test, time stands still until moved.

Decides only what an honest learner would say; a test overrides any field of it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from support.core_builders import STEP_NS, join, options
from unlockstep.core.actions import Announce, Commit, Release, SendTo, SyncerAction
from unlockstep.core.events import ContributionRefused, Event, LearnerDeparted, RoundClosed, RoundOpened
from unlockstep.core.formats import Codec
from unlockstep.core.messages import (
    Committed,
    ContributionArrived,
    Disconnected,
    GoneBack,
    Heartbeat,
    JoinRefused,
    Leave,
    Progress,
    Published,
    Pull,
    SeedArrived,
    SyncerInput,
    SyncerMessage,
    Welcome,
)
from unlockstep.core.options import ProtocolOptions, RollbackOptions
from unlockstep.core.reasons import DepartureReason, RefusalReason
from unlockstep.core.saved import SavedRun
from unlockstep.core.status import LedgerStatus
from unlockstep.core.syncer import SyncerCore

Kind = TypeVar("Kind")


@dataclass
class Puppet:
    """What a learner would remember."""

    name: str
    fragment_count: int
    incarnation: int = 0
    clock: int = 0
    steps: int = 0
    tokens: int = 0
    c_steps: list[int] = field(default_factory=list)
    c_tokens: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    heard: list[SyncerMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.c_steps, self.c_tokens = [0] * self.fragment_count, [0] * self.fragment_count
        self.versions = [0] * self.fragment_count

    def heard_of(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.heard if isinstance(message, kind)]


class SyncerStage:
    """The syncer, what it has said, and the puppets."""

    def __init__(
        self,
        protocol: ProtocolOptions | None = None,
        steps_max: int = 0,
        tokens_max: int = 0,
        rollback: RollbackOptions | None = None,
        codecs: tuple[Codec, ...] = (Codec.BFLOAT16,),
    ) -> None:
        self.options = protocol or options()
        self._ends = (steps_max, tokens_max)
        self._rollback = rollback or RollbackOptions()
        self._codecs = codecs
        self.core = self._new_core("id")
        self.now_ns = 0
        self.events: list[Event] = []
        self.actions: list[SyncerAction] = []
        self.commits: list[Commit] = []
        self.puppets: dict[str, Puppet] = {}
        self.processes: list[Puppet] = []
        """Every process there ever was; ``puppets`` holds the newest of each name."""
        self._payloads = itertools.count()

    def _new_core(self, run_id: str) -> SyncerCore:
        ends = self._ends
        return SyncerCore("run", self.options, *ends, run_id, rollback=self._rollback, codecs=self._codecs)

    # ------------------------------------------------------------------------------------------- time and talk

    def tell(self, message: SyncerInput) -> None:
        """The syncer receives something now."""
        self.core.receive(message, self.now_ns)
        self._collect()

    def wait(self, duration_ns: int) -> None:
        """Silence; deadlines come when they are due."""
        end_ns = self.now_ns + duration_ns
        for _ in range(1000):
            deadline_ns = self.core.next_deadline_ns()
            if deadline_ns > end_ns:
                self.now_ns = end_ns
                return
            self.now_ns = max(self.now_ns, deadline_ns)
            self.core.on_deadline(self.now_ns)
            self._collect()
        raise AssertionError(f"the syncer spins: its deadline stays at {self.core.next_deadline_ns()}")

    def save(self) -> SavedRun:
        """What a disk would hold now."""
        saved = self.core.saved(self.now_ns)
        again = msgspec.json.decode(msgspec.json.encode(saved), type=SavedRun)
        assert again == saved
        return again

    def die(self, saved: SavedRun | None = None) -> None:
        """Another life of the syncer takes the run up as it is now, or as it was when it was saved."""
        before, layout = saved or self.save(), self.core.layout
        self.core = self._new_core("another id")
        self.commits.clear()
        self.core.resume(before, layout, before.life + 1, self.now_ns)
        self._collect()

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Events of one kind, oldest first."""
        return [event for event in self.events if isinstance(event, kind)]

    def acted(self, kind: type[Kind]) -> list[Kind]:
        """Actions of one kind, oldest first."""
        return [action for action in self.actions if isinstance(action, kind)]

    @property
    def ledger(self) -> LedgerStatus:
        return self.core.status(self.now_ns).ledger

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(notice.version for notice in self.core.notices)

    @property
    def states(self) -> dict[str, str]:
        """Every learner's, as the syncer sees it."""
        return {learner.learner: learner.state for learner in self.core.status(self.now_ns).learners}

    @property
    def departures(self) -> list[tuple[str, DepartureReason]]:
        return [(event.learner, event.reason) for event in self.of(LearnerDeparted)]

    @property
    def refusals(self) -> list[tuple[str, RefusalReason]]:
        return [(event.learner, event.reason) for event in self.of(ContributionRefused)]

    @property
    def released(self) -> set[int]:
        return {action.payload for action in self.acted(Release)}

    # ------------------------------------------------------------------------------------------- what learners do

    def join(self, name: str, incarnation: int = 0, **changes: Any) -> SyncerMessage:
        """A process asks to take part; returns the answer."""
        puppet = self.puppets.get(name)
        if puppet is None or incarnation == 0:
            puppet = self.puppets[name] = Puppet(name, self.options.fragments)
            self.processes.append(puppet)
        self.tell(join(name, incarnation, self.options.fragments, **changes))
        answer = puppet.heard[-1]
        if isinstance(answer, Welcome):
            puppet.incarnation = answer.incarnation
            puppet.clock = max(puppet.clock, answer.clock)
            for notice in answer.versions:
                puppet.versions[notice.fragment] = notice.version
        return answer

    def seed(self, name: str) -> None:
        """Every fragment's version 0 arrives."""
        for fragment in range(self.options.fragments):
            self.tell(SeedArrived(name, self.puppets[name].incarnation, fragment, f"digest-{fragment}-0"))

    def step(self, name: str, tokens: int = 10, clock: int | None = None, **changes: Any) -> None:
        """One inner step is done and reported."""
        puppet = self.puppets[name]
        puppet.clock = puppet.clock + 1 if clock is None else clock
        puppet.steps += 1
        puppet.tokens += tokens
        puppet.c_steps = [steps + 1 for steps in puppet.c_steps]
        puppet.c_tokens = [count + tokens for count in puppet.c_tokens]
        self.report(name, **changes)

    def report(self, name: str, **changes: Any) -> None:
        """Progress as it stands."""
        puppet = self.puppets[name]
        settings: dict[str, Any] = {
            "learner": name,
            "incarnation": puppet.incarnation,
            "clock": puppet.clock,
            "steps": puppet.steps,
            "tokens": puppet.tokens,
            "step_ns": STEP_NS,
            "loss": 1.0,
            "c_steps": tuple(puppet.c_steps),
            "c_tokens": tuple(puppet.c_tokens),
        }
        if "overwritten" in Progress.__struct_fields__:
            settings["overwritten"] = (0,) * self.options.fragments
        self.tell(Progress(**{**settings, **changes}))

    def hand_over(self, name: str, round: int | None = None, **changes: Any) -> ContributionArrived:
        """The learner gives its progress away; the upload is on its way (``tell`` it to let it arrive)."""
        puppet = self.puppets[name]
        pulls = puppet.heard_of(Pull)
        number = pulls[-1].round if round is None else round
        fragment = number % self.options.fragments
        settings: dict[str, Any] = {
            "learner": name,
            "incarnation": puppet.incarnation,
            "round": number,
            "fragment": fragment,
            "base_version": puppet.versions[fragment],
            "c_steps": puppet.c_steps[fragment],
            "c_tokens": puppet.c_tokens[fragment],
            "tokens": puppet.tokens,
            "norm": 1.0,
            "defect": None,
            "payload": next(self._payloads),
        }
        puppet.c_steps[fragment] = puppet.c_tokens[fragment] = 0
        return ContributionArrived(**{**settings, **changes})

    def contribute(self, name: str, round: int | None = None, **changes: Any) -> ContributionArrived:
        """The learner gives its progress away and it arrives at once."""
        made = self.hand_over(name, round, **changes)
        self.tell(made)
        return made

    def heartbeat(self, name: str) -> None:
        self.tell(Heartbeat(name, self.puppets[name].incarnation))

    def leave(self, name: str) -> None:
        puppet = self.puppets[name]
        self.tell(Leave(name, puppet.incarnation, tuple(puppet.c_tokens)))

    def disconnect(self, name: str) -> None:
        self.tell(Disconnected(name, self.puppets[name].incarnation))

    def commit(self) -> None:
        """Every commit asked for so far is durable now; learners adopt it at once and keep their counters."""
        commits, self.commits = self.commits, []
        for made in commits:
            digest = f"digest-{made.fragment}-{made.version}"
            self.tell(Committed(made.round, made.fragment, made.version, digest, norm=1.0))

    # ------------------------------------------------------------------------------------------- inside

    def _collect(self) -> None:
        self.events.extend(self.core.take_events())
        for action in self.core.take_actions():
            self.actions.append(action)
            match action:
                case SendTo(learner, _, Welcome() | JoinRefused()) if learner in self.puppets:
                    self.puppets[learner].heard.append(action.message)
                case SendTo(learner, incarnation, message):
                    for process in self.processes:
                        if (process.name, process.incarnation) == (learner, incarnation):
                            process.heard.append(message)
                case Announce(message):
                    for puppet in self.puppets.values():
                        puppet.heard.append(message)
                        if isinstance(message, Published):
                            puppet.versions[message.notice.fragment] = message.notice.version
                        if isinstance(message, GoneBack):
                            puppet.versions = [each.version for each in message.notices]
                case Commit():
                    self.commits.append(action)
                case _:
                    pass


def running(
    *names: str,
    steps_max: int = 0,
    tokens_max: int = 0,
    rollback: RollbackOptions | None = None,
    codecs: tuple[Codec, ...] = (Codec.BFLOAT16,),
    **changes: Any,
) -> SyncerStage:
    """A run with parameters in which all these learners are live at clock 1 and known to take 100 ms a step.

    With the default options the first round is due at clock 2.
    """
    stage = SyncerStage(options(**changes), steps_max, tokens_max, rollback, codecs)
    for name in names:
        stage.join(name)
    stage.seed(names[0])
    for name in names:
        stage.report(name)
    for _ in range(2):  # The first step makes a learner live, the second one tells how long a step takes.
        stage.now_ns += STEP_NS
        for name in names:
            stage.step(name, clock=1)
    return stage


def first_round(*names: str, **changes: Any) -> SyncerStage:
    """Round 0 has just opened, at clock 2: K learners have taken the step it was due at, the others are one behind."""
    stage = running(*names, **changes)
    for name in names[: stage.options.quorum]:
        stage.step(name)
    assert [event.round for event in stage.of(RoundOpened)] == [0]
    return stage


def missed_round(**changes: Any) -> tuple[SyncerStage, ContributionArrived]:
    """Round 0 has closed without ``b``, whose upload is still on its way."""
    stage = first_round("a", "b", **changes)
    late = stage.hand_over("b")
    stage.contribute("a")
    stage.wait(STEP_NS)
    assert stage.of(RoundClosed)[0].participants == ("a",)
    return stage, late


def commit_rounds(stage: SyncerStage, count: int, *names: str) -> None:
    """So many rounds, in which all these learners take part."""
    for _ in range(count):
        clock = max(stage.puppets[name].clock for name in names) + 2
        for name in names:
            stage.step(name, clock=clock)
        number = stage.of(RoundOpened)[-1].round
        for name in names:
            stage.contribute(name, round=number)
        stage.commit()
