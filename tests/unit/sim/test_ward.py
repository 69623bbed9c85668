"""What a learner may hold and hand over: its own steps, once, and versions that were published."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from unlockstep.config import AdoptionSection, CodecSection, Durability, DurabilitySection, RunConfig
from unlockstep.core.adoption import Adoption
from unlockstep.core.formats import Codec
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.core.messages import VersionNotice
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import Contribution
from unlockstep.sim.ward import Ward, WardedBackend

EXACT = RunConfig(codec=CodecSection(upload=Codec.FLOAT32, download=Codec.FLOAT32))


class Stage:
    """A process that trains two fragments of one element each, seven tokens a step, and has loaded zeros."""

    def __init__(
        self,
        mode: Adoption = Adoption.CARRY,
        alpha: float = 0.5,
        durability: Durability = Durability.COMMIT,
    ) -> None:
        self.ward = Ward()
        self.toy = ToyBackend(sizes=[1, 1], tokens_per_step=7)
        self.toy.optimum[:] = 10
        adoption = AdoptionSection(mode=mode, blend_alpha=alpha)
        config = msgspec.structs.replace(EXACT, adoption=adoption, durability=DurabilitySection(mode=durability))
        self.backend = WardedBackend(self.ward, "a", self.toy, config)
        self.backend.bind(build_layout(self.toy.tensors(), 2, LayoutMethod.BALANCED))
        for fragment in (0, 1):
            self.publish(fragment, 0, 0.0)
            self.backend.write_fragment(fragment, np.zeros(1, np.float32))

    def publish(self, fragment: int, version: int, value: float) -> None:
        self.ward.publish(VersionNotice(fragment, version, ""), np.full(1, value, np.float32))

    def write(self, value: float, fragment: int = 0) -> None:
        self.backend.write_fragment(fragment, np.full(1, value, np.float32))

    def hand_over(
        self, delta: float, steps: int, tokens: int, version: int = 0, fragment: int = 0, trained: int | None = None
    ) -> None:
        made = Contribution(
            run_id="run",
            learner="a",
            incarnation=1,
            round=0,
            fragment=fragment,
            base_version=version,
            c_steps=steps,
            c_tokens=tokens,
            tokens=self.backend.tokens if trained is None else trained,
            anchor=np.zeros(1, np.float32),
            local=np.zeros(1, np.float32),
        )
        self.backend.hand_over(made, np.full(1, delta))

    def rules(self) -> list[str]:
        return [rule for rule, _ in self.ward.take_complaints()]


def test_a_value_that_nobody_published_may_not_be_loaded() -> None:
    stage = Stage()
    assert stage.rules() == []
    stage.write(1.0)
    assert stage.ward.take_complaints() == [("adopted value", "a loads a value of fragment 0 nobody published")]
    assert stage.rules() == []


def test_what_steps_have_changed_is_handed_over_once() -> None:
    """Two steps of a tenth of the way from 0 to 10 lead to 1.9, a third one to 2.71: minus that is handed over."""
    stage = Stage()
    stage.backend.inner_step(0)
    stage.backend.inner_step(1)
    stage.hand_over(-1.9, steps=2, tokens=14)
    stage.backend.inner_step(2)
    stage.hand_over(-0.81, steps=1, tokens=7)
    stage.hand_over(-2.71, steps=3, tokens=21, fragment=1)
    assert stage.rules() == []


@pytest.mark.parametrize(
    ("delta", "steps", "tokens", "version"),
    [(1.9, 2, 14, 0), (-1.0, 2, 14, 0), (-1.9, 1, 14, 0), (-1.9, 2, 7, 0), (-1.9, 2, 14, 1)],
    ids=["wrong sign", "an older copy", "steps", "tokens", "another version"],
)
def test_anything_else_is_complained_of(delta: float, steps: int, tokens: int, version: int) -> None:
    stage = Stage()
    stage.publish(0, 1, 5.0)
    stage.backend.inner_step(0)
    stage.backend.inner_step(1)
    stage.hand_over(delta, steps, tokens, version)
    assert stage.rules() == ["handed over"]


def test_carry_adds_progress_once() -> None:
    """A step leads from 0 to 1; on version 1, which is 5, that is 6, and neither 5 nor 7."""
    for value, rules in ((6.0, []), (5.0, ["adopted value"]), (7.0, ["adopted value"])):
        stage = Stage(Adoption.CARRY)
        stage.backend.inner_step(0)
        stage.publish(0, 1, 5.0)
        stage.write(value)
        assert stage.rules() == rules
    stage = Stage(Adoption.CARRY)
    stage.backend.inner_step(0)
    stage.publish(0, 1, 5.0)
    stage.write(6.0)
    stage.hand_over(-1.0, steps=1, tokens=7, version=1)
    assert stage.rules() == []


def test_a_learner_whose_version_is_lost_loads_all_of_them_and_has_nothing_to_hand_over() -> None:
    """Where commits may be lost with the syncer, a published value as it is means just that."""
    stage = Stage(durability=Durability.INTERVAL)
    stage.backend.inner_step(0)
    stage.publish(0, 1, 5.0)
    stage.write(5.0)
    stage.write(0.0, fragment=1)
    assert stage.rules() == []
    stage.backend.inner_step(1)
    stage.hand_over(-0.5, steps=1, tokens=7, version=1)
    stage.hand_over(-1.0, steps=1, tokens=7, fragment=1)
    assert stage.rules() == []


def test_carry_that_drops_progress_is_noticed_where_versions_may_be_loaded_again() -> None:
    """By its counts, for who drops the progress keeps them; and because nobody loads one fragment alone."""
    stage = Stage(durability=Durability.INTERVAL)
    stage.backend.inner_step(0)
    stage.publish(0, 1, 5.0)
    stage.write(5.0)
    stage.hand_over(0.0, steps=1, tokens=7, version=1)
    assert stage.rules() == ["handed over"]
    stage.backend.inner_step(1)
    assert stage.ward.take_complaints() == [
        ("adopted value", "a gives up its progress on fragments [0], not on 1"),
    ]


def test_what_is_handed_over_once_more_is_what_it_was() -> None:
    stage = Stage()
    stage.backend.inner_step(0)
    stage.hand_over(-1.0, steps=1, tokens=7)
    stage.backend.inner_step(1)
    stage.hand_over(-1.0, steps=1, tokens=7, trained=7)
    assert stage.rules() == []
    for delta, steps, tokens in ((-1.1, 1, 7), (-1.0, 2, 7), (-1.0, 1, 14)):
        stage.hand_over(delta, steps, tokens, trained=7)
        assert stage.rules() == ["handed over"]


def test_overwrite_leaves_nothing_to_hand_over() -> None:
    stage = Stage(Adoption.OVERWRITE)
    stage.backend.inner_step(0)
    stage.publish(0, 1, 5.0)
    stage.write(5.0)
    stage.backend.inner_step(1)
    stage.hand_over(-0.5, steps=1, tokens=7, version=1)
    assert stage.rules() == []


def test_blend_keeps_a_share_of_value_progress_and_counts() -> None:
    """Two steps lead to 1.9; a fifth of it and four fifths of 5 are 4.38, with 0.38 of progress, ceil(0.2 * 2) steps
    and floor(0.2 * 14) tokens."""
    stage = Stage(Adoption.BLEND, alpha=0.2)
    stage.backend.inner_step(0)
    stage.backend.inner_step(1)
    stage.publish(0, 1, 5.0)
    stage.write(4.38)
    stage.hand_over(-0.38, steps=1, tokens=2, version=1)
    assert stage.rules() == []


def test_a_learners_clock_does_not_go_back() -> None:
    stage = Stage()
    for clock in (4, 5, 9):
        stage.backend.inner_step(clock)
    assert stage.rules() == []
    stage.backend.inner_step(8)
    assert stage.rules() == ["learner clock"]
