"""unlockstep: train one model on many independent groups of machines that never wait for each other.

Decides what ``import unlockstep`` offers. Each name is loaded when it is first used, so that a machine without torch
can import the package, and does so at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unlockstep.config import RunConfig
    from unlockstep.core.errors import ConfigError, UnlockstepError, UsageError
    from unlockstep.integrations.torch_loop import Learner, LearnerFailed

__version__ = "0.1.0"

__all__ = ["ConfigError", "Learner", "LearnerFailed", "RunConfig", "UnlockstepError", "UsageError"]

_HOMES = {
    "ConfigError": "unlockstep.core.errors",
    "Learner": "unlockstep.integrations.torch_loop",
    "LearnerFailed": "unlockstep.integrations.torch_loop",
    "RunConfig": "unlockstep.config",
    "UnlockstepError": "unlockstep.core.errors",
    "UsageError": "unlockstep.core.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unlockstep' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
