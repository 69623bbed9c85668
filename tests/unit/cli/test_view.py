"""What is shown of a status, to the character: the picture, the news between two looks, and the time left."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any

import msgspec
import pytest
from rich.console import Console

from support.statuses import (
    SECOND_NS,
    evaluation_status,
    learner_status,
    ledger_status,
    round_status,
    status,
)
from unlockstep.cli.view import Eta, LiveView, PlainView, clock_time, news, picture, progress_line, sparkline
from unlockstep.core.status import EvaluationStatus, LearnerStatus, NextRoundStatus, Score, Status

NAMES = ("learner-0", "learner-1", "learner-2", "learner-3")

BUSY = status(
    learners=(
        *(learner_status(f"learner-{index}", loss=2.5 + index / 10, last_round=119 - index) for index in range(3)),
        learner_status("learner-3", state="away", clock=80, last_round=80),
    ),
    rounds=(round_status(120, sentence="1 in, quorum 1; waits up to 0.21 s for 2 more"),),
    evaluations=tuple(evaluation_status(8 * index, 5.5 / (1 + index / 4)) for index in range(14)),
    ledger=ledger_status(60_000, merged=54_000, lost=600, in_flight=5_400),
    participation=0.984,
)
STARTING = status(
    clock=0,
    state="seeding",
    learners=(learner_status("learner-1", state="joining", clock=0, steps=0, step_ns=0, loss=None, last_round=None),),
    ledger=ledger_status(0),
    round_next=NextRoundStatus(round=0, fragment=0, due_clock=1),
    rounds_committed=0,
    participation=None,
)


def drawn(shown: Status | None, width: int, left_ns: int | None = None, notes: Iterable[str] = ()) -> str:
    out = StringIO()
    whole = picture(
        shown, title="llama-tiny on stdlib", names=NAMES, left_ns=left_ns, elapsed_ns=63 * SECOND_NS, notes=notes,
        width=width,
    )  # fmt: skip
    Console(file=out, width=width, color_system=None).print(whole)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def test_the_picture_on_a_narrow_terminal() -> None:
    notes = ["0:41  learner-3 was killed (SIGKILL) at step 80 by the drill; back in 5 s"]
    assert (
        drawn(BUSY, 80, 42 * SECOND_NS, notes)
        == """
unlockstep: llama-tiny on stdlib (run night)                                1:03

  step 120 of 240  ━━━━━━━━━━━━━━╸                 50%  60,000 tokens  0:42 left

  learner    state          tokens/s     loss    clock  last round
  learner-0  training          2,000    2.500      120         119
  learner-1  training          2,000    2.600      120    118 (-1)
  learner-2  training          2,000    2.700      120    117 (-2)
  learner-3  no connection         -        -       80    80 (-39)

  round       120 (fragment 0): 1 in, quorum 1; waits up to 0.21 s for 2 more
  validation  █▆▅▄▃▃▃▂▂▂▁▁▁▁ 1.294 nats/byte at step 104
  tokens      90% merged in 119 rounds, participation 98%, downtime 0.0 s

  0:41  learner-3 was killed (SIGKILL) at step 80 by the drill; back in 5 s
"""
    )


def test_the_picture_on_a_wide_terminal_tells_the_whole_reason() -> None:
    assert (
        drawn(BUSY, 120)
        == """
unlockstep: llama-tiny on stdlib (run night)                                                                        1:03

  step 120 of 240  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━                                          50%  60,000 tokens

  learner    state          tokens/s     loss    clock  last round              upload
  learner-0  training          2,000    2.500      120         119  bfloat16 12.5 MB/s
  learner-1  training          2,000    2.600      120    118 (-1)  bfloat16 12.5 MB/s
  learner-2  training          2,000    2.700      120    117 (-2)  bfloat16 12.5 MB/s
  learner-3  no connection         -        -       80    80 (-39)  bfloat16 12.5 MB/s

  round       120 (fragment 0): 1 in, quorum 1; waits up to 0.21 s for 2 more
  validation  █▆▅▄▃▃▃▂▂▂▁▁▁▁ 1.294 nats/byte at step 104
  tokens      90% merged in 119 rounds, participation 98%, downtime 0.0 s
"""
    )


def test_the_picture_while_learners_start() -> None:
    assert (
        drawn(STARTING, 80)
        == """
unlockstep: llama-tiny on stdlib (run night)                                1:03

  step 0 of 240                                           0%  0 tokens  starting

  learner    state          tokens/s     loss    clock  last round
  learner-0  starting              -        -        -           -
  learner-1  loading               -        -        -           -
  learner-2  starting              -        -        -           -
  learner-3  starting              -        -        -           -

  round       round 0 is due at step 1
  validation  not yet
  tokens      0 rounds, downtime 0.0 s
"""
    )


def test_the_picture_before_there_is_a_syncer() -> None:
    assert (
        drawn(None, 80, notes=["0:00  a note"])
        == """
unlockstep: llama-tiny on stdlib                                            1:03

  the syncer is starting

  0:00  a note
"""
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    text = drawn(BUSY, width, 42 * SECOND_NS, ["0:41  " + "a long note " * 20])
    assert max(map(len, text.splitlines())) <= width


def test_refused_contributions_are_held_against_a_learner_in_public() -> None:
    striking = status(learners=(learner_status(strikes=2),))
    assert "learner-0  training 2 refused" in drawn(striking, 80)


def test_a_run_without_a_limit_on_steps_shows_its_clock() -> None:
    assert "\n  step 120  " in drawn(status(steps_max=0, tokens_max=120_000), 80)


# ------------------------------------------------------------------------------------------- the time left


def test_the_time_left_is_what_is_left_at_the_mean_pace_since_the_first_step() -> None:
    eta = Eta()
    assert eta.left_ns(status(clock=0, at_ns=0, ledger=ledger_status(0))) is None
    assert eta.left_ns(status(clock=40, at_ns=100 * SECOND_NS)) is None
    assert eta.left_ns(status(clock=80, at_ns=120 * SECOND_NS)) == 80 * SECOND_NS


@pytest.mark.parametrize(("clock", "at_s"), [(44, 110), (160, 102)], ids=["too little done", "too little time"])
def test_nothing_is_said_of_the_time_left_too_early(clock: int, at_s: int) -> None:
    eta = Eta()
    eta.left_ns(status(clock=40, at_ns=100 * SECOND_NS))
    assert eta.left_ns(status(clock=clock, at_ns=at_s * SECOND_NS)) is None


def test_nothing_is_said_of_the_time_left_in_the_last_rounds() -> None:
    eta = Eta()
    eta.left_ns(status(clock=40, at_ns=100 * SECOND_NS))
    assert eta.left_ns(status(clock=240, at_ns=200 * SECOND_NS, state="draining")) is None


# ------------------------------------------------------------------------------------------- news


def of(*learners: LearnerStatus, **changes: Any) -> Status:
    return status(learners=learners, **changes)


def test_no_news_of_what_stays_the_same() -> None:
    later = msgspec.structs.replace(BUSY, clock=121, at_ns=121 * SECOND_NS)
    assert news(BUSY, later) == []


def test_news_of_a_learner_that_dies_and_comes_back() -> None:
    live, away = learner_status(), learner_status(state="away")
    loads, back = (learner_status(state=state, incarnation=2) for state in ("joining", "live"))
    assert news(of(live), of(away)) == ["learner-0 has lost its connection"]
    assert news(of(away), of(loads)) == ["learner-0 is back and loads the parameters"]
    assert news(of(loads), of(back)) == ["learner-0 trains again, from version 15 on"]
    assert news(of(live), of(back)) == ["learner-0 trains again, from version 15 on"]


def test_news_of_a_learner_that_comes_for_the_first_time() -> None:
    joins, live = learner_status(state="joining"), learner_status()
    assert news(None, of(joins)) == ["learner-0 has joined"]
    assert news(of(joins), of(live)) == ["learner-0 trains"]


def test_learners_that_go_at_the_end_are_no_news() -> None:
    assert news(of(learner_status(), state="finished"), of(learner_status(state="gone"), state="finished")) == []


def test_news_of_evaluations_are_told_once() -> None:
    first, second = evaluation_status(8, 3.0), evaluation_status(16, 2.5)
    assert news(status(evaluations=(first,)), status(evaluations=(first, second))) == [
        "validation loss 2.500 nats/byte at step 16"
    ]
    seen = EvaluationStatus(SECOND_NS, 8, 2.5, 2.5, (Score("label", 0.4, 0.875),))
    assert news(status(), status(evaluations=(seen,))) == ["validation loss 2.500 nats/byte, label 87.5% at step 8"]
    broken = EvaluationStatus(at_ns=SECOND_NS, clock=8, loss=None, nats_per_byte=None)
    assert news(status(), status(evaluations=(broken,))) == ["validation loss not a number at step 8"]


def test_news_of_the_run() -> None:
    assert news(status(state="seeding"), status()) == ["every parameter is in place, training begins"]
    assert news(status(), status(state="finishing")) == ["the end is reached"]


def test_news_of_refusals() -> None:
    before, after = status(refusals={"late": 1}), status(refusals={"late": 2, "non_finite": 1})
    assert news(before, after) == ["2 more contributions refused (so far: late 2, non_finite 1)"]


# ------------------------------------------------------------------------------------------- lines


def test_a_line_of_progress() -> None:
    assert progress_line(BUSY, 42 * SECOND_NS) == (
        "step 120 of 240 (50%); 60,000 tokens; 3 of 4 learners train; 6,000 tokens/s; loss 2.600; "
        "round 120 (fragment 0): 1 in, quorum 1; waits up to 0.21 s for 2 more; 0:42 left"
    )


def test_plain_lines_are_what_matters_and_progress_every_five_seconds() -> None:
    out = StringIO()
    with PlainView(Console(file=out, width=40), NAMES, "llama-tiny on stdlib") as view:
        view.note("the syncer listens", 100 * SECOND_NS)
        for second, shown in ((101, STARTING), (103, status()), (107, status(clock=128)), (108, status(clock=130))):
            view.show(shown, second * SECOND_NS)
    assert (
        out.getvalue()
        == """\
0:00  llama-tiny on stdlib, learners: 4
0:00  the syncer listens
0:01  learner-1 has joined
0:03  learner-0 trains
0:03  every parameter is in place, training begins
0:03  step 120 of 240 (50%); 60,000 tokens; 1 of 1 learners train; 2,000 tokens/s; loss 2.500
0:08  step 130 of 240 (54%); 60,000 tokens; 1 of 1 learners train; 2,000 tokens/s; loss 2.500; 1:50 left
"""
    )


def test_the_live_view_keeps_the_last_picture() -> None:
    out = StringIO()
    console = Console(file=out, width=80, color_system=None, force_terminal=True, legacy_windows=False)
    with LiveView(console, NAMES, "llama-tiny on stdlib") as view:
        view.note("the syncer listens", 0)
        view.show(BUSY, 5 * SECOND_NS)
    assert "step 120 of 240" in out.getvalue()
    assert "0:00  the syncer listens" in out.getvalue()


# ------------------------------------------------------------------------------------------- small things


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [
        ([], 8, ""),
        ([2.0], 8, "▁"),
        ([2.0, 2.0], 8, "▁▁"),
        ([8.0, 4.5, 1.0], 8, "█▅▁"),
        ([1.0, None, 8.0], 8, "▁?█"),
        ([None], 8, "?"),
        ([float(value) for value in range(71)], 8, "▁▂▃▄▅▆▇█"),
    ],
)
def test_a_sparkline_spans_its_values(values: list[float | None], width: int, shown: str) -> None:
    assert sparkline(values, width) == shown


@pytest.mark.parametrize(("s", "shown"), [(5, "0:05"), (754, "12:34"), (3723, "1:02:03")])
def test_clock_time(s: int, shown: str) -> None:
    assert clock_time(s * SECOND_NS) == shown
