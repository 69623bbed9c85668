"""Bytes of bodies that pass between a syncer and its learners: a sign of life, and a line in the run log.

Decides how a host counts them, how often it tells, and that they are logged as counted. What a sign of life is worth
is ``membership``'s business.
"""

from __future__ import annotations

from unlockstep.core.events import BytesMoved
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.membership import Membership
from unlockstep.core.messages import Transferring
from unlockstep.core.outbox import Outbox

SIGNS_PER_LEASE = 4
"""How often the core hears that bytes of a learner are passing, or that a state is on its way."""


class PassingBytes:
    """Kept by a syncer's host: what has come and gone since the core was last told.

    Args:
        lease_ns: it is told several times in that.
    """

    def __init__(self, lease_ns: int) -> None:
        self._every_ns = lease_ns // SIGNS_PER_LEASE
        self._since: dict[str, tuple[int, int, int]] = {}
        """By learner: when the core was told, and bytes up and down since."""

    def add(self, learner: str, incarnation: int, up_bytes: int, down_bytes: int, now_ns: int) -> Transferring | None:
        """Bytes have passed; what the core shall be told now, if it is time."""
        told_ns, up, down = self._since.get(learner, (-NEVER_NS, 0, 0))
        up, down = up + up_bytes, down + down_bytes
        if now_ns - told_ns < self._every_ns:
            self._since[learner] = told_ns, up, down
            return None
        self._since[learner] = now_ns, 0, 0
        return Transferring(learner, incarnation, up, down)


class Traffic:
    """Of all learners of a run.

    Args:
        members: who they are.
        outbox: where it is logged.
    """

    def __init__(self, members: Membership, outbox: Outbox) -> None:
        self._members = members
        self._outbox = outbox

    def moved(self, sign: Transferring, now_ns: int) -> None:
        """The host has counted bytes; of a start that does not count any more they have moved all the same."""
        self._members.hear_transfer(sign, now_ns)
        if sign.up_bytes or sign.down_bytes:
            event = BytesMoved(now_ns, sign.learner, sign.incarnation, sign.up_bytes, sign.down_bytes)
            self._outbox.log(event)
