"""From a run log to what is to be done once more: what every process did, and what every commit merged.

Decides what of a log matters to the parameters, and that only this is repeated: a process is followed to the last thing
that anybody took from it. Pure; knows no arrays (``stage`` has them).

A *process* is known by its learner and its first incarnation. Its *programme* is its deeds in the order in which it did
them (``core.deeds``), and between them the moments at which its state was taken by others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from unlockstep.core.data_book import Grant
from unlockstep.core.deeds import (
    AdoptionNotice,
    Began,
    CheckpointTaken,
    Deed,
    HandOverNotice,
    Moment,
    Source,
    StateTaken,
)
from unlockstep.core.errors import UsageError
from unlockstep.core.events import (
    ContributionAccepted,
    DataGranted,
    Event,
    FragmentAdopted,
    FragmentCommitted,
    LearnerDid,
    LearnerJoined,
    Merged,
    RolledBack,
    RunSeeded,
    StepReported,
    SyncerResumed,
)


class ProcessKey(NamedTuple):
    """One process of a learner."""

    learner: str
    first: int
    """Its first incarnation."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Somebody took the state of the process as of here."""

    moment: Moment
    whole: bool
    """Everything, as for a checkpoint; else parameters and inner optimizer, as for another learner."""


class Place(NamedTuple):
    """How far along its programme a process is: so many deeds done, then so many inner steps."""

    deeds: int
    steps: int


@dataclass(slots=True)
class Process:
    """What one process did, as far as the log knows."""

    key: ProcessKey
    about: dict[str, str]
    seeds: bool = False
    """Its own parameters are version 0."""
    deeds: dict[int, Deed] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    """Step -> the loss it reported."""
    grants: list[Grant] = field(default_factory=list)
    """Of the corpus, all it was ever granted."""
    captures: set[Capture] = field(default_factory=set)
    until: Place = field(default_factory=lambda: Place(0, 0))
    """As far as anybody needs it."""

    def programme(self) -> list[Deed | Capture]:
        """All that is to be done, in order, up to ``until``."""
        acts: list[tuple[tuple[int, int, int], Deed | Capture]] = [
            ((number, 0, 0), deed) for number, deed in self.deeds.items() if number <= self.until.deeds
        ]
        acts += [((each.moment.deeds, 1, each.moment.steps), each) for each in self.captures]
        return [act for _, act in sorted(acts, key=lambda entry: entry[0])]

    @property
    def began(self) -> Began | None:
        """Its first step, if anybody heard of it."""
        return next((deed for deed in self.deeds.values() if isinstance(deed, Began)), None)

    def course(self) -> list[Grant]:
        """What it was granted, in order, each place of its course once: it may have been granted some of it again."""
        course: list[Grant] = []
        for grant in sorted(self.grants, key=lambda grant: (grant.at, -grant.size)):
            rest = grant.beyond(course[-1].end if course else 0)
            if rest.size:
                course.append(rest)
        return course

    def missing(self, until: int) -> list[int]:
        """Numbers of deeds that nobody heard of."""
        return [number for number in range(1, until + 1) if number not in self.deeds]


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, and the contributions that it merged."""

    event: FragmentCommitted
    merged: tuple[ContributionAccepted, ...]
    makers: tuple[ProcessKey, ...]
    """Of each."""


Chapter: TypeAlias = RunSeeded | Commit | SyncerResumed | RolledBack


@dataclass(slots=True)
class Script:
    """What is to be done once more."""

    processes: dict[ProcessKey, Process]
    chapters: list[Chapter]
    seeder: ProcessKey | None
    run_id: str
    incarnations: dict[tuple[str, int], ProcessKey]

    @property
    def commits(self) -> int:
        """How many there are."""
        return sum(isinstance(chapter, Commit) for chapter in self.chapters)

    @property
    def steps(self) -> int:
        """Inner steps to be taken, over all processes."""
        return sum(process.until.steps for process in self.processes.values())

    def process_at(self, moment: Moment) -> Process:
        """Whose moment that is. Raises UsageError if the log does not know it."""
        return self.process_of(moment.learner, moment.incarnation)

    def process_of(self, learner: str, incarnation: int) -> Process:
        """Whose incarnation that is. Raises UsageError if the log does not know it."""
        key = self.incarnations.get((learner, incarnation))
        if key is None:
            raise UsageError(
                f"the run log speaks of incarnation {incarnation} of {learner}, which has never joined by it; it is "
                "damaged, or not this run's"
            )
        return self.processes[key]


def read_script(events: Iterable[Event], until_round: int | None = None) -> Script:
    """Everything that matters of a run log.

    Args:
        events: of the log.
        until_round: the last round whose commit is wanted; None: all there are.

    Raises:
        UsageError: the log holds too little: it was written by an earlier version, or it is of no whole run.
    """
    reader = _Reader()
    for event in events:
        reader.take(event)
        if isinstance(event, FragmentCommitted) and event.round == until_round:
            reader.is_over = True
    script = reader.script()
    _follow(script)
    return script


class _Reader:
    def __init__(self) -> None:
        self._processes: dict[ProcessKey, Process] = {}
        self._incarnations: dict[tuple[str, int], ProcessKey] = {}
        self._newest: dict[str, ProcessKey] = {}
        self._accepted: dict[Merged, ContributionAccepted] = {}
        self._chapters: list[Chapter] = []
        self._seeder: ProcessKey | None = None
        self._run_id = ""
        self.is_over = False
        """What comes after this is not repeated, but may tell what was done before."""

    def take(self, event: Event) -> None:
        match event:
            case LearnerJoined():
                self._join(event)
            case LearnerDid(learner=learner, incarnation=incarnation, deed=deed):
                self._process(learner, incarnation).deeds[deed.number] = deed
            case FragmentAdopted():
                self._adopt(event)
            case ContributionAccepted():
                self._accept(event)
            case StepReported(learner=learner, incarnation=incarnation, steps=steps, loss=loss):
                self._process(learner, incarnation).losses[steps] = loss
            case DataGranted(learner=learner, incarnation=incarnation, grants=grants):
                self._process(learner, incarnation).grants.extend(grants)
            case RunSeeded(learner=learner, run_id=run_id):
                self._seed(learner, run_id)
        if not self.is_over:
            self._open_chapter(event)

    def _open_chapter(self, event: Event) -> None:
        match event:
            case RunSeeded() | SyncerResumed() | RolledBack():
                self._chapters.append(event)
            case FragmentCommitted():
                if not event.merged:
                    raise UsageError(
                        f"the run log does not say what the commit of round {event.round} has merged: it was written "
                        "by an earlier version of unlockstep, and cannot be replayed"
                    )
                makers = tuple(ProcessKey(each.learner, each.process) for each in event.merged)
                self._chapters.append(Commit(event, tuple(map(self._merged, event.merged)), makers))

    def _seed(self, learner: str, run_id: str) -> None:
        seeder = self._newest.get(learner)
        if seeder is None:
            raise UsageError(f"the run log takes the parameters of {learner} before it has joined; it is damaged")
        self._seeder, self._run_id = seeder, run_id
        self._processes[seeder].seeds = True

    def _merged(self, merged: Merged) -> ContributionAccepted:
        """What has come; it counts once."""
        accepted = self._accepted.pop(merged, None)
        if accepted is None:
            raise UsageError(
                f"the run log merges a contribution of {merged.learner} for round {merged.round} that had never come, "
                "or merges it twice; it is damaged"
            )
        return accepted

    def _join(self, event: LearnerJoined) -> None:
        key = self._newest.get(event.learner)
        if key is None or not event.resumed:
            key = self._newest[event.learner] = ProcessKey(event.learner, event.incarnation)
            self._processes[key] = Process(key, event.about)
        self._incarnations[event.learner, event.incarnation] = key

    def _process(self, learner: str, incarnation: int) -> Process:
        key = self._incarnations.get((learner, incarnation))
        if key is None:
            raise UsageError(f"the run log speaks of {learner}.{incarnation} before it has joined; it is damaged")
        return self._processes[key]

    def _adopt(self, event: FragmentAdopted) -> None:
        what = (event.fragment, event.version, event.digest, 0, event.clock, event.source)
        notice = AdoptionNotice(*what, number=event.deed, steps=event.steps)
        self._process(event.learner, event.incarnation).deeds[event.deed] = notice

    def _accept(self, event: ContributionAccepted) -> None:
        """A process may be gone before it reports what it has handed over: the contribution itself says it, too."""
        process = self._process(event.learner, event.incarnation)
        self._accepted[Merged(event.learner, process.key.first, event.round, event.tokens)] = event
        deed = HandOverNotice(
            event.round, event.fragment, event.tokens, event.codec, number=event.deed, steps=event.steps
        )
        process.deeds.setdefault(event.deed, deed)

    def script(self) -> Script:
        return Script(self._processes, self._chapters, self._seeder, self._run_id, self._incarnations)


# ------------------------------------------------------------------------------------------- what is needed


def _follow(script: Script) -> None:
    """How far each process is to be followed: from what was merged to where it came from."""
    wanted: list[tuple[Process, Place]] = []
    for chapter in script.chapters:
        if isinstance(chapter, Commit):
            for accepted, maker in zip(chapter.merged, chapter.makers, strict=True):
                wanted.append((script.processes[maker], Place(accepted.deed, accepted.steps)))
    looked_at: dict[ProcessKey, int] = {}
    while wanted:
        process, place = wanted.pop()
        process.until = max(process.until, place)
        seen = looked_at.get(process.key, 0)
        looked_at[process.key] = max(seen, place.deeds)
        for number in range(seen + 1, place.deeds + 1):
            deed = process.deeds.get(number)
            if deed is not None:
                wanted.extend(_sources(script, process, deed))


def _sources(script: Script, process: Process, deed: Deed) -> Iterable[tuple[Process, Place]]:
    """Which other process a deed takes from, and as of where."""
    match deed:
        case StateTaken(of=moment) | CheckpointTaken(of=moment):
            source = script.process_at(moment)
            source.captures.add(Capture(moment, whole=isinstance(deed, CheckpointTaken)))
            yield source, Place(moment.deeds, moment.steps)


def versions_used(script: Script) -> Counter[tuple[int, int]]:
    """(fragment, version) -> how often it is written into a model."""
    uses: Counter[tuple[int, int]] = Counter()
    for process in script.processes.values():
        for act in process.programme():
            if isinstance(act, AdoptionNotice) and act.source in (Source.ADOPTED, Source.LOADED):
                uses[act.fragment, act.version] += 1
    return uses


def takers(script: Script) -> Counter[tuple[Moment, bool]]:
    """A moment, and whether all is taken of it as by a checkpoint -> how often that is done."""
    counts: Counter[tuple[Moment, bool]] = Counter()
    for process in script.processes.values():
        for act in process.programme():
            if isinstance(act, StateTaken | CheckpointTaken):
                counts[act.of, isinstance(act, CheckpointTaken)] += 1
    return counts
