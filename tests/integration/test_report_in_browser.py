"""The page of a run in a browser without a window: it opens from a file, complains of nothing, asks nobody for
anything, every chart shows marks, it fits a phone, and it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from support import browser
from unlockstep import runlog
from unlockstep.cli import app, exits
from unlockstep.core.events import EvaluationReported, Event, FragmentCommitted

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason="there is no Chromium on this machine")

COLOUR_MIN = 40
"""How far apart the channels of a pixel are that is neither paper nor ink."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a simulated run with small arrays, through a crash; what an evaluator would have said is added."""
    folder = tmp_path_factory.mktemp("browser") / "run"
    assert app.run(["simulate", "tape", "one_crash", "--toy", "--run-dir", str(folder)]) == exits.DONE
    header, events = runlog.read(folder / "run.jsonl")
    evaluated: list[Event] = []
    for event in events:
        evaluated.append(event)
        if isinstance(event, FragmentCommitted) and event.round % 10 == 0:
            loss = 3.0 / (1 + event.round)
            evaluated.append(EvaluationReported(event.at_ns, "evaluator", event.round, loss, loss / 2, ()))
    (folder / "run.jsonl").unlink()
    with runlog.RunLogWriter(folder / "run.jsonl", header) as log:
        log.write(evaluated)
    assert app.run(["report", str(folder)]) == exits.DONE
    return folder / "report.html"


def coloured(picture: Image.Image, box: tuple[float, float, float, float]) -> int:
    """Pixels in a box that have a colour."""
    part = picture.crop(tuple(round(edge) for edge in box))
    return sum(count for count, pixel in part.getcolors(2**24) or () if max(pixel) - min(pixel) >= COLOUR_MIN)


@pytest.mark.parametrize("width", [1200, 390], ids=["desktop", "phone"])
def test_every_chart_shows_its_marks(width: int, page: Path, tmp_path: Path) -> None:
    told = browser.measured(page, tmp_path, width)
    assert told["widest"] <= told["width"] == width
    shown = browser.picture(page, tmp_path / "shot.png", width, told["height"])
    assert shown.complaints == [] and shown.requests == []
    with Image.open(tmp_path / "shot.png") as file:
        picture = file.convert("RGB")
    charts = [each for each in told["boxes"] if each[1]]
    assert len(charts) >= 13
    for label, _, left, top, right, bottom in charts:
        assert coloured(picture, (left, top, min(right, width), bottom)) > 50, label


def test_it_prints(page: Path, tmp_path: Path) -> None:
    shown = browser.printed(page, tmp_path / "page.pdf")
    assert shown.complaints == []
    written = (tmp_path / "page.pdf").read_bytes()
    assert written.startswith(b"%PDF") and len(written) > 20_000


def test_a_page_that_complains_and_asks_for_things_is_noticed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<!doctype html><body><img src="http://127.0.0.1:9/x.png"><script>console.error("bad")</script></body>',
        encoding="utf-8",
    )
    shown = browser.show(bad, "--dump-dom")
    assert len(shown.complaints) == 1 and shown.requests == ["http://127.0.0.1:9/x.png"]
