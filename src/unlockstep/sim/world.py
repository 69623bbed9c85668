"""A whole run under virtual time: a syncer, its learners, the network between them, and everything that goes wrong.

Decides who lives where and what each action of an event tape does to whom. Everything else is the production code
(``SyncerCore``, ``LearnerCore``, ``LearnerLoop``, ``Storehouse``, the real message encoder) on hosts under a clock that
is moved by hand. One history per set of arguments: what is equal once is equal always, byte for byte.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor

from unlockstep import tape as tapes
from unlockstep.config import RunConfig
from unlockstep.core.course import Course
from unlockstep.core.events import Event
from unlockstep.core.ids import NANOSECONDS_PER_SECOND, NEVER_NS
from unlockstep.core.messages import SyncerInput
from unlockstep.core.syncer import SyncerCore
from unlockstep.learners.backend import Backend, FloatArray, InnerState
from unlockstep.sim.cargo import ArrayCargo, ArrayFreight, Freight
from unlockstep.sim.clock import VirtualClock
from unlockstep.sim.learner_host import Feed, LearnerHost, LearnerProcess, Overhear, StepTime
from unlockstep.sim.life import Life
from unlockstep.sim.network import Costs, LinkModel, Way, Wire
from unlockstep.sim.syncer_host import Disk, MakeCore, SyncerProcess, production_core
from unlockstep.storehouse import Storehouse

Starter = Callable[[str], tuple[Backend, StepTime | int]]
"""Name of a learner -> what a process of it trains, and how long its steps take."""

_WAYS = {"both": (Way.UP, Way.DOWN), "up": (Way.UP,), "down": (Way.DOWN,)}


class World:
    """A syncer and its learners.

    Args:
        config: sections ``run``, ``protocol``, ``outer``, ``codec``, ``limits`` and ``adoption`` are read.
        costs: how long things take where nothing is in the way.
        executor: threads lent to the merge; None computes in the calling thread.
        links: what else happens on the network.
        seed: of the network's chance.
        freight: what bodies are; real arrays unless told otherwise.
        make_core: what makes a syncer's core.
        make_course: what a learner's process holds of the corpus at first, given what it trains; None: no learner takes
            data leases.
        feed: called when a step begins in a world with ``make_course``, with what is trained and what it is trained on.
        remembers: what learners train is an ``InnerState`` too: new processes take it from others, if ``[recovery]``
            says so.
        overhear: called with whatever the syncer says to a learner.
        about: what the run log should know of a process that trains this.
    """

    def __init__(
        self,
        config: RunConfig,
        costs: Costs | None = None,
        executor: Executor | None = None,
        *,
        links: LinkModel | None = None,
        seed: int = 0,
        freight: Freight | None = None,
        make_core: MakeCore = production_core,
        make_course: Callable[[Backend], Course] | None = None,
        feed: Feed = lambda backend, grants: None,
        remembers: bool = False,
        overhear: Overhear = lambda process, message: None,
        about: Callable[[Backend], Mapping[str, str]] = lambda backend: {},
    ) -> None:
        self._remembers = remembers and config.recovery.donor
        self.config = config
        self.clock = VirtualClock()
        self.ended = False
        self.lives: list[SyncerProcess] = []
        """Every process of the syncer there has been; the last one may be running."""
        self._lives_taken = 0
        """Of these, processes whose events have all been taken."""
        self._costs = costs or Costs()
        self._executor = executor
        self._links = links or LinkModel()
        self._seed = seed
        self._freight = freight or ArrayFreight()
        self._make_core = make_core
        self._make_course = make_course
        self._feed = feed
        self._overhear = overhear
        self._about = about
        self._hosts: dict[str, LearnerHost] = {}
        self.started: list[LearnerProcess] = []
        """Every process of a learner there has been."""
        self._replaced: list[LearnerHost] = []
        """Hosts whose name has gone to another one."""
        self._disk = self._new_disk()
        self._start_syncer()

    # ------------------------------------------------------------------------------------------- looking

    @property
    def syncer(self) -> SyncerProcess:
        """The newest process of the syncer, dead or alive."""
        return self.lives[-1]

    @property
    def syncer_runs(self) -> bool:
        """Whether the syncer answers, or will without anybody's doing: a process that runs, or is starting."""
        return self._syncer_life.is_running

    @property
    def syncer_is_stopped(self) -> bool:
        return self._syncer_life.is_alive and self._syncer_life.is_stopped

    @property
    def core(self) -> SyncerCore:
        return self.syncer.core

    @property
    def events(self) -> list[Event]:
        """The run log over all lives of the syncer, as far as nobody has taken it; of the present run, if a disk was
        lost. What the present life has not saved may still be void."""
        lives = [process for process in self.lives if process.core.run_id == self.core.run_id]
        return [event for process in lives for event in process.events]

    def take_events(self) -> list[Event]:
        """What has happened for good since the last call; all of it, once the run has ended."""
        lives, self._lives_taken = self.lives[self._lives_taken :], len(self.lives) - 1
        return [event for process in lives for event in process.take_events(self.ended)]

    @property
    def storehouse(self) -> Storehouse:
        """The arrays of the newest life."""
        cargo = self.syncer.loaded
        assert isinstance(cargo, ArrayCargo), "this world has no arrays"
        return cargo.storehouse

    def global_values(self, fragment: int) -> FloatArray:
        """The syncer's present value of a fragment."""
        return self.storehouse.values(fragment)

    @property
    def learners(self) -> Sequence[str]:
        """Every name that has been joined under, in order of appearance."""
        return tuple(self._hosts)

    def process(self, name: str) -> LearnerProcess:
        """The newest process of a learner, dead or alive."""
        process = self._hosts[name].process
        assert process is not None, f"{name} was never started"
        return process

    def processes(self) -> list[LearnerProcess]:
        """The newest process of every host, dead or alive, of hosts that were replaced too."""
        hosts = [*self._replaced, *self._hosts.values()]
        return [host.process for host in hosts if host.process is not None]

    def is_up(self, name: str) -> bool:
        """Whether a learner has a process that lives, stopped or not."""
        return name in self._hosts and self._hosts[name].is_up

    @property
    def starting(self) -> tuple[str, ...]:
        """Learners whose process has begun to start, and is not there yet."""
        return tuple(name for name in self._hosts if self.is_up(name) and self.process(name).is_starting)

    def can_train(self, name: str) -> bool:
        """Whether a learner will take another step without anybody's doing: a process that runs, has not ended for
        itself, and has a whole link."""
        if not self.is_up(name):
            return False
        process = self.process(name)
        return process.life.is_running and process.loop.done is None and self._hosts[name].wire.is_whole

    def backend(self, name: str) -> Backend:
        """What the learner trains."""
        return self.process(name).backend

    # ------------------------------------------------------------------------------------------- time

    def run(self, until_ns: int = NEVER_NS) -> None:
        """Let time pass until the run has ended or ``until_ns`` is reached."""
        for _ in self.play(until_ns):
            pass

    def play(self, until_ns: int = NEVER_NS) -> Iterator[int]:
        """The same, yielding the time after everything that happens."""
        while not self.ended:
            next_ns = self.clock.next_ns()
            if next_ns is None or next_ns > until_ns:
                return
            self.clock.step()
            yield self.clock.now_ns()

    def schedule(self, tape: tapes.Tape, start: Starter) -> None:
        """Everything on a tape will happen, beginning now: its learners start, its actions follow."""
        now_ns = self.clock.now_ns()
        for name in tape.learners:
            self.join(name, *start(name))
        for action in tape.actions:
            self.clock.at(now_ns + action.at_ns, lambda action=action: self.apply(action, start))  # type: ignore[misc]

    # ------------------------------------------------------------------------------------------- what happens

    def apply(self, action: tapes.Action, start: Starter) -> None:
        """Do what an action says, now. One that is not possible (its target has ended by itself) has no effect."""
        if action.target == tapes.SYNCER:
            self._apply_to_syncer(action)
            return
        host = self._host(action.target)
        process = host.process
        alive = process is not None and process.life.is_alive
        match action:
            case tapes.Join() | tapes.Restart() if alive:
                pass
            case tapes.Join():
                host.slowdown, host.wire.bits_per_s, host.bodies_to_damage = 1.0, self._links.bits_per_s, 0
                host.wire.delay_ns = 0
                host.wire.heal()
                self.join(action.target, *start(action.target), start_ns=self._costs.start_ns)
            case tapes.Restart():
                self.join(action.target, *start(action.target), start_ns=self._costs.start_ns)
            case tapes.Replace() if alive:
                self._lose_sight(host)
                self.join(action.target, *start(action.target), start_ns=self._costs.start_ns)
            case tapes.Cut():
                host.wire.cut(_WAYS[action.direction], host.fall_silent)
            case tapes.Heal():
                host.wire.heal()
            case tapes.Throttle():
                host.wire.bits_per_s = action.mbit_per_s * 1e6 or self._links.bits_per_s
            case tapes.Delay():
                host.wire.delay_ns = round(action.seconds * NANOSECONDS_PER_SECOND)
            case tapes.Fill() | tapes.Free() | tapes.Jump():
                pass  # Checkpoints are of another world, and nothing here reads the time of day.
            case tapes.Slow():
                ratio, host.slowdown = action.factor / host.slowdown, action.factor
                if process is not None and alive:
                    process.life.pace(ratio)
            case tapes.Corrupt():
                host.bodies_to_damage += action.bodies
            case _ if process is None or not alive:
                pass
            case tapes.Kill():
                process.kill()
            case tapes.Stop() if process.life.is_running:
                process.life.stop()
            case tapes.Continue() if process.life.is_stopped:
                process.life.resume()
            case tapes.Leave() if process.life.is_running:
                process.leave()

    def _apply_to_syncer(self, action: tapes.Action) -> None:
        life = self._syncer_life
        match action:
            case tapes.Kill():
                self.syncer.is_starved = False
                if self.syncer.life.is_alive:
                    self.syncer.die()
                life.end()
            case tapes.Fill():
                self._disk.is_full = True
            case tapes.Free():
                self._disk.is_full = False
                if self.syncer.is_starved and not life.is_alive:
                    self._start_syncer(self._costs.start_ns)
            case tapes.Restart() if not life.is_alive:
                self._start_syncer(self._costs.start_ns)
            case tapes.Stop() if life.is_running:
                life.stop()
            case tapes.Continue() if life.is_alive and life.is_stopped:
                life.resume()

    def join(self, name: str, backend: Backend, step_ns: StepTime | int, *, start_ns: int = 0) -> None:
        """A process of a learner starts now; once it has, it connects, loads, trains. The one before must be dead."""
        host = self._host(name)
        assert not host.is_up, f"{name} is already running"
        inner = backend if self._remembers and isinstance(backend, InnerState) else None
        host.process = LearnerProcess(
            host,
            Life(self.clock),
            self.config,
            self._costs,
            backend,
            step_ns if callable(step_ns) else lambda _: step_ns,
            self._freight,
            lambda: self.syncer if self.syncer.life.is_alive else None,
            self._overhear,
            None if self._make_course is None else self._make_course(backend),
            self._feed,
            inner,
            self._about(backend),
            start_ns,
        )
        self.started.append(host.process)

    def kill(self, name: str) -> None:
        """The learner's process is gone, without a word; its connection breaks."""
        self.process(name).kill()

    def calm(self, name: str) -> None:
        """From now on nothing befalls this learner: its link is whole, quick and reliable, its speed its own."""
        host = self._host(name)
        host.wire.calm()
        host.bodies_to_damage = 0
        ratio, host.slowdown = 1 / host.slowdown, 1.0
        if host.is_up:
            self.process(name).life.pace(ratio)

    def tell(self, message: SyncerInput) -> None:
        """The syncer receives something now."""
        self.syncer.tell(message)

    def _host(self, name: str) -> LearnerHost:
        host = self._hosts.get(name)
        if host is None:
            before = sum(each.name == name for each in self._replaced)
            draw = random.Random(f"{self._seed}/{name}/{before}")
            host = self._hosts[name] = LearnerHost(name, Wire(self.clock, self._costs, self._links, draw))
        return host

    def _lose_sight(self, host: LearnerHost) -> None:
        """The host is cut off for a while, with what runs on it; its name is free for another one."""
        del self._hosts[host.name]
        self._replaced.append(host)
        host.wire.cut((Way.UP, Way.DOWN), host.fall_silent)

        def is_seen_again() -> None:
            host.wire.heal()
            if host.process is not None and host.process.life.is_alive and host.process.life.is_stopped:
                host.process.life.resume()

        self.clock.after(tapes.UNSEEN_NS, is_seen_again)

    def lose_disk(self) -> None:
        """What the syncer has saved is gone: its next process knows nothing, and begins another run."""
        self._disk = self._new_disk()

    def _new_disk(self) -> Disk:
        number = len(self.lives)
        return Disk(random.Random(f"{self._seed}/disk/{number}"), f"run-{number}")

    def _start_syncer(self, start_ns: int = 0) -> None:
        """A process of the syncer starts now. Until it has there is none: it has read nothing of the disk yet."""
        life = self._syncer_life = Life(self.clock)

        def begin() -> None:
            process = SyncerProcess(
                life,
                self.config,
                self._costs,
                self._make_core,
                self._disk,
                self._freight,
                self._executor,
                self._end,
            )
            self.lives.append(process)

        if start_ns > 0:
            life.work(start_ns, begin)
        else:
            begin()

    def _end(self) -> None:
        self.ended = True
