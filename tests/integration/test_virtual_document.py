"""The commands of docs/virtual.md, one after the other as they stand there, on a small model and text."""

from __future__ import annotations

import json
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
        folder = words[words.index("--out") + 1] if "--out" in words and is_training else f"run-{number}"
        small = (*TINY, *SMALL, "--data", "corpus.txt", "--out", folder, "--plain") if is_training else ()
        words = ["25000" if word == "200000" else word for word in words]  # About as many steps of a smaller batch.
        assert run([*words, *small]) == 0, (words, capsys.readouterr().err)
        said = capsys.readouterr().out
        assert "not played" not in said and "did not return" not in said, words
        if is_training:
            played.append(json.loads((Path(folder) / "tape.jsonl").read_text().splitlines()[0])["name"])
    assert played == ["drill", "one_crash", "calm", "fleet-1200000-8-0", "calm", "seed-1"]
