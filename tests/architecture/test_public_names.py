"""What ``import unlockstep`` promises is there, and costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import unlockstep


def test_every_public_name_can_be_had() -> None:
    assert unlockstep.__all__ == sorted(unlockstep._HOMES)
    for name in unlockstep.__all__:
        assert getattr(unlockstep, name).__module__ == unlockstep._HOMES[name]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'unlockstep' has no attribute 'gone'"):
        unlockstep.gone  # noqa: B018  the access is what is tested


def test_importing_the_package_loads_nothing_of_it() -> None:
    check = "import unlockstep, sys; print(*[name for name in sys.modules if name.startswith('unlockstep.')])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "\n"
