"""From settings to durations and to the tape of a run that was given none."""

from __future__ import annotations

import math
import statistics

import msgspec
import pytest

from unlockstep import tape as tapes
from unlockstep.config import InnerSection, LocalSection, RunConfig, RunSection, VirtualSection
from unlockstep.sim.network import Costs
from unlockstep.virtual.ring import costs, own_tape, step_time

SECOND_NS = 1_000_000_000


def test_without_jitter_every_step_takes_the_same() -> None:
    steps = step_time(VirtualSection(step_s=0.1), 2.5, "anybody")
    assert {steps(step) for step in range(10)} == {SECOND_NS // 4}


def test_no_step_takes_no_time() -> None:
    instant = VirtualSection(step_s=1e-12)
    assert step_time(instant, 1.0, "0")(0) == 1
    assert step_time(msgspec.structs.replace(instant, jitter=1.0), 1.0, "0")(0) >= 1


@pytest.mark.parametrize("jitter", [0.02, 0.1, 0.5])
def test_jitter_leaves_the_mean_and_is_the_relative_deviation(jitter: float) -> None:
    """Logarithms are normal: mean -sigma^2/2 and deviation sigma, sigma^2 = log(1 + jitter^2), each within five times
    the deviation that a sample of this size has."""
    count, slowdown = 20_000, 3.0
    virtual = VirtualSection(step_s=0.1, jitter=jitter)
    steps = step_time(virtual, slowdown, "seed")
    ratios = [steps(step) / (0.1 * slowdown * SECOND_NS) for step in range(count)]
    sigma = math.sqrt(math.log1p(jitter**2))
    logarithms = [math.log(ratio) for ratio in ratios]
    assert statistics.mean(logarithms) == pytest.approx(-(sigma**2) / 2, abs=5 * sigma / math.sqrt(count))
    assert statistics.stdev(logarithms) == pytest.approx(sigma, abs=5 * sigma / math.sqrt(2 * count))
    assert statistics.mean(ratios) == pytest.approx(1, abs=5 * jitter / math.sqrt(count))


def test_the_same_process_is_as_quick_again_and_another_is_not() -> None:
    virtual = VirtualSection(jitter=0.1)

    def drawn(seed: str) -> list[int]:
        steps = step_time(virtual, 1.0, seed)
        return [steps(step) for step in range(20)]

    assert drawn("0/steps/a/1") == drawn("0/steps/a/1")
    assert len({tuple(drawn(f"0/steps/{name}")) for name in ("a/1", "a/2", "b/1")}) == 3


def test_every_cost_is_its_setting_in_nanoseconds() -> None:
    virtual = VirtualSection(message_s=0.001, body_s=0.25, commit_s=3.0, save_s=1e-9, start_s=9.5)
    expected = Costs(
        message_ns=1_000_000,
        body_ns=SECOND_NS // 4,
        commit_ns=3 * SECOND_NS,
        save_ns=1,
        start_ns=19 * SECOND_NS // 2,
    )
    assert costs(virtual) == expected


def own(learners: int, steps: int, **local: float) -> tapes.Tape:
    config = RunConfig(
        run=RunSection(steps=steps, tokens=1000),
        inner=InnerSection(schedule="constant"),
        local=msgspec.structs.replace(LocalSection(learners=learners), **local),
        virtual=VirtualSection(step_s=0.5),
    )
    return own_tape(config)


def test_the_drill_kills_the_last_learner_at_its_share_of_the_steps() -> None:
    tape = own(3, 100, kill_share=0.25, kill_down_s=2.0)
    killed_ns = 12 * SECOND_NS + SECOND_NS // 2  # a quarter of 100 steps of 0.5 s
    assert tape.learners == ("learner-0", "learner-1", "learner-2")
    assert tape.actions == (
        tapes.Kill(at_ns=killed_ns, target="learner-2"),
        tapes.Restart(at_ns=killed_ns + 2 * SECOND_NS, target="learner-2"),
    )


@pytest.mark.parametrize(("learners", "steps", "share"), [(3, 100, 0.0), (3, 0, 0.5), (1, 100, 0.5)])
def test_nobody_is_killed_without_a_share_an_end_or_anybody_left(learners: int, steps: int, share: float) -> None:
    tape = own(learners, steps, kill_share=share)
    assert (tape.name, tape.actions, len(tape.learners)) == ("calm", (), learners)
