"""The models a run can train, by name, configuration file or import path, and how they are scored and saved.

Importing this package imports neither torch nor transformers: the process that builds a model pays for them.
"""

from unlockstep.models.factory import build_model, causal_loss, check_can_save, positions_max, save_model
from unlockstep.models.presets import PRESETS

__all__ = ["PRESETS", "build_model", "causal_loss", "check_can_save", "positions_max", "save_model"]
