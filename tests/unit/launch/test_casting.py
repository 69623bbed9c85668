"""Who takes part in a run that plays a tape."""

from __future__ import annotations

import pytest

from unlockstep.config import RunConfig
from unlockstep.core.errors import UsageError
from unlockstep.launch.casting import cast, shares
from unlockstep.tape import Join, Kill, Tape

TAPE = Tape(
    name="some",
    learners=("b", "a"),
    actions=(Join(at_ns=1, target="c"), Kill(at_ns=2, target="syncer"), Kill(at_ns=3, target="b")),
)


def test_a_run_has_the_learners_that_its_tape_begins_with() -> None:
    assert cast(RunConfig(), TAPE).local.learners == 2
    assert cast(RunConfig(), TAPE, learners=2).local.learners == 2


def test_another_number_than_the_tapes_is_refused() -> None:
    with pytest.raises(UsageError, match="--learners is 3 but tape 'some' begins with 2"):
        cast(RunConfig(), TAPE, learners=3)


def test_a_tape_that_begins_with_nobody_is_refused() -> None:
    empty = Tape(name="empty", learners=(), actions=(Join(at_ns=1, target="c"),))
    with pytest.raises(UsageError, match="begins without learners"):
        cast(RunConfig(), empty)


def test_who_joins_a_tape_that_begins_with_nobody_shares_with_the_others() -> None:
    tape = Tape(name="t", learners=(), actions=(Join(at_ns=1, target="a"), Join(at_ns=2, target="b")))
    assert shares(tape) == {"a": (0, 2), "b": (1, 2)}


def test_those_who_join_share_the_text_of_those_who_were_there() -> None:
    assert shares(TAPE) == {"b": (0, 2), "a": (1, 2), "c": (2, 2)}
