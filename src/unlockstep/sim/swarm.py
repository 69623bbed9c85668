"""Plays a story (``story``) and judges it: whatever goes wrong nothing may break, and when nothing does, it goes on.

Decides the verdict:

1. **Safety.** The tape is played. Every event of every life of the syncer passes the safety rules (``checkers``), every
   commit is computed a second time (``shadow``), and no learner may hold a value that nobody published, nor hand over
   anything but what it has trained since it last did (``ward``).
2. **Liveness.** A core of at least K learners is chosen. Their links are healed, their processes continued or started
   again; the others are left as they are, or killed. Then, within a bound that follows from the story's own durations,
   every fragment commits, every learner of the core gives to every fragment and adopts a new version of it, also one
   that has just joined (``demands``).
3. **The end.** The run is told to end. It must, within a bound, its books in balance and nothing left in its store.

A syncer that is killed comes back knowing nothing: each of its lives is a run of its own. A learner that had trained in
an earlier one must notice, and stop.

Nothing is drawn while a story is played but who belongs to the core, which follows from the story's seed.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

import msgspec
import numpy as np

from unlockstep import tape as tapes
from unlockstep.checkers import LIVENESS, SAFETY, Checkers, imbalances
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    Event,
    FragmentAdopted,
    FragmentCommitted,
    LearnerLive,
    RunFinished,
    RunFinishing,
    RunSeeded,
    StepReported,
)
from unlockstep.core.messages import EndRun
from unlockstep.core.reasons import RefusalReason
from unlockstep.learners.backend import Backend
from unlockstep.learners.toy import ToyBackend
from unlockstep.sim.cargo import Freight
from unlockstep.sim.demands import (
    SUPERVISION_NS,
    Goals,
    ending_ns,
    everyone_gives,
    longest_stop_ns,
    progress_ns,
    transfer_ns,
)
from unlockstep.sim.learner_host import LearnerProcess
from unlockstep.sim.shadow import Shadow, ShadowFreight
from unlockstep.sim.story import Story
from unlockstep.sim.syncer_host import MakeCore, SyncerProcess, production_core
from unlockstep.sim.ward import Ward, WardedBackend
from unlockstep.sim.world import World

JOINER = "joiner"
"""Who joins when faults have ended."""

HAPPENINGS_MAX = 400_000
"""In one story; who needs more is not judged."""

HAPPENINGS_AT_ONCE_MAX = 10_000
"""At one instant; with more a deadline is asked for again and again, and time stands still."""

NEVER_ENTERED = (RefusalReason.STALE_INCARNATION, RefusalReason.UNKNOWN_ROUND, RefusalReason.BAD_COUNTS)
"""Refusals whose tokens may be in flight until the end drops them."""

Record = Callable[[int, Sequence[Event]], None]
"""Number of the syncer's life, and what has happened in it."""


class Verdict(Enum):
    PASSED = "passed"
    HOPELESS = "hopeless"
    """Nothing was broken, and no progress could be demanded: there was no core of K learners to be had."""
    CRASH = "crash"
    """Something raised an error."""
    SAFETY = "safety"
    """Something happened that must never happen."""
    LIVENESS = "liveness"
    """Something did not happen that should have."""
    OUT_OF_RESOURCES = "out_of_resources"
    """It took too long to tell: neither good nor bad."""


FAILURES = (Verdict.CRASH, Verdict.SAFETY, Verdict.LIVENESS)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a story."""

    seed: int
    verdict: Verdict
    rule: str = ""
    """Which rule is broken, or the name of the error."""
    sentence: str = ""
    at_ns: int = 0
    """When it was noticed, in virtual time; else how long the story was."""
    happenings: int = 0
    commits: int = 0

    @property
    def failed(self) -> bool:
        return self.verdict in FAILURES

    def is_like(self, other: Outcome) -> bool:
        """Whether both are broken in the same way."""
        return (self.verdict, self.rule) == (other.verdict, other.rule)


class _Broken(Exception):
    """Ends a story."""

    def __init__(self, verdict: Verdict, rule: str, sentence: str) -> None:
        super().__init__(sentence)
        self.verdict = verdict
        self.rule = rule


def play(
    story: Story,
    *,
    make_core: MakeCore = production_core,
    freight: Freight | None = None,
    record: Record | None = None,
) -> Outcome:
    """Play a story and judge it.

    Args:
        story: what happens.
        make_core: makes the syncer's core; another than the production one is a broken one, to be found out.
        freight: the same of the syncer's arrays.
        record: is given every event.
    """
    stage = _Stage(story, make_core, freight, record)
    verdict, rule, sentence = Verdict.PASSED, "", ""
    try:
        stage.play()
    except _Broken as broken:
        verdict, rule, sentence = broken.verdict, broken.rule, str(broken)
    except MemoryError:
        verdict = Verdict.OUT_OF_RESOURCES
    except Exception as error:
        verdict, rule, sentence = Verdict.CRASH, type(error).__name__, _located(error)
    return Outcome(
        seed=story.seed,
        verdict=verdict,
        rule=rule,
        sentence=sentence,
        at_ns=stage.world.clock.now_ns(),
        happenings=stage.happenings,
        commits=stage.commits,
    )


def _located(error: Exception) -> str:
    """What was raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "nowhere"
    return f"{error or type(error).__name__} ({where})"


class _Stage:
    """One story being played."""

    def __init__(self, story: Story, make_core: MakeCore, freight: Freight | None, record: Record | None) -> None:
        self.story = story
        self.ward = Ward()
        self.world = World(
            story.config,
            story.costs,
            links=story.links,
            seed=story.seed,
            freight=ShadowFreight(self.ward, freight),
            make_core=make_core,
        )
        self.happenings = 0
        self._at_once = 0
        """Happenings since time has moved."""
        self._now_ns = 0
        self.commits = 0
        self._record = record
        self._is_kept = transfer_ns(story) is not None and not story.diverges
        """The world keeps to an allowance, and nothing of a sound learner's is refused as a defect."""
        self._life: SyncerProcess | None = None
        self._checkers = self._new_checkers()
        self._found = 0
        self._survivors: list[LearnerProcess] = []
        """Processes that had trained before this life of the syncer began."""
        self._goals: Goals | None = None
        self._is_seeded = False
        self._is_finishing = False
        self._is_all_entered = True
        """No contribution was refused without entering its tokens."""
        self._tokens: dict[str, int] = {}
        """Learner -> what its process had trained by its last report."""
        self._unreported: set[str] = set()
        """Learners whose upload has told of a step that no report has: the end may cut the report off."""
        self._longest_step_ns = 0

    # ------------------------------------------------------------------------------------------- the three parts

    def play(self) -> None:
        """Everything, in order; ``_Broken`` ends it early."""
        story, world = self.story, self.world
        world.schedule(story.tape, self._start)
        self._run(story.tape.end_ns)
        hopeless = not world.ended and not self._demand_progress()
        self._demand_end()
        if hopeless:
            raise _Broken(Verdict.HOPELESS, "", "too few learners are sound to form a core")

    def _start(self, name: str) -> tuple[Backend, int]:
        story = self.story
        sizes = [3 + number % 3 for number in range(2 * story.config.protocol.fragments)]
        number = sorted(story.step_ns).index(name) if name in story.step_ns else len(story.step_ns)
        toy = ToyBackend(seed=1000 * story.seed + number, sizes=sizes, noise=0.1, tokens_per_step=7 + 3 * number)
        return WardedBackend(self.ward, name, toy, story.config, story.diverges.get(name)), self._step_ns(name)

    def _step_ns(self, name: str) -> int:
        return self.story.step_ns.get(name, min(self.story.step_ns.values()))

    def _demand_progress(self) -> bool:
        """The second part; False if it is impossible."""
        core = self._choose_core()
        if core is None:
            return False
        for name in core:
            self._revive(name)
        self._supervise(core)
        self._goals = Goals(self.world, core, everyone_gives(self.story, core))
        until_ns = self.world.clock.now_ns() + progress_ns(self.story, core)
        self._run(until_ns, lambda: self._is_finishing or (self._goals is not None and self._goals.are_met))
        goals, self._goals = self._goals, None
        if not (goals.are_met or self._is_finishing or self.world.ended):
            raise _Broken(Verdict.LIVENESS, *goals.complaint())
        return True

    def _demand_end(self) -> None:
        """The third part."""
        world = self.world
        self._supervise(())
        if not world.ended:
            if not world.syncer.life.is_running:
                self._wake_syncer()
            if not self._is_finishing:
                world.tell(EndRun("enough"))
            self._run(world.clock.now_ns() + ending_ns(self.story, self._longest_step_ns))
        if not world.ended:
            raise _Broken(Verdict.LIVENESS, "end", f"the run does not end; it is {world.core.state.value}")
        self._checkers.finish()
        self._look()
        ledger = world.core.status(world.syncer.now_ns).ledger
        for sentence in imbalances(ledger):
            raise _Broken(Verdict.SAFETY, "tokens", sentence)
        if ledger.in_flight:
            raise _Broken(Verdict.SAFETY, "tokens", f"{ledger.in_flight} tokens are in flight after the end")
        if world.core.notices:
            self._check_arrays()

    def _check_arrays(self) -> None:
        cargo = self.world.syncer.cargo
        assert isinstance(cargo, Shadow), "every cargo is watched"
        if held := cargo.storehouse.held_count:
            raise _Broken(Verdict.SAFETY, "memory", f"{held} contributions are held after the end")
        for fragment in range(self.story.config.protocol.fragments):
            if not np.isfinite(cargo.storehouse.values(fragment)).all():
                raise _Broken(Verdict.SAFETY, "finite", f"fragment {fragment} is not finite at the end")

    # ------------------------------------------------------------------------------------------- the core

    def _choose_core(self) -> tuple[str, ...] | None:
        """Who is to make progress, the joiner last; the others are killed where they would be in the way."""
        world, options = self.world, self.story.config.protocol
        chance = random.Random(f"{self.story.seed}/core")
        status = world.core.status(world.syncer.now_ns) if world.syncer.life.is_alive else None
        expelled = {each.learner for each in status.learners if each.state == "quarantined"} if status else set()
        fit = sorted(self.story.step_ns.keys() - self.story.diverges.keys() - expelled)
        chosen = chance.sample(fit, chance.randint(min(options.quorum, len(fit)), min(len(fit), options.learners_max)))
        if len(chosen) < options.learners_max:
            chosen.append(JOINER)
        if len(chosen) < options.quorum:
            return None
        others = [each for each in world.processes() if each.name not in chosen and each.life.is_alive]
        is_crowded = len(chosen) + len(others) > options.learners_max
        if status is None or not world.core.notices or is_crowded or chance.random() < 0.5:
            for process in others:
                process.kill()
        self._wake_syncer()
        return tuple(chosen)

    def _wake_syncer(self) -> None:
        for kind in (tapes.Restart, tapes.Continue):
            self.world.apply(kind(at_ns=0, target=tapes.SYNCER), self._start)

    def _revive(self, name: str) -> None:
        world = self.world
        world.calm(name)
        if world.is_up(name):
            world.apply(tapes.Continue(at_ns=0, target=name), self._start)
        else:
            world.join(name, *self._start(name))

    def _supervise(self, core: Sequence[str]) -> None:
        """From now on, and until it is said anew, learners of the core that die are started again."""
        self._core = core
        if core:
            self.world.clock.after(SUPERVISION_NS, self._look_after_core)

    def _look_after_core(self) -> None:
        for name in self._core:
            if not self.world.is_up(name):
                self.world.join(name, *self._start(name))
        self._supervise(self._core)

    # ------------------------------------------------------------------------------------------- watching

    def _new_checkers(self) -> Checkers:
        """All rules where the world keeps to an allowance, those of safety where it does not."""
        return Checkers(
            self.story.config.protocol,
            rules=SAFETY | LIVENESS if self._is_kept else SAFETY,
            timer_ns=longest_stop_ns(self.story.tape),
            transfer_ns=transfer_ns(self.story),
        )

    def _run(self, until_ns: int, enough: Callable[[], bool] = lambda: False) -> None:
        for now_ns in self.world.play(until_ns):
            self.happenings += 1
            self._at_once = self._at_once + 1 if now_ns == self._now_ns else 0
            self._now_ns = now_ns
            if self._at_once > HAPPENINGS_AT_ONCE_MAX:
                raise _Broken(Verdict.LIVENESS, "time", f"more than {HAPPENINGS_AT_ONCE_MAX} things happen at once")
            if self.happenings > HAPPENINGS_MAX:
                raise _Broken(Verdict.OUT_OF_RESOURCES, "", f"more than {HAPPENINGS_MAX} things happen")
            if self.world.syncer is not self._life:
                self._begin_life()
            if self.world.syncer.events:
                self._take_events()
                if enough():
                    return

    def _begin_life(self) -> None:
        if self._life is not None:
            self._checkers.finish()
            self._look()
        self._life = self.world.syncer
        self._checkers = self._new_checkers()
        self._found = 0
        self._survivors = [each for each in self.world.processes() if each.steps > 0 or each.loop.may_step]
        self._is_seeded = False
        self._is_finishing = False
        self._is_all_entered = True
        self._tokens.clear()
        self._unreported.clear()

    def _take_events(self) -> None:
        syncer = self.world.syncer
        events, syncer.events = syncer.events, []
        if self._record is not None:
            self._record(len(self.world.lives) - 1, events)
        for event in events:
            self._checkers.see(event)
            self._see(event)
            if self._goals is not None:
                self._goals.see(event)
        self._look()

    def _see(self, event: Event) -> None:
        match event:
            case FragmentCommitted():
                self.commits += 1
            case RunSeeded():
                self._is_seeded = True
            case LearnerLive() if not self._is_seeded:
                self.ward.complain("seeding", f"{event.learner} trains before the run has any parameters")
            case RunFinishing():
                self._is_finishing = True
            case ContributionRefused(reason=reason):
                self._is_all_entered = self._is_all_entered and reason not in NEVER_ENTERED
                self._note_upload(event)
            case RunFinished() if event.tokens_under_way and self._is_all_entered and self._is_kept:
                if not self._unreported and not any(process.is_uploading for process in self.world.processes()):
                    self.ward.complain("tokens", f"{event.tokens_under_way} tokens have gone astray")
            case StepReported() | FragmentAdopted() | ContributionAccepted():
                if isinstance(event, StepReported):
                    self._longest_step_ns = max(self._longest_step_ns, event.step_ns)
                    self._tokens[event.learner] = event.tokens
                    self._unreported.discard(event.learner)
                elif isinstance(event, ContributionAccepted):
                    self._note_upload(event)
                self._look_for_survivor(event)

    def _note_upload(self, made: ContributionAccepted | ContributionRefused) -> None:
        if made.tokens > self._tokens.get(made.learner, 0):
            self._unreported.add(made.learner)

    def _look_for_survivor(self, event: StepReported | FragmentAdopted | ContributionAccepted) -> None:
        key = event.learner, event.incarnation, self.world.core.run_id
        if any((each.name, each.loop.incarnation, each.loop.run_id) == key for each in self._survivors):
            what = f"{event.learner} goes on as if nothing had happened ({type(event).__name__})"
            self.ward.complain("survivor", f"{what}, but the run it knew is lost")

    def _look(self) -> None:
        """Whether anything has been found."""
        for rule, sentence in self.ward.take_complaints():
            raise _Broken(Verdict.SAFETY, rule, sentence)
        counts = sum(self._checkers.counts.values())
        if counts > self._found:
            first = min(self._checkers.violations, key=lambda violation: violation.at_ns)
            verdict = Verdict.LIVENESS if first.rule in LIVENESS else Verdict.SAFETY
            raise _Broken(verdict, first.rule, first.sentence)
