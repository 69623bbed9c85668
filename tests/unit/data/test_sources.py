"""Which files become documents, and what is said where none do."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from unlockstep.core.errors import UsageError
from unlockstep.data.sources import STANDARD_LIBRARY, read_documents


def test_standard_library_is_python_source_without_tests_and_packages():
    documents = read_documents(STANDARD_LIBRARY)
    library = Path(sysconfig.get_path("stdlib"))
    texts = set(documents.texts)
    assert 5e6 < sum(map(len, documents.texts)) < 20e6
    assert (library / "json" / "decoder.py").read_bytes() in texts
    for left_out in ["test/test_json/test_scanner.py", "site-packages/*.py", "encodings/ascii.py"]:
        assert all(file.read_bytes() not in texts for file in library.glob(left_out))


def test_folder_is_read_at_any_depth_in_sorted_order(tmp_path: Path):
    for name, text in {"b.txt": "second", "a.md": "first", "sub/deep/c.py": "third", "no_suffix": "by content"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_documents(str(tmp_path)).texts == [b"first", b"second", b"by content", b"third"]


def test_hidden_files_and_folders_are_left_out(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("hidden folder")
    (tmp_path / ".hidden").write_text("hidden file")
    (tmp_path / "seen.txt").write_text("seen")
    assert read_documents(str(tmp_path)).texts == [b"seen"]


def test_files_that_are_not_text_are_skipped_and_counted(tmp_path: Path):
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "binary.bin").write_bytes(b"has a zero \0 byte")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "text.txt").write_text("café", encoding="utf-8")
    documents = read_documents(str(tmp_path))
    assert documents.texts == ["café".encode()]
    assert documents.skipped_count == 2


def test_equal_documents_are_kept_once_and_counted(tmp_path: Path):
    for name, text in {"a": "same", "b": "other", "c": "same", "d": "same"}.items():
        (tmp_path / name).write_text(text)
    documents = read_documents(str(tmp_path))
    assert documents.texts == [b"same", b"other"]
    assert documents.repeated_count == 2


def test_one_file_is_one_document(tmp_path: Path):
    (tmp_path / "book.txt").write_text("line\nline\n")
    assert read_documents(str(tmp_path / "book.txt")).texts == [b"line\nline\n"]


def test_json_lines_give_one_document_per_line(tmp_path: Path):
    lines = [json.dumps({"body": "one"}), "", json.dumps({"body": "two\nü", "other": 1})]
    (tmp_path / "x.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert read_documents(str(tmp_path / "x.jsonl"), "body").texts == [b"one", "two\nü".encode()]


@pytest.mark.parametrize("line", ['{"body": "no text"}', '{"text": 3}', '["text"]', "null"])
def test_json_line_without_the_field_is_named_by_its_number(tmp_path: Path, line: str):
    (tmp_path / "x.jsonl").write_text('{"text": "good"}\n\n' + line + "\n")
    with pytest.raises(UsageError, match=r"x\.jsonl', line 3: no text in field 'text': set data\.text_field"):
        read_documents(str(tmp_path / "x.jsonl"))


def test_line_that_is_not_json_is_named_by_its_number(tmp_path: Path):
    (tmp_path / "x.jsonl").write_text('{"text": "good"}\n{"text": \n')
    with pytest.raises(UsageError, match=r"x\.jsonl', line 2: not JSON .*: mend or remove the line"):
        read_documents(str(tmp_path / "x.jsonl"))


def test_source_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match=r"data\.source = 'no/such' does not exist: give a folder.*'stdlib'"):
        read_documents("no/such")


def test_empty_source_is_refused(tmp_path: Path):
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(UsageError, match=r"data\.source = .* holds no text: give a source"):
        read_documents(str(tmp_path))


@pytest.mark.parametrize("name", ["folder", "folder/latin.txt"])
def test_source_without_any_readable_file_is_refused(tmp_path: Path, name: str):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(UsageError, match=r"data\.source = .* holds no file that is UTF-8 text: give"):
        read_documents(str(tmp_path / name))
