"""``unlockstep replay`` of runs of real models under virtual time: what it compares, says and writes, and what it
refuses."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.numpy import load_file

from support.full_disk import files_of_at_most
from support.stores import Leader, small_layout
from support.train_process import TESTS
from unlockstep import config as run_config
from unlockstep import tape as tapes
from unlockstep.cli import app, exits
from unlockstep.cli import replay as command
from unlockstep.cli.assembly import Text, load_text, new_backend
from unlockstep.config import RunConfig
from unlockstep.core.events import Event, FragmentCommitted, LearnerJoined, RunSeeded, StateHandedOver, StepReported
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.options import ProtocolOptions
from unlockstep.runlog import Header, RunLogWriter, read
from unlockstep.store.place import LocalPlace
from unlockstep.store.run_store import RunStore
from unlockstep.virtual.ring import Ring

SECOND_NS = NANOSECONDS_PER_SECOND
LEARNERS = ("learner-0", "learner-1", "learner-2")

TAPE = tapes.Tape(
    name="two-deaths",
    learners=LEARNERS,
    actions=(
        tapes.Kill(at_ns=2 * SECOND_NS, target="learner-1"),
        tapes.Restart(at_ns=3 * SECOND_NS, target="learner-1"),
        tapes.Kill(at_ns=4 * SECOND_NS, target=tapes.SYNCER),
        tapes.Restart(at_ns=5 * SECOND_NS, target=tapes.SYNCER),
    ),
)


def config_of(corpus: Path) -> RunConfig:
    return RunConfig(
        run=run_config.RunSection(name="night", seed=3, steps=60),
        model=run_config.ModelSection(spec="support.tiny_lm:tiny_lm"),
        data=run_config.DataSection(source=str(corpus), sequence_length=16, validation_share=0.2),
        inner=run_config.InnerSection(batch_size=2, warmup_steps=3),
        codec=run_config.CodecSection(upload=run_config.Codec.INT4),
        protocol=ProtocolOptions(fragments=2, interval_steps=4),
    )


def write(folder: Path, config: RunConfig, events: Iterable[Event]) -> Path:
    """A run folder as a syncer leaves it."""
    folder.mkdir()
    (folder / "config.toml").write_text(run_config.dumps(config), encoding="utf-8")
    with RunLogWriter(folder / "run.jsonl", Header(run="night", config_digest=run_config.digest(config))) as log:
        log.write(events)
    return folder


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which a learner and the syncer have died."""
    sys.path.insert(0, str(TESTS))
    place = tmp_path_factory.mktemp("night")
    corpus = place / "corpus.txt"
    corpus.write_text("".join(f"{number} times {number} is {number * number}.\n" for number in range(300)))
    config = config_of(corpus)
    text = load_text(config)
    return write(place / "run", config, played(config, text))


def played(config: RunConfig, text: Text) -> list[Event]:
    """What happens in a run with the tape."""
    ring = Ring(config, TAPE, lambda shard, shards: new_backend(config, shard, shards, text, is_alone=False))
    for _ in ring.play():
        pass
    assert ring.world.ended
    events = [*ring.world.take_events(), *ring.world.events]
    assert any(isinstance(event, StateHandedOver) for event in events)
    return events


def events_of(folder: Path) -> list[Event]:
    return list(read(folder / "run.jsonl")[1])


def copied(night: Path, folder: Path, events: Iterable[Event]) -> str:
    """The run with another log."""
    return str(write(folder / "run", run_config.load(night / "config.toml"), events))


def test_every_bit_comes_out_again(night: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["replay", str(night)]) == exits.DONE
    assert capsys.readouterr().out.startswith("identical: ")


def test_a_run_of_data_leases_whose_model_draws_random_numbers(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run_config.apply(
        run_config.load(night / "config.toml"),
        [
            'data.deal="leases"',
            "data.chunk_sequences=3",
            "data.stock_sequences=8",
            'model.spec="support.tiny_lm:forgetful_lm"',
            'adoption.mode="blend"',
        ],
    )
    events = played(config, load_text(config))
    assert app.run(["replay", str(write(tmp_path / "run", config, events))]) == exits.DONE, capsys.readouterr().err


def test_the_result_as_json(night: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["replay", str(night), "--json"]) == exits.DONE
    told = json.loads(capsys.readouterr().out)
    commits = [event for event in events_of(night) if isinstance(event, FragmentCommitted)]
    newest = {commit.fragment: commit for commit in commits}
    assert told["identical"] and told["divergence"] is None
    assert told["commits"] == told["commits_total"] == len(commits)
    assert told["digests"] == [newest[fragment].digest for fragment in sorted(newest)]


def test_a_part_of_the_run_and_the_model_it_came_to(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commits = [event for event in events_of(night) if isinstance(event, FragmentCommitted)]
    for name in ("once", "twice"):
        out = str(tmp_path / name)
        assert app.run(["replay", str(night), "--until", str(commits[5].round), "--out", out, "--json"]) == exits.DONE
        assert json.loads(capsys.readouterr().out)["commits"] == 6
    once, twice = (load_file(tmp_path / name / "model.safetensors") for name in ("once", "twice"))
    assert {name: values.tobytes() for name, values in once.items()} == {n: v.tobytes() for n, v in twice.items()}


@pytest.mark.parametrize("inside", ["model", "new", ".", "store/fragments/x"])
def test_a_model_is_not_saved_into_a_run(
    inside: str, night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither over the run's own model, which is what every later replay compares with, nor beside it."""
    other = Path(copied(night, tmp_path, events_of(night)))
    (tmp_path / "link").symlink_to(other)
    before = sorted(other.rglob("*"))
    for out in (other / inside, tmp_path / "link" / inside):
        assert app.run(["replay", str(night), "--until", "3", "--out", str(out)]) == exits.USAGE
        error = f"error: --out {out} is in {other}, which is a run's; choose a folder outside of it\n"
        assert capsys.readouterr().err == error
    assert sorted(other.rglob("*")) == before


def test_a_model_is_not_saved_over_another(night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").write_text("mine")
    assert app.run(["replay", str(night), "--until", "3", "--out", str(tmp_path / "mine")]) == exits.USAGE
    assert "is not empty, and nothing is overwritten; choose a new folder" in capsys.readouterr().err
    assert (tmp_path / "mine" / "model.safetensors").read_text() == "mine"


def test_a_disk_without_room_for_the_model_is_one_sentence(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with files_of_at_most(1000):
        assert app.run(["replay", str(night), "--until", "3", "--out", str(tmp_path / "out")]) == exits.FAILED
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: what was to be written does not fit ([Errno 27] File too large: '{tmp_path / 'out'}'); free some space"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_read_is_one_sentence(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(copied(night, tmp_path, events_of(night)))
    (folder / "store").mkdir(exist_ok=True)
    records = folder / "store" / "records"
    records.symlink_to("records")  # Not even root can read a link that leads to itself.
    assert app.run(["replay", str(folder)]) == exits.USAGE
    said = f"error: {records} cannot be read (Too many levels of symbolic links); make it readable"
    assert capsys.readouterr().err.splitlines()[-1].startswith(said)
    assert app.run(["train", "--resume", str(folder)]) == exits.USAGE
    assert capsys.readouterr().err.splitlines()[-1].startswith(said)


def test_the_first_difference_is_an_error_of_one_sentence(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = events_of(night)
    index = next(n for n, event in enumerate(events) if isinstance(event, StepReported) and event.steps == 9)
    step = events[index]
    assert isinstance(step, StepReported)
    events[index] = msgspec.structs.replace(step, loss=step.loss + 1e-6)
    assert app.run(["replay", copied(night, tmp_path, events), "--json"]) == exits.FAILED
    out, errors = capsys.readouterr()
    told = json.loads(out)
    assert not told["identical"]
    assert (told["divergence"]["learner"], told["divergence"]["step"]) == (step.learner, 9)
    assert errors.splitlines()[-1].startswith(f"error: the loss of step 9 of {step.learner}.{step.incarnation} was ")


def test_a_saved_model_that_is_another_is_seen(night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from unlockstep.core.events import EvaluationReported

    events = events_of(night)
    commits = [event for event in events if isinstance(event, FragmentCommitted)]
    newest = {commit.fragment: commit.version for commit in commits}
    scored = EvaluationReported(events[-1].at_ns, "evaluator", 60, 1.0, 1.0, (newest[0], newest[1]))
    folder = Path(copied(night, tmp_path, [*events, scored]))
    assert app.run(["replay", str(night), "--out", str(tmp_path / "came-out")]) == exits.DONE
    (tmp_path / "came-out").rename(folder / "model")
    assert app.run(["replay", str(folder)]) == exits.DONE
    file = folder / "model" / "model.safetensors"
    body = bytearray(file.read_bytes())
    body[-1] ^= 1
    file.write_bytes(body)
    capsys.readouterr()
    assert app.run(["replay", str(folder)]) == exits.FAILED
    assert "is not the model that comes out" in capsys.readouterr().err


def test_another_torch_is_said_with_the_difference(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = [
        msgspec.structs.replace(event, about={**event.about, "torch": "0.1"})
        if isinstance(event, LearnerJoined)
        else event
        for event in events_of(night)
    ]
    assert app.run(["replay", copied(night, tmp_path, other)]) == exits.DONE
    assert f"trained with torch 0.1, and here is {torch.__version__}" in capsys.readouterr().err


def test_a_loop_of_ones_own_cannot_be_made_again(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [
        msgspec.structs.replace(event, about={}) if isinstance(event, LearnerJoined) else event
        for event in events_of(night)
    ]
    assert app.run(["replay", copied(night, tmp_path, own)]) == exits.USAGE
    assert "trained in a loop of its own, which this command cannot make again" in capsys.readouterr().err


def test_a_simulation_has_no_model_to_be_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "simulated")
    assert app.run(["simulate", "tape", "one_crash", "--run-dir", folder]) == exits.DONE
    assert app.run(["replay", folder]) == exits.USAGE
    said = capsys.readouterr().err
    assert "is of a simulation (unlockstep simulate): its learners trained no model" in said
    assert said.count("\n") == 1 and "loop of its own" not in said


def test_what_holds_no_run_is_refused(night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["replay", str(tmp_path / "nowhere")]) == exits.USAGE
    assert "there is no run log" in capsys.readouterr().err
    assert app.run(["replay", copied(night, tmp_path, events_of(night)[:3])]) == exits.USAGE
    assert "holds no commit" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "run")
    commits = [event for event in events_of(night) if isinstance(event, FragmentCommitted)]
    old = [msgspec.structs.replace(commits[0], merged=()), *commits[1:]]
    assert app.run(["replay", copied(night, tmp_path, old)]) == exits.USAGE
    assert "written by an earlier version of unlockstep" in capsys.readouterr().err


@pytest.mark.parametrize("until", [-1, 10_000])
def test_a_round_that_was_not_committed_is_no_end(until: int, night: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["replay", str(night), "--until", str(until)]) == exits.USAGE
    told = capsys.readouterr()
    assert f"--until is {until}, and {night}/run.jsonl holds no commit of that round" in told.err
    assert "identical" not in told.out


def test_a_log_that_says_things_twice_or_in_no_order_is_damaged(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = events_of(night)
    twice = [each for event in events for each in (event,) * (2 if isinstance(event, FragmentCommitted) else 1)]
    nobody = [event for event in events if not isinstance(event, LearnerJoined)]
    seeded_first = sorted(events, key=lambda event: not isinstance(event, RunSeeded))
    for number, log in enumerate((twice, nobody, seeded_first)):
        (tmp_path / str(number)).mkdir()
        assert app.run(["replay", copied(night, tmp_path / str(number), log)]) == exits.USAGE
        assert "it is damaged" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- what is damaged


@pytest.fixture
def nothing_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged is said before: a replay takes as long as the run."""

    def performer(*_: object) -> None:
        raise AssertionError("it trains")

    monkeypatch.setattr(command, "performer", performer)


@pytest.mark.usefixtures("nothing_trains")
def test_a_damaged_line_at_the_end_of_the_log_is_named_before_anything_is_trained(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Path(copied(night, tmp_path, events_of(night))) / "run.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b'"event"', b'"evemt"')]))
    for more in ([], ["--until", "1"]):
        assert app.run(["replay", str(log.parent), *more]) == exits.USAGE
        error = capsys.readouterr().err
        assert f"error: run log {log}, line {len(lines)} is not an event" in error and "the file is damaged" in error


@pytest.mark.usefixtures("nothing_trains")
def test_a_damaged_record_in_the_store_is_named_before_anything_is_trained(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(copied(night, tmp_path, events_of(night)))
    store = RunStore(LocalPlace(folder / "store"))
    store.write_layout(small_layout(2))
    leader = Leader(store, small_layout(2))
    assert leader.commit() and leader.commit()
    record = folder / "store" / "records" / "0000000002.json"
    content = record.read_bytes()
    record.write_bytes(content[:-2] + b"]}")
    assert app.run(["replay", str(folder)]) == exits.USAGE
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {record} does not have the SHA-256 it was written with; put a copy of it back, or")
    assert f"move {folder / 'store'} away to compare with the log alone" in error


@pytest.mark.usefixtures("nothing_trains")
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda store: (store / "layout.json").unlink(), "layout.json is damaged (it is missing)"),
        (lambda store: (store / "layout.json").write_text("{"), "layout.json is damaged ("),
        (lambda store: shutil.rmtree(store / "records"), "records holds nothing of what was saved"),
        (lambda store: [shutil.rmtree(store), store.touch()], "records holds nothing of what was saved"),
    ],
)
def test_a_store_that_lacks_something_is_named_before_anything_is_trained(
    damage: Callable[[Path], object], sentence: str, night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(copied(night, tmp_path, events_of(night)))
    store = RunStore(LocalPlace(folder / "store"))
    store.write_layout(small_layout(2))
    assert Leader(store, small_layout(2)).commit()
    damage(folder / "store")
    assert app.run(["replay", str(folder)]) == exits.USAGE
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {folder / 'store'}/{sentence}")
    assert error.endswith(f"; put a copy of it back, or move {folder / 'store'} away to compare with the log alone")


def test_a_part_of_the_run_does_not_need_the_store(night: Path, tmp_path: Path) -> None:
    folder = Path(copied(night, tmp_path, events_of(night)))
    (folder / "store" / "records").mkdir(parents=True)
    (folder / "store" / "records" / "0000000001.json").write_bytes(b"nothing")
    first = next(event.round for event in events_of(night) if isinstance(event, FragmentCommitted))
    assert app.run(["replay", str(folder), "--until", str(first)]) == exits.DONE
