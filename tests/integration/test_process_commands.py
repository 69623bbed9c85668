"""The commands as processes: a whole run through the command line, and how each process ends when it is told to."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from support.commands import COMMAND_S_MAX, Start, commands
from support.live_run import small_config
from support.syncer_thread import syncer_thread
from support.tiny_lm import tiny_lm
from unlockstep import config as run_config
from unlockstep import runlog
from unlockstep.cli import app, exits
from unlockstep.config import DataSection, EvaluationSection, InnerSection, ModelSection, RunConfig, RunSection
from unlockstep.core.events import EvaluationReported, Event, LearnerDeparted, RunFinished, StepReported
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import DepartureReason
from unlockstep.core.status import Status
from unlockstep.integrations.torch_loop import Learner
from unlockstep.learners import checkpoint

ENDS_S_MAX = 5.0
TRUST = ("--trust-syncer",)
"""The text is a file, and the model is code of the tests."""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ``unlockstep`` with the arguments given; whatever happens, none of these processes outlives the test."""
    with commands() as run:
        yield run


@pytest.fixture(autouse=True)
def untouched_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a command changes in its own process is undone where the command runs in this one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    root, command = logging.getLogger(), logging.getLogger("unlockstep.cli")
    handlers, level = root.handlers[:], command.level
    yield
    root.handlers[:] = handlers
    command.setLevel(level)


def finished(process: subprocess.Popen[str], timeout_s: float = COMMAND_S_MAX) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def ends_after(process: subprocess.Popen[str], number: int) -> tuple[int, str, str]:
    """The same, of a process that is sent a signal now; fails if it takes too long."""
    began_s = time.monotonic()
    process.send_signal(number)
    result = finished(process)
    assert time.monotonic() - began_s < ENDS_S_MAX
    return result


def config(folder: Path, **sections: Any) -> RunConfig:
    """A run of a moment, on text of its own."""
    text = folder / "text.txt"
    text.write_text("".join(f"{number} bottles of beer on the wall, " for number in range(200)))
    defaults = {
        "run": RunSection(name="small", steps=12),
        "model": ModelSection(spec="support.tiny_lm:tiny_lm"),
        "data": DataSection(source=str(text), sequence_length=16),
        "inner": InnerSection(batch_size=2, warmup_steps=2),
        "evaluation": EvaluationSection(interval_s=0.1, batches=2, batch_size=2),
    }
    return small_config(**defaults | sections)


def events(log: Path) -> list[Event]:
    return list(runlog.read(log)[1])


# ------------------------------------------------------------------------------------------------- a whole run


def test_a_run_through_the_command_line(start: Start, tmp_path: Path) -> None:
    """A syncer, two learners of different speed and an evaluator; the model at the end is one that others load."""
    settings = config(tmp_path, model=ModelSection(spec="llama-tiny"), protocol=ProtocolOptions(fragments=4, quorum=2))
    (tmp_path / "run.toml").write_text(run_config.dumps(settings))
    folder, model = tmp_path / "run", tmp_path / "model"
    syncer = start(
        "syncer", "--config", str(tmp_path / "run.toml"), "--listen", "127.0.0.1:0", "--run-dir", str(folder), "--json"
    )
    assert syncer.stdout is not None
    url = json.loads(syncer.stdout.readline())["url"]
    learners = [
        start(
            "learner",
            "--syncer",
            url,
            *TRUST,
            "--name",
            f"l{i}",
            "--shard",
            str(i),
            "--shards",
            "2",
            *extra,
            "--json",
        )
        for i, extra in enumerate([(), ("--slowdown", "1.5")])
    ]
    evaluator = start("evaluator", "--syncer", url, *TRUST, "--out", str(model), "--json")
    shown = start("status", url, "--json")
    assert msgspec.json.decode(finished(shown)[1], type=Status).run == "small"

    for process in learners:
        code, out, err = finished(process)
        assert code == exits.DONE, err
        assert json.loads(out)["ended"] == "the run has finished"
    code, out, err = finished(evaluator)
    assert code == exits.DONE, err
    losses = [json.loads(line)["loss"] for line in out.splitlines()]
    code, out, err = finished(syncer)
    assert code == exits.DONE, err
    assert json.loads(out)["state"] == "finished"
    assert err.count("has joined") == len(learners) and "the end is reached: " in err

    happened = events(folder / "run.jsonl")
    assert isinstance(happened[-1], EvaluationReported | RunFinished)
    assert [event.loss for event in happened if isinstance(event, EvaluationReported)] == losses
    assert run_config.load(folder / "config.toml") == settings
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model)
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight


# ------------------------------------------------------------------------------------------------- being told to end


def test_a_learner_leaves_in_order_when_told_to(start: Start, tmp_path: Path) -> None:
    """C23: SIGTERM to one of two learners, then Ctrl-C to the other; each says goodbye and is gone."""
    settings = config(tmp_path, run=RunSection(name="small", steps=1_000_000))
    with syncer_thread(settings, tmp_path) as syncer:
        slowly = ("--slowdown", "100")  # A step takes microseconds: the run log would fill faster than it is read.
        learners = {
            name: start(
                "learner",
                "--syncer",
                syncer.url,
                *TRUST,
                "--name",
                name,
                "--checkpoint",
                str(tmp_path / name),
                *slowly,
            )
            for name in ("a", "b")
        }
        for name in learners:
            syncer.live.log.wait(StepReported, learner=name)
        for (name, process), number in zip(learners.items(), (signal.SIGTERM, signal.SIGINT), strict=True):
            code, _, err = ends_after(process, number)
            assert code == exits.SIGNALLED + number and "Traceback" not in err, err
            syncer.live.log.wait(LearnerDeparted, learner=name, reason=DepartureReason.LEFT)
            facts = checkpoint.load(tmp_path / name).state.facts
            steps = facts["learner"]["steps"]
            assert facts["stateful"] == {"recipe": {"dict": [["steps", steps]]}}
            syncer.live.log.wait(StepReported, learner=name, steps=steps)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_syncer_ends_the_run_in_order_when_told_to(number: int, start: Start, tmp_path: Path) -> None:
    """C23, C29: before the first learner has come."""
    folder = tmp_path / "run"
    syncer = start("syncer", "--listen", "127.0.0.1:0", "--run-dir", str(folder))
    assert syncer.stdout is not None
    assert "listens on http://127.0.0.1:" in syncer.stdout.readline()
    code, out, err = ends_after(syncer, number)
    assert code == exits.SIGNALLED + number and "Traceback" not in err, err
    assert "run 'run' was stopped at clock 0" in out
    assert isinstance(events(folder / "run.jsonl")[-1], RunFinished)


def test_a_process_ends_when_its_parent_is_gone(start: Start, tmp_path: Path) -> None:
    """Whoever starts processes may be killed without a word: they do not stay behind. This one never was its child."""
    syncer = start(
        "syncer", "--listen", "127.0.0.1:0", "--run-dir", str(tmp_path / "run"), "--parent-pid", str(os.getppid())
    )
    assert finished(syncer, ENDS_S_MAX)[0] == exits.SIGNALLED + signal.SIGTERM


def test_an_evaluator_stops_while_it_waits_for_parameters(start: Start, tmp_path: Path) -> None:
    """C29: there is nothing to evaluate yet, and nothing is saved."""
    with syncer_thread(config(tmp_path), tmp_path) as syncer:
        evaluator = start("evaluator", "--syncer", syncer.url, *TRUST, "--out", str(tmp_path / "model"))
        assert evaluator.stderr is not None and "waits for the first parameters" in evaluator.stderr.readline()
        code, _, err = ends_after(evaluator, signal.SIGTERM)
    assert code == exits.SIGNALLED + signal.SIGTERM and "Traceback" not in err, err
    assert not (tmp_path / "model").exists()


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.fixture
def refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a learner says that cannot take part in a run with these settings: one line."""

    def refused(code: int = exits.USAGE, **sections: Any) -> str:
        with syncer_thread(config(tmp_path, **sections), tmp_path) as syncer:
            assert app.run(["learner", "--syncer", syncer.url, *TRUST, "--name", "a"]) == code
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1
        return lines[0]

    return refused


def test_a_corpus_shorter_than_a_sequence_is_refused(refusal: Callable[..., str], tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("short")
    said = refusal(data=DataSection(source=str(short), sequence_length=16))
    assert "data.source holds 6 tokens" in said and "data.sequence_length = 16" in said


def test_an_empty_corpus_is_refused(refusal: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = refusal(data=DataSection(source=str(tmp_path / "empty")))
    assert f"data.source = '{tmp_path / 'empty'}' holds no text: give a source with UTF-8 text in it" in said


def test_a_model_with_nothing_to_train_is_refused(refusal: Callable[..., str]) -> None:
    assert "model has no trainable parameter" in refusal(model=ModelSection(spec="support.tiny_lm:frozen_lm"))


def test_more_fragments_than_tensors_are_refused(refusal: Callable[..., str]) -> None:
    said = refusal(protocol=ProtocolOptions(fragments=9, interval_steps=9))
    assert "protocol.fragments is 9, but this model has 4 trainable tensors: choose a value from 1 to 4" in said


def test_another_model_than_the_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = config(tmp_path, model=ModelSection(spec="support.tiny_lm:wide_lm"))
    with syncer_thread(config(tmp_path), tmp_path) as syncer:
        model = tiny_lm(256)
        with Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), syncer=syncer.url, name="a"):
            syncer.live.service.config = settings  # Learners read one thing, the run has begun with another.
            assert app.run(["learner", "--syncer", syncer.url, *TRUST, "--name", "b"]) == exits.FAILED
    assert "error: learner b cannot take part: " in capsys.readouterr().err
