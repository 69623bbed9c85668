"""Plays a story (``story``) and judges it: whatever goes wrong nothing may break, and when nothing does, it goes on.

Decides the verdict:

1. **Safety.** The tape is played. Every event passes the safety rules (``checkers``), over all lives of the syncer,
   every commit is computed a second time (``shadow``), and no learner may hold a value that nobody published, nor hand
   over anything but what it has trained since it last did (``ward``).
2. **Liveness.** A core of at least K learners is chosen. Their links are healed, their processes continued or started
   again; the others are left as they are, or killed. Then, within a bound that follows from the story's own durations,
   every fragment commits, every learner of the core gives to every fragment and adopts a new version of it, also one
   that has just joined (``demands``).
3. **The end.** The run is told to end. It must, within a bound, its books in balance and nothing left in its store.

A syncer that is killed comes back with what it had saved, and everything goes on: what was logged after that is void.

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
from unlockstep.config import Durability
from unlockstep.core.course import Course
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    Event,
    FragmentCommitted,
    LearnerLive,
    RolledBack,
    RunFinished,
    RunFinishing,
    RunSeeded,
    StepReported,
    SyncerResumed,
)
from unlockstep.core.leasing import EVERYTHING_TRAINED
from unlockstep.core.messages import EndRun, Evaluation, HandedOver, SyncerMessage
from unlockstep.core.reasons import RefusalReason
from unlockstep.learners.backend import Backend
from unlockstep.learners.toy import ToyBackend
from unlockstep.sim.cargo import Freight
from unlockstep.sim.demands import (
    SUPERVISION_NS,
    Goals,
    ending_ns,
    everyone_gives,
    exchange_ns,
    longest_stop_ns,
    progress_ns,
    slowest_and_fastest_ns,
    transfer_ns,
)
from unlockstep.sim.learner_host import LearnerProcess
from unlockstep.sim.promised import Promised
from unlockstep.sim.shadow import Shadow, ShadowFreight
from unlockstep.sim.story import Story
from unlockstep.sim.syncer_host import MakeCore, production_core
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

Record = Callable[[Sequence[Event]], None]
"""What has happened."""


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
    rollbacks: int = 0

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
        rollbacks=stage.rollbacks,
    )


def trainee(story: Story, name: str) -> ToyBackend:
    """What a process of this name trains, as long as its model does not become NaN."""
    sizes = [3 + number % 3 for number in range(2 * story.config.protocol.fragments)]
    number = sorted(story.step_ns).index(name) if name in story.step_ns else len(story.step_ns)
    momentum = 0.5 if story.config.recovery.donor else 0.0
    seed = 1000 * story.seed + number
    return ToyBackend(seed=seed, sizes=sizes, noise=0.1, tokens_per_step=7 + 3 * number, momentum=momentum)


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
        self._is_kept = transfer_ns(story) is not None and not story.diverges
        """The world keeps to an allowance, and nothing of a sound learner's is refused as a defect."""
        self._checkers = self._new_checkers()
        is_durable = story.config.durability.mode is Durability.COMMIT
        self._promised = Promised(self.ward, self._checkers.history, is_durable)
        self.world = World(
            story.config,
            story.costs,
            links=story.links,
            seed=story.seed,
            freight=ShadowFreight(self.ward, freight),
            make_core=make_core,
            make_course=self._course if story.corpus_sequences else None,
            remembers=True,
            overhear=self._overhear,
        )
        self.happenings = 0
        self._at_once = 0
        """Happenings since time has moved."""
        self._now_ns = 0
        self.commits = 0
        self.rollbacks = 0
        self._record = record
        self._lives = 1
        """Lives of the syncer that have been looked at."""
        self._handed_over: dict[LearnerProcess, tuple[HandedOver, ...]] = {}
        """What each process of the core had handed over when faults ended."""
        self._found = 0
        self._goals: Goals | None = None
        self._is_seeded = False
        self._is_finishing = False
        self._is_all_trained = False
        """The run says that all data is trained."""
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
        if story.evaluation_ns:
            world.clock.after(story.evaluation_ns, lambda: self._evaluate(0, ()))
        self._run(story.tape.end_ns)
        hopeless = not world.ended and not self._demand_progress()
        self._demand_end()
        if hopeless:
            raise _Broken(Verdict.HOPELESS, "", "too few learners are sound to form a core")

    def _evaluate(self, number: int, seen: tuple[int, ...]) -> None:
        """Report the loss of what was the newest when the one before was reported, and look at what is now."""
        story, world = self.story, self.world
        if world.ended or world.clock.now_ns() > story.tape.end_ns:
            return
        if world.syncer.life.is_running and seen and world.core.notices:
            loss = 9.0 if number in story.spikes else 1.0
            world.tell(Evaluation("judge", 0, loss, loss, seen))
        if world.syncer.life.is_running:
            seen = tuple(notice.version for notice in world.core.notices)
        world.clock.after(story.evaluation_ns, lambda: self._evaluate(number + 1, seen))

    def _start(self, name: str) -> tuple[Backend, int]:
        story, toy = self.story, trainee(self.story, name)
        return WardedBackend(self.ward, name, toy, story.config, story.diverges.get(name)), self._step_ns(name)

    def _course(self, backend: Backend) -> Course:
        return Course(self.story.corpus_sequences, "imaginary", self.story.config.inner.batch_size)

    def _step_ns(self, name: str) -> int:
        return self.story.step_ns.get(name, min(self.story.step_ns.values()))

    def _demand_progress(self) -> bool:
        """The second part; False if it is impossible."""
        core = self._choose_core()
        if core is None:
            return False
        for name in core:
            self._handed_over.update(self._given_by(name))
            self._revive(name)
        self._supervise(core)
        self._goals = Goals(self.world, core, everyone_gives(self.story, core))
        until_ns = self.world.clock.now_ns() + progress_ns(self.story, core)
        self._run(until_ns, lambda: self._is_over or (self._goals is not None and self._goals.are_met))
        goals, self._goals = self._goals, None
        if not (goals.are_met or self._is_over or self.world.ended):
            raise _Broken(Verdict.LIVENESS, *goals.complaint())
        self._demand_end_of_data(core)
        return True

    def _demand_end_of_data(self, core: Sequence[str]) -> None:
        """When all of the corpus is granted, the core trains what is left of it and the run ends by itself."""
        status = self.world.core.status(self.world.syncer.now_ns)
        if status.data is None or not self._is_over or self._is_finishing:
            return
        for process in self.world.processes():
            if process.name not in core and process.life.is_alive:
                process.kill()  # However slow it is, what a learner holds is its own while it lives.
        left = status.data.dealt - status.data.reached
        slowest_ns, _ = slowest_and_fastest_ns(self.story, core)
        steps_ns = left * (slowest_ns + exchange_ns(self.story))
        self._run(self.world.clock.now_ns() + progress_ns(self.story, core) + steps_ns, lambda: self._is_finishing)
        if not self._is_finishing:
            now = self.world.core.status(self.world.syncer.now_ns).data
            raise _Broken(Verdict.LIVENESS, "data", f"all data is granted and the run does not end: {now}")

    @property
    def _is_over(self) -> bool:
        """There is nothing more to make progress with: the end is reached, or all data is granted."""
        data = self.world.core.status(self.world.syncer.now_ns).data
        is_granted = data is not None and 0 < data.epochs * data.sequences <= data.dealt and data.waiting == 0
        return self._is_finishing or is_granted

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
        self._take([*world.take_events(), *world.events])
        self._checkers.finish()
        self._look_for_astray()
        self._look()
        ledger = world.core.status(world.syncer.now_ns).ledger
        for sentence in imbalances(ledger):
            raise _Broken(Verdict.SAFETY, "tokens", sentence)
        if ledger.in_flight:
            raise _Broken(Verdict.SAFETY, "tokens", f"{ledger.in_flight} tokens are in flight after the end")
        if self._is_all_trained:
            self._check_places()
        if world.core.notices:
            self._check_arrays()

    def _check_places(self) -> None:
        """What learners have really taken: all there is."""
        data = self.story.config.data
        taken = {
            (grant.epoch, place)
            for process in self.world.started
            for grant in process.taken
            for place in range(grant.start, grant.stop)
        }
        missing = data.epochs * self.story.corpus_sequences - len(taken)
        if missing:
            raise _Broken(Verdict.SAFETY, "data", f"{missing} places of the corpus were trained by nobody")

    def _given_by(self, name: str) -> dict[LearnerProcess, tuple[HandedOver, ...]]:
        if not self.world.is_up(name):
            return {}
        process = self.world.process(name)
        assert isinstance(process.backend, WardedBackend), "every process is watched"
        return {process: tuple(process.backend.handed_over)}

    def _look_for_astray(self) -> None:
        """What a process of the core handed over before faults ended has been settled since, whatever became of the
        syncer: unless the process is gone, or has a body on its way still."""
        states = {each.learner: each.state for each in self.world.core.status(self.world.syncer.now_ns).learners}
        for process, given in self._handed_over.items():
            assert isinstance(process.backend, WardedBackend), "every process is watched"
            given = tuple(each for each in given if each in process.backend.handed_over)  # It may have begun anew.
            is_present = self.world.process(process.name) is process and states.get(process.name) == "live"
            if is_present and not process.is_uploading:
                self._promised.look_for_astray(process, given)

    def _check_arrays(self) -> None:
        cargo = self.world.syncer.cargo
        assert isinstance(cargo, Shadow), "every cargo is watched"
        if self.world.syncer.states_kept:
            raise _Broken(Verdict.SAFETY, "memory", "states of learners are kept after the end")
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
        # Whoever has come to grief once comes back, if there is a way back.
        healed = self.ward.diverged if options.quarantine_s > 0 else set()
        unfit = self.story.diverges.keys() - healed
        fit = sorted(self.story.step_ns.keys() - unfit)
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
        for kind in (tapes.Free, tapes.Restart, tapes.Continue):
            self.world.apply(kind(at_ns=0, target=tapes.SYNCER), self._start)
        if not self.world.syncer.life.is_running:
            self._run(self.world.clock.now_ns() + self.story.costs.start_ns)

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
            if len(self.world.lives) > self._lives:
                self._lives = len(self.world.lives)
                self._promised.look_at_new_life(self.world.core.notices)
                self._look()
            if self._take(self.world.take_events()) and enough():
                return

    def _overhear(self, process: LearnerProcess, message: SyncerMessage) -> None:
        """What is saved by now may be relied on."""
        self._take(self.world.take_events())
        self._promised.hear(process, message)

    def _take(self, events: Sequence[Event]) -> bool:
        """Look at what has happened; whether there is anything."""
        if not events:
            return False
        if self._record is not None:
            self._record(events)
        for event in events:
            self._checkers.see(event)
            self._promised.see(event)
            self._see(event)
            if self._goals is not None:
                self._goals.see(event)
        self._look()
        return True

    def _see(self, event: Event) -> None:
        match event:
            case RolledBack():
                self.rollbacks += 1
            case SyncerResumed():
                self._is_finishing = self._is_all_trained = False
                self._tokens.clear()
                self._unreported.clear()
            case FragmentCommitted():
                self.commits += 1
            case RunSeeded():
                self._is_seeded = True
            case LearnerLive() if not self._is_seeded:
                self.ward.complain("seeding", f"{event.learner} trains before the run has any parameters")
            case RunFinishing():
                self._is_finishing = True
                self._is_all_trained = event.reason == EVERYTHING_TRAINED
            case ContributionRefused(reason=reason):
                self._is_all_entered = self._is_all_entered and reason not in NEVER_ENTERED
                self._note_upload(event)
            case RunFinished() if event.tokens_under_way and self._is_all_entered and self._is_kept:
                if not self._unreported and not any(process.is_uploading for process in self.world.processes()):
                    self.ward.complain("tokens", f"{event.tokens_under_way} tokens have gone astray")
            case StepReported():
                self._longest_step_ns = max(self._longest_step_ns, event.step_ns)
                self._tokens[event.learner] = event.tokens
                self._unreported.discard(event.learner)
            case ContributionAccepted():
                self._note_upload(event)

    def _note_upload(self, made: ContributionAccepted | ContributionRefused) -> None:
        if made.tokens > self._tokens.get(made.learner, 0):
            self._unreported.add(made.learner)

    def _look(self) -> None:
        """Whether anything has been found."""
        for rule, sentence in self.ward.take_complaints():
            raise _Broken(Verdict.SAFETY, rule, sentence)
        counts = sum(self._checkers.counts.values())
        if counts > self._found:
            first = min(self._checkers.violations, key=lambda violation: violation.at_ns)
            verdict = Verdict.LIVENESS if first.rule in LIVENESS else Verdict.SAFETY
            raise _Broken(verdict, first.rule, first.sentence)
