"""A learner's outer gradients as bodies, and what rounding took from them handed over with the next.

::

    sent_k = Q(delta_k + lost_{k-1})          lost_k = delta_k + lost_{k-1} - sent_k          lost_{-1} = 0
    sum of sent = sum of delta - lost_k       so what rounding takes does not add up

k counts the contributions of this process to a fragment, in the order in which they are encoded. Only the integer
formats leave something; whatever format comes next takes it along.

Decides what is encoded, to the bit, and which contribution carries what was lost. The rules the protocol asks for:

* A contribution that is handed over once more (the syncer may have lost it) has the same bytes, and what was lost is
  counted once: until a contribution is settled its body is kept. Chance is drawn from what a contribution is known by.
* What rounding takes from a contribution goes on with the next one even if that contribution is refused or lost: what
  is lost with it is what it held.
* Where a fragment is loaded anew (a process that begins, a run that has gone back) the progress it had is void, and
  what is left of earlier contributions with it. The same process under another incarnation keeps it.

Not decided here: which format a contribution takes (the syncer says so when it asks). Knows no threads: calls for one
fragment come one after the other.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from unlockstep.core.chunks import Float32
from unlockstep.core.codec import FragmentCodec
from unlockstep.core.formats import Codec, Rounding
from unlockstep.core.layout import Layout
from unlockstep.core.messages import HandedOver

BODIES_KEPT_MAX = 64
"""Bodies of a fragment that are kept until they are settled: more than a syncer ever leaves open. Of an older one that
is asked for once more, the work is handed over without what had been lost before."""


class Made(Protocol):
    """What a contribution is known by here (``loop.Contribution``)."""

    @property
    def run_id(self) -> str: ...

    @property
    def learner(self) -> str: ...

    @property
    def round(self) -> int: ...

    @property
    def fragment(self) -> int: ...

    @property
    def tokens(self) -> int:
        """Trained by the process when it handed over."""
        ...

    @property
    def loads(self) -> int:
        """How often the fragment had been loaded by then."""
        ...


@dataclass(slots=True)
class _Fragment:
    """What is left of one fragment."""

    loads: int = 0
    lost: Float32 | None = None
    newest: tuple[int, int] = (-1, -1)
    """Tokens and round of the newest contribution that was encoded."""
    bodies: OrderedDict[HandedOver, tuple[int, memoryview]] = field(default_factory=OrderedDict)
    """Of contributions that held something that had been lost, or have left something: loads, body."""


class Encoder:
    """Encodes what one process of a learner hands over.

    Args:
        layout: how its model is cut.
        feedback: whether what rounding to integers takes is kept for the next contribution; costs a float32 copy of the
            model.
        rounding: of the integer formats.
    """

    def __init__(self, layout: Layout, *, feedback: bool, rounding: Rounding) -> None:
        self._layout = layout
        self._feedback = feedback
        self._rounding = rounding
        self._codecs: dict[tuple[int, Codec], FragmentCodec] = {}
        self._fragments: dict[int, _Fragment] = {}

    def encode(self, made: Made, codec: Codec, values: Float32, less: Float32 | None = None) -> memoryview:
        """The body of a contribution, not to be written to: of ``values - less``, and what was lost before.

        Args:
            made: which one.
            codec: the format that the syncer has asked for.
            values: float32[n]: the anchor, or the outer gradient itself.
            less: float32[n]: the local value, or nothing.
        """
        key = HandedOver(made.round, made.fragment, made.tokens)
        kept = self._kept(made)
        loads, body = kept.bodies.get(key, (-1, memoryview(b"")))
        if loads == made.loads:
            return body
        writer, chance = self._codec(made.fragment, codec), self._chance(made, codec)
        # The fragment has been loaded since it was handed over; or it was encoded before, when nothing was lost.
        is_void = made.loads < kept.loads or (made.tokens, made.round) <= kept.newest
        kept.newest = max(kept.newest, (made.tokens, made.round))
        leaves = self._feedback and codec.is_integer and not is_void
        lost = None if is_void else kept.lost
        if leaves and lost is None:
            lost = kept.lost = np.zeros(writer.size, np.float32)
        body = writer.encode(values, less=less, lost=lost, chance=chance)
        if lost is not None:
            kept.lost = lost if leaves else None
            kept.bodies[key] = made.loads, body
            if len(kept.bodies) > BODIES_KEPT_MAX:
                kept.bodies.popitem(last=False)
        return body

    def forget(self, handed_over: HandedOver) -> None:
        """It is settled, and will not be asked for again."""
        if handed_over.fragment in self._fragments:
            self._fragments[handed_over.fragment].bodies.pop(handed_over, None)

    def _kept(self, made: Made) -> _Fragment:
        """What is kept of the fragment, without what is void since it was loaded."""
        kept = self._fragments.setdefault(made.fragment, _Fragment())
        if kept.loads < made.loads:
            kept.loads, kept.lost, kept.newest = made.loads, None, (-1, -1)
        return kept

    def _codec(self, fragment: int, codec: Codec) -> FragmentCodec:
        if (fragment, codec) not in self._codecs:
            self._codecs[fragment, codec] = FragmentCodec(self._layout, fragment, codec)
        return self._codecs[fragment, codec]

    def _chance(self, made: Made, codec: Codec) -> int | None:
        if self._rounding is Rounding.NEAREST or not codec.is_integer:
            return None
        name = f"{made.run_id}/{made.learner}/{made.round}/{made.fragment}/{made.tokens}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
