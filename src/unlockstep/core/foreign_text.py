"""Text that somebody else has written, on its way to a terminal or a log.

Decides that it moves no cursor, forges no line and hides nothing: whatever is no visible character is replaced. Does
not decide how long it may be, nor where it is shown.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, without control characters and marks of direction."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def printable_texts(value: object) -> object:
    """The same of every text in lists and tables of what JSON holds."""
    match value:
        case str():
            return printable(value)
        case list():
            return [printable_texts(each) for each in value]
        case dict():
            return {printable_texts(name): printable_texts(each) for name, each in value.items()}
        case _:
            return value
