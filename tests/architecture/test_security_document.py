"""Each threat that ``docs/security.md`` names is held to by tests, and each test that it names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from architecture.rules import ROOT, Source, sources

DOCUMENT = "docs/security.md"

_HEADING = re.compile(r"(#+) (.*)")
_RULED = re.compile(r"\|[-| ]+\|")
_TEST = re.compile(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")

Threat = tuple[str, list[tuple[str, str]]]
"""Its row, and file and function of the tests named there."""


def threats(text: str) -> Iterator[Threat]:
    """Every row of the tables under the heading Threats."""
    is_among, is_row = False, False
    for line in text.splitlines():
        heading = _HEADING.fullmatch(line)
        if heading and len(heading[1]) <= 2:
            is_among = heading[2] == "Threats"
        if is_among and is_row and line.startswith("|"):
            yield line.split("|")[1].strip(), [(path, name) for name, path in _TEST.findall(line)]
        is_row = bool(_RULED.fullmatch(line)) or (is_row and line.startswith("|"))


def unproven(text: str, tests: dict[str, frozenset[str]]) -> Iterator[str]:
    """Threats without a test, and tests that are not there. ``tests``: the functions of every file."""
    for threat, named in threats(text):
        if not named:
            yield f"{threat}: no test is named"
        for path, name in named:
            if name not in tests.get(path, ()):
                yield f"{threat}: {path} has no {name}"


def functions(source: Source) -> frozenset[str]:
    """The tests of a file."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in source.tree.body if isinstance(node, kinds))


def test_every_threat_names_tests_that_are_there() -> None:
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    tests = {source.path: functions(source) for source in sources("tests/")}
    assert len(list(threats(text))) >= 40, "the tables are not where they are looked for"
    assert list(unproven(text, tests)) == []


HEAD = "## Threats\n\n### Here\n\n| Threat | Protection | Tests |\n|---|---|---|\n"
THERE = {"tests/unit/test_a.py": frozenset({"test_one"})}


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ("| a | b | [`test_one`](../tests/unit/test_a.py) |", []),
        ("| a | b | |", ["a: no test is named"]),
        ("| a | b | `test_one` |", ["a: no test is named"]),
        ("| a | b | [`test_two`](../tests/unit/test_a.py) |", ["a: tests/unit/test_a.py has no test_two"]),
        ("| a | b | [`test_one`](../tests/unit/test_b.py) |", ["a: tests/unit/test_b.py has no test_one"]),
        (
            "| a | b | [`test_one`](../tests/unit/test_a.py), [`test_two`](../tests/unit/test_a.py) |\n| c | d | e |",
            ["a: tests/unit/test_a.py has no test_two", "c: no test is named"],
        ),
        ("| a | b | [`test_one`](../tests/unit/test_a.py) |\n\n## Others\n\n| a | b |\n|---|---|\n| c | d |", []),
    ],
)
def test_a_threat_without_a_test_is_seen(rows: str, wrong: list[str]) -> None:
    assert list(unproven(f"{HEAD}{rows}\n", THERE)) == wrong
