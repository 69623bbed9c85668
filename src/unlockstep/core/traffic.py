"""Bytes of bodies that pass between a syncer and its learners: a sign of life, and a line in the run log.

Decides that they are logged as the host has counted them. What a sign of life is worth is ``membership``'s business.
"""

from __future__ import annotations

from unlockstep.core.events import BytesMoved
from unlockstep.core.membership import Membership
from unlockstep.core.messages import Transferring
from unlockstep.core.outbox import Outbox


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
