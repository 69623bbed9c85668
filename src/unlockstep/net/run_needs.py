"""What a run asks of the link of one learner, and whether the link has it.

Decides what must pass in which time, from the settings, the model and the speed of the learners. Pure. Does not decide
how good the link is (``link_rates``), nor which codec is used.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from unlockstep.config import RunConfig
from unlockstep.core.status import Status
from unlockstep.net.diagnosis import Finding, duration, fail, ok, warn

BUSY_SHARE = 0.7
"""Of what a link carries: a run that needs more has no room for anything else."""


class Need(msgspec.Struct, frozen=True):
    """What a run asks of the link of one learner, bytes and seconds."""

    fragment_up: float
    """The largest fragment, as it travels up."""
    fragment_down: float
    model_up: float
    """All fragments, once in ``interval_s``."""
    model_down: float
    interval_s: float | None
    """H steps; None: nobody has taken any."""
    round_s: float | None
    """From one round to the next."""


def settings(config: RunConfig, status: Status) -> Finding:
    """What of the run matters to a link."""
    sizes, protocol = status.fragment_sizes, config.protocol
    live = sum(each.state == "live" for each in status.learners)
    present = "1 learner is live" if live == 1 else f"{live} learners are live"
    model = f"{sum(sizes):,} values in {len(sizes)} fragments" if sizes else "no parameters yet"
    return ok(
        "settings",
        f"run {status.run} ({status.state}): {model}, each merged every {protocol.interval_steps} steps; "
        f"{config.codec.upload.value} up, {config.codec.download.value} down; {present}",
    )


def need(config: RunConfig, fragment_sizes: Sequence[int], step_s: float | None) -> Need:
    """What the settings, the model and the speed of the learners amount to.

    Args:
        config: of the run.
        fragment_sizes: values in each fragment.
        step_s: of an inner step.
    """
    protocol = config.protocol
    up, down = (codec.bits_per_element / 8 for codec in (config.codec.upload, config.codec.download))
    interval_s = None if step_s is None else protocol.interval_steps * step_s
    return Need(
        fragment_up=up * max(fragment_sizes),
        fragment_down=down * max(fragment_sizes),
        model_up=up * sum(fragment_sizes),
        model_down=down * sum(fragment_sizes),
        interval_s=interval_s,
        round_s=None if interval_s is None else interval_s / len(fragment_sizes),
    )


def suffices(need: Need, up_bytes_per_s: float, down_bytes_per_s: float, overlap_s: float | None) -> Finding:
    """Whether the link carries the run: what one learner must move while it takes H steps, against what it can.

    Args:
        need: of the run.
        up_bytes_per_s, down_bytes_per_s: of the link.
        overlap_s: what one round may take without a learner waiting for it (tau steps); None: not known.
    """
    up_s, down_s = need.fragment_up / up_bytes_per_s, need.fragment_down / down_bytes_per_s
    about = f"a fragment takes {duration(up_s)} up and {duration(down_s)} down"
    all_s = max(need.model_up / up_bytes_per_s, need.model_down / down_bytes_per_s)
    if need.interval_s is None or need.round_s is None:
        about += f"; no learner has taken a step yet, so how often is not known: all in {duration(all_s)}"
        return ok("run", about)
    share = all_s / need.interval_s
    about += f", of {duration(need.round_s)} from one round to the next"
    if share > 1:
        about += f": the run needs {share:.2g} times what this link carries, and this learner will miss rounds"
        return fail("run", about, _smaller(share))
    about += f": the run needs {share:.0%} of this link"
    if overlap_s is not None and up_s + down_s > overlap_s:
        return warn(
            "run",
            f"{about}; there and back takes longer than the {duration(overlap_s)} that a round may overlap with steps",
            "raise protocol.overlap_steps in the next run, or choose a smaller codec",
        )
    if share > BUSY_SHARE:
        return warn("run", about, _smaller(share))
    return ok("run", about)


def _smaller(share: float) -> str:
    return (
        f"in the next run make protocol.interval_steps {share / BUSY_SHARE:.1f} times as long, or choose codec.upload "
        "and codec.download with fewer bits"
    )


def step_s(status: Status) -> float | None:
    """Of a live learner, the median; None: nobody has taken any."""
    times_ns = [each.step_ns for each in status.learners if each.state == "live" and each.step_ns > 0]
    return statistics.median(times_ns) / 1e9 if times_ns else None
