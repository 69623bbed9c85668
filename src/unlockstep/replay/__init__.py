"""Repeats a run from its run log: the log instead of a clock, the same arithmetic, the same bits (docs/replay.md)."""
