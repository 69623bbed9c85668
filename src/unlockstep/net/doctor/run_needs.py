"""What a run asks of the link of one learner, and whether the link has it.

Decides what must pass in which time, from the settings, the model and the speed of the learners, and which settings
would suit a link that has too little. Pure. Does not decide how good the link is (``link_rates``), nor which codec is
used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from unlockstep.config import RunConfig
from unlockstep.core.formats import Codec
from unlockstep.core.status import Status
from unlockstep.core.words import counted
from unlockstep.net.doctor.diagnosis import Finding, duration, fail, ok, warn

BUSY_SHARE = 0.7
"""Of what a link carries: a run that needs more has no room for anything else."""

BITS_MIN = 4
"""Coarser formats are not recommended to anybody (``experiments/codecs``)."""


class Need(msgspec.Struct, frozen=True):
    """What a run asks of a link."""

    values: int
    """Of the model."""
    largest: int
    """Of them, in the largest fragment."""
    upload: Codec
    download: Codec
    interval_steps: int
    """H: so often all of them pass each way."""
    fragments: int
    overlap_steps: int
    """tau: what one round may take without a learner that waits."""
    step_s: float | None
    """Of an inner step; None: nobody has taken any."""
    has_fallbacks: bool = False
    """``upload`` is the coarsest of several, which a link must carry at least."""

    def share(self, codec: Codec, bytes_per_s: float) -> float:
        """Of one direction with this rate, what the run takes in this format; 0 where nobody knows."""
        if self.step_s is None:
            return 0.0
        return transfer_s(self.values, codec, bytes_per_s) / (self.interval_steps * self.step_s)


def need(config: RunConfig, fragment_sizes: Sequence[int], step_s: float | None) -> Need:
    """What the settings, the model and the speed of the learners amount to.

    Args:
        config: of the run.
        fragment_sizes: values in each fragment.
        step_s: of an inner step.
    """
    protocol, codec = config.protocol, config.codec
    return Need(
        values=sum(fragment_sizes),
        largest=max(fragment_sizes),
        upload=codec.uploads[-1],
        download=codec.download,
        interval_steps=protocol.interval_steps,
        fragments=len(fragment_sizes),
        overlap_steps=protocol.overlap_steps,
        step_s=step_s,
        has_fallbacks=bool(codec.upload_fallbacks),
    )


def transfer_s(values: int, codec: Codec, bytes_per_s: float) -> float:
    """How long so many values take."""
    return values * codec.bits_per_element / 8 / bytes_per_s


def settings(config: RunConfig, status: Status) -> Finding:
    """What of the run matters to a link."""
    sizes, protocol = status.fragment_sizes, config.protocol
    live = sum(each.state == "live" for each in status.learners)
    present = f"{counted(live, 'learner')} {'is' if live == 1 else 'are'} live"
    *finer, coarsest = (each.value for each in config.codec.uploads)
    upload = f"{', '.join(finer)} or {coarsest}" if finer else coarsest
    model = f"{counted(sum(sizes), 'value')} in {counted(len(sizes), 'fragment')}" if sizes else "no parameters yet"
    return ok(
        "settings",
        f"run {status.run} ({status.state}): {model}, each merged every {counted(protocol.interval_steps, 'step')}; "
        f"{upload} up, {config.codec.download.value} down; {present}",
    )


def suffices(need: Need, up: float, down: float, is_beside_run: bool = False) -> Finding:
    """Whether the link carries the run: what one learner must move while it takes H steps, against what it can.

    Args:
        need: of the run.
        up, down: bytes per second of the link.
        is_beside_run: learners trained while this was measured, and those on this link took their part of it.
    """
    up_s, down_s = transfer_s(need.largest, need.upload, up), transfer_s(need.largest, need.download, down)
    formatted = f", in {need.upload.value}," if need.has_fallbacks else ""
    about = f"a fragment takes {duration(up_s)} up{formatted} and {duration(down_s)} down"
    if need.step_s is None:
        all_s = max(transfer_s(need.values, need.upload, up), transfer_s(need.values, need.download, down))
        least = duration(all_s / need.interval_steps)
        return ok("run", f"{about}; no learner has taken a step yet: those of {least} or more are slow enough")
    share = max(need.share(need.upload, up), need.share(need.download, down))
    about += f", of {duration(need.interval_steps * need.step_s / need.fragments)} from one round to the next"
    if share > 1:
        carries = "carries beside its traffic" if is_beside_run else "carries"
        about += f": the run needs {share:.2g} times what this link {carries}, and this learner will miss rounds"
        mend = "; if learners here take part already, look at their participation in status first"
        return fail("run", about, _smaller(need, up, down) + (mend if is_beside_run else ""))
    of = "what this link had left beside its traffic" if is_beside_run else "this link"
    about += f": the run needs {share:.0%} of {of}"
    if share > BUSY_SHARE:
        return warn("run", about, _smaller(need, up, down))
    overlap_s = need.overlap_steps * need.step_s
    if up_s + down_s > overlap_s:
        return warn(
            "run",
            f"{about}; there and back takes longer than the {duration(overlap_s)} that a round may overlap with steps",
            f"in the next run raise protocol.overlap_steps to {math.ceil((up_s + down_s) / need.step_s)}",
        )
    return ok("run", about)


def _smaller(need: Need, up: float, down: float) -> str:
    """Formats with which the run would fit, and the interval at which it would with those it has."""
    formats = []
    longest = 0.0
    upload = 'codec.upload_fallbacks = ["{}"]' if need.has_fallbacks else 'codec.upload = "{}"'
    for setting, codec, rate in ((upload, need.upload, up), ('codec.download = "{}"', need.download, down)):
        share = need.share(codec, rate)
        longest = max(longest, share)
        if share > BUSY_SHARE:
            coarser = [each for each in Codec if BITS_MIN <= each.bits < codec.bits]
            fits = next((each for each in coarser if need.share(each, rate) <= BUSY_SHARE), None)
            formats.append(None if fits is None else setting.format(fits.value))
    interval = f"protocol.interval_steps = {math.ceil(need.interval_steps * longest / BUSY_SHARE)}"
    if None in formats:
        return f"in the next run choose {interval}, or fewer with a coarser codec"
    return f"in the next run choose {' and '.join(filter(None, formats))}, or {interval}"


def step_s(status: Status) -> float | None:
    """Of a live learner, the median; None: nobody has taken any."""
    times_ns = [each.step_ns for each in status.learners if each.state == "live" and each.step_ns > 0]
    return statistics.median(times_ns) / 1e9 if times_ns else None
