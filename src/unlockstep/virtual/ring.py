"""The ring of a run under virtual time: a syncer, its learners, what befalls them, and nothing else.

Decides how settings (``[virtual]``, ``local.slowdown``) become durations, which share of the text a process on a tape
has, and when nobody is left to go on. Does not decide what a learner trains (the factory), what is written (``run``) or
how long a message waits (``sim``).

A ring is all that the rest of a run depends on: ``checkpoint`` keeps it whole.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from unlockstep import tape as tapes
from unlockstep.config import Deal, RunConfig, VirtualSection
from unlockstep.core.course import Course
from unlockstep.core.data_book import Grant
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.run_states import RunState
from unlockstep.launch.casting import shares
from unlockstep.learners.backend import Backend
from unlockstep.sim.learner_host import StepTime
from unlockstep.sim.network import Costs, LinkModel
from unlockstep.sim.world import World

MakeBackend = Callable[[int, int], Backend]
"""(shard, shards) -> what a new process of a learner trains: always from the beginning, as a real process does."""

_UNDER_WAY = (RunState.EMPTY, RunState.SEEDING, RunState.RUNNING)
"""States in which learners are needed."""


class _LeasedData(Protocol):
    """``data.LeasedStream``, as far as it is used here."""

    @property
    def course(self) -> Course: ...

    def add(self, grants: tuple[Grant, ...]) -> None: ...


class _Leased(Protocol):
    """What is trained on data leases."""

    @property
    def stream(self) -> _LeasedData: ...


class Ring:
    """A run under virtual time.

    Args:
        config: of the run; it has as many learners as the tape begins with.
        tape: what happens. When it is over nothing more does.
        make_backend: what processes train. It is asked once for every start of one.
    """

    def __init__(self, config: RunConfig, tape: tapes.Tape, make_backend: MakeBackend) -> None:
        self.config = config
        self.tape = tape
        self._make_backend = make_backend
        self._shares = shares(tape)
        self._starts: Counter[str] = Counter()
        virtual = config.virtual
        self.world = World(
            config,
            costs(virtual),
            links=LinkModel(bits_per_s=virtual.mbit_per_s * 1e6),
            seed=config.run.seed,
            make_course=_course if config.data.deal is Deal.LEASES else None,
            feed=_feed,
            remembers=True,
            about=lambda backend: getattr(backend, "about", {}),
        )
        self.world.schedule(tape, self._start)
        self._tape_ends_ns = max((action.at_ns for action in tape.actions), default=0)

    def play(self) -> Iterator[int]:
        """Let time pass until the run has ended or nothing more can happen; yields it, ns, after each happening."""
        return self.world.play()

    @property
    def is_stuck(self) -> bool:
        """Whether the tape is over and has left nobody who could bring the run to its end."""
        world = self.world
        if world.ended or world.clock.now_ns() <= self._tape_ends_ns:
            return False
        if not world.syncer_runs:
            return True
        return world.core.state in _UNDER_WAY and not self._are_enough

    @property
    def _are_enough(self) -> bool:
        """Whether those who train can bring the run to its end: the clock is that of the K-th fastest learner."""
        wanted = self._learners_needed
        for name in self.world.learners:
            wanted -= self.world.can_train(name)
            if wanted == 0:
                return True
        return False

    @property
    def _learners_needed(self) -> int:
        config = self.config
        ends_by_clock = config.run.tokens == 0 and config.data.epochs == 0
        return config.protocol.quorum if ends_by_clock else 1

    def why_stuck(self) -> str:
        """One sentence: who is how, now that the tape is over."""
        world, needed = self.world, self._learners_needed
        training = sum(map(world.can_train, world.learners))
        if not world.syncer_runs:
            left = f"the syncer {'stopped' if world.syncer_is_stopped else 'dead'}"
        elif training == 0:
            left = "no learner that trains"
        else:
            left = f"{training} of the {needed} learners that a round needs (protocol.quorum)"
        return (
            f"tape {self.tape.name!r} is over after {self._tape_ends_ns / NANOSECONDS_PER_SECOND:g} s and leaves "
            f"{left}, so the run cannot go on: let the tape bring back whom it has taken, or shorten the run"
        )

    def _start(self, name: str) -> tuple[Backend, StepTime]:
        """A new process of a learner: it begins with nothing."""
        self.world.started.clear()  # Dead processes hold whole models, and nobody looks at them here.
        self._starts[name] += 1
        shard, shard_count = self._shares[name]
        slowdown = self.config.local.slowdown
        own = slowdown[shard] if shard < min(len(slowdown), shard_count) else 1.0
        seed = f"{self.config.run.seed}/steps/{name}/{self._starts[name]}"
        return self._make_backend(shard, shard_count), step_time(self.config.virtual, own, seed)


def step_time(virtual: VirtualSection, slowdown: float, seed: str) -> StepTime:
    """How long the steps of one process take, nanoseconds, each at least 1.

    ::

        step_s * slowdown * exp(sigma z - sigma^2 / 2)      sigma^2 = log(1 + jitter^2), z standard normal

    so that the mean is ``step_s * slowdown`` and the standard deviation ``jitter`` of it.
    """
    mean_ns = virtual.step_s * slowdown * NANOSECONDS_PER_SECOND
    if virtual.jitter == 0:
        constant_ns = max(1, round(mean_ns))
        return lambda step: constant_ns
    sigma = math.sqrt(math.log1p(virtual.jitter**2))
    draw = random.Random(seed)
    return lambda step: max(1, round(mean_ns * draw.lognormvariate(-(sigma**2) / 2, sigma)))


def costs(virtual: VirtualSection) -> Costs:
    """How long everything else takes."""
    message_ns, body_ns, commit_ns, save_ns, start_ns = (
        round(span_s * NANOSECONDS_PER_SECOND)
        for span_s in (virtual.message_s, virtual.body_s, virtual.commit_s, virtual.save_s, virtual.start_s)
    )
    return Costs(message_ns=message_ns, body_ns=body_ns, commit_ns=commit_ns, save_ns=save_ns, start_ns=start_ns)


def own_tape(config: RunConfig) -> tapes.Tape:
    """The tape of a run that was given none: its learners, and the drill of ``[local]``.

    The last learner is killed when its share of the steps would be done at full speed. Without ``run.steps`` nobody
    knows when that is, and nobody is killed.
    """
    names = tuple(f"learner-{number}" for number in range(config.local.learners))
    local = config.local
    actions: list[tapes.Action] = []
    if local.kill_share > 0 and config.run.steps and len(names) > 1:
        killed_s = local.kill_share * config.run.steps * config.virtual.step_s
        killed_ns = round(killed_s * NANOSECONDS_PER_SECOND)
        back_ns = killed_ns + round(local.kill_down_s * NANOSECONDS_PER_SECOND)
        actions = [tapes.Kill(at_ns=killed_ns, target=names[-1]), tapes.Restart(at_ns=back_ns, target=names[-1])]
    return tapes.Tape(name="drill" if actions else "calm", learners=names, actions=tuple(actions))


def _course(backend: Backend) -> Course:
    """A process holds nothing of the corpus that its stream is of."""
    of = cast(_Leased, backend).stream.course
    return Course(of.sequences, of.digest, of.step_sequences)


def _feed(backend: Backend, grants: tuple[Grant, ...]) -> None:
    cast(_Leased, backend).stream.add(grants)
