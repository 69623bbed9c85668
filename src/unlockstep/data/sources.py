"""Where documents come from: the Python standard library, a folder, a text file, a JSON lines file.

Decides which files are read, in which order, and what counts as text. Does not decide tokens or the split.
"""

from __future__ import annotations

import json
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from unlockstep.core.errors import UsageError

STANDARD_LIBRARY = "stdlib"

_STANDARD_LIBRARY_LEFT_OUT = frozenset({
    "site-packages", "dist-packages", "test", "tests", "idle_test",
    "encodings",  # a hundred near copies of one table: the two sides of the split would share them
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What was found at a source, in an order that is the same each time.

    Args:
        texts: UTF-8 bytes of each document; none is empty, no two are equal.
        skipped_count: files left out because they are not UTF-8 text.
        repeated_count: documents left out because an equal one came before.
    """

    texts: list[bytes]
    skipped_count: int
    repeated_count: int


def read_documents(source: str, text_field: str = "text") -> Documents:
    """All documents at ``source``; see ``load_corpus`` for what it may name and what is refused.

    An equal document is kept once, so that no text can be on both sides of the split.
    """
    path = Path(source).expanduser()
    texts: list[bytes | None]
    if source == STANDARD_LIBRARY:
        texts = _python_files(Path(sysconfig.get_path("stdlib")))
    elif path.is_dir():
        texts = [_text(file) for file in _files(path)]
    elif path.suffix == ".jsonl" and path.is_file():
        texts = list(_json_lines(path, source, text_field))
    elif path.exists():
        texts = [_text(path)]
    else:
        raise UsageError(
            f"data.source = {source!r} does not exist: give a folder, a text file, a .jsonl file, "
            f"or {STANDARD_LIBRARY!r} for the source of the Python standard library"
        )
    readable = [text for text in texts if text is not None]
    found = [text for text in readable if text]
    if not found:
        reason = "holds no file that is UTF-8 text" if texts and not readable else "holds no text"
        raise UsageError(f"data.source = {source!r} {reason}: give a source with UTF-8 text in it")
    distinct = list(dict.fromkeys(found))
    return Documents(
        texts=distinct, skipped_count=len(texts) - len(readable), repeated_count=len(found) - len(distinct)
    )


def _python_files(root: Path) -> list[bytes | None]:
    return [_text(file) for file in _files(root, _STANDARD_LIBRARY_LEFT_OUT) if file.endswith(".py")]


def _files(root: Path, left_out: frozenset[str] = frozenset()) -> list[str]:
    """Every file under ``root``, sorted, without hidden folders (``.git``), hidden files and caches."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__" and f not in left_out]
        found += [os.path.join(folder, file) for file in files if not file.startswith(".")]
    return sorted(found)


def _text(file: str | Path) -> bytes | None:
    """The bytes of ``file``, or None where they are not text: not UTF-8, or with a 0 byte, which no text contains."""
    try:
        with open(file, "rb") as opened:
            content = opened.read()
        content.decode()
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise UsageError(
            f"data.source: {os.fspath(file)!r} cannot be read ({error.strerror}): mend its permissions or move it away"
        ) from error
    return None if b"\0" in content else content


def _json_lines(path: Path, source: str, text_field: str) -> list[bytes]:
    content = _text(path)
    if content is None:
        raise UsageError(f"data.source = {source!r} is not UTF-8 text: give a file with one JSON object per line")
    texts = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"data.source = {source!r}, line {number}: not JSON ({error}): mend or remove the line"
            ) from error
        text = record.get(text_field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise UsageError(
                f"data.source = {source!r}, line {number}: no text in field {text_field!r}: "
                "set data.text_field to the name of the field that holds it, or mend the line"
            )
        texts.append(text.encode(errors="replace"))
    return texts
