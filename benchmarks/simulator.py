"""How fast the simulators are: the fleet of the paper's table, the same fleet through the full protocol, the swarm.

    python benchmarks/simulator.py --step-s 10 --hours 24 --histories 100

*fleet*: all 30 cells of the paper's table, vectorised; an event is a chip that fails. *protocol*: the tape of one fleet
(chips that fail, learners that stall and become narrow), played by the production cores of a syncer and its learners,
without arrays; an event is anything that happens to one of them. *swarm*: random fault histories with real arrays,
every one checked and every commit computed twice; an event is the same. One core; nothing is repeated.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from unlockstep.config import RunConfig, apply
from unlockstep.core.events import StepReported
from unlockstep.sim import paper_table
from unlockstep.sim.fleet import Fleet
from unlockstep.sim.fleet_tape import fleet_tape
from unlockstep.sim.goodput import estimate
from unlockstep.sim.network import SECOND_NS
from unlockstep.sim.story import draw
from unlockstep.sim.swarm import play
from unlockstep.sim.weightless import WeightlessBackend, WeightlessFreight
from unlockstep.sim.world import World

FAILURES = 7000
CHIPS, LEARNERS = 2_400_000, 16
SETTINGS = ("protocol.fragments=24", "protocol.interval_steps=24", "protocol.lease_s=60", f"run.steps={2**40}")
DRAIN_EVERY = 10_000
"""Happenings after which the run log so far is counted and forgotten."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    seconds: float
    events: int
    result: str


def fleet(failures: int) -> Row:
    """All cells of the table."""
    fleets = paper_table.fleets()
    started_s = time.perf_counter()
    estimates = estimate(fleets, failures=failures)
    seconds = time.perf_counter() - started_s
    return Row(f"fleet: {len(fleets)} cells", seconds, sum(e.failures for e in estimates), "see --table paper")


def protocol(hours: float, step_s: float) -> Row:
    """One fleet's tape, through the full cores."""
    tape = fleet_tape(Fleet(chips=CHIPS, learners=LEARNERS), duration_s=3600 * hours, seed=0)
    world = World(apply(RunConfig(), SETTINGS), freight=WeightlessFreight())
    step_ns = round(step_s * SECOND_NS)
    world.schedule(tape, lambda name: (WeightlessBackend(24), step_ns))
    happenings = steps = 0
    started_s = time.perf_counter()
    for _ in world.play(tape.end_ns):
        happenings += 1
        if happenings % DRAIN_EVERY == 0:
            steps += sum(isinstance(event, StepReported) for event in world.take_events())
    seconds = time.perf_counter() - started_s
    steps += sum(isinstance(event, StepReported) for event in world.events)
    share = steps * step_s / (LEARNERS * 3600 * hours)
    what = f"protocol: {LEARNERS} learners, {hours:g} h, {len(tape.actions)} actions"
    return Row(
        what,
        seconds,
        happenings,
        f"{steps} inner steps, {share:.1%} of the ideal; {world.core.notices[0].version} commits of fragment 0",
    )


def swarm(histories: int) -> Row:
    """Histories of the swarm."""
    started_s = time.perf_counter()
    outcomes = [play(draw(seed)) for seed in range(histories)]
    seconds = time.perf_counter() - started_s
    verdicts = sorted({outcome.verdict.value for outcome in outcomes})
    happenings = sum(outcome.happenings for outcome in outcomes)
    return Row(f"swarm: {histories} histories", seconds, happenings, ", ".join(verdicts))


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast the simulators are.")
    parser.add_argument("--failures", type=int, default=FAILURES, help="per cell of the table")
    parser.add_argument("--hours", type=float, default=24.0, help="of the protocol's run")
    parser.add_argument("--step-s", type=float, default=10.0, help="duration of an inner step")
    parser.add_argument("--histories", type=int, default=100, help="of the swarm")
    asked = parser.parse_args()
    print(f"{'what':<52} {'seconds':>8} {'events':>10} {'events/s':>10}  result")
    for row in (fleet(asked.failures), protocol(asked.hours, asked.step_s), swarm(asked.histories)):
        rate = row.events / row.seconds
        print(f"{row.what:<52} {row.seconds:>8.2f} {row.events:>10} {rate:>10.0f}  {row.result}", flush=True)


if __name__ == "__main__":
    main()
