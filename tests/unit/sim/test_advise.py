"""The rule of the advice, case by case; and that what it says can be done."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from unlockstep import config
from unlockstep.core.errors import ConfigError, UsageError
from unlockstep.core.formats import Codec
from unlockstep.sim.advise import INTERVALS, NEAR_POINTS, Advice, Question, advise, powers_of_two
from unlockstep.sim.fleet import Fleet


def question(chips: int = 1_200_000, **changed: Any) -> Question:
    """5 B parameters, 1 s a step, a link of 10 Gbit/s, unless changed."""
    fleet = Fleet(chips=chips, learners=1)
    learners = changed.pop("learners", None) or powers_of_two(fleet)
    usual = {"params": 5e9, "step_s": 1.0, "link_gbit": 10.0}
    return Question(fleet=fleet, learners=learners, **{**usual, **changed})


def answer(chips: int = 1_200_000, **changed: Any) -> Advice:
    return advise(question(chips, **changed), failures=100)


# -------------------------------------------------------------------------------------------------------- the rule


def test_a_fast_link_gets_the_papers_setting_and_the_default_codec() -> None:
    setting = answer().setting
    assert (setting.interval_steps, setting.fragments, setting.overlap_steps, setting.quorum) == (24, 24, 2, 1)
    assert (setting.upload, setting.download) == ("bfloat16", "float32")


def test_a_slower_link_gives_up_exactness_before_it_gives_up_the_interval() -> None:
    """H = 24 needs (16 + 32) / 2 * 5 / 24 = 5 Gbit/s by its peak and 6.7 by its mean; in bfloat16 3.3 and the merge."""
    setting = answer(link_gbit=5.0).setting
    assert (setting.interval_steps, setting.upload, setting.download) == (24, "bfloat16", "bfloat16")


def test_a_slow_link_gets_a_longer_interval_with_as_many_fragments() -> None:
    setting = answer(link_gbit=1.0).setting
    assert setting.interval_steps == setting.fragments == 96


def test_a_faster_link_never_gets_a_longer_interval() -> None:
    intervals = [answer(link_gbit=link).setting.interval_steps for link in (0.4, 0.5, 1, 2, 3, 5, 10)]
    assert intervals == sorted(intervals, reverse=True)
    assert set(intervals) <= set(INTERVALS)


def test_a_round_fits_on_the_links_it_was_chosen_for() -> None:
    for link in (0.4, 1.0, 4.0, 40.0):
        setting = answer(link_gbit=link).setting
        assert setting.round_s <= setting.budget_s == 2.0
        assert setting.learner_peak <= link


def test_a_round_is_both_transfers_the_merge_and_two_and_a_half_round_trips() -> None:
    found = answer(link_gbit=5.0, round_trip_s=0.1, syncer_cores=8).setting
    merge_s = found.learners * 5e9 / 24 / (8 * 1.4e9)
    assert found.merge_s == pytest.approx(merge_s)
    assert found.round_s == pytest.approx(2 * 5 * 16 / 24 / 5 + merge_s + 2.5 * 0.1)


def test_the_syncers_link_is_shared_by_all_learners() -> None:
    advice = answer(link_gbit=100.0, syncer_gbit=16.0)
    intervals = {choice.learners: choice.setting.interval_steps for choice in advice.choices if choice.setting}
    assert intervals == {2: 24, 4: 24, 8: 48, 16: 96}


def test_the_fewest_learners_near_the_best_are_chosen() -> None:
    advice = answer()
    goodputs = {choice.learners: 100 * choice.goodput.goodput.value for choice in advice.choices}
    assert list(goodputs) == [2, 4, 8, 16]
    near = [learners for learners, goodput in goodputs.items() if max(goodputs.values()) - goodput <= NEAR_POINTS]
    assert advice.setting.learners == min(near) == 16


def test_a_small_fleet_needs_few_learners() -> None:
    """4096 chips fail every two hours: two learners lose nearly nothing."""
    assert answer(chips=4096).setting.learners == 2


def test_no_learner_is_smaller_than_a_slice() -> None:
    assert [choice.learners for choice in answer(chips=5 * 256).choices] == [2, 4]


def test_more_learners_than_published_have_to_be_asked_for() -> None:
    fleet = Fleet(chips=1_200_000)
    assert powers_of_two(fleet) == (2, 4, 8, 16)
    assert powers_of_two(fleet, 64) == (2, 4, 8, 16, 32, 64)


def test_a_number_of_learners_that_is_asked_for_is_the_answer() -> None:
    """Five sites: data-parallel then averages 2 (M - 1) / M of the gradients over five, too."""
    advice = answer(learners=(5,))
    assert advice.setting.learners == 5
    assert [choice.learners for choice in advice.choices] == [5]
    assert advice.reasons[0].startswith("M = 5: no other was to be considered")
    assert advice.alternatives[0].utilisation == pytest.approx(1 / (1 + 2 * 4 / 5 * 5 * 16 / 10 - 2 / 3))
    assert advice.alternatives[0].remark == "bfloat16 gradients over 5 sites"


def test_of_several_numbers_of_learners_the_rule_chooses() -> None:
    advice = answer(learners=(4, 5, 12))
    assert [choice.learners for choice in advice.choices] == [4, 5, 12]
    assert advice.setting.learners == 12


def test_more_learners_than_slices_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^learners is 5, but a fleet of 1,024 chips has 4 slices of 256; choose fewer"
    ):
        answer(chips=1024, learners=(5,))


@pytest.mark.parametrize("learners", [(), (1,), (4, 2), (2, 2), (2, 10**400)])
def test_numbers_of_learners_that_cannot_be_are_refused(learners: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^learners is "):
        Question(fleet=Fleet(chips=10**6), learners=learners, params=5e9, step_s=1.0, link_gbit=10.0)


def test_a_model_of_few_tensors_has_few_fragments() -> None:
    advice = answer(tensors=12)
    assert (advice.setting.interval_steps, advice.setting.fragments) == (24, 12)
    assert "the model has 12 tensors" in advice.reasons[2]


# ------------------------------------------------------------------------------------------------- what else is said


@pytest.mark.parametrize("link", [0.4, 1.0, 5.0, 10.0])
def test_the_lines_for_a_configuration_are_one(link: float) -> None:
    advice = answer(link_gbit=link)
    loaded, setting = config.loads(advice.toml), advice.setting
    assert loaded.protocol.interval_steps == setting.interval_steps
    assert loaded.protocol.fragments == setting.fragments
    assert loaded.protocol.overlap_steps == setting.overlap_steps
    assert loaded.protocol.quorum == setting.quorum
    assert (loaded.codec.upload, loaded.codec.download) == (Codec(setting.upload), Codec(setting.download))


def test_the_syncer_carries_the_traffic_of_all_learners() -> None:
    setting = answer().setting
    assert setting.syncer_mean_in == setting.learners * setting.learner_mean_up
    assert setting.syncer_mean_out == setting.learners * setting.learner_mean_down


def test_data_parallel_is_charged_for_its_failures_and_for_its_link() -> None:
    elastic, rigid, *_ = answer().alternatives
    bits = 2 * 15 / 16 * 5 * 16
    assert elastic.utilisation == rigid.utilisation == pytest.approx(1 / (1 + bits / 10 - 2 / 3))
    assert elastic.goodput > rigid.goodput
    assert elastic.outcome == elastic.goodput * elastic.utilisation


def test_tokens_are_those_of_the_time_that_counts() -> None:
    advice = answer(tokens_per_step=4_000_000, step_s=2.0)
    assert advice.tokens_per_day == pytest.approx(advice.goodput.goodput.value * 4e6 * 86_400 / 2)
    assert "250,000 tokens a step" in advice.reasons[0]
    assert answer().tokens_per_day is None


def test_the_quality_of_many_learners_is_said_to_be_one_readers_number() -> None:
    assert "one reader" in answer().reasons[0]
    assert "one reader" not in answer(chips=4096).reasons[0]


def test_a_longer_interval_says_what_asked_for_it() -> None:
    assert "H = 24 needs 3.86 Gbit/s per learner and there are 1;" in answer(link_gbit=1.0).reasons[1]
    assert "merging alone takes 4.76 s" in answer(link_gbit=100.0, params=5e10, syncer_cores=5).reasons[1]


def test_spares_are_kept_by_the_rigid_baseline_alone() -> None:
    fleet = Fleet(chips=1_200_000, learners=1, elastic=False, spares=50)
    with_spares = advise(
        Question(fleet=fleet, learners=powers_of_two(fleet), params=5e9, step_s=1.0, link_gbit=10.0), failures=100
    )
    without = answer()
    assert with_spares.goodput == without.goodput
    assert with_spares.alternatives[1].goodput > without.alternatives[1].goodput


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"link_gbit": 0.01}, "link_gbit is 0.01; even with 2 learners"),
        ({"syncer_gbit": 0.01}, "syncer_gbit is 0.01; even with 2 learners"),
        ({"params": 1e13, "syncer_cores": 1}, "syncer_cores is 1; even with 2 learners"),
        ({"step_s": 0.01}, "step_s is 0.01; even with 2 learners"),
        ({"chips": 300}, "chips is 300 and slice_chips is 256, too few for two learners"),
    ],
)
def test_what_cannot_be_is_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        answer(**changed)
    assert str(refused.value).startswith(said)


def test_the_link_that_would_do_is_stated() -> None:
    with pytest.raises(UsageError, match=r"it must be at least (\S+):") as refused:
        answer(link_gbit=0.01)
    enough = float(str(refused.value).split("at least ")[1].split(":")[0])
    assert answer(link_gbit=enough * 1.01).setting.interval_steps == INTERVALS[-1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("params", 0.0),
        ("step_s", math.nan),
        ("link_gbit", -1.0),
        ("syncer_gbit", 0.0),
        ("round_trip_s", -0.1),
        ("syncer_cores", 0),
        ("tensors", 0),
        ("tokens_per_step", -1),
        ("params", 1e308),
        ("syncer_cores", 10**400),
        ("tensors", 10**400),
        ("tokens_per_step", 10**400),
    ],
)
def test_a_question_that_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{field} is {re.escape(f'{value!r:.40}')}; it must be from "):
        question(**{field: value})
