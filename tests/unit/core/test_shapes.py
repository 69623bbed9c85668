"""Which messages the core never gets to see."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from support.core_builders import join
from unlockstep.core.deeds import AdoptionNotice
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.messages import (
    Evaluation,
    HandedOver,
    Heartbeat,
    LearnerMessage,
    Leave,
    Progress,
    Undelivered,
)
from unlockstep.core.shapes import COUNT_MAX, NEWS_MAX, SCORES_MAX, WORD_LENGTH_MAX, check_shape
from unlockstep.core.status import Score

PROGRESS = Progress(
    learner="l0",
    incarnation=1,
    clock=3,
    steps=3,
    tokens=30,
    step_ns=1_000,
    loss=float("nan"),
    c_steps=(1, 3),
    c_tokens=(10, COUNT_MAX),
    overwritten=(0, 20),
    deeds=(AdoptionNotice(1, 1, "00", 5),),
    undelivered=(Undelivered(4, 0, 10, 10),),
)
JOIN = join("l0", unsettled=(HandedOver(1, 0, 10),))
LEAVE = Leave("l0", 1, (0, 10))
EVALUATION = Evaluation("eval", 3, 2.0, 0.5, (0, 1), (Score("label", 0.5, 0.9),))


@pytest.mark.parametrize(
    "message", [PROGRESS, JOIN, LEAVE, EVALUATION, Heartbeat("l0", 1)], ids=lambda m: type(m).__name__
)
def test_a_message_that_fits_the_run_passes(message: LearnerMessage) -> None:
    check_shape(message, fragment_count=2)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        *(
            (PROGRESS, {name: counts})
            for name in ("c_steps", "c_tokens", "overwritten")
            for counts in ((), (1,), (1, 1, 1), (1, -1))
        ),
        *((PROGRESS, {name: n}) for name in ("clock", "steps", "tokens", "step_ns") for n in (-1, COUNT_MAX + 1)),
        *((PROGRESS, {"deeds": (AdoptionNotice(fragment, 1, "00", 5),)}) for fragment in (-1, 2)),
        (PROGRESS, {"deeds": (AdoptionNotice(0, -1, "00", 5),)}),
        (PROGRESS, {"deeds": (AdoptionNotice(0, 1, "00", -1),)}),
        *((PROGRESS, {"undelivered": (Undelivered(0, fragment, 1, 1),)}) for fragment in (-1, 2)),
        (PROGRESS, {"undelivered": (Undelivered(0, 0, COUNT_MAX + 1, 1),)}),
        (PROGRESS, {"undelivered": (Undelivered(0, 0, 1, 1),) * (NEWS_MAX + 1)}),
        (PROGRESS, {"deeds": (AdoptionNotice(0, 1, "00", 5),) * (NEWS_MAX + 1)}),
        (PROGRESS, {"deeds": (AdoptionNotice(0, 1, "0" * (WORD_LENGTH_MAX + 1), 5),)}),
        (JOIN, {"unsettled": (HandedOver(1, 0, 10),) * (NEWS_MAX + 1)}),
        (JOIN, {"unsettled": (HandedOver(1, 2, 10),)}),
        *((JOIN, {name: "0" * (WORD_LENGTH_MAX + 1)}) for name in ("data_digest", "layout_digest", "run_id")),
        *((LEAVE, {"tokens_dropped": counts}) for counts in ((), (1,), (1, 1, 1), (1, -1))),
        *((EVALUATION, {"versions": versions}) for versions in ((0,), (0, -1))),
        (EVALUATION, {"clock": -1}),
        (EVALUATION, {"scores": (Score("label", 0.5, 0.9),) * (SCORES_MAX + 1)}),
        (EVALUATION, {"scores": (Score("l" * (WORD_LENGTH_MAX + 1), 0.5, 0.9),)}),
    ],
)
def test_a_message_that_does_not_fit_is_the_peers_error(message: LearnerMessage, changes: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match=type(message).__name__):
        check_shape(msgspec.structs.replace(message, **changes), fragment_count=2)
