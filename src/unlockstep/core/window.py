"""Whether a round closes now, and if not, when to look again: quorum and adaptive grace as one pure decision.

Decides only that. Every input is an argument, every answer carries its reason; nothing is remembered between two calls
but the moving averages the caller keeps in ``TimeAverages``.

A round waits for its quorum of K contributions without limit: with fewer than K learners the system stands still by
definition. Once the quorum is there, the time that the round may still take without delaying anybody is its *slack*:
its result is due tau steps after it opened, and the quorum and the merge have taken, on average, xi_quorum and xi_sync
of that. A share gamma of the slack is granted to learners that are a little late (paper, Eq. 3)::

    grace = clamp(gamma * (tau * xi_step - (xi_quorum + xi_sync)), 0, cap * xi_step)
"""

from __future__ import annotations

import msgspec

from unlockstep.core.ids import NEVER_NS, seconds
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import WindowReason


class MovingAverage:
    """Exponential moving average of durations; the first sample is taken whole."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._value: float | None = None

    @property
    def value_ns(self) -> int:
        """The average, 0 before the first sample."""
        return 0 if self._value is None else round(self._value)

    def add(self, sample_ns: int) -> None:
        if self._value is None:
            self._value = float(sample_ns)
        else:
            self._value += self._weight * (sample_ns - self._value)


class TimeAverages:
    """The syncer's xi_quorum and xi_sync. xi_step is a median over learners, hence kept with them (``membership``)."""

    def __init__(self, options: ProtocolOptions) -> None:
        self.quorum = MovingAverage(options.average_weight)
        """From a round's opening to its K-th contribution."""
        self.commit = MovingAverage(options.average_weight)
        """From a round's close to its commit."""
        self.fetch = MovingAverage(options.average_weight)
        """From the announcement of a version to its being at a learner."""

    @property
    def sync_ns(self) -> int:
        """xi_sync: time to merge a fragment and to move the result."""
        return self.commit.value_ns + self.fetch.value_ns


class Decision(msgspec.Struct, frozen=True):
    """What to do with an open round."""

    close: bool
    until_ns: int
    """When to decide again if nothing happens before: the end of the grace window, or never."""
    grace_ns: int
    """Length of the grace window, from the quorum."""
    reason: WindowReason
    sentence: str


def grace_ns(options: ProtocolOptions, step_ns: int, quorum_ns: int, sync_ns: int) -> int:
    """Length of the grace window (paper, Eq. 3), between 0 and ``grace_cap_steps`` steps.

    Args:
        options: gamma (``grace_factor``), tau (``overlap_steps``) and the cap.
        step_ns: xi_step, duration of one inner step.
        quorum_ns: xi_quorum, from opening to the K-th contribution.
        sync_ns: xi_sync, to merge and move a fragment.
    """
    slack_ns = options.overlap_steps * step_ns - (quorum_ns + sync_ns)
    return max(0, min(int(options.grace_factor * slack_ns), int(options.grace_cap_steps * step_ns)))


def decide(
    options: ProtocolOptions,
    *,
    now_ns: int,
    quorum_at_ns: int | None,
    contributed: int,
    awaited: int,
    live: int,
    grace_ns: int,
) -> Decision:
    """Whether an open round closes at ``now_ns``.

    Args:
        options: K (``quorum``).
        now_ns: the present.
        quorum_at_ns: when the K-th learner's contribution arrived, None before.
        contributed: learners whose contribution to this round is in.
        awaited: live learners the round still expects something from.
        live: learners alive, contributed or not.
        grace_ns: length of the grace window, as of the quorum.

    Returns:
        The decision. Over time, for unchanged arguments, it turns from waiting to closing once and never back.
    """
    quorum = options.quorum

    def answer(close: bool, until_ns: int, reason: WindowReason, sentence: str) -> Decision:
        return Decision(close=close, until_ns=until_ns, grace_ns=grace_ns, reason=reason, sentence=sentence)

    if quorum_at_ns is None:
        have = f"{contributed} of {quorum} contributions"
        if live == 0:
            return answer(False, NEVER_NS, WindowReason.NOBODY_LEFT, f"{have} are in and no learner is alive")
        return answer(False, NEVER_NS, WindowReason.WAITING_FOR_QUORUM, f"waits for its quorum: {have} are in")
    if awaited == 0:
        return answer(True, now_ns, WindowReason.EVERYONE_IN, f"closes: all {contributed} expected are in")
    if grace_ns == 0:
        return answer(
            True, now_ns, WindowReason.NO_GRACE, f"closes: {contributed} in, quorum {quorum}, no slack to wait"
        )
    until_ns = quorum_at_ns + grace_ns
    if now_ns >= until_ns:
        return answer(
            True, now_ns, WindowReason.GRACE_ENDED, f"closes: grace of {seconds(grace_ns)} ended, {awaited} missing"
        )
    return answer(
        False,
        until_ns,
        WindowReason.WAITING_IN_GRACE,
        f"{contributed} in, quorum {quorum}; waits up to {seconds(grace_ns)} for {awaited} more",
    )
