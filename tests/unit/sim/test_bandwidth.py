"""The traffic formulas, each written out again, and where the published figures come out."""

from __future__ import annotations

import math
import re

import pytest

from unlockstep.core.errors import ConfigError
from unlockstep.core.formats import Codec
from unlockstep.sim import bandwidth
from unlockstep.sim.bandwidth import FORMATS, Workload

BF16, F32 = Codec.BFLOAT16, Codec.FLOAT32
FIVE_B = Workload(params=5e9)


# ------------------------------------------------------------------------------------------------------- closed forms


def test_bits_of_every_format_count_the_scales_of_its_blocks() -> None:
    assert [form.bits_per_element for form in FORMATS] == [32, 16, 8 + 16 / 64, 4 + 16 / 64]


def test_data_parallel_sends_and_receives_a_ring_of_all_gradients_every_step() -> None:
    exchange = FIVE_B.data_parallel(BF16)
    assert exchange.mean_up_gbit == exchange.mean_down_gbit == 2 * 7 / 8 * 5 * 16
    assert exchange.peak_gbit == pytest.approx(2 * 7 / 8 * 5 * 16 / (2 / 3))


def test_blocking_data_parallel_needs_u_over_one_minus_u_of_its_mean() -> None:
    exchange = FIVE_B.data_parallel(BF16, hidden_share=0.0)
    for u in (0.5, 0.8, 0.99):
        assert exchange.needed_gbit(u) == pytest.approx(140 * u / (1 - u))
    assert exchange.peak_gbit == math.inf


def test_diloco_computes_h_steps_and_then_waits() -> None:
    """u = H t / (H t + bits / B)."""
    load = Workload(params=1e9, step_s=2.0, learners=2, interval_steps=100)
    bits, link = 1e9 * 16, 0.5
    assert load.diloco(BF16).utilisation(link) == pytest.approx(200 / (200 + bits / (link * 1e9)))


def test_streaming_diloco_peaks_at_the_mean_when_two_fragments_are_under_way() -> None:
    exchange = FIVE_B.streaming(BF16)
    assert exchange.in_flight == 2
    assert exchange.peak_gbit == pytest.approx(exchange.mean_up_gbit) == pytest.approx(2 * 7 / 8 * 5 * 16 / 24)


def test_this_system_sends_the_model_once_in_h_steps_each_way() -> None:
    exchange = FIVE_B.decoupled(BF16, F32)
    assert exchange.mean_up_gbit == pytest.approx(5 * 16 / 24)
    assert exchange.mean_down_gbit == pytest.approx(5 * 32 / 24)


@pytest.mark.parametrize(("form", "gbit"), [(BF16, 3.33), (Codec.INT8, 1.72), (Codec.INT4, 0.885)])
def test_five_billion_parameters_at_one_second_a_step(form: Codec, gbit: float) -> None:
    assert FIVE_B.decoupled(form, form).peak_gbit == pytest.approx(gbit, rel=0.002)


def test_few_large_fragments_have_a_high_peak_and_the_same_mean() -> None:
    """H = 24, tau = 2: up and down of a quarter of the model within two steps, every six steps."""
    exchange = Workload(params=5e9, fragments=4).decoupled(BF16, BF16)
    assert exchange.mean_up_gbit == pytest.approx(5 * 16 / 24)
    assert exchange.peak_gbit == pytest.approx(2 * 5 * 16 / 4 / 2)


def test_the_merge_takes_its_time_from_the_transfers() -> None:
    exchange = Workload(params=5e9, merge_s=0.5).decoupled(BF16, BF16)
    assert exchange.peak_gbit == pytest.approx(2 * 5 * 16 / 24 / (2 - 0.5))
    assert Workload(params=5e9, merge_s=2.0).decoupled(BF16, BF16).peak_gbit == math.inf


def test_one_site_exchanges_nothing_in_a_ring() -> None:
    exchange = Workload(params=5e9, learners=1).data_parallel(BF16)
    assert (exchange.mean_up_gbit, exchange.needed_gbit(0.99), exchange.peak_gbit) == (0, 0, 0)


# ------------------------------------------------------------------------------------------------------ published


def test_published_figures_come_out_near() -> None:
    """198 -> 0.84 and 104 -> 1.7 Gbit/s; the parameters are our guess."""
    differences = [row.difference for row in bandwidth.published()]
    assert differences == pytest.approx([-0.017, 0.001, -0.192, -0.020], abs=0.001)


def test_published_reduction_is_two_orders_of_magnitude() -> None:
    data_parallel, ours, *_ = bandwidth.published()
    assert data_parallel.computed_gbit / ours.computed_gbit == pytest.approx(198 / 0.84, rel=0.03)


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("params", 0),
        ("params", math.nan),
        ("step_s", -1.0),
        ("step_s", math.inf),
        ("learners", 0),
        ("interval_steps", 0),
        ("fragments", 0),
        ("overlap_steps", -1),
        ("merge_s", math.nan),
        ("params", 1e19),
        ("learners", 10**400),
        ("interval_steps", 10**400),
        ("fragments", 10**400),
        ("overlap_steps", 10**400),
    ],
)
def test_a_workload_that_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{field} is {re.escape(f'{value!r:.40}')}; it must be from "):
        Workload(**{"params": 5e9, field: value})


@pytest.mark.parametrize("link", [0.0, -1.0, math.nan, math.inf])
def test_a_link_that_cannot_be_is_refused(link: float) -> None:
    with pytest.raises(ConfigError, match=r"^link_gbit is .*; it must be from 1e-06 to 1e\+09"):
        bandwidth.compare(FIVE_B, link)
