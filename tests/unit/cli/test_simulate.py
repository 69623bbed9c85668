"""``unlockstep simulate``: its flags, what it prints, and that a mistake is one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlockstep import config
from unlockstep.cli import app, exits
from unlockstep.cli.simulate_fleet import FIELDS
from unlockstep.cli.simulate_tables import span
from unlockstep.sim.advise import LEARNERS_MAX
from unlockstep.sim.fleet import YEAR_S, Fleet
from unlockstep.sim.goodput import estimate

FLAGS = {
    "goodput": "--chips --learners --rigid --elastic --mtbi-years --mtbi-s --slice --notice-s --downscale-s "
    "--upscale-s --merge-wait-s --return-s --return-shape --return-power --restart-s --checkpoint-s "
    "--checkpoint-interval-s --spares --swap-s --speed-spread --config --table --sweep --plot --tape --duration-s "
    "--failures --seed --json --help",
    "bandwidth": "--params --step-s --learners --interval-steps --fragments --overlap-steps --link-gbit --json --help",
    "advise": "--params --step-s --link-gbit --chips --learners --mtbi-years --mtbi-s --slice --config --syncer-gbit "
    "--syncer-cores --round-trip-s --tensors --tokens-per-step --learners-max --failures --seed --json --help",
}

ADVISE = ("advise", "--chips", "1.2e6", "--params", "5e9", "--step-s", "1", "--link-gbit", "5", "--failures", "50")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command line prints, after checking that it succeeds and says nothing on stderr."""

    def done(*arguments: str) -> str:
        assert app.run(["simulate", *arguments]) == exits.DONE
        written = capsys.readouterr()
        assert written.err == ""
        return written.out

    return done


@pytest.fixture
def record(printed: Callable[..., str]) -> Callable[..., Any]:
    """The one JSON object that a command line prints."""
    return lambda *arguments: json.loads(printed(*arguments, "--json"))


@pytest.fixture
def sentence(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command line says on stderr, after checking that it is refused in one line without a traceback."""

    def refused(*arguments: str) -> str:
        assert app.run(["simulate", *arguments]) == exits.USAGE
        written = capsys.readouterr()
        assert written.out == "" and written.err.count("\n") == 1 and written.err.startswith("error: ")
        return written.err

    return refused


@pytest.mark.parametrize("name", FLAGS)
def test_the_flags_of_a_command_are_these(name: str, printed: Callable[..., str]) -> None:
    """A flag is a promise: taking one away or renaming it breaks somebody's script."""
    shown = printed(name, "--help")
    found = {word.rstrip(",.]") for word in shown.replace("/", " ").split() if word.startswith("--")}
    assert found == set(FLAGS[name].split())


def test_help_states_the_defaults_of_a_fleet(printed: Callable[..., str]) -> None:
    shown = " ".join(printed("goodput", "--help").split())
    usual = Fleet(chips=10**6)
    assert f"M; 1 is elastic data-parallel. [default: {usual.learners}]" in shown
    assert f"Chips that leave and return together. [default: {usual.slice_chips}]" in shown
    assert f"years. [default: {usual.interruption_s / YEAR_S:g}]" in shown
    words = shown.split()
    for name in FIELDS:
        if (flag := f"--{name.replace('_', '-')}") in words and name not in ("chips", "learners"):
            assert _default_in_help(words[words.index(flag) + 1 :]) == getattr(usual, name), name


def _default_in_help(words: list[str]) -> float:
    """The first one stated."""
    return float(words[words.index("[default:") + 1].rstrip("]"))


def test_help_says_which_learners_advice_considers(printed: Callable[..., str]) -> None:
    shown = " ".join(printed("advise", "--help").split())
    assert "[default: 2, 4, 8, ... up to --learners-max, and the learners of --config]" in shown
    assert f"without --learners. [default: {LEARNERS_MAX}]" in shown


# ----------------------------------------------------------------------------------------------------------- goodput


def test_a_fleet_as_json_is_what_the_simulation_says(record: Callable[..., Any]) -> None:
    fleet = Fleet(chips=1_200_000, learners=4, interruption_s=2 * YEAR_S)
    (expected,) = estimate([fleet], failures=50, seed=3)
    arguments = "goodput --chips 1_200_000 --learners 4 --mtbi-years 2 --failures 50 --seed 3"
    found = record(*arguments.split())
    for name in ("goodput", "uptime", "participation"):
        interval = getattr(expected, name)
        assert (found[name], found["low"][name], found["high"][name]) == (interval.value, interval.low, interval.high)
    assert (found["chips"], found["learners"], found["interruption_s"]) == (1_200_000, 4, 2 * YEAR_S)


def test_one_learner_is_data_parallel_and_rigid_its_baseline(printed: Callable[..., str]) -> None:
    fleet = ("goodput", "--chips", "2.4e6", "--failures", "50")
    assert "2,400,000 chips, data-parallel, elastic;" in printed(*fleet, "--learners", "1")
    assert "2,400,000 chips, data-parallel, rigid;" in printed(*fleet, "--rigid")
    assert "2,400,000 chips, M = 8; 1 year between interruptions" in printed(*fleet)


def test_the_loss_is_said_in_chips(record: Callable[..., Any], printed: Callable[..., str]) -> None:
    fleet = ("goodput", "--chips", "1000000", "--learners", "1", "--failures", "50")
    lost = round((1 - record(*fleet)["goodput"]) * 1_000_000, -4)
    assert f"it is as if {lost:,.0f} of 1,000,000 chips never trained" in " ".join(printed(*fleet).split())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--chips 1e6", "--notice-s 2, --downscale-s 22, --upscale-s 12, --merge-wait-s 90, --return-s 300. They"),
        ("--chips 1e6 --rigid", "--notice-s 2, --restart-s 81, --checkpoint-s 0. They"),
        ("--chips 1e6 --sweep upscale_s=5,6", "--downscale-s 22, --merge-wait-s 90, --return-s 300. They"),
        ("--table paper", "--return-s 300, --restart-s 81, --checkpoint-s 0. They"),
    ],
)
def test_the_stalls_assumed_are_said_to_be_fitted(asked: str, said: str, printed: Callable[..., str]) -> None:
    shown = " ".join(printed("goodput", *asked.split(), "--failures", "50").split())
    assert (
        f"{said} are fitted to the paper's table, not measured on your hardware; set yours with these flags." in shown
    )


def test_stalls_that_are_given_are_told_from_those_assumed(printed: Callable[..., str]) -> None:
    shown = " ".join(printed("goodput", "--chips", "1e6", "--upscale-s", "5", "--failures", "50").split())
    assert "--downscale-s 22, --merge-wait-s 90" in shown and "Given: --upscale-s 5." in shown


def test_advice_says_where_its_stalls_are_set(printed: Callable[..., str]) -> None:
    shown = " ".join(printed(*ADVISE).split())
    assert "upscale_s = 12" in shown and "restart_s = 81" in shown and "set yours in a --config file." in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.02, "20 ms"), (1580.0, "26 min 20 s"), (86_400.0, "24 h 00 min"), (3 * 86_400.0, "3 days"),
     (2 * YEAR_S, "2.0 years"), (30_000 * YEAR_S, "30,000.0 years")],
)  # fmt: skip
def test_spans_of_time_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_one_is_not_many(printed: Callable[..., str]) -> None:
    fleet = ("goodput", "--chips", "1", "--slice", "1", "--learners", "1")
    shown = " ".join(printed(*fleet, "--failures", "1").split())
    assert "1 chip, data-parallel, elastic;" in shown and "of 1 chip never trained" in shown
    assert "1 chips" not in shown and " 1 failures" not in shown


def test_the_papers_table_has_thirty_cells_and_a_summary(record: Callable[..., Any]) -> None:
    found = record("goodput", "--table", "paper", "--failures", "100")
    cells = found["cells"]
    assert len(cells) == 30
    for cell in cells:
        assert cell["difference"] == pytest.approx(cell["goodput"] - cell["paper"])
    elastic = [100 * cell["difference"] for cell in cells if cell["elastic"]]
    assert found["rms_elastic_points"] == pytest.approx(math.hypot(*elastic) / 5)
    assert found["worst_points"] == pytest.approx(max(abs(100 * cell["difference"]) for cell in cells))


def test_the_papers_table_is_printed_beside_what_was_simulated(printed: Callable[..., str]) -> None:
    shown = printed("goodput", "--table", "paper", "--failures", "100").splitlines()
    assert shown[1].split()[2::2] == ["150,000", "300,000", "600,000", "1,200,000", "2,400,000"]
    assert [line.split("  ")[0] for line in shown[2:8]] == [
        "data-parallel, rigid",
        "data-parallel, elastic",
        *(f"M = {learners}" for learners in (2, 4, 8, 16)),
    ]
    assert "(88," in shown[6]


def test_a_sweep_over_two_parameters_is_a_table(record: Callable[..., Any], printed: Callable[..., str]) -> None:
    sweeps = ("--sweep", "learners=2,4", "--sweep", "mtbi-years=1,2")
    sweep = ("goodput", "--chips", "600000", *sweeps, "--failures", "50")
    points = record(*sweep)["points"]
    assert [(point["learners"], point["interruption_s"] / YEAR_S) for point in points] == [
        (2, 1),
        (2, 2),
        (4, 1),
        (4, 2),
    ]
    rows = printed(*sweep).splitlines()[1:3]
    shares = [f"{100 * point['goodput']:.1f}" for point in points]
    assert [row.replace("%", "").split() for row in rows] == [["2", *shares[:2]], ["4", *shares[2:]]]


@pytest.mark.parametrize(
    "asked",
    [
        ("goodput", "--chips", "1e6", "--failures", "50"),
        ("goodput", "--table", "paper", "--failures", "50"),
        ("goodput", "--sweep", "chips=1e5,1e6", "--sweep", "learners=1:24:24", "--failures", "50"),
        ("goodput", "--sweep", "chips=1e5,1e6", "--failures", "50"),
        ("bandwidth", "--params", "1e9", "--link-gbit", "5"),
        ("bandwidth", "--params", "1", "--link-gbit", "5", "--learners", "1000000000"),
        ADVISE,
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("columns", ["40", "120"])
def test_no_number_is_cut_short_however_narrow_the_terminal(
    asked: tuple[str, ...], columns: str, printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": columns, "FORCE_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    assert "…" not in printed(*asked)


def test_a_sweep_over_one_parameter_has_a_line_for_each_value(printed: Callable[..., str]) -> None:
    shown = printed("goodput", "--sweep", "chips=150000:600000:3", "--failures", "50").splitlines()
    assert [line.split()[0] for line in shown[1:4]] == ["150,000", "300,000", "600,000"]


# ------------------------------------------------------------------------------------------------ bandwidth, advise


def test_bandwidth_prints_its_assumptions_and_the_published_figures(printed: Callable[..., str]) -> None:
    shown = " ".join(printed("bandwidth", "--params", "5e9", "--link-gbit", "5").split())
    for said in (
        "2 (M - 1) / M of the model",
        "198 195 -2 %",
        "0.84 0.841 +0 %",
        "The paper does not publish",
        "busy on",
    ):
        assert said in shown
    assert "…" not in shown


def test_bandwidth_as_json_has_null_where_no_link_is_enough(record: Callable[..., Any]) -> None:
    found = record("bandwidth", "--params", "1e9", "--learners", "4")
    assert found["utilisations"] == [0.5, 0.75, 0.8, 0.9, 0.95, 0.99]
    rows = {(row["method"], row["format"]): row for row in found["rows"]}
    assert rows["DiLoCo", "bfloat16"]["peak"] is None
    assert rows["this system", "bfloat16"]["syncer_mean_in"] == pytest.approx(4 * 16 / 24)


def test_advice_is_a_setting_with_reasons_and_lines_for_a_configuration(printed: Callable[..., str]) -> None:
    shown = printed(*ADVISE)
    assert shown.startswith("M = 16, H = 24, P = 24, K = 1, tau = 2, upload bfloat16, download bfloat16\n")
    assert "data-parallel, rigid" in shown and "int4 both ways" in shown
    loaded = config.loads(shown.split("In a run's configuration\n")[1])
    assert (loaded.protocol.interval_steps, loaded.codec.download.value) == (24, "bfloat16")


def test_advice_as_json_holds_question_and_answer(record: Callable[..., Any]) -> None:
    found = record(*ADVISE, "--tokens-per-step", "4e6")
    assert found["question"]["fleet"]["chips"] == 1_200_000
    assert found["question"]["learners"] == [2, 4, 8, 16]
    assert not {"learners", "elastic"} & found["question"]["fleet"].keys()
    assert found["setting"]["learners"] == 16
    assert len(found["reasons"]) == 6 and found["tokens_per_day"] > 0
    rigid = found["alternatives"][1]
    assert rigid["outcome"] == pytest.approx(rigid["goodput"] * rigid["utilisation"])


def test_advice_for_five_sites_is_for_five_sites(record: Callable[..., Any], tmp_path: Path) -> None:
    assert record(*ADVISE, "--learners", "5")["setting"]["learners"] == 5
    (tmp_path / "fleet.toml").write_text("learners = 5\n")
    choices = record(*ADVISE, "--config", str(tmp_path / "fleet.toml"))["choices"]
    assert [choice["learners"] for choice in choices] == [2, 4, 5, 8, 16]


def test_columns_of_the_traffic_have_headings_apart(printed: Callable[..., str]) -> None:
    _, first, second, *_ = printed("bandwidth", "--params", "5e9").splitlines()
    shares = ["50%", "75%", "80%", "90%", "95%", "99%"]
    assert first.replace(" %", "%").split() == ["mean", "mean", *shares, *["syncer"] * 3]
    assert second.split() == ["method", "format", "up", "down", "peak", *["busy"] * 6, "in", "out", "peak"]


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("goodput --chips 0", "chips is 0; it must be"),
        ("goodput --chips -5", "chips is -5; it must be"),
        ("goodput --chips 1024 --learners 8", "learners is 8, but a fleet of 1,024 chips has 4 slices of 256"),
        ("goodput", "chips is missing"),
        ("goodput --chips 1e6 --rigid --learners 8", "--rigid is the baseline of one learner, but learners is 8"),
        ("goodput --chips 1e6 --mtbi-years 1 --mtbi-s 5", "--mtbi-years and --mtbi-s say the same"),
        ("goodput --chips 1e6 --failures 0", "failures is 0"),
        ("goodput --chips 1e6 --seed -1", "seed is -1"),
        ("goodput --chips 1e6 --restart-s 5", "--restart-s is for rigid fleets"),
        ("goodput --chips 1e6 --rigid --sweep learners=1,2", "--rigid is the baseline of one learner"),
        ("goodput --config gone.toml", "--config is gone.toml, which does not exist"),
        ("goodput --table mine", "--table is 'mine'; the one there is is called paper"),
        ("goodput --table paper --chips 5", "--table paper has its own fleets"),
        ("goodput --table paper --sweep chips=1,2", "--table paper has its own fleets"),
        ("goodput --chips 1e6 --sweep colour=1,2", "--sweep names 'colour', which is not a setting of a fleet"),
        ("goodput --sweep chips=1024,2048", "learners is 8, but a fleet of 1,024 chips has 4 slices"),
        ("goodput --chips 1e6 --tape t.toml", "--tape is given without --duration-s"),
        ("goodput --chips 1e6 --duration-s 60", "--duration-s is given without --tape"),
        (
            "goodput --sweep chips=1e6 --tape t.toml --duration-s 5",
            "--tape writes the story of one fleet; drop --sweep",
        ),
        ("bandwidth --params 0", "params is 0.0; it must be from 1 to 1e+18"),
        ("bandwidth --params 1e9 --link-gbit nan", "link_gbit is nan"),
        ("bandwidth --params 1e9 --fragments 0", "fragments is 0; it must be from 1 to 1e+09"),
        ("advise --params 5e9 --step-s 1 --link-gbit 1", "chips is missing"),
        ("advise --chips 1e6 --params 5e9 --step-s 1 --link-gbit 1e-3", "link_gbit is 0.001; even with 2 learners"),
        ("advise --chips 1e6 --params 5e9 --step-s 1 --link-gbit 1 --learners 1", "learners is 1; choose 2 or more"),
        ("advise --chips 1e6 --params 5e9 --step-s 1 --link-gbit 1 --learners-max 1", "learners_max is 1; it must be"),
        ("advise --chips 256 --params 5e9 --step-s 1 --link-gbit 1", "chips is 256 and slice_chips is 256, too few"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: str, said: str, sentence: Callable[..., str]) -> None:
    assert said in sentence(*arguments.split())


@pytest.mark.parametrize("text", ["many", "1.5", "1e400", "nan"])
def test_a_count_that_is_no_whole_number_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["simulate", "goodput", "--chips", text]) == exits.USAGE
    assert f"'{text}' is not a whole number" in capsys.readouterr().err


def test_a_place_that_cannot_take_a_figure_is_refused_before_anything_is_simulated(
    tmp_path: Path, sentence: Callable[..., str]
) -> None:
    fleet = ("goodput", "--chips", "1e6", "--plot")
    assert "the name must end with .png, .pdf, .svg" in sentence(*fleet, str(tmp_path / "figure.bmp"))
    for path in (tmp_path / "gone" / "figure.png", tmp_path / "folder.png"):
        (tmp_path / "folder.png").mkdir(exist_ok=True)
        assert f"--plot is {path}, which cannot be written" in sentence(*fleet, str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder.png"]
