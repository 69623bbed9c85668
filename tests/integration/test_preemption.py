"""A learner's machine is taken away: SIGTERM, and a time by which it must be gone. Real processes, a real syncer.

There are two fragments and never more than one round open. So of what the learner hands over at least one fragment's
round has closed: it is late, and counts in that fragment's next round.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import Start, commands, ended, until
from support.live_run import small_config
from unlockstep import config as run_config
from unlockstep import runlog
from unlockstep.checkers import check
from unlockstep.cli import exits
from unlockstep.config import DataSection, InnerSection, ModelSection, RunConfig, RunSection
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    ContributionUndelivered,
    Event,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLeaving,
    RoundClosed,
    RunFinished,
    RunFinishing,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import DepartureReason
from unlockstep.core.status import Status

RUN = "small"
FRAGMENTS = 2
PREEMPTED = exits.SIGNALLED + signal.SIGTERM
BUSY_S = 1.5
"""What a busy machine may add to the time a process has been given."""


@pytest.fixture
def start() -> Iterator[Start]:
    with commands() as started:
        yield started


def settings(folder: Path) -> RunConfig:
    """A run that does not end by itself, on text of its own, with many steps between two rounds."""
    text = folder / "text.txt"
    text.write_text("".join(f"{number} bottles of beer on the wall, " for number in range(200)))
    config = small_config(
        run=RunSection(name=RUN, steps=10**6),
        protocol=ProtocolOptions(fragments=FRAGMENTS, interval_steps=20, overlap_steps=1),
        model=ModelSection(spec="support.tiny_lm:tiny_lm"),
        data=DataSection(source=str(text), sequence_length=16),
        inner=InnerSection(batch_size=2, warmup_steps=2),
    )
    assert config.protocol.rounds_in_flight_max == 1
    (folder / "run.toml").write_text(run_config.dumps(config))
    return config


def ring(start: Start, folder: Path, notice_s: float) -> tuple[str, dict[str, subprocess.Popen[str]]]:
    """A syncer, and two learners that have taken part in rounds of every fragment: its address, and the processes."""
    syncer = start(
        "syncer",
        "--config",
        str(folder / "run.toml"),
        "--listen",
        "127.0.0.1:0",
        "--run-dir",
        str(folder / "run"),
        "--json",
    )
    assert syncer.stdout is not None
    url = json.loads(syncer.stdout.readline())["url"]
    processes = {"syncer": syncer}
    slowly = ("--slowdown", "20")  # A step takes about a millisecond: the run log would fill faster than it is read.
    for number, name in enumerate("ab"):
        share = ("--shard", str(number), "--shards", "2")
        processes[name] = start(
            "learner", "--syncer", url, "--trust-syncer", "--name", name, *share, *slowly, "--notice-s", str(notice_s)
        )
    until(url, lambda status: min(status.versions, default=0) >= 2 and merged(status, "a") and merged(status, "b"))
    return url, processes


def merged(status: Status, name: str) -> bool:
    """Whether a learner has been in as many rounds as there are fragments."""
    return any(each.learner == name and each.rounds_merged >= FRAGMENTS for each in status.learners)


def preempt(process: subprocess.Popen[str], notice_s: float) -> tuple[int, str]:
    """It is told that its machine will be gone in ``notice_s``; exit code and stderr."""
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    result = ended(process)
    assert time.monotonic() - began_s < notice_s + BUSY_S
    return result


def accepted_between(events: list[Event], last: int, next: int) -> list[ContributionAccepted]:
    """What has come in for a fragment from the close of one of its rounds to the close of its next one."""
    closed = {
        event.round: (index, event.fragment) for index, event in enumerate(events) if isinstance(event, RoundClosed)
    }
    (begin, fragment), (end, _) = closed[last], closed[next]
    return [
        event for event in events[begin:end] if isinstance(event, ContributionAccepted) and event.fragment == fragment
    ]


def weights(made: list[ContributionAccepted]) -> dict[str, float]:
    """tokens^2 / steps of every learner, over the sum."""
    plain = {}
    for name in sorted({each.learner for each in made}):
        mine = [each for each in made if each.learner == name]
        plain[name] = sum(each.c_tokens for each in mine) ** 2 / sum(each.c_steps for each in mine)
    return {name: weight / sum(plain.values()) for name, weight in plain.items()}


def test_a_learner_that_is_preempted_hands_over_all_it_has(start: Start, tmp_path: Path) -> None:
    config = settings(tmp_path)
    url, processes = ring(start, tmp_path, exits.ENDING_S_MAX)
    code, err = preempt(processes["a"], exits.ENDING_S_MAX)
    assert code == PREEMPTED and "Traceback" not in err, err
    after = until(url, lambda status: True).versions
    until(url, lambda status: all(now >= then + 2 for now, then in zip(status.versions, after, strict=True)))
    processes["syncer"].send_signal(signal.SIGTERM)
    assert ended(processes["syncer"])[0] == PREEMPTED
    code, err = ended(processes["b"])
    assert code == exits.DONE, err

    events = list(runlog.read(tmp_path / "run" / "run.jsonl")[1])
    assert check(events, config.protocol, timer_ns=10**9, transfer_ns=10**10) == []
    (leaving,) = [index for index, event in enumerate(events) if isinstance(event, LearnerLeaving)]
    (gone,) = [
        index for index, event in enumerate(events) if isinstance(event, LearnerDeparted) and event.learner == "a"
    ]
    departed = events[gone]
    assert isinstance(departed, LearnerDeparted) and departed.reason is DepartureReason.LEFT
    assert departed.tokens_dropped == (0,) * FRAGMENTS
    last = [event for event in events[leaving:] if isinstance(event, ContributionAccepted) and event.learner == "a"]
    late = [made for made in last if made.late]
    assert late and len({made.fragment for made in last}) == len(last)
    assert all(each.at_ns <= departed.at_ns for each in last)
    assert not [event for event in events if isinstance(event, ContributionRefused | ContributionUndelivered)]
    commits = {event.round: event for event in events if isinstance(event, FragmentCommitted)}
    for made in late:
        counted = accepted_between(events, made.round, made.round + FRAGMENTS)
        assert made in counted
        assert commits[made.round + FRAGMENTS].weights == pytest.approx(weights(counted), rel=1e-12)

    (finishing,) = [index for index, event in enumerate(events) if isinstance(event, RunFinishing)]
    (end,) = [event for event in events if isinstance(event, RunFinished)]
    assert end.ledger is not None and end.ledger.lost == 0 and end.ledger.refused == {}
    assert end.ledger.merged_late >= sum(made.c_tokens for made in late) / FRAGMENTS
    assert [event.learner for event in events if isinstance(event, LearnerJoined)] in (["a", "b"], ["b", "a"])
    assert not any(isinstance(event, LearnerAway) and event.learner == "b" for event in events[:gone])
    assert all("b" in event.participants for event in events[gone:finishing] if isinstance(event, RoundClosed))


def test_a_learner_is_gone_in_time_though_the_syncer_is_frozen(start: Start, tmp_path: Path) -> None:
    """And when the syncer goes on, so does the run."""
    settings(tmp_path)
    notice_s = 1.0
    url, processes = ring(start, tmp_path, notice_s)
    processes["syncer"].send_signal(signal.SIGSTOP)
    code, err = preempt(processes["a"], notice_s)
    processes["syncer"].send_signal(signal.SIGCONT)
    assert code == PREEMPTED and "Traceback" not in err, err
    before = until(url, lambda status: all(each.state == "live" for each in status.learners if each.learner == "b"))
    until(url, lambda status: status.rounds_committed >= before.rounds_committed + FRAGMENTS)
