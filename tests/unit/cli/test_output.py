"""What the commands of one process print."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from support.statuses import learner_status, status
from unlockstep.cli import app
from unlockstep.cli.output import Every, log_to_stderr, print_json
from unlockstep.net.clients import observer as observer_client


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    yield
    root.handlers[:] = handlers


def test_a_record_is_one_line_of_json_without_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"loss": float("nan"), "name": "a\nb"})
    assert capsys.readouterr().out == '{"loss":null,"name":"a\\nb"}\n'


def test_a_log_line_has_time_and_name_and_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("learner-0").info("joined")
    written = capsys.readouterr()
    assert written.out == "" and re.fullmatch(r"\d\d:\d\d:\d\d learner-0: joined\n", written.err)


def test_a_line_is_due_once_per_interval() -> None:
    assert not Every(interval_s=1000).due()
    always = Every(interval_s=0)
    assert always.due() and always.due()


def test_status_is_shown_as_a_picture_or_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = status(learners=(learner_status("site-a"),))
    monkeypatch.setattr(observer_client, "read_status", lambda url, run, security: state)
    assert app.run(["status", "http://there:7077"]) == 0
    shown = capsys.readouterr().out
    assert "run night" in shown and "site-a" in shown and "waits for" not in shown
    assert app.run(["status", "http://there:7077", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["learners"][0]["learner"] == "site-a"
