"""What a run asks of a link, and whether it has it."""

from __future__ import annotations

import msgspec
import pytest

from support.live_run import small_config
from support.statuses import learner_status, status
from unlockstep.config import CodecSection
from unlockstep.core.formats import Codec
from unlockstep.core.options import ProtocolOptions
from unlockstep.net.doctor import run_needs
from unlockstep.net.doctor.diagnosis import Finding
from unlockstep.net.doctor.run_needs import Need

CONFIG = small_config(
    protocol=ProtocolOptions(fragments=2, interval_steps=10, overlap_steps=4),
    codec=CodecSection(upload=Codec.BFLOAT16, download=Codec.FLOAT32),
)
NEED = Need(4_000_000, 3_000_000, Codec.BFLOAT16, Codec.FLOAT32, 10, 2, 4, 0.5)
"""8 MB up and 16 MB down in 5 s; the largest fragment 6 MB up and 12 MB down; a round each 2.5 s."""


def said(found: Finding) -> str:
    return f"{found.state.value}: {found.finding} -> {found.fix}"


def test_what_a_run_needs_follows_from_its_settings() -> None:
    assert run_needs.need(CONFIG, [3_000_000, 1_000_000], 0.5) == NEED
    assert NEED.share(Codec.FLOAT32, 4e6) == 0.8
    assert NEED.share(Codec.INT8, 4e6) == pytest.approx(0.8 * 8.25 / 32)


def test_of_the_formats_a_learner_may_be_asked_for_the_link_must_carry_the_coarsest() -> None:
    codec = CodecSection(upload=Codec.BFLOAT16, upload_fallbacks=(Codec.INT8, Codec.INT4), download=Codec.FLOAT32)
    need = run_needs.need(msgspec.structs.replace(CONFIG, codec=codec), [3_000_000, 1_000_000], 0.5)
    assert need == msgspec.structs.replace(NEED, upload=Codec.INT4, has_fallbacks=True)
    assert (
        "bfloat16, int8 or int4 up, float32 down"
        in run_needs.settings(msgspec.structs.replace(CONFIG, codec=codec), status(fragment_sizes=(1,))).finding
    )
    assert said(run_needs.suffices(need, 1e8, 1e8)).startswith(
        "ok: a fragment takes 15.9 ms up, in int4, and 120 ms down, of 2.5 s"
    )
    found = run_needs.suffices(msgspec.structs.replace(need, upload=Codec.INT8), 1e6, 1e8)
    assert found.fix == ('in the next run choose codec.upload_fallbacks = ["int4"], or protocol.interval_steps = 12')


def test_that_the_run_took_its_part_of_the_link_meanwhile_is_said() -> None:
    found = run_needs.suffices(NEED, 1e8, 1e8, is_beside_run=True)
    assert found.finding.endswith("the run needs 3% of what this link had left beside its traffic")
    found = run_needs.suffices(NEED, 1e6, 2e6, is_beside_run=True)
    assert "the run needs 1.6 times what this link carries beside its traffic, and" in found.finding
    assert found.fix.endswith("; if learners here take part already, look at their participation in status first")


@pytest.mark.parametrize(
    ("up", "down", "expected"),
    [
        (
            1e8,
            1e8,
            "ok: a fragment takes 60 ms up and 120 ms down, of 2.5 s from one round to the next: the run needs 3% of "
            "this link -> ",
        ),
        (
            8e6,
            4e6,
            "warn: a fragment takes 750 ms up and 3.0 s down, of 2.5 s from one round to the next: the run needs 80% "
            'of this link -> in the next run choose codec.download = "bfloat16", or protocol.interval_steps = 12',
        ),
        (
            1e6,
            2e6,
            "fail: a fragment takes 6.0 s up and 6.0 s down, of 2.5 s from one round to the next: the run needs 1.6 "
            "times what this link carries, and this learner will miss rounds -> in the next run choose codec.upload = "
            '"int4" and codec.download = "int8", or protocol.interval_steps = 23',
        ),
        (
            1e5,
            1e8,
            "fail: a fragment takes 60.0 s up and 120 ms down, of 2.5 s from one round to the next: the run needs 16 "
            "times what this link carries, and this learner will miss rounds -> in the next run choose "
            "protocol.interval_steps = 229, or fewer with a coarser codec",
        ),
        (
            7e6,
            7e6,
            "warn: a fragment takes 857 ms up and 1.7 s down, of 2.5 s from one round to the next: the run needs 46% "
            "of this link; there and back takes longer than the 2.0 s that a round may overlap with steps -> in the "
            "next run raise protocol.overlap_steps to 6",
        ),
    ],
)
def test_a_link_is_held_against_what_the_run_needs(up: float, down: float, expected: str) -> None:
    assert said(run_needs.suffices(NEED, up, down)) == expected


def test_before_anybody_has_taken_a_step_it_is_said_which_are_slow_enough() -> None:
    found = run_needs.suffices(msgspec.structs.replace(NEED, step_s=None), 8e6, 4e6)
    assert said(found) == (
        "ok: a fragment takes 750 ms up and 3.0 s down; no learner has taken a step yet: those of 400 ms or more are "
        "slow enough -> "
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
