"""unlockstep: train one model on many independent groups of machines that never wait for each other."""

from __future__ import annotations

__version__ = "0.1.0"
