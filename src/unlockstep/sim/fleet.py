"""A fleet: how many chips there are, how they fail and return, and what a job that trains on them does about it.

Decides names, defaults and limits of these settings, how the chips are dealt to learners and slices, and two things
that follow from the settings alone: the law of the time until a slice is back, and the interval between checkpoints.
Does not decide what happens: ``outages`` plays it, ``goodput`` measures it, ``fleet_tape`` writes it down for others.

The paper gives the time between interruptions and the numbers of chips and learners (paper, section 4.1). Every other
default is a calibration against its table (``paper_table``): one set of constants for all 30 cells, and not the
paper's own values, which are unknown.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from unlockstep.core.errors import ConfigError
from unlockstep.core.words import counted

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

ELASTIC_ONLY = ("downscale_s", "upscale_s", "merge_wait_s")
RIGID_ONLY = ("restart_s", "checkpoint_s", "checkpoint_interval_s", "spares", "swap_s")
"""Settings that change nothing for a fleet of the other kind."""

YEAR_S = 365.25 * 24 * 3600

CHIPS_MAX = 10**9
SECONDS_MAX = 1e10
"""Longest of all durations, some 300 years: beyond it a stall of seconds drowns in rounding."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chips that fail and return, and the job on them. Checks itself: ``ConfigError`` names field, value and fix."""

    chips: int
    """All chips paid for, spares among them."""
    learners: int = 8
    """M: independent learners the chips are dealt to, evenly; 1 is plain data-parallel training."""
    elastic: bool = True
    """Whether a learner goes on without the slices it has lost; otherwise every failure sends it to a checkpoint."""
    slice_chips: int = 256
    """Chips that leave and return together. The last slice of a learner may be smaller."""
    interruption_s: float = YEAR_S
    """Mean time between interruptions of one chip, by a Poisson process."""
    notice_s: float = 2.0
    """How long a learner still trains after a chip begins to fail: the inner step in hand is brought to its end."""

    downscale_s: float = 22.0
    """Stall of an elastic learner that loses a slice."""
    upscale_s: float = 12.0
    """Stall of an elastic learner that takes returned slices in, when nothing else makes it reconfigure."""
    merge_wait_s: float = 90.0
    """How long a returned slice waits for a reconfiguration that happens anyway, before it causes its own."""
    return_s: float = 300.0
    """Mean time until a slice that failed is back: exponentiated Weibull."""
    return_shape: float = 1.5
    """Shape k of the Weibull law that is exponentiated."""
    return_power: float = 1.0
    """Exponent a: ``P(back within t) = (1 - exp(-(t / scale)**k))**a``; 1 is the plain Weibull law."""

    restart_s: float = 81.0
    """Stall of a learner that is not elastic: until it runs again on as many chips as before."""
    checkpoint_s: float = 0.0
    """Stall for each checkpoint of a learner that is not elastic."""
    checkpoint_interval_s: float = 0.0
    """Training time between its checkpoints; 0: the optimum for ``checkpoint_s`` (Young, Daly)."""
    spares: int = 0
    """Slices kept idle, to take the place of one that fails. For fleets that are not elastic."""
    swap_s: float = 30.0
    """Stall of a learner that is not elastic, when there is a spare for each slice that is out."""

    speed_spread: float = 0.0
    """Coefficient of variation of the chips' speeds (lognormal). A learner runs at the speed of its slowest chip."""

    def __post_init__(self) -> None:
        for name in ("chips", "learners", "slice_chips"):
            self._whole(name, 1)
        self._whole("spares", 0)
        self._require("interruption_s", 1 <= self.interruption_s <= SECONDS_MAX, "choose 1 to 1e10 seconds")
        for name in _DURATIONS:
            self._require(name, 0 <= getattr(self, name) <= SECONDS_MAX, "choose 0 to 1e10 seconds")
        for name in ("return_shape", "return_power"):
            self._require(name, 0.2 <= getattr(self, name) <= 20, "choose 0.2 to 20")
        self._require("speed_spread", 0 <= self.speed_spread <= 1, "choose 0 to 1")
        if self.elastic and self.spares:
            raise ConfigError(
                f"spares is {self.spares}, but an elastic fleet puts every slice to work; "
                "set spares to 0, or elastic to false"
            )
        slices = self.working_chips // self.slice_chips
        if self.learners > slices:
            spares = f" besides {counted(self.spares, 'spare')}" if self.spares else ""
            raise ConfigError(
                f"learners is {self.learners}, but a fleet of {counted(self.chips, 'chip')} has "
                f"{counted(max(0, slices), 'slice')} of {self.slice_chips}{spares}; "
                "choose fewer learners or smaller slices (slice_chips), or add chips"
            )

    @property
    def working_chips(self) -> int:
        """Chips that train when all is well."""
        return self.chips - self.spares * self.slice_chips

    @property
    def failure_s(self) -> float:
        """Mean time between two failures anywhere in the fleet, seconds."""
        return self.interruption_s / self.chips

    @property
    def learner_failure_s(self) -> float:
        """Mean time between two failures of one learner, seconds."""
        return self.interruption_s * self.learners / self.working_chips

    @property
    def longest_stall_s(self) -> float:
        """The longest time a learner stands still at once, seconds."""
        return max(self.downscale_s, self.upscale_s) if self.elastic else max(self.restart_s, self.swap_s)

    def learner_chips(self) -> IntArray:
        """Chips of each learner, [M]: equal, or one more for the first ones where they do not divide evenly."""
        each, left = divmod(self.working_chips, self.learners)
        return each + (np.arange(self.learners) < left)

    def draw_returns(self, random: np.random.Generator, count: int) -> Float64Array:
        """Times until a slice is back, seconds, [count]: inverse of the exponentiated Weibull law."""
        return self.return_quantile(random.random(count))

    def return_quantile(self, share: Float64Array) -> Float64Array:
        """The time within which this share of the slices is back, seconds."""
        unit: Float64Array = (-np.log1p(-(share ** (1 / self.return_power)))) ** (1 / self.return_shape)
        return self.return_s / _unit_mean(self.return_shape, self.return_power) * unit

    def checkpoint_interval(self, failure_s: float) -> float:
        """Training time between checkpoints, seconds, of a learner that fails once in ``failure_s``.

        The given one, or Daly's higher-order estimate of the optimum, with d = checkpoint_s / (2 failure_s)::

            sqrt(2 checkpoint_s failure_s) * (1 + sqrt(d)/3 + d/9) - checkpoint_s     if d < 1, else failure_s

        Its first factor is Young's optimum, which supposes that a checkpoint is short beside the time between
        failures; at a million chips it is not. Sources: Young 1974; Daly 2006.
        """
        if self.checkpoint_interval_s:
            return self.checkpoint_interval_s
        ratio = self.checkpoint_s / (2 * failure_s)
        if ratio >= 1:
            return failure_s
        young_s = math.sqrt(2 * self.checkpoint_s * failure_s)
        return young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.checkpoint_s

    def _whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        fix = f"it must be a whole number from {least} to {CHIPS_MAX}"
        self._require(name, isinstance(value, int) and least <= value <= CHIPS_MAX, fix)

    def _require(self, name: str, valid: bool, fix: str) -> None:
        """Conditions are written positively, so that NaN fulfils none of them."""
        if not valid:
            raise ConfigError(f"{name} is {getattr(self, name)!r:.40}; {fix}")


_DURATIONS = (
    *("notice_s", "downscale_s", "upscale_s", "merge_wait_s", "return_s"),
    *("restart_s", "checkpoint_s", "checkpoint_interval_s", "swap_s"),
)


def _unit_mean(shape: float, power: float) -> float:
    """Mean of the exponentiated Weibull law of scale 1.

    With x = exp(s / shape) it is the integral over s of exp(s / shape) * power * w * exp(s - exp(s)), where
    w = (1 - exp(-exp(s)))**(power - 1): smooth and dying out fast on both sides, so that the trapezoid rule is exact
    to rounding.
    """
    low = -40 / (power + 1 / shape)
    s, step = np.linspace(low, 5, 4000, retstep=True)
    density = power * (-np.expm1(-np.exp(s))) ** (power - 1) * np.exp(s - np.exp(s))
    return float(np.sum(np.exp(s / shape) * density) * step)
