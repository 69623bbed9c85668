"""Runs of real processes that are killed, with real models, repeated from their logs: the same bits."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from support.chaos_run import Chaos, draw_kills
from support.train_process import TESTS, TINY, Train
from unlockstep.cli import app, exits
from unlockstep.config import (
    CheckpointSection,
    CodecSection,
    DataSection,
    Deal,
    EvaluationSection,
    InnerSection,
    LocalSection,
    ModelSection,
    RunConfig,
    RunSection,
)
from unlockstep.core.deeds import StateTaken
from unlockstep.core.events import Event, FragmentCommitted, LearnerDid, LearnerJoined, SyncerResumed
from unlockstep.core.formats import Codec, Rounding
from unlockstep.core.options import ProtocolOptions
from unlockstep.launch import local, restarts
from unlockstep.runlog import read

pytestmark = pytest.mark.chaos


@pytest.fixture(autouse=True)
def own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_run_whose_syncer_and_learner_were_killed_comes_out_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = ("--set", "local.slowdown=[20.0, 20.0]", "--set", "local.evaluator=false")
    with Train(tmp_path, *TINY, *slow, "--learners", "2", "--steps", "200", "--no-kill") as train:
        train.until("learner-0 trains", "learner-1 trains")
        os.kill(train.pids()["learner-1"], signal.SIGKILL)
        os.kill(train.pids()["syncer"], signal.SIGKILL)
        train.until("syncer is started again", "learner-1 is started again")
        assert train.end() == "" and train.process.returncode == 0
    happened = Counter(map(type, train.events()))
    assert happened[SyncerResumed] == 1 and happened[FragmentCommitted] > 10
    assert app.run(["replay", str(train.run)]) == exits.DONE, capsys.readouterr().err
    assert "identical: " in capsys.readouterr().out
    without_its_end(train.run, capsys)


def without_its_end(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second life's part of the log is lost: what is left agrees with itself, and is not the run."""
    end = run / "run.0002-0001.jsonl"
    end.rename(run / "lost")
    for command in (["replay", str(run)], ["report", str(run), "--check"]):
        assert app.run(command) == exits.USAGE
        written = capsys.readouterr()
        assert f"error: run log {end} is missing, and the run was saved when it had " in written.err
        assert "identical" not in written.out


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("deal", "codec"),
    [
        (Deal.SHARDS, CodecSection()),
        (Deal.LEASES, CodecSection(upload=Codec.INT4, upload_rounding=Rounding.STOCHASTIC, download=Codec.BFLOAT16)),
    ],
)
def test_a_run_of_many_deaths_comes_out_again(
    deal: Deal,
    codec: CodecSection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(local, "POLL_S", 0.05)
    monkeypatch.setattr(restarts, "RESTART_S", 0.2)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{number} times {number} is {number * number}.\n" for number in range(2000)))
    config = RunConfig(
        run=RunSection(name="chaos", seed=11, steps=800),
        model=ModelSection(spec="support.tiny_lm:tiny_lm"),
        data=DataSection(source=str(corpus), sequence_length=32, validation_share=0.2, deal=deal),
        inner=InnerSection(batch_size=2, warmup_steps=5),
        codec=codec,
        protocol=ProtocolOptions(fragments=4, interval_steps=16),
        evaluation=EvaluationSection(interval_s=2, batches=1, batch_size=2),
        checkpoint=CheckpointSection(interval_s=2.0),
        local=LocalSection(learners=3, kill_share=0, slowdown=(15.0, 18.0, 25.0)),
    )
    chaos = Chaos(tmp_path / "run", config, draw_kills(11, 8, config), (sys.executable, "-m", "unlockstep"))
    chaos.run()
    events: list[Event] = list(read(tmp_path / "run" / "run.jsonl")[1])
    started = [event for event in events if isinstance(event, LearnerJoined) and not event.resumed]
    assert len(started) > 3
    assert any(isinstance(event, LearnerDid) and isinstance(event.deed, StateTaken) for event in events)
    assert app.run(["replay", str(tmp_path / "run"), "--json"]) == exits.DONE, capsys.readouterr().err
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["identical"] and told["commits"] == told["commits_total"] > 50
