"""Data leases at the syncer: who may take them, what is granted when, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from support.core_builders import join, options
from unlockstep.core.actions import Save, SendTo
from unlockstep.core.data_book import Grant
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.events import DataGranted, DataOpened, DataReturned, Event
from unlockstep.core.messages import Granted, JoinRefused, Leave, Progress, SeedArrived, SyncerInput, Welcome
from unlockstep.core.options import Dealing
from unlockstep.core.reasons import JoinRefusal
from unlockstep.core.saved import SavedRun
from unlockstep.core.syncer import SyncerCore

DEALING = Dealing(chunk_sequences=4, stock_sequences=6, epochs=1)


class Stage:
    """A syncer, and all it has done."""

    def __init__(self, dealing: Dealing | None = DEALING) -> None:
        self.core = SyncerCore("run", options(), 100, 0, "id", dealing=dealing)
        self.actions: list[Any] = []
        self.events: list[Event] = []

    def tell(self, message: SyncerInput) -> list[Any]:
        """What it says to that, in order."""
        self.core.receive(message, 0)
        actions, events = self.core.take_actions(), self.core.take_events()
        self.actions += actions
        self.events += events
        return [action.message for action in actions if isinstance(action, SendTo)]

    def join(self, name: str, sequences: int = 10, digest: str = "corpus", **changes: Any) -> list[Any]:
        return self.tell(join(name, sequences=sequences, data_digest=digest, **changes))

    def seeded(self, name: str = "a", **changes: Any) -> Stage:
        self.join(name, **changes)
        for fragment in range(2):
            self.tell(SeedArrived(name, 1, fragment, f"digest-{fragment}-0"))
        return self

    def report(self, name: str, steps: int = 0, position: int = 0, **changes: Any) -> list[Any]:
        c_steps = (min(steps, 1),) * 2
        message = Progress(name, 1, steps, steps, 10 * steps, 1, 1.0, c_steps, (10 * c_steps[0],) * 2, (0, 0))
        said = {"position": position, "samples": position, **changes}
        return self.tell(msgspec.structs.replace(message, **said))

    def granted(self, told: list[Any]) -> Granted | None:
        return next((message for message in told if isinstance(message, Granted)), None)


def test_the_first_report_is_answered_with_a_stock_of_whole_chunks_that_is_saved_first() -> None:
    stage = Stage().seeded()
    assert stage.granted(stage.report("a")) == Granted((Grant(0, 0, 0, 4), Grant(4, 0, 4, 8)), exhausted=False)
    kinds = [type(action.message) if isinstance(action, SendTo) else type(action) for action in stage.actions]
    assert Save in kinds[kinds.index(Welcome) :][: kinds.index(Granted) - kinds.index(Welcome)]
    assert kinds.index(Granted) - kinds[: kinds.index(Granted)][::-1].index(Save) - 1 > kinds.index(Welcome)


def test_nothing_is_said_while_the_stock_lasts_and_the_end_is_said_once() -> None:
    stage = Stage().seeded()
    stage.report("a")
    assert stage.granted(stage.report("a", 1, 2)) is None
    rest = (Grant(0, 0, 0, 4), Grant(4, 0, 4, 8), Grant(8, 0, 8, 10))
    assert stage.granted(stage.report("a", 2, 4)) == Granted(rest, exhausted=True)
    assert stage.granted(stage.report("a", 3, 6)) is None


def test_a_new_process_begins_a_course_of_its_own_with_what_the_one_before_had() -> None:
    stage = Stage().seeded()
    stage.report("a")
    stage.join("a")
    assert [event.grants for event in stage.events if isinstance(event, DataReturned)] == [
        (Grant(0, 0, 0, 4), Grant(4, 0, 4, 8))
    ]
    told = stage.report("a", incarnation=2)
    assert stage.granted(told) == Granted((Grant(0, 0, 0, 4), Grant(4, 0, 4, 8)), exhausted=False)


def test_who_leaves_lets_the_others_have_it_at_once() -> None:
    stage = Stage().seeded()
    stage.report("a")
    stage.join("b")
    stage.report("b")
    assert stage.core.status(0).data.held == 10  # type: ignore[union-attr]
    told = stage.tell(Leave("a", 1, (0, 0)))
    granted = stage.granted(told)
    assert granted is not None and [(g.start, g.stop) for g in granted.grants] == [(8, 10), (0, 4)]


def test_a_resumed_process_is_told_all_it_holds() -> None:
    stage = Stage().seeded()
    stage.report("a")
    welcome = next(m for m in stage.join("a", incarnation=1, position=3, samples=3) if isinstance(m, Welcome))
    assert welcome.grants == (Grant(0, 0, 0, 4), Grant(4, 0, 4, 8)) and not welcome.exhausted


@pytest.mark.parametrize("changes", [{"sequences": 11}, {"digest": "other"}])
def test_another_corpus_is_refused(changes: dict[str, Any]) -> None:
    stage = Stage().seeded()
    refused = stage.join("b", **changes)[0]
    assert isinstance(refused, JoinRefused)
    assert refused.reason is JoinRefusal.DATA_MISMATCH
    assert "the same data.source, tokenizer, sequence_length and validation_share" in refused.detail


def test_a_learner_with_data_of_its_own_is_granted_nothing_and_welcome_beside_others() -> None:
    stage = Stage().seeded()
    stage.join("b", sequences=0, digest="")
    assert stage.granted(stage.report("b")) is None
    with pytest.raises(RemoteProtocolError, match="come to position 1 of 0 it was granted"):
        stage.report("b", 1, 1)


def test_without_data_leases_nothing_is_granted() -> None:
    stage = Stage(dealing=None).seeded()
    assert stage.granted(stage.report("a")) is None
    assert not any(isinstance(event, DataOpened | DataGranted) for event in stage.events)
    assert stage.core.status(0).data is None


def test_more_than_was_granted_is_an_error_without_effect() -> None:
    stage = Stage().seeded()
    stage.report("a")
    before = stage.core.saved(0)
    with pytest.raises(RemoteProtocolError, match="come to position 9 of 8 it was granted"):
        stage.report("a", 1, 9)
    with pytest.raises(RemoteProtocolError, match="speaks of 3 samples trained up to position 2"):
        stage.report("a", 1, 2, samples=3)
    assert stage.core.saved(0) == before


def test_another_life_knows_what_was_granted_and_takes_it_from_who_is_no_member() -> None:
    stage = Stage().seeded()
    stage.report("a")
    saved = msgspec.json.decode(msgspec.json.encode(stage.core.saved(0)), type=SavedRun)
    again = Stage()
    again.core.resume(saved, stage.core.layout, 2, 0)
    assert again.core.status(0).data == stage.core.status(0).data
    gone = msgspec.structs.replace(saved.members[0], state="gone")
    again = Stage()
    again.core.resume(msgspec.structs.replace(saved, members=(gone,)), stage.core.layout, 2, 0)
    status = again.core.status(0).data
    assert status is not None and (status.held, status.waiting) == (0, 8)
