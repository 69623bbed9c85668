"""Commands that train, on a machine that can only be a syncer: a sentence before anything is started or written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.commands import COMMAND_S_MAX, processes
from unlockstep.cli import exits

WITHOUT = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
from unlockstep.cli import app
raise SystemExit(app.run(sys.argv[1:]))
"""
"""``unlockstep`` where there is no torch."""


@pytest.mark.parametrize("command", ["learner", "evaluator", "train"])
def test_a_command_that_needs_torch_says_so_before_it_does_anything(command: str, tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:9"
    arguments = ["--out", str(tmp_path / "run")] if command == "train" else ["--syncer", nobody]
    with processes() as launch:
        process = launch(sys.executable, "-c", WITHOUT, command, *arguments)
        out, err = process.communicate(timeout=COMMAND_S_MAX)
    assert (process.returncode, out) == (exits.USAGE, "")
    sentence = f"unlockstep {command} needs torch, which is not installed here: pip install 'unlockstep[torch]'"
    assert err == f"error: {sentence}\n"
    assert not list(tmp_path.iterdir())
