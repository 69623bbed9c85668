"""Text to ids: bytes, and a tokenizer file made on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from unlockstep.core.errors import UsageError
from unlockstep.data.tokens import encode_documents

WORDS = {"<s>": 0, "?": 1, "red": 2, "green": 3, "blue": 300}


@pytest.fixture
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_bytes_end_each_document_in_a_zero():
    encoded = encode_documents(["aé".encode(), b"b"])
    assert encoded.tokens.tolist() == [97, 0xC3, 0xA9, 0, 98, 0]
    assert encoded.tokens.dtype == np.uint8
    assert encoded.document_starts.tolist() == [0, 4, 6]
    assert encoded.vocabulary_size == 256


def test_tokenizer_file_gives_its_ids_in_the_smallest_type(tmp_path: Path, tokenizer: Tokenizer):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoded = encode_documents([b"red blue", b"green pink"], str(tmp_path / "tokenizer.json"))
    assert encoded.tokens.tolist() == [2, 300, 3, 1]
    assert encoded.tokens.dtype == np.uint16
    assert encoded.document_starts.tolist() == [0, 2, 4]
    assert encoded.vocabulary_size == 301


def test_tokenizer_file_marks_documents_its_own_way(tmp_path: Path, tokenizer: Tokenizer):
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert encode_documents([b"red", b"blue"], str(tmp_path / "tokenizer.json")).tokens.tolist() == [0, 2, 0, 300]


def test_truncation_and_padding_left_in_a_tokenizer_file_are_ignored(tmp_path: Path, tokenizer: Tokenizer):
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert encode_documents([b"red red red"], str(tmp_path / "tokenizer.json")).tokens.tolist() == [2, 2, 2]


def test_documents_larger_than_one_chunk_keep_their_order(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("unlockstep.data.tokens._CHUNK_BYTES", 8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [b"red", b"green blue", b"blue", b"red red", b"green"]
    encoded = encode_documents(texts, str(tmp_path / "tokenizer.json"))
    assert encoded.tokens.tolist() == [2, 3, 300, 300, 2, 2, 3]
    assert encoded.document_starts.tolist() == [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_tokenizer_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None):
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"data\.tokenizer = '.*\.json' cannot be read \(.*\): give 'bytes' or"):
        encode_documents([b"red"], str(file))
