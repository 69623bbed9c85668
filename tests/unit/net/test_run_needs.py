"""What a run asks of a link, and whether it has it."""

from __future__ import annotations

import msgspec
import pytest

from support.live_run import small_config
from support.statuses import learner_status, status
from unlockstep.config import CodecSection
from unlockstep.core.formats import Codec
from unlockstep.core.options import ProtocolOptions
from unlockstep.net import run_needs
from unlockstep.net.diagnosis import Finding
from unlockstep.net.run_needs import Need


def said(found: Finding) -> str:
    return f"{found.state.value}: {found.finding} -> {found.fix}"


CONFIG = small_config(
    protocol=ProtocolOptions(fragments=2, interval_steps=10, overlap_steps=4),
    codec=CodecSection(upload=Codec.BFLOAT16, download=Codec.FLOAT32),
)


def test_what_a_run_needs_follows_from_its_settings() -> None:
    assert run_needs.need(CONFIG, [3_000_000, 1_000_000], 0.5) == Need(6e6, 12e6, 8e6, 16e6, 5.0, 2.5)
    assert run_needs.need(CONFIG, [3_000_000, 1_000_000], None) == Need(6e6, 12e6, 8e6, 16e6, None, None)


NEED = Need(6e6, 12e6, 8e6, 16e6, 5.0, 2.5)


@pytest.mark.parametrize(
    ("up", "down", "overlap_s", "expected"),
    [
        (
            1e8,
            1e8,
            2.0,
            "ok: a fragment takes 60 ms up and 120 ms down, of 2.5 s from one round to the next: the run ne",
        ),
        (
            8e6,
            4e6,
            9.0,
            "warn: a fragment takes 750 ms up and 3.0 s down, of 2.5 s from one round to the next: the run ",
        ),
        (
            8e6,
            2e6,
            9.0,
            "fail: a fragment takes 750 ms up and 6.0 s down, of 2.5 s from one round to the next: the run ",
        ),
        (
            1e7,
            1e7,
            1.0,
            "warn: a fragment takes 600 ms up and 1.2 s down, of 2.5 s from one round to the next: the run",
        ),
    ],
)
def test_a_link_is_held_against_what_the_run_needs(up: float, down: float, overlap_s: float, expected: str) -> None:
    assert said(run_needs.suffices(NEED, up, down, overlap_s)).startswith(expected)


def test_what_is_needed_of_a_link_is_a_share() -> None:
    assert "needs 80% of this link -> in the next run make protocol.interval_steps 1.1 times as long" in said(
        run_needs.suffices(NEED, 8e6, 4e6, 9.0)
    )
    assert "needs 1.6 times what this link carries, and this learner will miss rounds -> in the next run make" in said(
        run_needs.suffices(NEED, 8e6, 2e6, 9.0)
    )


def test_before_anybody_has_taken_a_step_nobody_knows_how_often() -> None:
    need = msgspec.structs.replace(NEED, interval_s=None, round_s=None)
    found = run_needs.suffices(need, 8e6, 4e6, None)
    assert said(found) == (
        "ok: a fragment takes 750 ms up and 3.0 s down; no learner has taken a step yet, so how often is not known: "
        "all in 4.0 s -> "
    )


def test_the_settings_that_matter_to_a_link_are_named() -> None:
    found = run_needs.settings(CONFIG, status(fragment_sizes=(3_000_000, 1_000_000)))
    assert "4,000,000 values in 2 fragments, each merged every 10 steps; bfloat16 up, float32 down" in found.finding
    assert "no parameters yet" in run_needs.settings(CONFIG, status()).finding


def test_the_step_time_is_that_of_the_middle_one_of_the_live_learners() -> None:
    assert run_needs.step_s(status(learners=())) is None
    times = {"a": ("live", 3), "b": ("live", 1), "c": ("live", 2), "d": ("away", 9), "e": ("live", 0)}
    learners = [
        msgspec.structs.replace(learner_status(), learner=name, state=state, step_ns=seconds * 10**9)
        for name, (state, seconds) in times.items()
    ]
    assert run_needs.step_s(status(learners=tuple(learners))) == 2.0
