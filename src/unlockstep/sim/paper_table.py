"""The paper's table of goodput: its 30 cells, and how far a simulation is from them.

Decides what the table says (paper, section 4.3: one year between interruptions of a chip) and what is compared. Does
not decide the constants of the simulation: they are the defaults of ``Fleet``, the same for every cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from unlockstep.sim.fleet import Fleet
from unlockstep.sim.goodput import Estimate


class PaperRow(msgspec.Struct, frozen=True):
    """One line of the table: goodput in percent, for each number of chips in ``CHIPS``."""

    learners: int
    elastic: bool
    percent: tuple[int, ...]


CHIPS = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)

ROWS = (
    PaperRow(1, False, (72, 57, 38, 27, 18)),
    PaperRow(1, True, (88, 80, 69, 58, 40)),
    PaperRow(2, True, (94, 88, 80, 70, 54)),
    PaperRow(4, True, (96, 93, 89, 82, 73)),
    PaperRow(8, True, (98, 96, 94, 88, 80)),
    PaperRow(16, True, (99, 98, 96, 93, 86)),
)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the table beside what was simulated."""

    fleet: Fleet
    paper: float
    """Percent, rounded to whole ones by the paper."""
    estimate: Estimate

    @property
    def simulated(self) -> float:
        """Percent."""
        return 100 * self.estimate.goodput.value

    @property
    def difference(self) -> float:
        """Simulated minus the paper's, points."""
        return self.simulated - self.paper


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How well the simulation meets the table, in points of goodput."""

    cells: tuple[Cell, ...]
    """In the order of ``fleets()``."""
    rms_elastic: float
    """Root mean square of the 25 elastic differences."""
    rms_rigid: float
    """... and of the 5 others."""
    worst: float
    """Largest difference of all, in absolute value."""
    collapse: float
    """Largest distance between two simulated elastic cells with the same number of chips per learner."""


def fleets() -> list[Fleet]:
    """The fleets of the table's 30 cells, row by row."""
    return [Fleet(chips=chips, learners=row.learners, elastic=row.elastic) for row in ROWS for chips in CHIPS]


def compare(estimates: Sequence[Estimate]) -> Comparison:
    """Sets the estimates of ``fleets()``, in that order, beside the paper's values."""
    percent = [value for row in ROWS for value in row.percent]
    cells = tuple(
        Cell(fleet=fleet, paper=paper, estimate=estimate)
        for fleet, paper, estimate in zip(fleets(), percent, estimates, strict=True)
    )
    elastic = [cell for cell in cells if cell.fleet.elastic]
    rigid = [cell for cell in cells if not cell.fleet.elastic]
    return Comparison(
        cells=cells,
        rms_elastic=_rms(elastic),
        rms_rigid=_rms(rigid),
        worst=max(abs(cell.difference) for cell in cells),
        collapse=_collapse(elastic),
    )


def _rms(cells: Sequence[Cell]) -> float:
    return math.sqrt(sum(cell.difference**2 for cell in cells) / len(cells))


def _collapse(cells: Sequence[Cell]) -> float:
    groups: dict[float, list[float]] = {}
    for cell in cells:
        groups.setdefault(cell.fleet.chips / cell.fleet.learners, []).append(cell.simulated)
    return max(max(group) - min(group) for group in groups.values())
