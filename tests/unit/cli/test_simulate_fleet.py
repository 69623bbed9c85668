"""How fleets are written: flags over the file over the defaults, and sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from unlockstep.cli.simulate_fleet import (
    FIELDS,
    FLAGS,
    POINTS_MAX,
    Sweep,
    advised,
    check_use,
    fleet,
    grid,
    parse_learners,
    parse_sweep,
    settings,
)
from unlockstep.core.errors import ConfigError, UsageError
from unlockstep.sim.fleet import YEAR_S, Fleet

# ---------------------------------------------------------------------------------------------------- file and flags


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("chips = 600_000\nlearners = 4\nreturn_s = 900\n")
    found = fleet(settings(file, {"learners": 2, "upscale_s": None}))
    assert found == Fleet(chips=600_000, learners=2, return_s=900.0)


def test_every_field_of_a_fleet_can_be_swept_and_but_for_elastic_is_a_flag() -> None:
    assert set(FIELDS) == set(Fleet.__struct_fields__)
    assert set(FLAGS) == set(FIELDS) - {"elastic"} | {"rigid", "mtbi_years"}


def test_years_between_interruptions_are_of_365_and_a_quarter_days() -> None:
    assert settings(None, {"mtbi_years": 2.0}) == {"interruption_s": 2 * YEAR_S}


def test_rigid_is_one_learner_unless_the_file_says_which() -> None:
    assert settings(None, {"rigid": True}) == {"learners": 1, "elastic": False}
    assert settings(None, {"rigid": False}) == {"elastic": True}


def test_a_fleet_of_several_rigid_learners_is_the_files_business(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("elastic = false\nlearners = 8\n")
    assert settings(file, {}) == {"learners": 8, "elastic": False}
    with pytest.raises(
        UsageError, match=r"^--rigid is the baseline of one learner, but learners is 8; add --learners 1"
    ):
        settings(file, {"rigid": True})


def test_a_file_may_use_the_names_of_flags(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("chips = 4096\nmtbi_years = 2\nslice = 128\n")
    assert fleet(settings(file, {})) == Fleet(chips=4096, interruption_s=2 * YEAR_S, slice_chips=128)
    file.write_text("mtbi_s = 1e6\n")
    assert settings(file, {}) == {"interruption_s": 1e6}
    assert settings(file, {"mtbi_years": 1.0}) == {"interruption_s": YEAR_S}


@pytest.mark.parametrize("text", ["mtbi_years = 1\ninterruption_s = 5.0", "mtbi_s = 5.0\nmtbi_years = 1"])
def test_a_file_says_a_thing_once(text: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"^--config has \w+ and \w+, which say the same; give one of them$"):
        settings(file, {})


def test_one_unit_for_interruptions_is_enough() -> None:
    with pytest.raises(UsageError, match=r"^--mtbi-years and --mtbi-s say the same in two units; give one of them$"):
        settings(None, {"mtbi_years": 1.0, "interruption_s": 3e7})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chip = 5", "chip is not a setting of a fleet; did you mean chips?"),
        ("chips = 5\ncolour = 3", "colour is not a setting of a fleet; choose one of chips, learners"),
        ("chips = 'many'", "chips is 'many'; it must be a whole number"),
        ("chips = 1024\nelastic = 1", "elastic is 1; it must be true or false"),
        ("chips = 1024\nreturn_s = [1]", "return_s is [1]; it must be a number"),
        ("learners = 8", "chips is missing; say how many there are"),
        ("mtbi_years = 'two'", "mtbi_years is 'two'; it must be a number"),
        ("chips = 5\nrigid = true", "rigid is not a setting of a fleet; write elastic = false"),
    ],
)
def test_a_file_with_a_wrong_setting_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        fleet(settings(file, {}))
    assert str(refused.value).startswith(said)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    (tmp_path / "broken.toml").write_text("chips = ")
    cases = {"gone.toml": "does not exist", "latin.toml": "UTF-8", "broken.toml": "not TOML", "": "cannot be read"}
    for name, said in cases.items():
        with pytest.raises(UsageError, match=f"^--config is .*{said}"):
            settings(tmp_path / name, {})


# ------------------------------------------------------------------------------------------------------------ sweeps


def test_a_list_is_taken_as_it_is() -> None:
    assert parse_sweep("learners=1,2,16").values == (1, 2, 16)
    assert parse_sweep("return-s = 300, 6e2").values == (300.0, 600.0)
    assert parse_sweep("elastic=true,false").values == (True, False)


def test_a_range_goes_by_a_constant_factor() -> None:
    assert parse_sweep("chips=150000:2.4e6:5").values == (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
    assert parse_sweep("return_s=1:100:3").values == pytest.approx((1, 10, 100))


def test_a_range_of_whole_numbers_has_each_once() -> None:
    assert parse_sweep("learners=1:4:9").values == (1, 2, 3, 4)


def test_names_of_flags_are_understood_in_their_own_unit() -> None:
    sweep = parse_sweep("mtbi-years=0.5,1")
    assert (sweep.field, sweep.values) == ("interruption_s", (0.5, 1.0))
    assert [found.interruption_s for found in grid({"chips": 4096}, [sweep])] == [0.5 * YEAR_S, YEAR_S]
    assert parse_sweep("slice=128").field == "slice_chips"


def test_two_sweeps_make_a_grid_whose_second_runs_fastest() -> None:
    sweeps = [Sweep(name="chips", values=(4096, 8192)), Sweep(name="learners", values=(1, 2))]
    found = [(one.chips, one.learners) for one in grid({}, sweeps)]
    assert found == [(4096, 1), (4096, 2), (8192, 1), (8192, 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chips", "--sweep is 'chips'; write FIELD=a,b,c or FIELD=start:stop:count"),
        ("chip=1,2", "--sweep names 'chip', which is not a setting of a fleet; did you mean chips?"),
        ("rigid=true,false", "--sweep names 'rigid', which is not a setting of a fleet; sweep elastic=true,false"),
        ("chips=", "--sweep gives chips the value ''; it must be a whole number"),
        ("chips=1.5", "--sweep gives chips the value '1.5'; it must be a whole number"),
        ("return_s=inf", "--sweep gives return_s the value 'inf'; it must be a number"),
        ("elastic=1", "--sweep gives elastic the value '1'; it must be true or false"),
        ("elastic=0:1:2", "--sweep gives elastic the values '0:1:2'; write start:stop:count"),
        ("chips=1:2", "--sweep gives chips the values '1:2'; write start:stop:count"),
        ("chips=0:2:3", "--sweep gives chips the values '0:2:3'; write start:stop:count"),
        ("chips=1:2:1", "--sweep gives chips the values '1:2:1'; write start:stop:count"),
        ("chips=1:2:3:4", "--sweep gives chips the values '1:2:3:4'; write start:stop:count"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_sweep(text)
    assert str(refused.value).startswith(said)


def test_a_grid_has_at_most_two_parameters_each_once_and_a_bounded_size() -> None:
    chips, learners = Sweep(name="chips", values=(4096,)), Sweep(name="learners", values=(1,))
    with pytest.raises(UsageError, match=r"^--sweep names interruption_s twice"):
        grid({}, [Sweep(name="mtbi_s", values=(1.0,)), Sweep(name="mtbi_years", values=(1.0,))])
    with pytest.raises(UsageError, match=r"^--sweep is given 3 times"):
        grid({}, [chips, learners, Sweep(name="swap_s", values=(1.0,))])
    with pytest.raises(UsageError, match=rf"^--sweep asks for {POINTS_MAX + 1} fleets"):
        grid({}, [Sweep(name="chips", values=(4096,) * (POINTS_MAX + 1))])


# ------------------------------------------------------------------------------------- settings that change nothing


def _checked(flags: dict[str, object], *sweeps: str) -> None:
    check_use(settings(None, flags), flags, [parse_sweep(text) for text in sweeps])


@pytest.mark.parametrize("name", ["restart_s", "checkpoint_s", "checkpoint_interval_s", "spares", "swap_s"])
def test_a_setting_of_rigid_fleets_is_refused_for_an_elastic_one(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(
        UsageError, match=rf"^{flag} is for rigid fleets and .* an elastic one; drop it, or add --rigid$"
    ):
        _checked({name: 1})
    with pytest.raises(UsageError, match=rf"^--sweep {name} is for rigid fleets"):
        _checked({}, f"{name}=1,2")
    _checked({name: 1, "rigid": True})
    _checked({name: 1}, "elastic=true,false")


@pytest.mark.parametrize("name", ["downscale_s", "upscale_s", "merge_wait_s"])
def test_a_setting_of_elastic_fleets_is_refused_for_a_rigid_one(name: str) -> None:
    with pytest.raises(UsageError, match=r"is for elastic fleets and .* a rigid one; drop it, or drop --rigid$"):
        _checked({name: 1, "rigid": True})
    _checked({name: 1})
    _checked({name: 1, "rigid": True}, "elastic=true,false")


def test_rigid_is_one_learner_in_a_sweep_as_it_is_without() -> None:
    with pytest.raises(
        UsageError, match=r"^--rigid is the baseline of one learner, but learners is 2; add --learners 1"
    ):
        _checked({"rigid": True}, "learners=1,2")
    _checked({"rigid": True}, "learners=1")
    _checked({}, "learners=1,2")


# ----------------------------------------------------------------------------------------------------------- advice


def test_learners_are_listed_with_commas() -> None:
    assert parse_learners("5") == (5,)
    assert parse_learners("8, 4,5,4") == (4, 5, 8)


@pytest.mark.parametrize("text", ["", "many", "4,", "2.5", "-4", "9" * 5000])
def test_a_list_of_learners_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"write one M, or several as 4,5,8$"):
        parse_learners(text)


def test_advice_considers_powers_of_two_and_the_files_learners() -> None:
    assert advised({"chips": 10**6}, None, None)[1] == (2, 4, 8, 16)
    assert advised({"chips": 10**6, "learners": 5}, None, None)[1] == (2, 4, 5, 8, 16)
    assert advised({"chips": 10**6, "learners": 5}, None, 4)[1] == (2, 4, 5)
    assert advised({"chips": 10**6, "learners": 1}, None, None)[1] == (2, 4, 8, 16)


def test_advice_considers_only_the_learners_that_a_flag_names() -> None:
    assert advised({"chips": 10**6, "learners": 8}, "5", None)[1] == (5,)
    with pytest.raises(UsageError, match=r"^--learners already says which M to choose among; drop --learners-max$"):
        advised({"chips": 10**6}, "5", 32)


def test_advice_for_a_fleet_without_elasticity_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^elastic is false, but advice is for learners that go on"):
        advised({"chips": 10**6, "elastic": False}, None, None)


def test_advice_compares_a_baseline_with_the_files_spares() -> None:
    assert advised({"chips": 10**6, "spares": 4}, None, None)[0].spares == 4


@pytest.mark.parametrize("found", [{"learners": "many"}, {"elastic": 1}])
def test_advice_checks_settings_that_it_answers_itself(found: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="it must be"):
        advised({"chips": 10**6, **found}, None, None)


def test_advice_for_few_chips_takes_slices_that_all_learners_have_one_of() -> None:
    found, counts = advised({"chips": 16}, "2", None)
    assert (found.slice_chips, counts) == (8, (2,))
    assert advised({"chips": 10_000}, "2", None)[0].slice_chips == 256
    with pytest.raises(UsageError, match=r"--slice is 256, and of 16 chips 2 learners cannot .* --slice 8 or less"):
        advised({"chips": 16, "slice_chips": 256}, "2", None)
