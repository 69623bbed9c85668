"""A number with its noun or unit, as people say it. Decides nothing else: not what is counted, nor where it is said."""

from __future__ import annotations


def counted(count: float, noun: str, plural: str = "") -> str:
    """``1 commit``, ``1,024 commits``; with ``plural`` where an s does not make it: ``2 addresses``. Rounded to a whole
    number."""
    whole = round(count)
    return f"{whole:,} {noun if whole == 1 else plural or noun + 's'}"


def scaled(value: float, unit: str) -> str:
    """Three digits, and a prefix where it is needed: ``2.62 GB/s``, ``12.5 MB/s``, ``999 B``. At least 0."""
    prefixes = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    factor, prefix = next(((f, p) for f, p in prefixes if value >= 0.9995 * f), (1.0, ""))
    return f"{value / factor:.3g} {prefix}{unit}"
