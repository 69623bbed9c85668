"""A run that goes back to an earlier state of its parameters, because the validation loss has leapt.

Decides when that is asked of the host, and what follows when it is done. What a spike is and which record is gone back
to is ``loss_watch``'s; what becomes of rounds in flight, ``rounds``'.
"""

from __future__ import annotations

from unlockstep.core.actions import Announce, GoBack
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.events import LossSpiked, RolledBack
from unlockstep.core.loss_watch import LossWatch, Spike
from unlockstep.core.membership import Membership
from unlockstep.core.messages import Evaluation, GoneBack, Recorded, WentBack
from unlockstep.core.options import RollbackOptions
from unlockstep.core.outbox import Outbox
from unlockstep.core.rounds import Rounds
from unlockstep.core.saved import SavedEvaluation
from unlockstep.core.status_of import Tally


class GoingBack:
    """Watches one run, and takes it back.

    Args:
        options: when; None: never.
        rounds, members, tally, outbox: of the run.
    """

    def __init__(
        self, options: RollbackOptions | None, rounds: Rounds, members: Membership, tally: Tally, outbox: Outbox
    ) -> None:
        self._losses = LossWatch(options or RollbackOptions())
        self._rounds = rounds
        self._members = members
        self._tally = tally
        self._outbox = outbox
        self._spike: Spike | None = None
        """Why the run is going back."""

    @property
    def is_on(self) -> bool:
        """Whether the run may ever go back."""
        return self._losses.is_on

    def saved(self) -> tuple[SavedEvaluation, ...]:
        """What outlives the syncer's process."""
        return self._losses.saved()

    def restore(self, evaluations: tuple[SavedEvaluation, ...]) -> None:
        """Go on from what was saved."""
        self._losses.restore(evaluations)

    def judge(self, evaluation: Evaluation, now_ns: int) -> None:
        """An evaluator has scored these versions while the run goes on; those of before the last return say nothing."""
        if not self._losses.is_on or self._spike is not None:
            return
        scored = zip(sorted(self._rounds.notices), evaluation.versions, strict=True)
        if all(version >= self._rounds.notices[fragment].void_below for fragment, version in scored):
            spike = self._losses.judge(evaluation)
            if spike is not None:
                self._ask(spike, now_ns)

    def recorded(self, recorded: Recorded, now_ns: int) -> None:
        """A save is complete."""
        if recorded.versions:
            self._losses.recorded(recorded.record, recorded.versions)

    def _ask(self, spike: Spike, now_ns: int) -> None:
        """For the newest record that is known to be good, if there is one that can be read."""
        record = self._losses.target()
        self._outbox.log(LossSpiked(now_ns, spike.loss, spike.level, record or 0))
        self._spike = None if record is None else spike
        self._rounds.is_going_back = record is not None
        if record is not None:
            self._outbox.act(GoBack(record))

    def went_back(self, back: WentBack, now_ns: int) -> None:
        """The host has done what it was asked, or could not."""
        spike = self._spike
        if spike is None:
            raise LocalProtocolError(f"record {back.record} was not asked for")
        held = self._losses.versions_of(back.record)
        self._losses.went_back(back.record)
        if not back.notices:
            self._ask(spike, now_ns)
            return
        self._spike = None
        versions, digests = zip(*((notice.version, notice.digest) for notice in back.notices), strict=True)
        self._outbox.log(RolledBack(now_ns, back.record, versions, digests, spike.loss, spike.level, held))
        self._tally.rollbacks += 1
        self._rounds.begin_anew(back.notices, now_ns)
        self._outbox.save()
        notices = tuple(self._rounds.notices[fragment] for fragment in sorted(self._rounds.notices))
        self._outbox.act(Announce(GoneBack(notices, self._members.clock)))
