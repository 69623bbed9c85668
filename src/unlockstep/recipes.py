"""Named configurations to start from: a recipe is a function that returns a complete one.

Decides the values that belong together. Does not decide what each of them does (``config``), nor how they were found:
``docs/recipe.md`` has the measurements and says how to choose others.
"""

from __future__ import annotations

from collections.abc import Callable

from unlockstep.config import (
    AdoptionSection,
    InnerSection,
    ModelSection,
    OuterSection,
    RunConfig,
    RunSection,
)
from unlockstep.core.adoption import Adoption
from unlockstep.core.errors import ConfigError
from unlockstep.core.merge import MergeRule
from unlockstep.core.options import Anchor, Late, Participation, ProtocolOptions


def quick() -> RunConfig:
    """The defaults: a short run of a small model on a laptop, tuned for the loss after about a million tokens."""
    return RunConfig()


def paper() -> RunConfig:
    """The protocol as the paper has it, for long runs of models with many tensors: 24 fragments, every 24 steps, fresh
    learners only, late contributions dropped, commits that overwrite, Nesterov momentum 0.9 (the lineage's: the paper
    does not print it)."""
    return RunConfig(
        run=RunSection(steps=4000),
        model=ModelSection(spec="llama-20m"),
        inner=InnerSection(learning_rate=1e-3, beta2=0.95, warmup_steps=200, final_share=0.1, batch_size=8),
        outer=OuterSection(learning_rate=0.7, momentum=0.9, merge=MergeRule.RADIAL_DIRECTIONAL),
        adoption=AdoptionSection(mode=Adoption.OVERWRITE),
        protocol=ProtocolOptions(
            fragments=24,
            interval_steps=24,
            overlap_steps=2,
            quorum=1,
            participation=Participation.FRESH,
            late=Late.DROP,
            anchor=Anchor.SYNCER,
        ),
    )


RECIPES: dict[str, Callable[[], RunConfig]] = {"paper": paper, "quick": quick}


def recipe(name: str) -> RunConfig:
    """The recipe of this name. Raises ConfigError if there is none."""
    if name not in RECIPES:
        raise ConfigError(f"--recipe is {name!r}; choose one of {', '.join(sorted(RECIPES))}")
    return RECIPES[name]()
