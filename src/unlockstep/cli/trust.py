"""What nobody should do for a stranger: run code that a syncer names, read files that it names.

Decides which settings ask for that, and that whoever starts a learner says so (``--trust-syncer``). A syncer sends its
settings to whoever joins; by them it could name any module on this machine, or have any file trained into parameters
that everybody gets. Does not decide what is done with them then (``assembly``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.core.errors import UsageError

if TYPE_CHECKING:
    from unlockstep.config import RunConfig

Trust = Annotated[
    bool,
    typer.Option("--trust-syncer", help="Run the code and read the files of this machine that its settings name."),
]

BUILT_IN_SOURCES, BUILT_IN_TOKENIZER = ("stdlib", "digits"), "bytes"


def require_trusted(config: RunConfig, is_trusted: bool) -> None:
    """Raises UsageError if the settings of a syncer name what only one that is trusted may name."""
    if is_trusted:
        return
    spec, data = config.model.spec, config.data
    if ":" in spec and not spec.endswith(".json"):
        _refuse("model.spec", spec, "code that would run here")
    if spec.endswith(".json"):
        _refuse("model.spec", spec, "a file of this machine")
    if data.source not in BUILT_IN_SOURCES:
        _refuse("data.source", data.source, "files of this machine, which would be trained into the model of all")
    if data.tokenizer != BUILT_IN_TOKENIZER:
        _refuse("data.tokenizer", data.tokenizer, "a file of this machine")


def _refuse(field: str, value: str, what: str) -> None:
    raise UsageError(
        f"{field} of the syncer is {value!r}, {what}; say --trust-syncer if whoever runs the syncer may name it"
    )
