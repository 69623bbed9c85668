"""What the documents show of the code is what the code says: tables and state diagrams are generated and compared."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

import pytest

from architecture.rules import sources
from support.scripts import imported

_COMMAND = re.compile(r"^unlockstep .*$", re.MULTILINE)


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    with imported("docs/generate.py") as module:
        yield module


def test_documents_are_in_step_with_the_code(generate: ModuleType) -> None:
    stale = [source.path for source in sources("docs/", suffix=".md") if generate.rendered(source.text) != source.text]
    assert not stale, f"run `python docs/generate.py`: {', '.join(stale)}"


def test_every_block_is_shown_once(generate: ModuleType) -> None:
    shown = Counter(name for source in sources("docs/", suffix=".md") for name in generate.block_names(source.text))
    assert shown == dict.fromkeys(generate.BLOCKS, 1)


def test_a_block_out_of_step_is_seen(generate: ModuleType) -> None:
    text = "<!-- generated: round states -->\nold\n<!-- end -->"
    assert "open --> committing: close" in generate.rendered(text)
    assert generate.rendered(generate.rendered(text)) == generate.rendered(text)


def test_a_block_that_does_not_exist_is_an_error(generate: ModuleType) -> None:
    with pytest.raises(KeyError, match="gone"):
        generate.rendered("<!-- generated: gone -->\n<!-- end -->")


def test_a_meaning_is_given_in_exactly_one_place(generate: ModuleType) -> None:
    assert generate._said("in the code", "a name nobody has") == "in the code"
    with pytest.raises(KeyError, match="twice"):
        generate._said("in the code", "RunFinished")
    with pytest.raises(KeyError, match="nowhere"):
        generate._said("", "a name nobody has")


def test_commands_shown_have_such_subcommands_and_options() -> None:
    wrong = [line for source in sources("docs/", suffix=".md") for line in unknown_words(source.text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "unlockstep fly",
        "unlockstep train --wings 2",
        "unlockstep status http://a --set b=1",
        "unlockstep simulate",
        "unlockstep simulate weather",
        "unlockstep simulate goodput --wings 2",
    ],
)
def test_a_command_that_does_not_exist_is_seen(line: str) -> None:
    assert len(unknown_words(f"```sh\n{line}\n```")) == 1


def unknown_words(text: str) -> list[str]:
    """Every line that begins with ``unlockstep`` and names a subcommand or an option that is not there."""
    import typer.main

    from unlockstep.cli import app

    wrong = []
    for line in _COMMAND.findall(text):
        command, words = typer.main.get_command(app.app), shlex.split(line, comments=True)[1:]
        while command is not None and (commands := getattr(command, "commands", None)) is not None:
            command = commands.get(words.pop(0)) if words else None
        parameters = () if command is None else command.params
        options = {option for parameter in parameters for option in parameter.opts + parameter.secondary_opts}
        if command is None or any(word.startswith("--") and word not in options for word in words):
            wrong.append(line)
    return wrong
