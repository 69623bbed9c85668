"""Identities and units shared by the whole protocol: what a learner may be called, and what the integers mean.

Decides the spelling of a learner's name. Does not decide who is alive (``membership``) or what a name may do.
"""

from __future__ import annotations

import re

PROTOCOL_VERSION = 3

LEARNER_NAME_LENGTH_MAX = 64
_LEARNER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

NANOSECONDS_PER_SECOND = 1_000_000_000

NEVER_NS = 2**63 - 1
"""A deadline that does not come: larger than any ``now_ns``."""


def is_learner_name(name: str) -> bool:
    """Whether ``name`` can be part of a URL and of a file name as it stands: letters, digits, ``_`` and ``-``."""
    return len(name) <= LEARNER_NAME_LENGTH_MAX and _LEARNER_NAME.fullmatch(name) is not None


def seconds(ns: int) -> str:
    """A duration for people: ``1.25 s``. Inside the core time stays integer nanoseconds."""
    return f"{ns / NANOSECONDS_PER_SECOND:.3g} s"
