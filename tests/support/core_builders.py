"""Small inputs for the control plane: a model of one element per fragment, options, and times in round numbers.

Decides defaults that keep a story short: two fragments, a round every two steps, steps of 100 ms.
"""

from __future__ import annotations

import functools
from typing import Any

from unlockstep.core.adoption import Adoption, kept
from unlockstep.core.ids import PROTOCOL_VERSION
from unlockstep.core.layout import Layout, LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.core.learner import LearnerCore
from unlockstep.core.messages import Join
from unlockstep.core.options import Participation, ProtocolOptions

MS = 1_000_000
STEP_NS = 100 * MS
LEASE_NS = 10_000 * MS


def options(**changes: Any) -> ProtocolOptions:
    """P = 2, H = 4 (a round every two steps), tau = 2 (one round in flight), K = 1, unless told otherwise."""
    return ProtocolOptions(**{"fragments": 2, "interval_steps": 4, "overlap_steps": 2, **changes})


@functools.cache
def layout(fragment_count: int = 2, dtype: str = "float32") -> Layout:
    """One tensor of one element per fragment."""
    return build_layout(tensors(fragment_count, dtype), fragment_count, LayoutMethod.BALANCED)


def tensors(count: int, dtype: str = "float32") -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"layers.{number}.weight", (1,), dtype, Role.PARAMETER) for number in range(count))


def join(learner: str, incarnation: int = 0, fragment_count: int = 2, **changes: Any) -> Join:
    """What a process of ``learner`` says first."""
    of = layout(fragment_count)
    settings: dict[str, Any] = {
        "learner": learner,
        "incarnation": incarnation,
        "protocol_version": PROTOCOL_VERSION,
        "layout_digest": of.digest,
        "tensors": of.specs(),
        "run_id": "id" if incarnation else "",
    }
    return Join(**{**settings, **changes})


def learner_core(
    learner: str,
    protocol: ProtocolOptions,
    adoption: Adoption = Adoption.OVERWRITE,
    alpha: float = 0.5,
    dtype: str = "float32",
    has_state: bool = False,
) -> LearnerCore:
    """A learner's core as a run with these settings would make it."""
    return LearnerCore(
        learner,
        layout(protocol.fragments, dtype),
        waits_for_pull=protocol.participation is Participation.LATEST and adoption is not Adoption.CARRY,
        kept=functools.partial(kept, adoption, alpha=alpha),
        staleness_max=protocol.staleness_max,
        has_state=has_state,
        away_ns_max=protocol.away_ns_max,
    )
