"""Scales, ticks and texts of charts."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.report.figures import (
    Axis,
    Part,
    Scale,
    Series,
    apart,
    bytes_text,
    duration_s,
    lines,
    log_ticks,
    natural,
    nice_ticks,
    number,
    pieces_below,
    settled,
    share,
    stacked,
    tick_text,
    time_ticks,
)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (3.2, 3.9, [3.2, 3.4, 3.6, 3.8]), (5, 5, [5])],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(ticks)


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12))
def test_ticks_lie_inside_and_are_few(low: float, length: float) -> None:
    high = low + length
    if high > low:
        ticks = nice_ticks(low, high)
        slack = (high - low) * 1e-6
        assert 0 <= len(ticks) <= 11 and all(low - slack <= tick <= high + slack for tick in ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 250, [0, 60, 120, 180, 240]),
        (0, 86_400, [0, 21_600, 43_200, 64_800, 86_400]),
        (0.2, 0.9, [0.2, 0.4, 0.6, 0.8]),
    ],
)
def test_ticks_of_time_are_whole_minutes_and_hours(low: float, high: float, ticks: list[float]) -> None:
    assert time_ticks(low, high) == pytest.approx(ticks)


def test_names_are_sorted_as_people_count() -> None:
    names = ["learner-10", "b", "learner-2", "learner", "7", "a7b10", "a7b9"]
    assert sorted(names, key=natural) == ["7", "a7b9", "a7b10", "b", "learner", "learner-2", "learner-10"]


def test_ticks_of_a_logarithmic_axis() -> None:
    assert log_ticks(1, 100) == [1, 2, 5, 10, 20, 50, 100]
    assert log_ticks(1, 1e6) == [10.0**power for power in range(7)]


def test_a_scale_leads_from_values_to_pixels() -> None:
    assert Scale(0, 10, 100, 200)(2.5) == 125
    assert Scale(1, 100, 0, 10, log=True)(10) == pytest.approx(5)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (1234.4, "1,234"), (12.345, "12.3"), (0.00123, "0.00123"), (2.1e6, "2.1M"), (math.nan, "–")],
)
def test_numbers_are_short(value: float, said: str) -> None:
    assert number(value) == said


def test_shares_durations_and_bytes() -> None:
    assert (share(0.9234), share(-0.0001), share(None)) == ("92.3 %", "0.0 %", "–")
    assert (duration_s(30), duration_s(150), duration_s(12_000)) == ("30 s", "2:30", "3h20")
    assert (bytes_text(999), bytes_text(1.5e6), bytes_text(2e9)) == ("999 B", "1.5 MB", "2 GB")


def test_a_line_is_interrupted_where_there_is_no_number() -> None:
    drawn = lines("t", Axis("x"), Axis("y"), [Series("one", [(0, 1), (1, 2), (2, math.nan), (3, 1), (4, 2)])])
    root = ElementTree.fromstring(drawn)
    (path,) = (each for each in root.iter("path") if "line" in each.get("class", ""))
    assert path.get("d", "").count("M") == 2


def falling(*last: float) -> list[tuple[float, float]]:
    """From 6 at once to 2, then slowly; and then as given."""
    start = [(0.0, 6.0), (1.0, 4.0), (2.0, 2.0), *((float(at), 2.0 - at / 100) for at in range(3, 40))]
    return [*start, *((40.0 + at, value) for at, value in enumerate(last))]


@pytest.mark.parametrize(
    ("points", "high"),
    [
        ([falling()], 1.96),
        ([falling(3.5)], 3.5),
        ([falling(5.0)], None),
        ([falling(math.nan)], 1.96),
        ([[(at, 6.0 - at / 8) for at, _ in falling()]], None),
        ([falling(), [(0.0, 6.0), (3.0, 3.0)]], 3.0),
        ([falling(), [(20.0, 5.9), (21.0, 1.8)]], None),
        ([falling()[:6]], 4.0),
        ([falling()[:4]], None),
        ([[(0.0, 6.0), *((float(at), 2.0) for at in range(1, 40))]], 2.04),
        ([[(0.0, math.nan), (1.0, math.nan)]], None),
        ([[]], None),
    ],
    ids=["falls", "rises", "rises far", "diverges", "falls evenly", "shorter", "begins later", "few", "fewer", "flat",
         "no number", "nothing"],
)  # fmt: skip
def test_an_axis_ends_where_lines_have_settled_unless_something_rises_later(
    points: list[list[tuple[float, float]]], high: float | None
) -> None:
    assert settled([Series("one", each) for each in points], 0.1) == (None if high is None else pytest.approx(high))


@given(st.lists(st.lists(st.floats(0.1, 1e6) | st.just(math.nan), max_size=30), max_size=3))
def test_no_value_after_the_first_tenth_is_above_the_axis(values: list[list[float]]) -> None:
    series = [Series("one", list(enumerate(each))) for each in values]
    high = settled(series, 0.1)
    finite = [[(x, y) for x, y in one.points if math.isfinite(y)] for one in series]
    begin = min((points[0][0] for points in finite if points), default=0)
    for points in finite if high is not None else ():
        assert all(y <= high for x, y in points if x - begin >= (points[-1][0] - begin) / 10)


def test_a_line_is_cut_where_it_crosses_the_end_of_the_axis() -> None:
    points = [(0.0, 6.0), (1.0, 2.0), (2.0, 1.0), (3.0, math.nan), (4.0, 1.0), (5.0, 5.0), (6.0, 5.0), (7.0, 1.0)]
    assert pieces_below(points, 4.0) == [
        [(0.5, 4.0), (1.0, 2.0), (2.0, 1.0)],
        [(4.0, 1.0), (4.75, 4.0)],
        [(6.25, 4.0), (7.0, 1.0)],
    ]
    assert pieces_below([(0.0, 6.0), (1.0, 5.0)], 4.0) == []


def test_a_chart_that_leaves_out_a_steep_beginning_says_so_and_keeps_what_diverges() -> None:
    drawn = lines("t", Axis("x"), Axis("y", settles=0.1), [Series("one", falling(math.nan), dots=True)])
    root = ElementTree.fromstring(drawn)
    assert "cut off: up to 6 in the first 10 %" in [each.text for each in root.iter("text")]
    crosses = [each for each in root.iter("path") if each.get("class") == "mark cross"]
    assert [cross[0].text for cross in crosses] == ["one: not a finite number at 40"]
    assert all(0 <= float(each.get("cy", "")) <= 240 for each in root.iter("circle"))
    plain = lines("t", Axis("x"), Axis("y"), [Series("one", falling())])
    assert "above this" not in plain


def test_ticks_close_to_each_other_are_told_apart() -> None:
    assert apart([1.23, 1.232, 1.234], number) == ["1.23", "1.232", "1.234"]
    assert apart([0, 2000, 4000], number) == ["0", "2,000", "4,000"]
    assert apart([5.0], number) == ["5"]


def test_a_chart_of_nothing_says_so() -> None:
    assert lines("Loss", Axis("x"), Axis("y"), [Series("one", [])]) == ('<p class="quiet">Loss: nothing to draw.</p>')


def test_parts_of_a_bar_fill_it() -> None:
    parts = [Part("merged", 0.75, "merged"), Part("slowed", -0.01, "slowed"), Part("down", 0.25, "down")]
    root = ElementTree.fromstring(stacked("t", [("all", parts)]))
    wide = [float((each.get("width") or "").rstrip("%")) for each in root.iter("rect")]
    assert wide == [75.0, 25.0]


def test_what_a_tick_says_stays_in_the_picture() -> None:
    assert 'x="200" y="9" text-anchor="middle">45 s<' in tick_text(200, 9, "45 s", 420)
    assert 'x="419" y="9" text-anchor="end">300,000<' in tick_text(408, 9, "300,000", 420)
