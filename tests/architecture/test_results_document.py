"""The page of results shows what the result files hold: tables as any other (``test_documents_generated``), figures by
the digest of the file they were drawn from, and sums by hand."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from architecture.rules import ROOT


@pytest.fixture(scope="module")
def results() -> Iterator[ModuleType]:
    """``docs/results.py``, which is a script and no part of the package."""
    spec = importlib.util.spec_from_file_location("results", ROOT / "docs" / "results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["results"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["results"]


def score(results: ModuleType, seed: int, loss: float, name: str = "a") -> object:
    curve = ((100, loss + 2.0), (200, loss + 1.0), (300, loss))
    return results.Score(results._Trial(name, 300), seed, 300, loss, curve, curve_s=(1.0, 2.0, 4.0))


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
