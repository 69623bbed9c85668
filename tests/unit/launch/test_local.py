"""A run on this machine, with stand-ins for its processes: who is started, killed, started again, and how it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from support.statuses import learner_status, status
from unlockstep import config as configuration
from unlockstep.config import LocalSection, RunConfig
from unlockstep.core.errors import UsageError
from unlockstep.core.status import Status
from unlockstep.launch import local, restarts
from unlockstep.launch.drill import progress
from unlockstep.launch.folders import new_folder, new_run_folder, old_run_folder
from unlockstep.launch.local import Ending, LocalRun, Outcome

STAND_IN = """
import pathlib, signal, sys

role, arguments = sys.argv[1], sys.argv[2:]
name = arguments[arguments.index("--name") + 1] if "--name" in arguments else role
folder = pathlib.Path(__file__).parent
plan = folder / f"{name}.plan"
orders = plan.read_text().split(",") if plan.exists() else []
plan.write_text(",".join(orders[1:]))
signals = {signal.SIGTERM: 143, signal.SIGUSR1: 0, signal.SIGUSR2: 2}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
if orders[:1] == ["silent"]:
    sys.exit(1)
print("started:", *arguments, flush=True)
if role == "syncer" and orders[:1] not in (["mute"], ["1"]):
    print("listens on http://127.0.0.1:4711", flush=True)
if orders[:1] and orders[0].isdigit():
    sys.exit(f"error: {name} was told so") if orders[0] == "1" else print(f"error: {name} must be mended")
    sys.exit(int(orders[0]))
number = signal.sigwait(signals)
print("told:", signal.Signals(number).name, flush=True)
sys.exit(signals[number])
"""
"""Says what it was started with, then ends as its file says, or by SIGUSR1 (in order), SIGUSR2 (code 2) or SIGTERM."""


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"POLL_S": 0.01, "LISTEN_POLL_S": 0.01, "ALONE_S_MAX": 0.05, "END_S_MAX": 20.0}.items():
        monkeypatch.setattr(local, name, seconds)
    monkeypatch.setattr(restarts, "RESTART_S", 0.01)
    monkeypatch.setattr(restarts, "UNANSWERED_S", 0.01)


class Stage:
    """A run folder, a program of stand-ins, and what the syncer will say of itself.

    Also the watcher: whatever is noted is kept, and ``on_note`` and ``on_status`` may act on it.
    """

    def __init__(self, path: Path) -> None:
        self.folder = path / "run"
        self.folder.mkdir()
        self.program = path / "stand_in.py"
        self.program.write_text(STAND_IN)
        self.status = status(clock=0)
        self.notes: list[str] = []
        self.on_note: Callable[[str], None] = lambda text: None
        self.on_status: Callable[[Status], None] = lambda status: None
        self.has_finished = False

    def plan(self, name: str, *orders: str) -> None:
        """How the first, second ... start of ``name`` goes; from then on it runs until told to end."""
        (self.program.parent / f"{name}.plan").write_text(",".join(orders))

    def run(self, resumes: bool = False, **settings: object) -> Outcome:
        section = msgspec.convert({"learners": 2, "kill_share": 0, **settings}, LocalSection)
        program = (sys.executable, "-I", "-S", str(self.program))
        run = LocalRun(
            RunConfig(local=section),
            self.folder,
            read_status=lambda url: self.status,
            watcher=self,
            has_finished=lambda: self.has_finished,
            resumes=resumes,
            program=program,
        )
        return run.run()

    def show(self, status: Status, now_ns: int) -> None:
        if status.state == "finished":
            self.tell(["learner-0", "learner-1", "learner-2", "evaluator", "syncer"], signal.SIGUSR1)
        else:
            self.on_status(status)

    def note(self, text: str, now_ns: int) -> None:
        self.notes.append(text)
        self.on_note(text)

    def tell(self, names: Sequence[str], number: signal.Signals) -> None:
        """Signal those of the names that run."""
        running = self.running()
        for name in names:
            if name in running:
                os.kill(running[name], number)

    def running(self) -> dict[str, int]:
        """Who runs, with its pid."""
        return msgspec.json.decode((self.folder / "processes.json").read_bytes(), type=dict[str, int])

    def finish(self) -> None:
        """The syncer says that the run is over; once that has been seen, everybody ends in order."""
        self.status = status(clock=240, state="finished")

    def finish_when(self, wanted: str) -> None:
        """... once this is noted."""
        self.on_note = lambda text: self.finish() if wanted in text else None

    def started(self, name: str) -> list[str]:
        """The arguments of every start."""
        lines = (self.folder / "logs" / f"{name}.log").read_text().splitlines()
        return [line.removeprefix("started: ") for line in lines if line.startswith("started: ")]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def ready(stage: Stage, names: Sequence[str]) -> bool:
    """Whether all of them have said that they were started, and so can be signalled."""
    return all((stage.folder / "logs" / f"{name}.log").stat().st_size > 0 for name in names)


def finish_when_ready(stage: Stage, *names: str) -> None:
    stage.on_status = lambda seen: stage.finish() if ready(stage, names) else None


def test_everybody_is_told_what_it_needs(stage: Stage) -> None:
    finish_when_ready(stage, "learner-0", "learner-1", "evaluator")
    assert stage.run(slowdown=[1, 2.5]) == Outcome(Ending.FINISHED, "the run has finished")
    tie, address = f"--parent-pid {os.getpid()}", "--syncer http://127.0.0.1:4711 --trust-syncer"
    folder, listen = stage.folder, "--listen 127.0.0.1:0"
    assert stage.started("syncer") == [f"--config {folder}/config.toml {listen} --run-dir {folder} {tie}"]
    files = [f"--checkpoint {folder}/learners/learner-{index}.safetensors" for index in range(2)]
    assert stage.started("learner-0") == [f"{address} --name learner-0 --shard 0 --shards 2 {files[0]} {tie}"]
    assert stage.started("learner-1") == [
        f"{address} --name learner-1 --shard 1 --shards 2 {files[1]} --slowdown 2.5 {tie}"
    ]
    assert stage.started("evaluator") == [f"{address} --out {folder}/model {tie}"]


def test_a_learner_that_dies_is_started_again_so_often_and_no_more(stage: Stage) -> None:
    stage.plan("learner-1", "1", "1", "1")
    stage.finish_when("not started again")
    assert stage.run(restarts_max=2, evaluator=False).ending is Ending.FINISHED
    assert len(stage.started("learner-1")) == 3
    assert stage.notes[1:6] == [
        "learner-1 exited with code 1; started again in 0.01 s",
        "learner-1 is started again",
        "learner-1 exited with code 1; started again in 0.02 s",
        "learner-1 is started again",
        "learner-1 exited with code 1 and is not started again: error: learner-1 was told so",
    ]


def test_a_learner_that_was_asked_to_leave_stays_away(stage: Stage) -> None:
    def ask(seen: Status) -> None:
        if ready(stage, ["learner-0", "learner-1"]):
            stage.on_status = lambda seen: None
            stage.tell(["learner-1"], signal.SIGTERM)

    stage.on_status = ask
    stage.finish_when("learner-1 has left")
    assert stage.run(evaluator=False).ending is Ending.FINISHED
    assert len(stage.started("learner-1")) == 1


def test_the_drill_kills_the_last_learner_once_and_brings_it_back(stage: Stage) -> None:
    def go_on(seen: Status) -> None:
        if len(stage.started("learner-2")) == 2:
            stage.finish()
        elif ready(stage, ["learner-0", "learner-1", "learner-2"]):
            clock = 79 if seen.clock == 0 else 80
            stage.status = status(clock=clock, learners=(learner_status("learner-2"),))

    stage.on_status = go_on
    assert stage.run(learners=3, kill_share=1 / 3, kill_down_s=0.05, evaluator=False).ending is Ending.FINISHED
    assert stage.notes[1:] == [
        "learner-2 was killed (SIGKILL) at step 80 by the drill; back in 0.05 s",
        "learner-2 is started again",
    ]


@pytest.mark.parametrize(("incarnation", "starting"), [(1, ("learner-1",)), (2, ())])
def test_who_was_started_again_and_has_not_joined_at_the_end_is_told(
    incarnation: int, starting: tuple[str, ...], stage: Stage
) -> None:
    """``learner-1`` was killed and started again: it is back if the syncer tells of a newer incarnation."""
    there = (learner_status("learner-0"), learner_status("learner-1"))
    stage.status = status(clock=80, learners=there)
    back = msgspec.structs.replace(there[1], incarnation=incarnation)

    def go_on(seen: Status) -> None:
        if len(stage.started("learner-1")) == 2:
            stage.status = status(clock=240, state="finished", learners=(there[0], back))
        elif ready(stage, ["learner-0", "learner-1"]) and "drilled" not in stage.notes:
            stage.notes.append("drilled")
            stage.tell(["learner-1"], signal.SIGKILL)

    stage.on_status = go_on
    assert stage.run(evaluator=False) == Outcome(Ending.FINISHED, "the run has finished", starting=starting)


def test_the_drill_waits_until_its_learner_trains(stage: Stage) -> None:
    stage.status = status(clock=200, learners=(learner_status("learner-1", state="joining"),))

    def go_on(seen: Status) -> None:
        if ready(stage, ["learner-0", "learner-1"]):
            stage.status = status(clock=seen.clock + 1, learners=seen.learners)
        if seen.clock == 204:
            stage.finish()

    stage.on_status = go_on
    assert stage.run(kill_share=0.1, evaluator=False).ending is Ending.FINISHED
    assert not any("drill" in note for note in stage.notes)


def test_the_drill_spares_the_only_learner(stage: Stage) -> None:
    stage.status = status(clock=200, learners=(learner_status("learner-0"),))
    seen: list[Status] = []

    def look(now: Status) -> None:
        seen.append(now)
        if len(seen) > 3 and ready(stage, ["learner-0"]):
            stage.finish()

    stage.on_status = look
    assert stage.run(learners=1, kill_share=0.1, evaluator=False).ending is Ending.FINISHED
    assert len(stage.notes) == 1


def when_ready(stage: Stage, names: Sequence[str], act: Callable[[], object]) -> Callable[[Status], None]:
    """Do this once, when all of them can be signalled."""

    def look(seen: Status) -> None:
        if ready(stage, names):
            stage.on_status = lambda seen: None
            act()

    return look


def test_a_syncer_that_is_killed_is_started_again_where_it_was(stage: Stage) -> None:
    """C7: at its address and on its folder; nobody else is touched."""
    everybody = ["learner-0", "learner-1", "evaluator"]
    stage.on_status = when_ready(stage, everybody, lambda: stage.tell(["syncer"], signal.SIGKILL))
    stage.finish_when("the syncer is back")
    assert stage.run().ending is Ending.FINISHED
    first, second = stage.started("syncer")
    assert second == first.replace("127.0.0.1:0", "127.0.0.1:4711")
    assert [len(stage.started(name)) for name in everybody] == [1, 1, 1]
    assert stage.notes[1:] == [
        "the syncer was killed (SIGKILL); started again in 0.01 s",
        "the syncer is started again",
        "the syncer is back",
    ]


def test_a_syncer_that_dies_again_and_again_fails_the_run(stage: Stage) -> None:
    """Before it has ever listened, and with the restarts of nobody else."""
    stage.plan("syncer", "1", "1", "1")
    outcome = stage.run(restarts_max=2)
    log = stage.folder / "logs" / "syncer.log"
    assert outcome.ending is Ending.FAILED
    assert outcome.sentence.startswith(f"the syncer exited with code 1 and is not started again; {log} ends:\n")
    assert outcome.sentence.endswith("\n    error: syncer was told so")
    assert len(stage.started("syncer")) == 3


def test_a_syncer_that_cannot_start_again_fails_the_run_with_its_sentence(stage: Stage) -> None:
    """Its port may be taken meanwhile. The run has begun: its folder stays."""
    stage.plan("syncer", "stay", "2")
    stage.on_status = when_ready(stage, ["learner-0", "learner-1"], lambda: stage.tell(["syncer"], signal.SIGKILL))
    sentence = "the syncer cannot be started again: syncer must be mended"
    assert stage.run(evaluator=False) == Outcome(Ending.FAILED, sentence)


def no_logs(stage: Stage) -> None:
    """From now on nobody can be started."""
    (stage.folder / "logs").rename(stage.folder / "logs.away")
    (stage.folder / "logs").write_text("")


def test_a_learner_that_cannot_be_started_again_is_as_good_as_dead(stage: Stage) -> None:
    def break_it() -> None:
        stage.status = status(clock=120)
        no_logs(stage)
        stage.tell(["learner-0"], signal.SIGKILL)

    stage.on_status = when_ready(stage, ["learner-0", "learner-1"], break_it)
    stage.finish_when("it is not tried again")
    outcome = stage.run(restarts_max=2, evaluator=False)
    assert outcome.ending is Ending.FINISHED
    told = [note for note in stage.notes if "cannot be started" in note]
    assert len(told) == 2 and told[0].startswith("learner-0 cannot be started ("), "the first restart was its death's"
    assert told[0].endswith("; tried again in 0.02 s") and told[1].endswith("; it is not tried again")


def test_a_syncer_that_nobody_can_start_again_fails_the_run(stage: Stage) -> None:
    def break_it() -> None:
        no_logs(stage)
        stage.tell(["syncer"], signal.SIGKILL)

    stage.on_status = when_ready(stage, ["syncer"], break_it)
    outcome = stage.run(restarts_max=1)
    assert outcome.ending is Ending.FAILED
    assert outcome.sentence.startswith("the syncer cannot be started again: syncer cannot be started (")


def test_who_cannot_be_started_at_the_beginning_refuses_the_run(stage: Stage) -> None:
    (stage.folder / "logs").write_text("")
    outcome = stage.run()
    assert outcome.ending is Ending.REFUSED
    assert outcome.sentence.startswith("syncer cannot be started (")


@pytest.mark.parametrize("error", [UsageError("no way"), OSError(errno.EIO, "no way")])
def test_whatever_is_in_the_way_of_a_run_that_has_begun_fails_it_and_no_more(stage: Stage, error: Exception) -> None:
    def break_it() -> None:
        raise error

    stage.on_status = when_ready(stage, ["syncer"], break_it)
    outcome = stage.run()
    assert outcome.ending is Ending.FAILED
    assert outcome.sentence == f"the run cannot go on: {error}"
    assert stage.running() == {}


def test_everybody_is_told_to_end_whatever_goes_wrong_here(stage: Stage) -> None:
    def break_it() -> None:
        raise ZeroDivisionError

    everybody = ["syncer", "learner-0", "learner-1", "evaluator"]
    stage.on_status = when_ready(stage, everybody, break_it)
    with pytest.raises(ZeroDivisionError):
        stage.run()
    ends = [(stage.folder / "logs" / f"{name}.log").read_text().splitlines()[-1] for name in everybody]
    assert ends == ["told: SIGTERM"] * 4


def test_a_syncer_that_dies_when_the_run_is_over_is_not_missed(stage: Stage) -> None:
    def kill() -> None:
        stage.has_finished = True
        stage.tell(["syncer"], signal.SIGKILL)

    stage.on_status = when_ready(stage, ["learner-0", "learner-1"], kill)
    assert stage.run(evaluator=False).ending is Ending.FINISHED
    assert len(stage.started("syncer")) == 1


def test_a_syncer_that_somebody_stops_is_not_started_again(stage: Stage) -> None:
    stage.on_status = when_ready(stage, ["learner-0", "learner-1"], lambda: stage.tell(["syncer"], signal.SIGTERM))
    outcome = stage.run(evaluator=False)
    assert outcome.ending is Ending.FAILED
    assert outcome.sentence.startswith("somebody has told the syncer to stop; ")


def test_nobody_is_started_while_the_syncer_is_away(stage: Stage) -> None:
    both = ["syncer", "learner-1"]
    stage.on_status = when_ready(stage, ["learner-0", "learner-1"], lambda: stage.tell(both, signal.SIGKILL))
    stage.finish_when("learner-1 is started again")
    assert stage.run(evaluator=False).ending is Ending.FINISHED
    assert [note for note in stage.notes if note.endswith(("back", "again"))] == [
        "the syncer is started again",
        "the syncer is back",
        "learner-1 is started again",
    ]


def test_who_did_not_find_the_syncer_has_nothing_to_mend(stage: Stage) -> None:
    """There was none just now, or no way to it: however often that happens."""
    stage.status = status(clock=5)
    stage.plan("learner-1", "3", "3", "3")
    stage.on_status = lambda seen: stage.finish() if len(stage.started("learner-1")) == 4 else None
    assert stage.run(evaluator=False, restarts_max=1).ending is Ending.FINISHED
    assert stage.notes.count("learner-1 exited with code 3; started again in 0.01 s") == 3


def test_who_has_something_to_mend_in_the_middle_of_a_run_stays_away(stage: Stage) -> None:
    stage.status = status(clock=5)
    stage.on_status = when_ready(stage, ["learner-0", "learner-1"], lambda: stage.tell(["learner-1"], signal.SIGUSR2))
    stage.finish_when("learner-1 exited with code 2 and is not started again")
    assert stage.run(evaluator=False).ending is Ending.FINISHED
    assert len(stage.started("learner-1")) == 1


@pytest.mark.parametrize("name", ["learner-1", "evaluator"])
def test_what_an_earlier_life_has_said_is_no_reason(stage: Stage, name: str) -> None:
    """As of one whose disk is full: it cannot say anything."""
    stage.status = status(clock=5)
    stage.plan(name, "stay", "silent")
    stage.on_status = when_ready(stage, ["learner-0", name], lambda: stage.tell([name], signal.SIGKILL))
    stage.finish_when("not started again")
    stage.run(restarts_max=1, evaluator=name == "evaluator")
    assert stage.notes[-1] == f"{name} exited with code 1 and is not started again"


def test_an_address_of_an_earlier_start_is_not_taken_for_one_of_this(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is resumed has logs already."""
    monkeypatch.setattr(local, "LISTEN_S_MAX", 0.01)
    (stage.folder / "logs").mkdir()
    (stage.folder / "logs" / "syncer.log").write_text("listens on http://127.0.0.1:4710\n")
    stage.plan("syncer", "mute")
    assert "the syncer said nothing for 0.01 s" in stage.run(resumes=True).sentence


@pytest.mark.parametrize(("resumes", "kills"), [(False, 1), (True, 0)])
def test_the_drill_is_over_for_a_run_that_is_resumed_behind_it(stage: Stage, resumes: bool, kills: int) -> None:
    stage.status = status(clock=200, learners=(learner_status("learner-1"),))

    def go_on(seen: Status) -> None:
        if ready(stage, ["learner-0", "learner-1"]):
            stage.status = status(clock=seen.clock + 1, learners=seen.learners)
        if seen.clock == 204:
            stage.finish()

    stage.on_status = go_on
    assert stage.run(resumes, kill_share=0.1, evaluator=False).ending is Ending.FINISHED
    assert sum("by the drill" in note for note in stage.notes) == kills


def test_a_syncer_that_says_nothing_is_not_waited_for_for_ever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LISTEN_S_MAX", 0.01)
    stage.plan("syncer", "mute")
    assert "the syncer said nothing for 0.01 s" in stage.run().sentence


@pytest.mark.parametrize("name", ["syncer", "learner-0", "evaluator"])
def test_what_the_user_must_mend_ends_a_run_that_has_not_begun(stage: Stage, name: str) -> None:
    stage.plan(name, "2")
    assert stage.run() == Outcome(Ending.REFUSED, f"{name} must be mended")


def test_with_no_learner_left_the_run_has_failed(stage: Stage) -> None:
    """C30"""
    stage.status = status(clock=5)
    stage.plan("learner-0", "1")
    stage.plan("learner-1", "1")
    outcome = stage.run(restarts_max=0, evaluator=False)
    assert outcome.ending is Ending.FAILED
    assert outcome.sentence.startswith("no learner is left, and none may be started again; ")


def test_a_run_without_its_model_has_failed(stage: Stage) -> None:
    def go_on(seen: Status) -> None:
        if ready(stage, ["learner-0", "learner-1", "evaluator"]):
            stage.tell(["evaluator"], signal.SIGKILL)
            stage.finish()

    stage.on_status = go_on
    outcome = stage.run(restarts_max=0)
    assert outcome.ending is Ending.FAILED
    assert outcome.sentence == (
        "the final model was not written: the evaluator was killed (SIGKILL); "
        f"make it from the log, unlockstep replay {stage.folder} --out FOLDER"
    )


def test_why_the_model_was_not_written_is_told_if_the_evaluator_has_said_so(stage: Stage) -> None:
    stage.plan("evaluator", "1")
    stage.finish_when("evaluator exited with code 1 and is not started again")
    sentence = stage.run(restarts_max=0).sentence
    assert sentence.startswith("the final model was not written: evaluator was told so; make it from the log, ")


def test_an_evaluator_that_takes_too_long_is_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "END_S_MAX", 0.01)
    stage.on_status = lambda seen: stage.tell(["syncer"], signal.SIGUSR1) if ready(stage, ["evaluator"]) else None
    sentence = stage.run().sentence
    assert sentence.startswith("the final model was not written: the evaluator took more than 0.01 s; ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everybody(stage: Stage, number: signal.Signals) -> None:
    """C23"""

    def interrupt(seen: Status) -> None:
        if ready(stage, ["learner-0", "learner-1", "evaluator"]):
            stage.on_status = lambda seen: None
            os.kill(os.getpid(), number)

    stage.on_status = interrupt
    outcome = stage.run()
    assert outcome == Outcome(Ending.INTERRUPTED, f"the run was interrupted ({number.name})", number)
    assert (stage.folder / "processes.json").read_bytes() == b"{}"


def test_progress_is_the_further_of_steps_and_tokens() -> None:
    assert progress(status(clock=60)) == 0.25
    assert progress(status(clock=60, tokens_max=120_000)) == 0.5
    assert progress(status(clock=60, steps_max=0, tokens_max=240_000)) == 0.25
    assert progress(status(clock=250)) == 1.0


def test_the_configuration_in_the_folder_loads_back_equal(tmp_path: Path) -> None:
    config = RunConfig(local=LocalSection(learners=2, slowdown=(1.0, 3.0)))
    with new_run_folder(config, tmp_path / "runs" / "a"):
        pass
    assert configuration.load(tmp_path / "runs" / "a" / "config.toml") == config


def test_a_folder_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with (
        pytest.raises(UsageError, match=r"is not empty; choose another one with --out"),
        new_run_folder(RunConfig(), tmp_path),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be made"), new_run_folder(RunConfig(), tmp_path / "file" / "run"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_nothing_is_left_of_a_run_that_never_began(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with pytest.raises(UsageError, match="mend me"), new_run_folder(RunConfig(), folder):
        (folder / "logs").mkdir()
        (folder / "logs" / "x.log").write_text("x")
        raise UsageError("mend me")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_a_run_that_was_interrupted_or_refused_before_it_had_done_anything(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_run_folder(RunConfig(), tmp_path / "run"):
        raise KeyboardInterrupt
    with pytest.raises(UsageError, match="mend me"), new_run_folder(RunConfig(), tmp_path / "run") as new:
        new.begun()
        new.refused()
        raise UsageError("mend me")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_of_the_user_stays(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mend me"), new_run_folder(RunConfig(), tmp_path):
        raise UsageError("mend me")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_which_another_run_begins_is_left_to_it(tmp_path: Path) -> None:
    with (
        old_run_folder(tmp_path),  # As the other has it before there is anything in it.
        pytest.raises(UsageError, match="is in use; choose another one with --out"),
        new_run_folder(RunConfig(), tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_which_another_run_has_ended_meanwhile_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look into it and the lock."""

    def lock_late(descriptor: int, operation: int) -> None:
        (tmp_path / "theirs").write_text("keep")

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with pytest.raises(UsageError, match="is in use"), new_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_run_that_has_begun_keeps_its_folder_and_nobody_else_has_it_until_the_end(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too late"), new_run_folder(RunConfig(), tmp_path / "run") as new:
        new.begun()
        with (
            pytest.raises(UsageError, match="goes on: its unlockstep train is at work"),
            old_run_folder(tmp_path / "run"),
        ):
            pass
        raise UsageError("too late")
    with old_run_folder(tmp_path / "run"):
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.toml"]


def test_where_there_are_no_locks_nobody_is_held_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with old_run_folder(tmp_path), old_run_folder(tmp_path):
        pass
