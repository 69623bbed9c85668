"""A number with its noun, as people say it. Decides nothing else: not what is counted, nor where it is said."""

from __future__ import annotations


def counted(count: float, noun: str, plural: str = "") -> str:
    """``1 commit``, ``1,024 commits``; with ``plural`` where an s does not make it: ``2 addresses``. Rounded to a whole
    number."""
    whole = round(count)
    return f"{whole:,} {noun if whole == 1 else plural or noun + 's'}"
