"""How often a process that has died is started again, and when."""

from __future__ import annotations

import pytest

from support.statuses import evaluation_status, learner_status, status
from unlockstep.core.status import Status
from unlockstep.launch.restarts import Restarts


def test_pauses_double_up_to_a_bound_and_end() -> None:
    restarts = Restarts(restarts_max=8)
    assert [restarts.pause_s("learner-0", None) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, None]


def test_each_name_has_restarts_of_its_own() -> None:
    restarts = Restarts(restarts_max=1)
    assert [restarts.pause_s(name, None) for name in ("syncer", "learner-0", "syncer")] == [0.5, 0.5, None]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("syncer", status(rounds_committed=7), status(rounds_committed=8)),
        ("learner-0", status(), status(learners=(learner_status(rounds_merged=120),))),
        ("evaluator", status(), status(evaluations=(evaluation_status(5, 2.0),))),
    ],
)
def test_who_has_got_something_done_begins_to_count_anew(name: str, before: Status, after: Status) -> None:
    restarts = Restarts(restarts_max=1)
    restarts.started(name, before)
    assert restarts.pause_s(name, before) == 0.5
    restarts.started(name, before)
    assert restarts.pause_s(name, after) == 0.5
    restarts.started(name, after)
    assert restarts.pause_s(name, after) is None


def test_what_a_syncer_that_is_just_back_does_not_say_is_not_forgotten() -> None:
    """Its list of evaluations begins anew: the next one counts, and none that is said again."""
    restarts = Restarts(restarts_max=1)
    old, new = status(evaluations=(evaluation_status(5, 2.0),)), status(evaluations=(evaluation_status(6, 2.0),))
    restarts.started("evaluator", old)
    restarts.started("evaluator", status())
    assert restarts.pause_s("evaluator", old) == 0.5
    assert restarts.pause_s("evaluator", old) is None
    assert restarts.pause_s("evaluator", new) == 0.5
