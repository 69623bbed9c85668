"""The trace of a run keeps to the Trace Event Format, and says what its log says."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest

from support.logs import GOOD, until
from unlockstep.core.events import BytesMoved, EvaluationReported, Event, LearnerAway, LearnerDeparted, LearnerJoined
from unlockstep.core.reasons import DepartureReason
from unlockstep.report.trace import SYNCER_PROCESS, Possible, write
from unlockstep.tape import SYNCER, Kill, Restart, Tape

MS = 1_000_000

STORY = [
    *GOOD,
    EvaluationReported(600 * MS, "evaluator", 5, 1.0, 0.75, (2, 2)),
    EvaluationReported(601 * MS, "evaluator", 5, float("nan"), float("inf"), (2, 2)),
    BytesMoved(602 * MS, "a", 1, 10, 20),
]


def trace_of(events: Iterable[Event], tape: Tape | None = None) -> list[dict[str, Any]]:
    file = io.StringIO()
    write(events, file, 'night "</script>', tape)
    loaded = json.loads(file.getvalue())
    assert loaded["displayTimeUnit"] == "ms"
    records: list[dict[str, Any]] = loaded["traceEvents"]
    return records


def check(records: list[dict[str, Any]]) -> None:
    """What the format asks for: the fields of every kind, and slices of a track that are apart or inside each other."""
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for record in records:
        assert isinstance(record["name"], str) and isinstance(record["pid"], int)
        match record["ph"]:
            case "M":
                assert record["name"] in ("process_name", "thread_name") and isinstance(record["args"]["name"], str)
            case "X":
                assert record["ts"] >= 0 and record["dur"] > 0
                begin, end = record["ts"], record["ts"] + record["dur"]
                slices.setdefault((record["pid"], record["tid"]), []).append((begin, end))
            case "i":
                assert record["ts"] >= 0 and record["s"] in ("g", "p", "t") and isinstance(record["tid"], int)
            case "C":
                assert all(isinstance(value, int | float) for value in record["args"].values())
            case other:
                pytest.fail(f"there is no phase {other!r}")
    for track in slices.values():
        ordered = sorted(track, key=lambda each: (each[0], -each[1]))
        for (_, first_end), (begin, end) in itertools.pairwise(ordered):
            assert (
                begin >= first_end - 1e-6
                or end <= first_end + 1e-6
                or any(
                    outer[0] <= begin + 1e-6 and end <= outer[1] + 1e-6 for outer in ordered if outer != (begin, end)
                )
            )


@pytest.mark.parametrize("at", [-1, 0, 100, 215, 470, 1000])
def test_a_trace_keeps_to_the_format_however_far_the_run_has_gone(at: int) -> None:
    check(trace_of(until(at)))


def test_a_trace_has_a_process_for_the_syncer_and_for_each_learner() -> None:
    records = trace_of(STORY)
    check(records)
    names = {record["pid"]: record["args"]["name"] for record in records if record["name"] == "process_name"}
    assert names == {SYNCER_PROCESS: 'syncer of night "</script>', 2: "a", 3: "b"}


def test_steps_and_rounds_are_slices_with_their_times() -> None:
    records = trace_of(STORY)
    steps = [record for record in records if record["name"] == "step"]
    assert len(steps) == 10 and all(record["dur"] == pytest.approx(100_000) for record in steps)
    (first,) = (record for record in records if record["name"] == "round 0")
    assert (first["ts"], first["dur"], first["tid"]) == (200_000, 30_000, 1)
    assert first["args"]["took part"] == 2 and first["args"]["why it closed"] == "closes"
    inside = {
        record["name"]: record["dur"]
        for record in records
        if (record["ph"], record["pid"], record.get("tid")) == ("X", 1, 1) and record["ts"] < 231_000
    }
    assert inside == {"round 0": 30_000, "collect": 10_000, "grace window": 10_000, "commit": 10_000}


def test_live_learners_losses_and_bytes_are_counters() -> None:
    records = trace_of(STORY)
    counters = {record["name"] for record in records if record["ph"] == "C"}
    assert counters == {"live learners", "loss", "validation loss, nats/byte", "bytes up", "bytes down"}
    assert [record["args"]["value"] for record in records if record["name"] == "live learners"][:2] == [1, 2]
    assert sum(record["name"].startswith("validation") for record in records) == 1, "what is not finite is left out"


def test_goodput_is_a_counter_of_what_was_merged_over_what_was_possible() -> None:
    """The first commit, of 40 tokens of one of two fragments, comes 230 ms after the first step began."""
    file = io.StringIO()
    write(STORY, file, "night", None, Possible(tokens_per_s=200.0, fragments=2, window_ns=100 * MS))
    records = json.loads(file.getvalue())["traceEvents"]
    check(records)
    values = [record["args"]["value"] for record in records if record["name"] == "goodput"]
    assert values[0] == pytest.approx(20 / (200 * 0.23))


def test_faults_are_instants_and_what_follows_is_a_slice() -> None:
    gone = LearnerDeparted(400 * MS, "b", 1, DepartureReason.LEASE_EXPIRED)
    story = [*until(300), LearnerAway(310 * MS, "b", 1), gone, LearnerJoined(500 * MS, "b", 2, False)]
    records = trace_of(story)
    check(records)
    instants = [record["name"] for record in records if record["ph"] == "i" and record["pid"] == 3]
    assert instants[-3:] == ["away", "departed: lease expired", "joined"]
    (down,) = (record for record in records if record["name"] == "down")
    assert (down["ts"], down["dur"]) == (300_000, 200_000)


def test_what_a_tape_did_is_marked_from_the_first_step_on() -> None:
    actions = (Kill(at_ns=50 * MS, target="b"), Kill(at_ns=60 * MS, target=SYNCER), Restart(at_ns=70 * MS, target="b"))
    records = trace_of(STORY, Tape(name="dawn", learners=("a", "b"), actions=actions))
    told = [(record["name"], record["ts"], record["pid"]) for record in records if record["name"].startswith("tape")]
    assert told == [
        ("tape: kill b", 50_000, 3),
        ("tape: kill syncer", 60_000, 1),
        ("tape: restart b", 70_000, 3),
    ]
