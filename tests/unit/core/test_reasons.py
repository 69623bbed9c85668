"""Reasons are part of the product: each has a name that stays, and is shown somewhere in these tests."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

from unlockstep.core import reasons

TESTS = Path(__file__).parents[2]
ENUMS = [reasons.RefusalReason, reasons.JoinRefusal, reasons.DepartureReason, reasons.WindowReason]


@pytest.mark.parametrize("enum", ENUMS)
def test_a_reason_is_written_as_it_is_called(enum: type[Enum]) -> None:
    assert [reason.value for reason in enum] == [reason.name.lower() for reason in enum]


@pytest.mark.parametrize("enum", ENUMS)
def test_every_reason_is_given_in_some_test(enum: type[Enum]) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("test_*.py")))
    missing = [reason.name for reason in enum if f"{enum.__name__}.{reason.name}" not in text]
    assert not missing, f"no test shows why {missing} exist"
