"""What ``unlockstep simulate`` writes: figures and tapes, whole or not at all; and what it costs to ask for help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from unlockstep import tape
from unlockstep.cli import app, exits, simulate_goodput
from unlockstep.sim.fleet import Fleet
from unlockstep.sim.fleet_tape import fleet_tape

FLEET = ("simulate", "goodput", "--chips", "600000", "--failures", "50")


@pytest.mark.parametrize(
    "asked",
    [
        ("--chips", "600000"),
        ("--chips", "600000", "--rigid", "--spares", "10"),
        ("--table", "paper"),
        ("--chips", "600000", "--sweep", "mtbi-years=0.5:2:3"),
        ("--sweep", "chips=150000:600000:3", "--sweep", "learners=1,4"),
        ("--chips", "600000", "--learners", "1", "--sweep", "elastic=true,false"),
        ("--rigid", "--sweep", "chips=150000:600000:3"),
        ("--chips", "600000", "--sweep", "notice_s=0,2", "--sweep", "elastic=true,false"),
    ],
    ids=" ".join,
)
def test_a_figure_is_written_and_announced(
    asked: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = tmp_path / "figure.png"
    assert app.run(["simulate", "goodput", *asked, "--failures", "50", "--plot", str(figure)]) == exits.DONE
    assert figure.read_bytes().startswith(b"\x89PNG") and len(figure.read_bytes()) > 10_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["figure.png"]
    assert "written: " in capsys.readouterr().out


@pytest.mark.parametrize("fleet", ["--chips 1e9 --slice 1e6 --learners 2", "--chips 3e5 --slice 1"])
def test_a_figure_leaves_out_neighbours_that_are_too_large(fleet: str, tmp_path: Path) -> None:
    figure = tmp_path / "figure.png"
    asked = ("simulate", "goodput", *fleet.split(), "--failures", "50", "--plot", str(figure))
    assert app.run(asked) == exits.DONE
    assert figure.exists()


def test_beside_a_figure_the_stalls_of_both_kinds_are_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its baseline is rigid: settings of such fleets are no mistake then."""
    assert app.run([*FLEET, "--swap-s", "5", "--plot", str(tmp_path / "figure.png")]) == exits.DONE
    shown = capsys.readouterr().out
    assert "--downscale-s 22" in shown and "--restart-s 81" in shown


def test_a_figure_that_is_interrupted_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Figure, file: Path, **_: object) -> None:
        Path(file).write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", interrupted)
    assert app.run([*FLEET, "--plot", str(tmp_path / "figure.png")]) == exits.INTERRUPTED
    assert list(tmp_path.iterdir()) == []


def test_a_figure_can_be_a_drawing_and_leaves_the_json_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = tmp_path / "figure.svg"
    assert app.run([*FLEET, "--json", "--plot", str(figure)]) == exits.DONE
    written = capsys.readouterr()
    assert json.loads(written.out)["chips"] == 600_000 and "written: " in written.err
    assert "</svg>" in figure.read_text()


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert app.run([*FLEET, "--plot", str(tmp_path / "figure.png")]) == exits.USAGE
    said = '--plot needs matplotlib; install it with `pip install "unlockstep[plots]"`'
    assert capsys.readouterr().err == f"error: {said}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["story.toml", "story.jsonl"])
def test_a_tape_is_the_story_of_the_fleet(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / name
    assert app.run([*FLEET, "--learners", "4", "--tape", str(file), "--duration-s", "300", "--seed", "7"]) == exits.DONE
    written = fleet_tape(Fleet(chips=600_000, learners=4), duration_s=300.0, seed=7)
    assert tape.read(file) == written and "failure" in written.about
    held = f"{written.about}; {len(written.actions)} actions in 300 s"
    assert f"written: {file} ({held})\n" in capsys.readouterr().out


def test_a_tape_on_which_nothing_fails_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "quiet.jsonl"
    few = ["simulate", "goodput", "--chips", "8000", "--learners", "2", "--failures", "50"]
    assert app.run([*few, "--tape", str(file), "--duration-s", "60"]) == exits.DONE
    assert f"written: {file} (0 failures of 8,000 chips, 2 learners, seed 0; 0 actions in 60 s)\n" in (
        capsys.readouterr().out
    )


def test_a_tape_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (tmp_path / "story.txt", tmp_path / "gone" / "story.toml"):
        assert app.run([*FLEET, "--tape", str(file), "--duration-s", "300"]) == exits.USAGE
        written = capsys.readouterr()
        assert written.out == "" and written.err.startswith(f"error: tape {file} ") and written.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_tape_that_cannot_be_written_is_refused_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate_goodput, "estimate", lambda *_, **__: pytest.fail("simulated"))
    assert app.run([*FLEET, "--tape", str(tmp_path / "gone" / "story.toml"), "--duration-s", "300"]) == exits.USAGE


def test_help_loads_nothing_heavy() -> None:
    check = (
        "import sys; from unlockstep.cli.app import run; run(['simulate', 'goodput', '--help'])\n"
        "print(*sorted({'torch', 'matplotlib', 'aiohttp', 'numpy'} & sys.modules.keys()), file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert shown.stderr.strip() == "" and "--chips" in shown.stdout
