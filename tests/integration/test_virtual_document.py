"""The commands of docs/virtual.md, one after the other as they stand there, on a small model and text."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from architecture.rules import ROOT
from support.train_process import SMALL, TINY
from unlockstep.cli.app import run

_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def lines() -> list[list[str]]:
    """The words of every command, without ``unlockstep``."""
    blocks = _BLOCK.findall((ROOT / "docs" / "virtual.md").read_text(encoding="utf-8"))
    commands = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    assert {words[0] for words in commands} == {"unlockstep"}
    return [words[1:] for words in commands]


def test_every_command_of_the_document_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("".join(f"{number} times {number} is {number * number}.\n" for number in range(2000)))
    played = []
    for number, words in enumerate(lines()):
        if words[:2] == ["train", "--resume"]:
            continue  # What has been interrupted: test_virtual_train
        is_training = words[0] == "train"
        small = (*TINY, *SMALL, "--data", "corpus.txt", "--out", f"run-{number}", "--plain") if is_training else ()
        assert run([*words, *small]) == 0, (words, capsys.readouterr().err)
        said = capsys.readouterr().out
        assert "not played" not in said and "did not return" not in said, words
        if is_training:
            played.append((Path(f"run-{number}") / "tape.jsonl").read_text().splitlines()[0])
    assert len(played) == 4
    assert [
        f'"{name}-' in header or f'"name":"{name}"' in header
        for name, header in zip(("drill", "one_crash", "drill", "fleet-1200000-8"), played, strict=True)
    ] == [True] * 4
