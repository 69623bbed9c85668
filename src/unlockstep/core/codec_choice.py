"""In which format a learner uploads: the finest that its link carries in the time a round may take.

Decides that, and when it is looked at again. The codecs are those the run allows; with one there is nothing to choose.
A learner whose link nobody has measured yet uses the coarsest: then the first measurement costs the least. It does not
go back and forth: it goes to a finer one only if that leaves a part of the time over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from unlockstep.core.events import UploadCodecChosen
from unlockstep.core.formats import Codec
from unlockstep.core.ids import NANOSECONDS_PER_SECOND, seconds
from unlockstep.core.layout import Layout
from unlockstep.core.membership import Member, Membership
from unlockstep.core.messages import UploadMeasured
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.outbox import Outbox
from unlockstep.core.words import scaled

UPLOAD_SHARE = 0.8
"""Of the time a round may take, for an upload."""

FINER_SHARE = 0.6
"""Of that, in which a finer format must do to be taken up. What needs more stays with the one it has, so that a link
whose speed varies by less than 1 : 1.6 never goes back and forth."""

SAMPLES_MIN = 2
"""Uploads measured since the last change, before there is another one."""


class Choice(msgspec.Struct, frozen=True):
    """A format, and why this one."""

    codec: Codec
    reason: str


def upload_ns(codec: Codec, elements: int, bytes_per_s: float) -> float:
    """How long an upload of so many elements takes."""
    return elements * codec.bits_per_element / 8 / bytes_per_s * NANOSECONDS_PER_SECOND


def round_ns(options: ProtocolOptions, step_ns: int) -> int:
    """How long an upload may take a round, so that a learner keeps up: H / P steps, after which it is asked for the
    next fragment, and half of the tau steps that a round may overlap with, for the other half is the way back."""
    steps = options.interval_steps / options.fragments
    if options.overlap_steps:
        steps = min(steps, options.overlap_steps / 2)
    return int(steps * step_ns)


def choose(allowed: Sequence[Codec], present: Codec, bytes_per_s: float, elements: int, within_ns: int) -> Choice:
    """Which of the ``allowed`` to use.

    Args:
        allowed: from the finest to the coarsest; at least one.
        present: the one in use.
        bytes_per_s: of the learner's link to the syncer, above 0.
        elements: of the largest fragment.
        within_ns: how long a round may take.
    """
    most_ns = UPLOAD_SHARE * within_ns

    def takes(codec: Codec) -> float:
        return upload_ns(codec, elements, bytes_per_s)

    holds = takes(present) <= most_ns
    bound_ns = FINER_SHARE * most_ns if holds else most_ns
    finest = next((codec for codec in allowed if takes(codec) <= bound_ns), None)
    rate = f"at {scaled(bytes_per_s, 'B/s')}"
    limit = f"of the {seconds(within_ns)} that a round may take"
    if holds and (finest is None or allowed.index(finest) >= allowed.index(present)):
        return Choice(present, f"{rate} {present.value} takes {seconds(int(takes(present)))} {limit}")
    if finest is None:
        coarsest = allowed[-1]
        return Choice(coarsest, f"{rate} even {coarsest.value} takes {seconds(int(takes(coarsest)))} {limit}")
    return Choice(
        finest,
        f"{rate} {finest.value} takes {seconds(int(takes(finest)))} {limit}, {present.value} "
        f"{seconds(int(takes(present)))}",
    )


class UploadCodecs:
    """Of all learners of a run.

    Args:
        allowed: formats, from the finest to the coarsest.
        options: H, P and tau are read.
        members: whose they are.
        layout: how the parameters are cut; None while nobody knows.
        outbox: where changes are logged.
    """

    def __init__(
        self,
        allowed: Sequence[Codec],
        options: ProtocolOptions,
        members: Membership,
        layout: Callable[[], Layout | None],
        outbox: Outbox,
    ) -> None:
        self._allowed = tuple(allowed)
        self._options = options
        self._members = members
        self._layout = layout
        self._outbox = outbox

    def measured(self, upload: UploadMeasured, now_ns: int) -> None:
        """An upload has arrived: how long it took may lead to another format."""
        member = self._members.current(upload.learner, upload.incarnation)
        if member is None or upload.size_bytes <= 0:
            return
        member.upload_link.add(upload.size_bytes, upload.duration_ns)
        layout, step_ns = self._layout(), self._members.step_ns()
        if len(self._allowed) == 1 or layout is None or step_ns == 0:
            return
        if member.upload_link.since_change >= SAMPLES_MIN:
            self._reconsider(member, layout, step_ns, now_ns)

    def _reconsider(self, member: Member, layout: Layout, step_ns: int, now_ns: int) -> None:
        rate = member.upload_link.bytes_per_s
        assert rate is not None, "an upload has just been measured"
        elements = max(layout.fragment_size(fragment) for fragment in range(layout.fragment_count))
        choice = choose(self._allowed, member.codec, rate, elements, round_ns(self._options, step_ns))
        if choice.codec is not member.codec:
            member.codec = choice.codec
            member.upload_link.since_change = 0
            event = UploadCodecChosen(now_ns, member.learner, member.incarnation, choice.codec, rate, choice.reason)
            self._outbox.log(event)
