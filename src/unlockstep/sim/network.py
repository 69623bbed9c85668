"""The network between one learner's host and the syncer, as TCP and HTTP show it.

Decides when what is sent arrives, and what does not. Does not decide what is sent, nor what either end makes of it.

* Control messages travel on a connection: in order, each once. A lost packet is sent again by TCP and holds up all that
  follows; a cut holds everything up until it is healed; what stood in line when a connection broke is lost with it.
* Bodies travel beside it, every one on its own: they overtake messages and each other, an attempt may be lost, and one
  whose *answer* is lost is made again, so that a body arrives twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from unlockstep.sim.clock import VirtualClock

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000

RESEND_NS = 200 * MILLISECOND_NS
"""Until TCP sends a lost packet again."""

SILENCE_NS = 30 * SECOND_NS
"""How long a connection survives a cut: both ends, or something between them, give up."""


@dataclass(frozen=True, slots=True)
class Costs:
    """How long things take, nanoseconds, where nothing is in the way."""

    message_ns: int = MILLISECOND_NS
    body_ns: int = 20 * MILLISECOND_NS
    """One fragment, one way, on a link that is not throttled."""
    commit_ns: int = 10 * MILLISECOND_NS
    save_ns: int = 2 * MILLISECOND_NS
    """From when the syncer's state is what it is to its being on disk."""
    start_ns: int = 0
    """From when a tape starts a process to its being there."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """What the links of a world are like."""

    jitter_ns: int = 0
    """Up to this is added to everything, uniformly."""
    loss: float = 0.0
    """Share of messages that are held up by a lost packet, and of transfers that fail."""
    damage: float = 0.0
    """Share of bodies, both ways, that arrive with a bit turned over."""
    repeats: float = 0.0
    """Share of uploads that arrive although their sender does not learn of it, and sends them again."""
    bits_per_s: float = 0.0
    """Of the link, each way, shared by the bodies on it; 0: it is never the bottleneck."""
    attempts: int = 0
    """How often an upload over it is tried; 0: as often as a real learner does."""


class Way(Enum):
    UP = "up"
    """To the syncer."""
    DOWN = "down"


class Fate(Enum):
    """What becomes of one attempt to transfer a body."""

    ARRIVED = "arrived"
    LOST = "lost"
    UNANSWERED = "unanswered"
    """It arrived, but its sender does not know."""


@dataclass(slots=True)
class _Direction:
    is_cut: bool = False
    free_ns: int = 0
    """When the last body on it will have passed."""
    pipes: list[Pipe] = field(default_factory=list)


class Wire:
    """The way between one learner's host and the syncer.

    Args:
        clock: of the world.
        costs: how long things take at best.
        model: what else happens to them.
        draw: where chance comes from; one of its own, so that links do not disturb each other's luck.
    """

    def __init__(self, clock: VirtualClock, costs: Costs, model: LinkModel, draw: random.Random) -> None:
        self.clock = clock
        self.draw = draw
        self.bits_per_s = model.bits_per_s
        self.delay_ns = 0
        """Added to everything, each way."""
        self._costs = costs
        self._model = model
        self._ways = {way: _Direction() for way in Way}
        self._cuts = 0

    # ------------------------------------------------------------------------------------------- faults

    def cut(self, ways: tuple[Way, ...], on_silence: Callable[[], None]) -> None:
        """Nothing passes any more. ``on_silence`` is called if it stays so for too long."""
        for way in ways:
            self._ways[way].is_cut = True
        self._cuts += 1
        this_cut = self._cuts
        self.clock.after(SILENCE_NS, lambda: on_silence() if self._cuts == this_cut and not self.is_whole else None)

    def heal(self) -> None:
        """Everything passes again; what has waited on connections that still stand goes first."""
        for direction in self._ways.values():
            direction.is_cut = False
            for pipe in direction.pipes:
                pipe.flush()

    def calm(self) -> None:
        """Whole, and from now on without bounds to its rate, delay or any bad luck."""
        self._model, self.bits_per_s, self.delay_ns = LinkModel(), 0.0, 0
        self.heal()

    @property
    def attempts(self) -> int:
        """How often an upload is tried; 0: as often as usual."""
        return self._model.attempts

    def is_cut(self, way: Way) -> bool:
        return self._ways[way].is_cut

    @property
    def is_whole(self) -> bool:
        return not any(direction.is_cut for direction in self._ways.values())

    # ------------------------------------------------------------------------------------------- travelling

    def message_ns(self) -> int:
        """How long the next message takes."""
        best_ns = self._costs.message_ns + self.delay_ns
        return best_ns + self._jitter_ns() + (RESEND_NS if self._happens(self._model.loss) else 0)

    def body_arrives_ns(self, way: Way, size: int) -> int:
        """When a body of ``size`` bytes that sets out now will be there."""
        direction, now_ns = self._ways[way], self.clock.now_ns()
        arrives_ns = now_ns + self._costs.body_ns + self.delay_ns + self._jitter_ns()
        if self.bits_per_s > 0:
            direction.free_ns = max(direction.free_ns, now_ns) + int(8 * size * SECOND_NS / self.bits_per_s)
            arrives_ns = max(arrives_ns, direction.free_ns + self._costs.message_ns + self.delay_ns)
        return arrives_ns

    def fate(self) -> Fate:
        """What becomes of a body that has set out."""
        if not self.is_whole or self._happens(self._model.loss):
            return Fate.LOST
        return Fate.UNANSWERED if self._happens(self._model.repeats) else Fate.ARRIVED

    def damages(self) -> bool:
        """Whether the body that has just arrived is damaged."""
        return self._happens(self._model.damage)

    def _jitter_ns(self) -> int:
        return self.draw.randrange(self._model.jitter_ns + 1) if self._model.jitter_ns else 0

    def _happens(self, share: float) -> bool:
        return share > 0 and self.draw.random() < share

    def pipe(self, way: Way) -> Pipe:
        """A new connection's half."""
        direction = self._ways[way]
        direction.pipes = [pipe for pipe in direction.pipes if pipe.is_open]
        pipe = Pipe(self, way)
        direction.pipes.append(pipe)
        return pipe


class Pipe:
    """One half of a connection: what is put in comes out in order."""

    def __init__(self, wire: Wire, way: Way) -> None:
        self.is_open = True
        self._wire = wire
        self._way = way
        self._last_ns = 0
        self._held: list[Callable[[], None]] = []

    def put(self, arrive: Callable[[], None]) -> None:
        """Send: ``arrive`` is called at the other end."""
        if not self.is_open:
            return
        if self._wire.is_cut(self._way):
            self._held.append(arrive)
            return
        clock = self._wire.clock
        self._last_ns = max(self._last_ns, clock.now_ns() + self._wire.message_ns())
        clock.at(self._last_ns, arrive)

    def flush(self) -> None:
        """The cut is healed."""
        held, self._held = self._held, []
        for arrive in held:
            self.put(arrive)

    def close(self) -> None:
        """Nothing more is taken, and what stood in line is lost. What is on its way arrives."""
        self.is_open = False
        self._held.clear()
