"""What is derived from the defaults, and from the settings of a run."""

from __future__ import annotations

import math
from dataclasses import asdict

from unlockstep.config import DurabilitySection, RunConfig
from unlockstep.core.options import ProtocolOptions
from unlockstep.net.wire.link_meter import LinkMeter
from unlockstep.net.wire.timeouts import Leases, Measured, derive, leases_of


def test_with_nothing_set_and_nothing_measured_the_deadlines_are_these() -> None:
    assert asdict(derive()) == {
        "connect_s": 2.0,
        "connect_s_max": 5.0,
        "reply_s": 10.0,
        "silence_s": 6.0,
        "gone_s": 10.0,
        "verdict_s": 60.0,
        "stall_s": 10.0,
        "stall_bytes": 10_240,
        "backoff_s_min": 0.05,
        "backoff_s_max": 1.0,
        "close_s": 1.5,
        "heartbeat_s": 10 / 3,
        "return_s": 10.0,
        "goodbye_s": 70.0,
        "away_s": 3600.0,
    }


def test_the_settings_of_a_run_are_three() -> None:
    config = RunConfig(protocol=ProtocolOptions(lease_s=20, away_s_max=0), durability=DurabilitySection(lease_s=2))
    assert leases_of(config, has_standby=True) == Leases(20, 2, 0, True)
    assert derive(leases_of(config)).away_s == math.inf


def test_a_frozen_leader_is_left_after_three_of_its_leases_if_there_is_a_standby() -> None:
    assert derive(Leases(lease_s=10, leader_lease_s=0.5, has_standby=True)).gone_s == 2.0  # 8 round trips of 0.25 s
    near = Measured(round_trip_s=0.001)
    assert derive(Leases(lease_s=10, leader_lease_s=0.5, has_standby=True), near).gone_s == 1.5
    assert derive(Leases(lease_s=10, leader_lease_s=0.5), near).gone_s == 10.0


def test_a_link_by_satellite_is_given_more_time() -> None:
    timeouts = derive(measured=Measured(round_trip_s=1.5))
    assert (timeouts.connect_s, timeouts.gone_s, timeouts.reply_s) == (7.0, 12.0, 17.0)
    assert timeouts.connect_s_after(9) == 7.0


def test_a_round_trip_that_grows_counts_at_once_and_one_that_falls_by_and_by() -> None:
    meter = LinkMeter()
    meter.answered(None)
    assert meter.measured.round_trip_s is None
    for sample_s, known_s in ((0.2, 0.2), (1.0, 1.0), (0.2, 0.9), (-1.0, 0.9)):
        meter.answered(sample_s)
        assert meter.measured.round_trip_s == known_s
    assert meter.timeouts.connect_s == 1 + 4 * 0.9


def test_only_a_transfer_of_some_size_tells_the_rate() -> None:
    meter = LinkMeter(model_bytes=1_000_000)
    meter.moved("up", 1000, 1.0)
    meter.moved("up", 1_000_000, 0.0)
    assert meter.measured == Measured()
    meter.moved("up", 1_000_000, 1.0)
    meter.moved("up", 3_000_000, 1.0)
    meter.moved("down", 500_000, 1.0)
    assert meter.measured == Measured(None, 2_000_000.0, 500_000.0)
    assert meter.timeouts.goodbye_s == 60 + 10 + 2 * (0.5 + 2.0)
