"""The parts of the torch loop that need no syncer."""

from __future__ import annotations

import os
import socket

import pytest

from unlockstep.core.ids import is_learner_name
from unlockstep.integrations.torch_loop import default_name


@pytest.mark.parametrize("host", ["site-a", "gpu 7.example.org", "_._", "", "ä", "h" * 300])
def test_the_default_name_is_a_learners_name_whatever_the_host_is_called(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    name = default_name()
    assert is_learner_name(name) and name.endswith(f"-{os.getpid()}")
