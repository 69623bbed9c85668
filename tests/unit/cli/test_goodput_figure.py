"""What the figure of ``simulate goodput`` shows: where its axis begins, and the fleet that was asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unlockstep.cli.goodput_figure import Figure, Line, Point, _draw, lowest_percent


def point(x: float, goodput: float) -> Point:
    return Point(x=x, chips_per_learner=x / 4, goodput=goodput, low=goodput - 0.001, high=goodput + 0.001)


def figure(*goodputs: float, **changed: Any) -> Figure:
    points = tuple(point(1000.0 * 2**number, goodput) for number, goodput in enumerate(goodputs))
    line = Line(label="M = 4", points=points)
    usual: dict[str, Any] = {"title": "a fleet", "x_label": "chips", "x_log": True, "collapse": True}
    return Figure(lines=(line,), **{**usual, **changed})


@pytest.mark.parametrize(
    ("goodputs", "lowest"),
    [((0.998, 0.96), 95.5), ((0.9999, 0.9985), 99.7), ((0.99, 0.4), 30), ((0.5, 0.02), 0), ((0.9, 0.001), 0)],
)
def test_the_axis_begins_with_a_round_number_a_little_below_the_data(
    goodputs: tuple[float, ...], lowest: float
) -> None:
    assert lowest_percent(figure(*goodputs)) == lowest


def test_the_papers_table_is_drawn_from_zero() -> None:
    assert lowest_percent(figure(0.99, 0.98, from_zero=True)) == 0


def test_an_axis_that_does_not_begin_at_zero_says_so_and_no_tick_is_above_all() -> None:
    left, right = _draw(figure(0.998, 0.96)).axes
    assert left.get_ylabel() == "goodput, % (axis begins at 95.5)"
    assert left.get_ylim()[0] == 95.5 and left.get_ylim()[1] > 100 >= max(left.get_yticks())
    assert _draw(figure(0.998, 0.4, from_zero=True)).axes[0].get_ylabel() == "goodput, %"
    assert not any(rings.get_clip_on() for rings in right.lines)


def test_the_fleet_asked_for_is_marked_in_both_panels_and_named() -> None:
    drawing = _draw(figure(0.99, 0.98, asked=point(1000, 0.99)))
    left, right = drawing.axes
    assert drawing.get_suptitle() == "a fleet"
    for panel, x in ((left, 1000), (right, 250)):
        (star,) = (line for line in panel.lines if line.get_marker() == "*")
        assert (star.get_xdata()[0], star.get_ydata()[0]) == (x, 99)
    assert "asked for: 99.0 %" in [text.get_text() for text in left.get_legend().get_texts()]


def test_a_baseline_asked_for_is_not_marked_among_fleets_that_are_elastic() -> None:
    baseline = Line(label="rigid", points=(point(1000, 0.9),), baseline=True)
    drawn = figure(0.99, asked=point(1000, 0.9))
    left, right = _draw(msgspec.structs.replace(drawn, lines=(baseline, *drawn.lines))).axes
    assert [sum(line.get_marker() == "*" for line in panel.lines) for panel in (left, right)] == [1, 0]


def test_every_value_has_a_marker() -> None:
    curve, *_ = _draw(figure(0.99)).axes[0].lines
    assert curve.get_marker() == "."
