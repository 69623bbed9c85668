"""What others have written, made fit to be shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.foreign_text import printable, printable_texts


@pytest.mark.parametrize("character", ["\x1b", "\r", "\n", "\t", "\0", "\x7f", "\x9b", "\u202e", "\u2028", "\ud800"])
def test_what_is_no_visible_character_is_replaced(character: str) -> None:
    assert printable(f"a{character}b") == "a\N{REPLACEMENT CHARACTER}b"


@given(st.text())
def test_every_text_becomes_one_line_of_the_same_length(text: str) -> None:
    assert printable(text).isprintable() and len(printable(text)) == len(text)


def test_texts_are_found_in_everything_that_json_has() -> None:
    assert printable_texts({"a\n": [1, None, {"b": ["\x1b"]}]}) == {
        "a\N{REPLACEMENT CHARACTER}": [1, None, {"b": ["\N{REPLACEMENT CHARACTER}"]}]
    }
