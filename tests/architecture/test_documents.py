"""Documents lead somewhere: every relative link of a Markdown file ends at a file or folder of the repository."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from architecture.rules import Source, broken_link, sources, tracked_files


def existing_paths() -> frozenset[str]:
    files = tracked_files()
    return frozenset(files) | {str(folder) for path in files for folder in PurePosixPath(path).parents}


def test_relative_links_lead_somewhere() -> None:
    exists = existing_paths()
    violations = [line for source in sources(suffix=".md") for line in broken_link(source, exists)]
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize(
    "text",
    ["see [a](gone.md)", "see [a](../gone.md#part)", "![a](pictures/gone.png 'title')", "`[a](x)` and [b](<gone.md>)"],
)
def test_a_broken_link_is_seen(text: str) -> None:
    assert len(list(broken_link(Source("docs/page.md", text), frozenset({"docs/page.md", "docs"})))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[a](page.md) [b](./page.md#part) [c](../README.md) [d](../docs/) [e](#part)",
        "[a](https://example.org/gone.md) [b](mailto:ada@example.org)",
        "`[a](gone.md)`\n```\n[a](gone.md)\n```",
    ],
)
def test_a_link_that_leads_somewhere_passes(text: str) -> None:
    assert list(broken_link(Source("docs/page.md", text), frozenset({"docs/page.md", "docs", "README.md"}))) == []
