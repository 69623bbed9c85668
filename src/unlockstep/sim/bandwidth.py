"""What has to go over the wire: Gbit/s per learner and at the syncer, and how busy the chips stay on a given link.

A method is an *exchange* that comes back every ``period_s`` of computing and may hide under the next ``window_s`` of
it. What does not fit stalls the chips for s seconds per period, so the utilisation is u = period / (period + s). On a
link of B bit/s each way, with n exchanges in flight (a window then holds n stalls as well)::

    s = max(0, (serial / B + fixed - window) / n, max(up, down) / B - period)

``up`` and ``down`` are the bits of one exchange in each direction, ``serial`` those that go one after the other.
S is the size of the model in bits, t the time of a step, M the number of sites:

====================  ==========  =================  ===================  ================  ===========
method                period      up = down          serial               window            in flight n
====================  ==========  =================  ===================  ================  ===========
data-parallel         t           2 (M - 1) / M S    2 (M - 1) / M S      2/3 t (backward)  1
DiLoCo                H t         2 (M - 1) / M S    2 (M - 1) / M S      0: it blocks      1
Streaming DiLoCo      H / P t     2 (M - 1) / M S/P  2 (M - 1) / M S/P    tau t             tau P / H
this system           H / P t     S_up/P, S_down/P   S_up/P + S_down/P    tau t             tau P / H
====================  ==========  =================  ===================  ================  ===========

The first three average in a ring (each site sends and receives 2 (M - 1) / M of the data, both at once); this system
uploads to the syncer, which merges (``fixed``) and sends back. Its learners never wait: where the others stall, its
rounds slip, and u is the share of its pace that it keeps (H becomes H / u). The syncer carries M times a learner's
traffic, each way; it may be cut into shards, since fragments are independent.

Decides these formulas. Knows nothing of protocol overhead (headers, TLS: below 1 % for fragments above 1 MB), of
latency, of sites that fail, or of fragments of unequal size. Blocking form for DiLoCo as in the literature:
u = H t / (H t + bits / B).
"""

from __future__ import annotations

import math

import msgspec

from unlockstep.core.errors import ConfigError
from unlockstep.core.formats import Codec

GIGA = 1e9

UTILISATIONS = (0.5, 0.75, 0.8, 0.9, 0.95, 0.99)
"""For which shares of time spent computing the table says what they need."""

BACKWARD_SHARE = 2 / 3
"""Part of a step in which gradients are ready one after the other, so that their exchange can hide: the backward pass
takes twice as long as the forward pass."""

FORMATS = (Codec.FLOAT32, Codec.BFLOAT16, Codec.INT8, Codec.INT4)
"""What anybody would send a model in."""

PARAMS_MAX = 1e18
STEP_S_MIN, STEP_S_MAX = 1e-6, 1e9
GBIT_MIN, GBIT_MAX = 1e-6, 1e9
COUNT_MAX = 10**9


def require_within(name: str, value: float, least: float, most: float) -> None:
    """Raises ConfigError for a value that is out of range, or NaN."""
    if not least <= value <= most:
        raise ConfigError(f"{name} is {value!r:.40}; it must be from {least:g} to {most:g}")


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What one site exchanges with the others, again and again."""

    period_s: float
    """Computing between the starts of two exchanges."""
    up_bits: float
    down_bits: float
    serial_bits: float
    """Bits that go over the link one after the other, from the start of an exchange to its end."""
    window_s: float
    """Computing under which an exchange may hide."""
    in_flight: float = 1.0
    """n: exchanges under way at once."""
    fixed_s: float = 0.0
    """What an exchange takes on a link without limit."""

    @property
    def mean_up_gbit(self) -> float:
        """Gbit/s sent, on average, at full utilisation."""
        return self.up_bits / self.period_s / GIGA

    @property
    def mean_down_gbit(self) -> float:
        """Gbit/s received, on average, at full utilisation."""
        return self.down_bits / self.period_s / GIGA

    @property
    def peak_gbit(self) -> float:
        """Gbit/s at which nothing stalls; infinite for an exchange that blocks."""
        return self.needed_gbit(1.0)

    def exchange_s(self, gbit: float) -> float:
        """How long one exchange takes on a link of ``gbit`` Gbit/s, each way, that it has for itself."""
        return self.serial_bits / (gbit * GIGA) + self.fixed_s

    def utilisation(self, gbit: float) -> float:
        """u: share of the time spent computing, on a link of ``gbit`` Gbit/s each way."""
        late_s = (self.exchange_s(gbit) - self.window_s) / self.in_flight
        backlog_s = max(self.up_bits, self.down_bits) / (gbit * GIGA) - self.period_s
        return self.period_s / (self.period_s + max(0.0, late_s, backlog_s))

    def needed_gbit(self, utilisation: float) -> float:
        """Gbit/s, each way, for this utilisation, above 0 and up to 1; infinite if no link is fast enough."""
        cycle_s = self.period_s / utilisation
        left_s = self.window_s + self.in_flight * (cycle_s - self.period_s) - self.fixed_s
        late = self.serial_bits / left_s if left_s > 0 else math.inf if self.serial_bits else 0.0
        return max(late, max(self.up_bits, self.down_bits) / cycle_s) / GIGA


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that is trained at M sites; the symbols are the paper's."""

    params: float
    """Parameters that are synchronised."""
    step_s: float = 1.0
    """t: seconds of an inner step without waiting."""
    learners: int = 8
    """M: sites, each with one learner."""
    interval_steps: int = 24
    """H"""
    fragments: int = 24
    """P"""
    overlap_steps: int = 2
    """tau"""
    merge_s: float = 0.0
    """What the syncer takes for one fragment, beside the transfers."""

    def __post_init__(self) -> None:
        require_within("params", self.params, 1, PARAMS_MAX)
        require_within("step_s", self.step_s, STEP_S_MIN, STEP_S_MAX)
        for name in ("learners", "interval_steps", "fragments"):
            require_within(name, getattr(self, name), 1, COUNT_MAX)
        require_within("overlap_steps", self.overlap_steps, 0, COUNT_MAX)
        require_within("merge_s", self.merge_s, 0, math.inf)

    def _ring_bits(self, form: Codec) -> float:
        """Bits that a ring all-reduce of the whole model makes each site send, and receive."""
        return 2 * (self.learners - 1) / self.learners * self.params * form.bits_per_element

    @property
    def _round_s(self) -> float:
        return self.interval_steps / self.fragments * self.step_s

    @property
    def _in_flight(self) -> float:
        return max(1.0, self.overlap_steps * self.fragments / self.interval_steps)

    def data_parallel(self, gradients: Codec, hidden_share: float = BACKWARD_SHARE) -> Exchange:
        """All gradients, every step. ``hidden_share``: part of a step it can hide under; 0: it blocks."""
        bits = self._ring_bits(gradients)
        window_s = hidden_share * self.step_s
        return Exchange(period_s=self.step_s, up_bits=bits, down_bits=bits, serial_bits=bits, window_s=window_s)

    def diloco(self, form: Codec) -> Exchange:
        """All parameters every H steps, while nobody computes (arXiv 2311.08105)."""
        bits = self._ring_bits(form)
        period_s = self.interval_steps * self.step_s
        return Exchange(period_s=period_s, up_bits=bits, down_bits=bits, serial_bits=bits, window_s=0.0)

    def streaming(self, form: Codec) -> Exchange:
        """One fragment after the other, each overlapped with tau steps (arXiv 2501.18512)."""
        bits = self._ring_bits(form) / self.fragments
        window_s = self.overlap_steps * self.step_s
        return Exchange(
            period_s=self._round_s,
            up_bits=bits,
            down_bits=bits,
            serial_bits=bits,
            window_s=window_s,
            in_flight=self._in_flight,
        )

    def decoupled(self, upload: Codec, download: Codec) -> Exchange:
        """This system: a fragment up to the syncer, merged, and down again, within tau steps (paper, section 3)."""
        up_bits, down_bits = (self.params * form.bits_per_element / self.fragments for form in (upload, download))
        return Exchange(
            period_s=self._round_s,
            up_bits=up_bits,
            down_bits=down_bits,
            serial_bits=up_bits + down_bits,
            window_s=self.overlap_steps * self.step_s,
            in_flight=self._in_flight,
            fixed_s=self.merge_s,
        )


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the comparison; rates in Gbit/s. None where there is no syncer; infinite where no link is enough."""

    method: str
    format: str
    """Upload and download, if they differ, with a slash between them."""
    in_this_version: bool
    mean_up: float
    mean_down: float
    peak: float
    """What a link must carry each way so that nothing stalls."""
    syncer_mean_in: float | None
    syncer_mean_out: float | None
    syncer_peak: float | None
    needed: tuple[float, ...]
    """Each way, for every share in ``UTILISATIONS``."""
    utilisation: float | None
    """On the link that was asked about."""


DATA_PARALLEL, BLOCKING = "data-parallel", "data-parallel, blocking"
DILOCO, STREAMING, DECOUPLED = "DiLoCo", "Streaming DiLoCo", "this system"


def compare(workload: Workload, link_gbit: float | None = None) -> list[Row]:
    """Every method in every format.

    Args:
        workload: model, step time, M, H, P, tau.
        link_gbit: Gbit/s each way of a site's link; also says how busy the chips would be on it.
    """
    if link_gbit is not None:
        require_within("link_gbit", link_gbit, GBIT_MIN, GBIT_MAX)

    def row(method: str, upload: Codec, download: Codec, exchange: Exchange) -> Row:
        times = float(workload.learners) if method == DECOUPLED else None
        return Row(
            method=method,
            format=upload.value if upload is download else f"{upload.value}/{download.value}",
            in_this_version=method == DECOUPLED,
            mean_up=exchange.mean_up_gbit,
            mean_down=exchange.mean_down_gbit,
            peak=exchange.peak_gbit,
            syncer_mean_in=times and times * exchange.mean_up_gbit,
            syncer_mean_out=times and times * exchange.mean_down_gbit,
            syncer_peak=times and times * exchange.peak_gbit,
            needed=tuple(exchange.needed_gbit(share) for share in UTILISATIONS),
            utilisation=None if link_gbit is None else exchange.utilisation(link_gbit),
        )

    floats, every = (Codec.FLOAT32, Codec.BFLOAT16), FORMATS
    pairs = [(Codec.FLOAT32,) * 2, (Codec.BFLOAT16, Codec.FLOAT32)]
    pairs += [(form, form) for form in every[1:]]
    return [
        *(row(DATA_PARALLEL, form, form, workload.data_parallel(form)) for form in floats),
        *(row(BLOCKING, form, form, workload.data_parallel(form, 0.0)) for form in floats),
        *(row(DILOCO, form, form, workload.diloco(form)) for form in every),
        *(row(STREAMING, form, form, workload.streaming(form)) for form in every),
        *(row(DECOUPLED, up, down, workload.decoupled(up, down)) for up, down in pairs),
    ]


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A bandwidth the paper or its authors state, beside this model's."""

    what: str
    published_gbit: float
    computed_gbit: float
    parameters: str
    """With which the computed figure comes out, beside ``PUBLISHED_WORKLOAD``."""

    @property
    def difference(self) -> float:
        """Computed over published, less 1."""
        return self.computed_gbit / self.published_gbit - 1


PUBLISHED_WORKLOAD = Workload(params=5e9)
"""The paper does not say for which model, H, format and utilisation its figures hold. This is one set that comes near;
others do too, so nearness confirms the order of magnitude and no single parameter."""


def published() -> list[Published]:
    """198 to 0.84 Gbit/s between 8 data centres and 104 to 1.7 Gbit/s at 1 s a step, and what this model gives."""
    gradients = PUBLISHED_WORKLOAD.data_parallel(Codec.BFLOAT16)
    bfloat16 = PUBLISHED_WORKLOAD.decoupled(Codec.BFLOAT16, Codec.BFLOAT16)
    int4 = PUBLISHED_WORKLOAD.decoupled(Codec.INT4, Codec.INT4)
    figures = (
        ("data-parallel, 8 data centres", 198.0, gradients, 0.95, "bfloat16 gradients"),
        ("Decoupled DiLoCo, 8 data centres", 0.84, int4, 0.95, "int4 both ways"),
        ("data-parallel, 1 s a step", 104.0, gradients, 0.5, "bfloat16 gradients"),
        ("Decoupled DiLoCo, 1 s a step", 1.7, bfloat16, 0.5, "bfloat16 both ways"),
    )
    return [
        Published(
            what=what,
            published_gbit=gbit,
            computed_gbit=exchange.needed_gbit(share),
            parameters=f"{form}, {100 * share:.0f} % utilisation",
        )
        for what, gbit, exchange, share, form in figures
    ]
