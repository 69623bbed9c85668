"""Laws of the traffic model: utilisation and bandwidth needed are inverse functions, a faster link never hurts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.formats import Codec
from unlockstep.sim import bandwidth
from unlockstep.sim.bandwidth import FORMATS, Exchange, Workload

workloads = st.builds(
    Workload,
    params=st.floats(1e6, 1e12),
    step_s=st.floats(0.01, 100),
    learners=st.integers(2, 64),
    interval_steps=st.integers(1, 500),
    fragments=st.integers(1, 500),
    overlap_steps=st.integers(1, 8),
)
forms = st.sampled_from(FORMATS)


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    """Any method, in any format."""
    load, form = draw(workloads), draw(forms)
    methods = (
        load.data_parallel(form),
        load.data_parallel(form, hidden_share=0.0),
        load.diloco(form),
        load.streaming(form),
        load.decoupled(form, Codec.BFLOAT16),
    )
    return draw(st.sampled_from(methods))


@given(exchange=exchanges(), share=st.floats(0.01, 0.999))
def test_the_bandwidth_needed_gives_that_utilisation(exchange: Exchange, share: float) -> None:
    gbit = exchange.needed_gbit(share)
    assert exchange.utilisation(gbit) == pytest.approx(share, rel=1e-6)


@given(exchange=exchanges(), gbit=st.floats(1e-3, 1e4), factor=st.floats(1, 10))
def test_a_faster_link_never_makes_chips_wait_longer(exchange: Exchange, gbit: float, factor: float) -> None:
    assert 0 < exchange.utilisation(gbit) <= exchange.utilisation(gbit * factor) <= 1


@given(load=workloads, form=forms)
def test_the_peak_is_never_below_the_mean(load: Workload, form: Codec) -> None:
    exchange = load.decoupled(form, form)
    assert exchange.peak_gbit >= exchange.mean_up_gbit * (1 - 1e-12)


@given(load=workloads, link=st.floats(0.01, 1000))
def test_the_syncer_carries_every_learners_traffic(load: Workload, link: float) -> None:
    for row in bandwidth.compare(load, link):
        if row.method == bandwidth.DECOUPLED:
            assert row.syncer_mean_in == load.learners * row.mean_up
            assert row.syncer_mean_out == load.learners * row.mean_down
        else:
            assert row.syncer_mean_in is row.syncer_mean_out is row.syncer_peak is None
