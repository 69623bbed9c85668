"""Runs of the whole ring under virtual time, small enough to be told in a line: settings, speeds, and what goes wrong.

Decides defaults: four fragments of four elements, a round every step, steps of 100 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from unlockstep import config as run_config
from unlockstep.checkers import check
from unlockstep.core.adoption import Adoption
from unlockstep.core.events import Event, StepReported
from unlockstep.core.formats import Codec
from unlockstep.core.merge import MergeRule
from unlockstep.core.messages import EndRun
from unlockstep.learners.toy import ToyBackend
from unlockstep.sim.network import Costs
from unlockstep.sim.world import World

MS = 1_000_000
STEP_NS = 100 * MS
SECOND_NS = 1000 * MS

Kind = TypeVar("Kind")


def settings(
    *,
    steps: int = 0,
    adoption: Adoption = Adoption.OVERWRITE,
    alpha: float = 0.5,
    merge: MergeRule = MergeRule.RADIAL_DIRECTIONAL,
    outer_rate: float = 0.7,
    momentum: float = 0.0,
    upload: Codec = Codec.FLOAT32,
    **protocol: Any,
) -> run_config.RunConfig:
    """P = H = 4, tau = 2, K = 1, unless told otherwise; without ``steps`` the run goes on until it is told to end."""
    shape = {"fragments": 4, "interval_steps": 4, "lease_s": 2.0}
    shape["overlap_steps"] = min(2, protocol.get("interval_steps", 4))
    return run_config.RunConfig(
        run=run_config.RunSection(steps=steps or 10**6),
        inner=run_config.InnerSection(schedule="constant"),
        outer=run_config.OuterSection(
            optimizer="nesterov" if momentum else "sgd", learning_rate=outer_rate, momentum=momentum, merge=merge
        ),
        adoption=run_config.AdoptionSection(mode=adoption, blend_alpha=alpha),
        codec=run_config.CodecSection(upload=upload, download=Codec.FLOAT32),
        protocol=msgspec.structs.replace(run_config.RunConfig().protocol, **{**shape, **protocol}),
    )


def toy(config: run_config.RunConfig, seed: int = 0, noise: float = 0.1, tokens_per_step: int = 10) -> ToyBackend:
    """A model of four elements per fragment."""
    sizes = [4] * config.protocol.fragments
    return ToyBackend(seed=seed, sizes=sizes, noise=noise, tokens_per_step=tokens_per_step)


def ring_of(config: run_config.RunConfig, step_ns: dict[str, int], costs: Costs | None = None) -> World:
    """All of these learners start at once."""
    ring = World(config, costs)
    for seed, (name, duration_ns) in enumerate(step_ns.items()):
        ring.join(name, toy(config, seed), duration_ns)
    return ring


def of(kind: type[Kind], events: Sequence[Event]) -> list[Kind]:
    """Events of one kind, oldest first."""
    return [event for event in events if isinstance(event, kind)]


def end(ring: World, transfer_ns: int | None = None) -> None:
    """End the run in order, and check all that must hold of it.

    Args:
        transfer_ns: how long a message, a body or a commit may have been on its way; None: nothing was in the way.
    """
    if not ring.ended:
        longest_ns = max((event.step_ns for event in of(StepReported, ring.events)), default=0)
        ring.tell(EndRun("enough"))
        ring.run(ring.clock.now_ns() + 2 * ring.config.protocol.lease_ns + 3 * longest_ns + SECOND_NS)
    assert ring.ended, "the run does not end"
    if transfer_ns is None:
        costs = ring._costs
        transfer_ns = max(costs.message_ns, costs.body_ns, costs.commit_ns) + 2 * costs.save_ns
    found = check(ring.events, ring.config.protocol, transfer_ns=transfer_ns)
    assert found == [], found
    if ring.core.notices:
        assert ring.storehouse.held_count == 0
        for fragment in range(ring.config.protocol.fragments):
            assert np.isfinite(ring.global_values(fragment)).all()
