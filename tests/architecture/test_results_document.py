"""The page of results shows what the result files hold: tables as any other (``test_documents_generated``), figures by
the digest of the file they were drawn from, and sums by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from architecture.rules import ROOT
from support.scripts import imported


@pytest.fixture(scope="module")
def results() -> Iterator[ModuleType]:
    with imported("docs/results.py") as module:
        yield module


@pytest.fixture(scope="module")
def result_file() -> Iterator[ModuleType]:
    with imported("experiments/result_file.py") as module:
        yield module


ROWS_OF_THEIR_OWN = ("blocks", "norms", "packing")
"""What these measure is no trial."""

RESULT_FILES = sorted(
    path for path in (ROOT / "experiments" / "results").glob("*.json") if path.stem not in ROWS_OF_THEIR_OWN
)


def score(results: ModuleType, seed: int, loss: float, name: str = "a") -> object:
    curve = ((100, loss + 2.0), (200, loss + 1.0), (300, loss))
    told = {"seed": seed, "tokens": 300, "steps": 3, "loss": loss, "curve": curve, "seconds": 9.0}
    trial = {"name": name, "settings": (), "tokens": 300}
    return msgspec.convert({**told, "trial": trial, "curve_s": (1.0, 2.0, 4.0)}, results.Score)


@pytest.mark.parametrize("path", RESULT_FILES, ids=lambda path: path.stem)
def test_a_result_file_that_was_written_once_stays_readable(result_file: ModuleType, path: Path) -> None:
    found = result_file.read(path)
    assert all(found.of(name) for name in found.names) and len(found.names) > 1


def test_a_result_file_holds_what_was_written(result_file: ModuleType, tmp_path: Path) -> None:
    found = result_file.read(ROOT / "experiments" / "results" / "heterogeneity.json")
    result_file.write(tmp_path / "results" / "again.json", found)
    assert result_file.read(tmp_path / "results" / "again.json") == found


def test_figures_are_drawn_from_the_results_that_are_there(results: ModuleType) -> None:
    stale = [
        name
        for name, (experiment, _) in results.DRAWINGS.items()
        if results.sheet(experiment) is not None
        and (not results.path_of(name).exists() or results.digest(experiment) not in results.path_of(name).read_text())
    ]
    assert not stale, f"run `python docs/results.py`: {', '.join(stale)}"


def test_figures_are_small(results: ModuleType) -> None:
    sizes = {name: results.path_of(name).stat().st_size for name in results.DRAWINGS if results.path_of(name).exists()}
    assert {name: size for name, size in sizes.items() if size > 200_000} == {}


def test_a_change_is_a_mean_over_seeds_with_its_standard_error(results: ModuleType) -> None:
    """Of +10 and +20 %: mean 15, deviation sqrt(50), error sqrt(50) / sqrt(2) = 5."""
    base = [score(results, 0, 1.0), score(results, 1, 2.0), score(results, 2, 3.0)]
    mine = [score(results, 0, 1.1), score(results, 1, 2.4)]
    assert results.change_of(mine, base) == (pytest.approx(15.0), pytest.approx(5.0))
    assert results.compared(mine, base) == "+15.00 ± 5.00 %"


def test_a_single_seed_has_no_error(results: ModuleType) -> None:
    assert results.compared([score(results, 0, 0.9)], [score(results, 0, 1.0)]) == "-10.00 %"
    assert results.spread([1.5]) == "1.500"


def test_the_spread_is_the_deviation_between_seeds(results: ModuleType) -> None:
    assert results.spread([1.0, 2.0, 3.0]) == "2.000 ± 1.000"


@pytest.mark.parametrize(("at_s", "loss"), [(0.5, 3.0), (1.5, 2.5), (2.0, 2.0), (3.0, 1.5), (4.0, 1.0), (9.0, 1.0)])
def test_a_loss_at_a_time_lies_between_the_points_of_its_curve(results: ModuleType, at_s: float, loss: float) -> None:
    assert results._loss_at(score(results, 0, 1.0), at_s) == pytest.approx(loss)


def test_what_was_not_measured_is_not_shown(results: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "sheet", lambda experiment: None)
    assert results.choices() == "Not measured yet: `python experiments/choices.py --seed 0 1 2`."
