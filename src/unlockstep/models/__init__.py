"""The models a run can train, by name, configuration file or import path, and how they are scored and saved.

Importing this package imports neither torch nor transformers: the process that builds a model pays for them.
"""

from unlockstep.models.factory import (
    TEXT,
    build_model,
    causal_loss,
    causal_scores,
    check_can_save,
    positions_max,
    save_model,
)
from unlockstep.models.presets import PRESETS

__all__ = [
    "PRESETS",
    "TEXT",
    "build_model",
    "causal_loss",
    "causal_scores",
    "check_can_save",
    "positions_max",
    "save_model",
]
