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
    bytes_text,
    duration_s,
    lines,
    log_ticks,
    natural,
    nice_ticks,
    number,
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
    (path,) = (each for each in root.iter("path") if "mark" in each.get("class", ""))
    assert path.get("d", "").count("M") == 2


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
