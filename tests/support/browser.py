"""A page as a browser without a window shows it: what it complains of, where things are, a picture, a print.

Decides how Chromium is started: a process of its own each time, with a new profile, without a network of its own, and
ended with the block. Where there is none the tests that need it are skipped.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps"),
    *("--disable-extensions", "--hide-scrollbars", "--enable-logging=stderr", "--force-device-scale-factor=1"),
)

_OFFLINE = ("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9")
"""What a browser asks of its maker's machines finds nobody; a file needs none of that."""

_MEASURE = """
const page = document.querySelector("iframe");
page.addEventListener("load", () => {
  const root = page.contentDocument.documentElement;
  const boxes = [...root.querySelectorAll("svg")].map(svg => {
    const box = svg.getBoundingClientRect();
    const marks = svg.querySelectorAll(".mark").length;
    return [svg.getAttribute("aria-label"), marks, box.left, box.top, box.right, box.bottom];
  });
  const told = {boxes, width: root.clientWidth, widest: root.scrollWidth, height: root.scrollHeight};
  const element = document.createElement("pre");
  element.id = "told";
  element.textContent = JSON.stringify(told);
  document.body.append(element);
});
"""

_FRAME = """<!doctype html><html style="color-scheme: light dark"><body style="margin: 0">
<iframe {source} style="border: 0; width: {width}px; height: {height}px"></iframe><script>{script}</script>
"""
"""A window cannot be as narrow as a phone; a frame in it can."""


class Shown:
    """What became of one start of the browser."""

    def __init__(self, out: str, err: str, requests: list[str]) -> None:
        self.out = out
        self.complaints = [line for line in err.splitlines() if "CONSOLE" in line]
        """What a page's console says: errors, and what its policy forbade."""
        self.requests = requests
        """Addresses on a network that were asked for."""


def show(page: Path, *flags: str) -> Shown:
    """Load a file."""
    assert CHROMIUM is not None, "tests that need it are skipped"
    with tempfile.TemporaryDirectory() as profile:
        log = Path(profile) / "net.json"
        fixed = (*_QUIET, *_OFFLINE, f"--user-data-dir={profile}", f"--log-net-log={log}")
        done = subprocess.run(
            [CHROMIUM, *fixed, *flags, page.as_uri()], capture_output=True, text=True, timeout=100, check=True
        )
        asked = _asked(json.loads(log.read_text(encoding="utf-8")))
    return Shown(done.stdout, done.stderr, asked)


def _asked(log: dict[str, Any]) -> list[str]:
    """Addresses that were asked for on behalf of a page."""
    parameters = [event.get("params", {}) for event in log["events"]]
    return sorted(
        {
            str(each["url"])
            for each in parameters
            if str(each.get("url", "")).startswith(("http", "ws", "ftp"))
            and str(each.get("initiator", "not an origin")) != "not an origin"
        }
    )


def measured(page: Path, folder: Path, width: int) -> dict[str, Any]:
    """Where every picture of a page is (label, marks, left, top, right, bottom), how wide the page is and how wide what
    is on it, and how high; px. A copy is measured, without the policy that would keep it from that."""
    frame = folder / "measured.html"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    source = f'srcdoc="{html.escape(text, quote=True)}"'
    frame.write_text(_FRAME.format(source=source, width=width, height=900, script=_MEASURE), encoding="utf-8")
    found = re.search(r'<pre id="told">(.*?)</pre>', show(frame, "--dump-dom").out, re.DOTALL)
    assert found is not None, "the script has run"
    told: dict[str, Any] = json.loads(html.unescape(found[1]))
    return told


def picture(page: Path, to: Path, width: int, height: int, *flags: str) -> Shown:
    """A screenshot of so much of a page."""
    frame = to.with_suffix(".html")
    source = f'src="{page.as_uri()}"'
    frame.write_text(_FRAME.format(source=source, width=width, height=height, script=""), encoding="utf-8")
    return show(frame, f"--screenshot={to}", f"--window-size={max(500, width)},{height}", *flags)


def printed(page: Path, to: Path) -> Shown:
    """On paper."""
    return show(page, f"--print-to-pdf={to}", "--no-pdf-header-footer")
