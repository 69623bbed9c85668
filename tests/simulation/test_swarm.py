"""Hundreds of stories of what can go wrong, each judged for safety and for progress; and those that once went wrong.

More of them: ``unlockstep simulate swarm --seeds 20000``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from unlockstep import tape as tapes
from unlockstep.checkers import check
from unlockstep.config import RunConfig
from unlockstep.core.events import (
    ContributionAccepted,
    Event,
    FragmentCommitted,
    RunFinished,
    RunSeeded,
    SyncerResumed,
)
from unlockstep.core.messages import SyncerInput
from unlockstep.core.run_states import RunState
from unlockstep.core.status import LedgerStatus
from unlockstep.core.syncer import SyncerCore
from unlockstep.report.accounting import account
from unlockstep.sim import story as stories
from unlockstep.sim.canaries import canary
from unlockstep.sim.swarm import JOINER, Outcome, Verdict, play

SEEDS = 300
BLOCK = 25

TAPES = sorted((Path(__file__).parent / "tapes").glob("*.toml"))

STORIES_TWICE = (4, 12, 48, 105)
"""In three of them the syncer dies, and is started again."""


def explain(outcome: Outcome) -> str:
    return f"{outcome}; replay: unlockstep simulate swarm --seed {outcome.seed}"


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_story_breaks_anything_and_all_go_on_once_nothing_goes_wrong(first: int) -> None:
    outcomes = [play(stories.draw(seed)) for seed in range(first, first + BLOCK)]
    for outcome in outcomes:
        assert outcome.verdict in (Verdict.PASSED, Verdict.HOPELESS), explain(outcome)
    assert sum(outcome.commits for outcome in outcomes) > 10 * BLOCK


def whole_tokens(ledger: LedgerStatus | None, fragments: int) -> dict[str, int]:
    """By class, summed over fragments: a ledger states means over them."""
    assert ledger is not None
    classes = msgspec.to_builtins(ledger)
    classes |= {f"refused as {reason}": tokens for reason, tokens in classes.pop("refused").items()}
    return {name: round(tokens * fragments) for name, tokens in classes.items()}


def test_the_account_that_is_made_of_the_log_is_the_syncers_own() -> None:
    """To the token, over all lives of the syncer: the log leaves nothing out that decides what became of one."""
    ended = 0
    for seed in range(100):
        events: list[Event] = []
        story = stories.draw(seed)
        play(story, record=events.extend)
        ends = [(at, event.ledger) for at, event in enumerate(events) if isinstance(event, RunFinished)]
        for at, ledger in ends[-1:]:
            made = account(events[: at + 1], story.config.protocol).ledger
            fragments = story.config.protocol.fragments
            assert whole_tokens(made, fragments) == whole_tokens(ledger, fragments), f"seed {seed}"
            ended += 1
    assert ended > 50


@pytest.mark.parametrize("path", TAPES, ids=lambda path: path.stem)
def test_a_story_that_once_went_wrong(path: Path) -> None:
    """The file says what was wrong."""
    outcome = play(stories.read(path))
    assert outcome.verdict is Verdict.PASSED, explain(outcome)


def test_the_end_excuses_only_what_nobody_had_read_of_by_then() -> None:
    """Of the two words in the story, the first is read before the run is over: a syncer must not pass that over."""
    story = stories.read(Path(__file__).parent / "tapes" / "word_that_came_after_the_end.toml")
    broken = canary("aloof")
    outcome = play(story, make_core=broken.make_core)
    assert (outcome.verdict, outcome.rule) == (Verdict.SAFETY, "astray"), outcome
    assert "for round 0 " in outcome.sentence


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS, 20_000, 985))
def test_neither_do_many_more(first: int) -> None:
    for seed in range(first, first + 985):
        outcome = play(stories.draw(seed))
        assert not outcome.failed, explain(outcome)


# ----------------------------------------------------------------------------------------------- the same again


def played_elsewhere(folder: Path, hash_seed: str) -> dict[str, str]:
    """Digests of the run logs of some stories, each played by a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    for seed in STORIES_TWICE:
        command = [sys.executable, "-m", "unlockstep", "simulate", "swarm", "--seed", str(seed)]
        command += ["--run-dir", str(folder / str(seed))]
        subprocess.run(command, env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
    logs = sorted(folder.rglob("run.jsonl"))
    return {str(log.relative_to(folder)): hashlib.sha256(log.read_bytes()).hexdigest() for log in logs}


def test_the_same_seed_gives_the_same_bytes_of_run_log_however_python_hashes(tmp_path: Path) -> None:
    logs = []
    for hash_seed in ("0", "12345"):
        folder = tmp_path / hash_seed
        folder.mkdir()
        logs.append(played_elsewhere(folder, hash_seed))
    assert logs[0] == logs[1]
    assert len(set(logs[0].values())) == len(logs[0]) == len(STORIES_TWICE)
    resumed = [path for path in (tmp_path / "0").rglob("run.jsonl") if '"SyncerResumed"' in path.read_text()]
    assert len(resumed) == 3


# ----------------------------------------------------------------------------------------------- what is demanded


def quiet(*actions: tapes.Action, **changes: object) -> stories.Story:
    """Two learners, a second of peace, and what is done to them."""
    drawn = stories.draw(0)
    config = msgspec.structs.replace(
        drawn.config,
        protocol=msgspec.structs.replace(
            drawn.config.protocol, quorum=1, learners_max=8, staleness_max=16, closed_rounds_max=64, lease_s=1.0
        ),
    )
    names = ("a", "b")
    fields = {
        "seed": 1,
        "config": config,
        "step_ns": dict.fromkeys(names, 100_000_000),
        "tape": tapes.Tape(name="quiet", learners=names, actions=actions, end_ns=2_000_000_000),
    }
    return stories.Story(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_joiner_takes_part_and_the_run_ends_in_order() -> None:
    events: list[Event] = []
    outcome = play(quiet(), record=events.extend)
    assert outcome.verdict is Verdict.PASSED, explain(outcome)
    assert any(JOINER in event.weights for event in events if isinstance(event, FragmentCommitted))
    assert isinstance(events[-1], RunFinished)


def test_a_syncer_that_is_started_again_goes_on_with_the_run() -> None:
    kill = tapes.Kill(at_ns=1_000_000_000, target=tapes.SYNCER)
    restart = tapes.Restart(at_ns=1_500_000_000, target=tapes.SYNCER)
    events: list[Event] = []
    outcome = play(quiet(kill, restart), record=events.extend)
    assert outcome.verdict is Verdict.PASSED, explain(outcome)
    assert [type(event) for event in events].count(RunSeeded) == 1
    (resumed,) = [event for event in events if isinstance(event, SyncerResumed)]
    committed = [event.at_ns for event in events if isinstance(event, FragmentCommitted)]
    assert committed == sorted(committed) and committed[0] < resumed.at_ns < committed[-1]
    assert check(events, quiet().config.protocol) == []


def test_what_happened_last_and_was_not_saved_is_judged_too() -> None:
    """A contribution that is accepted after the run has ended: nothing is saved after that."""

    class Restless(SyncerCore):
        def receive(self, message: SyncerInput, now_ns: int) -> None:
            super().receive(message, now_ns)
            if self.state is RunState.FINISHED:
                made = ContributionAccepted(now_ns, 0, 0, "a", 1, 0, 0, 1, 1, 1, 1.0, True)
                self._outbox.log(made)

    def restless(config: RunConfig, run_id: str) -> SyncerCore:
        run, codecs = config.run, config.codec.uploads
        return Restless(run.name, config.protocol, run.steps, run.tokens, run_id, codecs=codecs)

    outcome = play(quiet(), make_core=restless)
    assert (outcome.verdict, outcome.rule) == (Verdict.SAFETY, "contributions"), explain(outcome)


def test_a_run_without_a_core_to_be_had_is_told_apart_from_one_that_fails() -> None:
    story = quiet(diverges={"a": 1, "b": 1})
    protocol = msgspec.structs.replace(story.config.protocol, quorum=2, quarantine_s=0.0)
    local = msgspec.structs.replace(story.config.local, learners=2)
    config = msgspec.structs.replace(story.config, protocol=protocol, local=local)
    outcome = play(msgspec.structs.replace(story, config=config))
    assert outcome.verdict is Verdict.HOPELESS


def test_a_deadline_that_comes_again_and_again_is_a_failure() -> None:
    """Time would stand still: nothing is late, and nothing goes on."""

    class Sleepy(SyncerCore):
        def on_deadline(self, now_ns: int) -> None:
            pass

    def sleepy(config: RunConfig, run_id: str) -> SyncerCore:
        run, codecs = config.run, config.codec.uploads
        return Sleepy(run.name, config.protocol, run.steps, run.tokens, run_id, codecs=codecs)

    outcome = play(quiet(tapes.Kill(at_ns=500_000_000, target="b")), make_core=sleepy)
    assert (outcome.verdict, outcome.rule) == (Verdict.LIVENESS, "time"), explain(outcome)


def test_a_host_that_breaks_is_a_crash() -> None:
    def broken(config: object, run_id: str) -> object:
        raise ArithmeticError("no core today")

    with pytest.raises(ArithmeticError):
        play(quiet(), make_core=broken)  # type: ignore[arg-type]
    outcome = play(quiet(), freight=object())  # type: ignore[arg-type]
    assert outcome.verdict is Verdict.CRASH and outcome.rule == "AttributeError"
