"""The summary of a run as text, to the character, and as JSON that loads back."""

from __future__ import annotations

import msgspec
import pytest

from support.statuses import SECOND_NS, ledger_status
from unlockstep.core.reasons import DepartureReason
from unlockstep.report.accounting import Accounting, LearnerAccount, Spread, Validation, total
from unlockstep.report.goodput import Goodput, Shares
from unlockstep.report.presence import Absence
from unlockstep.report.summary import Files, Summary, duration, plain

MS = 1_000_000

FILES = Files(
    config="runs/night/config.toml",
    run_log="runs/night/run.jsonl",
    logs="runs/night/logs",
    summary="runs/night/summary.json",
    model="runs/night/model",
)
STEADY = LearnerAccount(
    learner="learner-0",
    starts=1,
    steps=240,
    ledger=ledger_status(60_000),
    rounds_merged=248,
    rounds_live=248,
    participation=1.0,
    gap=Spread(239, 250 * MS, 325 * MS),
    gap_ratio=1.3,
    gap_ratio_others_down=1.1,
)
KILLED = LearnerAccount(
    learner="learner-1",
    starts=2,
    steps=160,
    ledger=ledger_status(40_000, merged=39_000, lost=800, refused={"late": 200.0}),
    rounds_merged=150,
    rounds_live=160,
    participation=150 / 160,
    gap=Spread(158, 250 * MS, 250 * MS),
    gap_ratio=1.0,
    gap_ratio_others_down=None,
)
LEDGER = total([STEADY.ledger, KILLED.ledger])
ACCOUNTING = Accounting(
    ended=True,
    duration_ns=84 * SECOND_NS,
    clock=240,
    ledger=LEDGER,
    balance=0.0,
    learners=(STEADY, KILLED),
    participation=0.987,
    downtime_ns=0,
    goodput=Goodput(0.9, 168 * SECOND_NS, 700.0, Shares(merged=0.9, down=0.0833, slowed=0.0162, lost=0.0005)),
    rounds_committed=248,
    rounds_empty=0,
    staleness={0: 398},
    refusals={"late": 1},
    commit=Spread(248, 3 * MS, 12 * MS),
    open_by_reason={"everyone_in": Spread(240, 20 * MS, 90 * MS), "grace_ended": Spread(8, 200 * MS, 210 * MS)},
    evaluations=(Validation(9 * SECOND_NS, 8, 5.5, 5.5), Validation(90 * SECOND_NS, 240, 2.25, 2.25)),
    absences=(
        Absence(
            "learner-1", 30 * SECOND_NS, DepartureReason.SUPERSEDED, 37 * SECOND_NS, 38 * SECOND_NS, 38 * SECOND_NS
        ),
    ),
)
SUMMARY = Summary("night", "finished", "the run has finished", ACCOUNTING, FILES)


def test_the_summary_of_a_run_through_a_kill() -> None:
    assert (
        plain(SUMMARY, width=100)
        == """
night: finished after 240 steps and 100,000 tokens in 1 min 24 s

  validation loss  2.2500 nats/byte at step 240, from 5.5000 nats/byte at step 8
  goodput          90.0% of what was possible; 8.3% down, 1.6% slower steps
  global downtime  0 s
  participation    98.7% of live learners per round; 248 rounds committed, 0 empty
  tokens           99.00% merged, 0.20% refused, 0.80% lost
  refused          late 1 (contributions)
  merge            3 ms per commit, 12 ms at most
  rounds closed    240 everyone in after 20 ms, 8 grace ended after 0.2 s

  learner         steps  tokens  merged  refused  lost  took part  largest gap  others down
  learner-0         240  60,000  100.0%        -     -     100.0%         1.3x         1.1x
  learner-1 (x2)    160  40,000   97.5%     0.5%  2.0%      93.8%         1.0x            -
  learner-1 was away for 7.0 s; it contributed again 1.0 s after it had joined

  model          runs/night/model
  run log        runs/night/run.jsonl
  configuration  runs/night/config.toml
  summary        runs/night/summary.json
  logs           runs/night/logs
"""
    )


def test_parts_below_zero_are_shown_so_that_all_of_them_add_up() -> None:
    shares = Shares(merged=0.9, down=0.15, away=-0.05)
    goodput = msgspec.structs.replace(ACCOUNTING.goodput, shares=shares)
    accounting = msgspec.structs.replace(ACCOUNTING, goodput=goodput)
    said = plain(msgspec.structs.replace(SUMMARY, accounting=accounting))
    assert "90.0% of what was possible; 15.0% down, -5.0% away" in said


def test_a_summary_as_json_loads_back() -> None:
    assert msgspec.json.decode(msgspec.json.encode(SUMMARY), type=Summary) == SUMMARY


def test_tokens_that_were_under_way_at_the_end_are_not_hidden() -> None:
    wrong = msgspec.structs.replace(ACCOUNTING, balance=128.0)
    assert "; 128 were under way at the end" in plain(msgspec.structs.replace(SUMMARY, accounting=wrong))


def test_a_run_in_which_nothing_happened_has_a_summary() -> None:
    nothing = msgspec.structs.replace(
        ACCOUNTING,
        ledger=ledger_status(0),
        balance=0.0,
        learners=(),
        participation=None,
        evaluations=(),
        absences=(),
        refusals={},
        commit=Spread(0, 0, 0),
        open_by_reason={},
        rounds_committed=0,
    )
    files = msgspec.structs.replace(FILES, model=None)
    text = plain(msgspec.structs.replace(SUMMARY, ending="interrupted", accounting=nothing, files=files))
    assert "night: interrupted after" in text
    for line in ("validation loss  not measured", "tokens           none trained", "model          not written"):
        assert line in text


@pytest.mark.parametrize(
    ("absence", "said"),
    [
        (Absence("a", 0, DepartureReason.LEASE_EXPIRED, None, None, None), "a went away and did not return"),
        (Absence("a", 0, None, SECOND_NS, None, None), "a was away for 1.0 s and contributed nothing after that"),
    ],
)
def test_absences_in_words(absence: Absence, said: str) -> None:
    changed = msgspec.structs.replace(ACCOUNTING, absences=(absence,))
    assert said in plain(msgspec.structs.replace(SUMMARY, accounting=changed))


def test_who_was_starting_again_when_the_run_ended_is_said_to() -> None:
    absence = Absence("a", 0, DepartureReason.LEASE_EXPIRED, None, None, None)
    changed = msgspec.structs.replace(ACCOUNTING, absences=(absence,))
    summary = msgspec.structs.replace(SUMMARY, accounting=changed, starting=("a",))
    assert "a went away and the run ended while it was starting again" in plain(summary)


def test_learners_that_leave_in_order_for_good_are_not_listed_as_absent() -> None:
    left = Absence("learner-1", 0, DepartureReason.LEFT, None, None, None)
    changed = msgspec.structs.replace(ACCOUNTING, absences=(left,))
    assert "return" not in plain(msgspec.structs.replace(SUMMARY, accounting=changed))


def test_a_loss_that_is_not_a_number_is_called_so() -> None:
    changed = msgspec.structs.replace(ACCOUNTING, evaluations=(Validation(0, 8, None, None),))
    text = plain(msgspec.structs.replace(SUMMARY, accounting=changed))
    assert "validation loss  not a number at step 8" in text


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "0 s"),
        (4 * MS, "4 ms"),
        (4_200 * MS, "4.2 s"),
        (59_960 * MS, "60.0 s"),
        (84 * SECOND_NS, "1 min 24 s"),
        (7_500 * SECOND_NS, "2 h 05 min"),
    ],
)
def test_durations_in_words(ns: int, said: str) -> None:
    assert duration(ns) == said
