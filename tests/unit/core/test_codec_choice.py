"""Which format a learner uploads in: the finest that its link carries, without going back and forth."""

from __future__ import annotations

import pytest

from support.core_builders import options
from support.syncer_stage import SyncerStage, running
from unlockstep.core.codec_choice import FINER_SHARE, UPLOAD_SHARE, choose, round_ns, upload_ns
from unlockstep.core.events import UploadCodecChosen
from unlockstep.core.formats import Codec
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.messages import Farewell, Leaving, Pull, UploadMeasured
from unlockstep.core.upload_link import SAMPLES_MAX, UploadLink

ALLOWED = (Codec.BFLOAT16, Codec.INT8, Codec.INT4)
ELEMENTS = 8_000_000
SECOND = NANOSECONDS_PER_SECOND


def rate_for(codec: Codec, share: float, within_ns: int = SECOND) -> float:
    """Bytes per second at which an upload takes this share of the time a round may take."""
    return ELEMENTS * codec.bits_per_element / 8 / (share * within_ns / SECOND)


def test_an_upload_takes_its_bits_over_the_rate_of_the_link() -> None:
    """8 M elements of 4.25 bits are 4.25 MB."""
    assert upload_ns(Codec.INT4, ELEMENTS, 4.25e6) == SECOND
    assert upload_ns(Codec.BFLOAT16, ELEMENTS, 4e6) == 4 * SECOND


def test_a_round_may_take_the_steps_to_the_next_one_or_half_of_the_overlap() -> None:
    assert round_ns(options(fragments=4, interval_steps=24, overlap_steps=4), 100) == 200
    assert round_ns(options(fragments=12, interval_steps=24, overlap_steps=20), 100) == 200
    assert round_ns(options(fragments=24, interval_steps=12, overlap_steps=6), 100) == 50
    assert round_ns(options(fragments=4, interval_steps=24, overlap_steps=0), 100) == 600


def test_a_link_that_does_not_carry_the_present_format_gets_the_finest_it_does_carry() -> None:
    slow = rate_for(Codec.INT8, UPLOAD_SHARE * 0.99)
    choice = choose(ALLOWED, Codec.BFLOAT16, slow, ELEMENTS, SECOND)
    assert choice.codec is Codec.INT8
    assert choice.reason == ("at 10.4 MB/s int8 takes 0.792 s of the 1 s that a round may take, bfloat16 1.54 s")


def test_a_link_that_carries_nothing_gets_the_coarsest() -> None:
    choice = choose(ALLOWED, Codec.BFLOAT16, rate_for(Codec.INT4, 3.0), ELEMENTS, SECOND)
    assert choice.codec is Codec.INT4
    assert choice.reason == "at 1.42 MB/s even int4 takes 3 s of the 1 s that a round may take"


def test_a_format_that_holds_stays() -> None:
    choice = choose(ALLOWED, Codec.INT8, rate_for(Codec.INT8, UPLOAD_SHARE), ELEMENTS, SECOND)
    assert choice.codec is Codec.INT8
    assert choice.reason == "at 10.3 MB/s int8 takes 0.8 s of the 1 s that a round may take"


@pytest.mark.parametrize(("share", "taken"), [(FINER_SHARE * 1.01, Codec.INT8), (FINER_SHARE * 0.99, Codec.BFLOAT16)])
def test_a_finer_one_is_taken_only_with_time_to_spare(share: float, taken: Codec) -> None:
    rate = rate_for(Codec.BFLOAT16, UPLOAD_SHARE * share)
    assert choose(ALLOWED, Codec.INT8, rate, ELEMENTS, SECOND).codec is taken


@pytest.mark.parametrize("present", ALLOWED)
def test_a_link_that_varies_by_less_than_the_margin_never_goes_back_and_forth(present: Codec) -> None:
    """Between any two rates of 1 : 1.6 the format changes once at most."""
    for slow in [rate_for(codec, share / 10) for codec in ALLOWED for share in range(1, 30)]:
        seen = [present]
        for rate in (slow, 1.6 * slow) * 4:
            seen.append(choose(ALLOWED, seen[-1], rate, ELEMENTS, SECOND).codec)
        assert len(set(seen[2:])) == 1 or seen[2:] == seen[2:3] + seen[3:4] * (len(seen) - 3), (slow, seen)


def test_with_one_format_there_is_nothing_to_choose() -> None:
    assert choose((Codec.INT4,), Codec.INT4, 1.0, ELEMENTS, SECOND).codec is Codec.INT4


def test_a_rate_is_the_median_of_the_last_uploads() -> None:
    """One that was broken off for a minute means nothing."""
    link = UploadLink()
    assert link.bytes_per_s is None
    for duration_s in (1, 60, 1):
        link.add(1000, duration_s * SECOND)
    assert link.bytes_per_s == 1000
    for _ in range(SAMPLES_MAX):
        link.add(1000, 2 * SECOND)
    assert link.bytes_per_s == 500
    link.add(10, 0)
    assert link.bytes_per_s == 500


# ------------------------------------------------------------------------------------------------- in the syncer's core


def measured(stage: SyncerStage, learner: str, bytes_per_s: int, times: int = 1, incarnation: int = 1) -> None:
    for _ in range(times):
        stage.tell(UploadMeasured(learner, incarnation, bytes_per_s, SECOND))


def formats(stage: SyncerStage) -> dict[str, tuple[str, float | None]]:
    """As the status shows them."""
    return {each.learner: (each.codec, each.upload_bytes_per_s) for each in stage.core.status(stage.now_ns).learners}


def test_a_learner_begins_with_the_coarsest_and_gets_a_finer_one_when_its_link_is_known_to_carry_it() -> None:
    """A fragment is one element; a round may take one step of 100 ms. One upload is too little to go by."""
    stage = running("a", "b", codecs=ALLOWED)
    measured(stage, "a", 1000)
    assert stage.of(UploadCodecChosen) == []
    measured(stage, "a", 1000)
    (chosen,) = stage.of(UploadCodecChosen)
    assert (chosen.learner, chosen.incarnation, chosen.codec, chosen.bytes_per_s) == ("a", 1, Codec.BFLOAT16, 1000.0)
    assert chosen.reason == "at 1 kB/s bfloat16 takes 0.002 s of the 0.1 s that a round may take, int4 0.000531 s"
    assert formats(stage) == {"a": ("bfloat16", 1000.0), "b": ("int4", None)}
    for name in ("a", "b"):
        stage.step(name)
    assert stage.puppets["a"].heard_of(Pull) == [Pull(0, 0, Codec.BFLOAT16)]
    assert stage.puppets["b"].heard_of(Pull) == [Pull(0, 0, Codec.INT4)]


def test_a_learner_whose_link_grows_slow_gets_a_coarser_one() -> None:
    stage = running("a", codecs=ALLOWED)
    measured(stage, "a", 1000, times=2)
    measured(stage, "a", 1, times=SAMPLES_MAX)
    assert [event.codec for event in stage.of(UploadCodecChosen)] == [Codec.BFLOAT16, Codec.INT4]


def test_a_leaver_is_asked_for_what_it_has_in_its_format() -> None:
    stage = running("a", codecs=ALLOWED)
    stage.step("a")
    stage.contribute("a")
    stage.commit()
    stage.step("a", clock=4)
    stage.contribute("a")
    stage.commit()
    stage.step("a", clock=5)
    stage.tell(Leaving("a", 1))
    (farewell,) = stage.puppets["a"].heard_of(Farewell)
    assert [pull.codec for pull in farewell.pulls] == [Codec.INT4] * 2


def test_where_there_is_one_format_it_is_measured_and_stays() -> None:
    stage = running("a", codecs=(Codec.INT8,))
    measured(stage, "a", 1, times=3)
    assert stage.of(UploadCodecChosen) == []
    assert formats(stage) == {"a": ("int8", 1.0)}


def test_what_another_start_has_sent_tells_nothing_of_this_one() -> None:
    stage = running("a", codecs=ALLOWED)
    measured(stage, "a", 1000, times=3, incarnation=7)
    measured(stage, "nobody", 1000, times=3)
    assert stage.of(UploadCodecChosen) == []
    assert formats(stage) == {"a": ("int4", None)}


def test_another_life_of_the_syncer_measures_anew() -> None:
    stage = running("a", codecs=ALLOWED)
    measured(stage, "a", 1000, times=2)
    stage.die()
    assert formats(stage) == {"a": ("int4", None)}
