"""Loading a corpus and splitting it: what the two parts hold, and when there are not enough tokens for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from unlockstep.core.errors import UsageError
from unlockstep.data import Corpus, load_corpus, split_corpus


def corpus_of(*documents: bytes) -> Corpus:
    """A byte corpus as ``load_corpus`` makes it, without files."""
    lengths = [len(document) for document in documents]
    return Corpus(
        tokens=np.frombuffer(b"".join(documents), np.uint8),
        document_starts=np.cumsum([0, *lengths]),
        vocabulary_size=256,
        bytes_per_token=1.0,
        digest="",
        skipped_count=0,
        repeated_count=0,
    )


def test_byte_corpus_holds_the_text(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two!")
    corpus = load_corpus(str(tmp_path))
    assert corpus.tokens.tobytes() == b"one\0two!\0"
    assert corpus.document_starts.tolist() == [0, 4, 9]
    assert corpus.document_count == 2
    assert corpus.bytes_per_token == 1.0


def test_bytes_per_token_counts_one_byte_between_documents(tmp_path: Path):
    tokenizer = Tokenizer(models.WordLevel({"red": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("red red red")
    corpus = load_corpus(str(tmp_path / "text.txt"), str(tmp_path / "tokenizer.json"))
    assert corpus.bytes_per_token == (11 + 1) / 3


def test_digest_follows_text_boundaries_and_tokenizer(tmp_path: Path):
    def digest(**files: str) -> str:
        folder = tmp_path / "_".join(files.values())
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        return load_corpus(str(folder)).digest

    assert digest(a="xy", b="z") == digest(a="xy", b="z")
    assert len({digest(a="xy", b="z"), digest(a="x", b="yz"), digest(a="xyz"), digest(a="z", b="xy")}) == 4


def test_corpus_without_a_single_token_is_refused(tmp_path: Path):
    Tokenizer(models.BPE({}, [])).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(UsageError, match=r"data\.source = .* holds no text that data\.tokenizer = .* has a token for"):
        load_corpus(str(tmp_path / "text.txt"), str(tmp_path / "tokenizer.json"))


def test_split_gives_validation_whole_documents_up_to_its_share():
    documents = [bytes([i]) * 10 for i in range(1, 101)]
    training, validation = split_corpus(corpus_of(*documents), sequence_length=4, validation_share=0.2)
    assert training.size == 800
    assert validation.size == 200
    in_training, in_validation = set(training.tolist()), set(validation.tolist())
    assert in_training.isdisjoint(in_validation)
    assert in_training | in_validation == set(range(1, 101))


def test_split_assigns_by_content_so_that_order_does_not_matter():
    documents = [bytes([i]) * 10 for i in range(1, 101)]
    one, other = (set(split_corpus(corpus_of(*order), 4)[1].tolist()) for order in (documents, documents[::-1]))
    assert one == other


def test_split_cuts_validation_off_the_end_of_a_single_document():
    training, validation = split_corpus(corpus_of(bytes(range(200))), sequence_length=16, validation_share=0.1)
    assert training.tolist() == list(range(180))
    assert validation.tolist() == list(range(180, 200))


def test_split_cuts_the_longest_document_where_none_fits_into_the_share():
    documents = [b"a" * 300, b"b" * 500, b"c" * 200]
    training, validation = split_corpus(corpus_of(*documents), sequence_length=10, validation_share=0.05)
    assert training.tobytes() == b"a" * 300 + b"b" * 450 + b"c" * 200
    assert validation.tobytes() == b"b" * 50


def test_split_gives_validation_at_least_one_sequence_and_its_target():
    training, validation = split_corpus(corpus_of(bytes(100)), sequence_length=20, validation_share=0.01)
    assert (training.size, validation.size) == (79, 21)


def test_corpus_too_short_for_two_sequences_is_refused_with_the_length_that_fits():
    with pytest.raises(UsageError, match=r"holds 40 tokens, too few .*sequence_length = 128 each: .* at most 19$"):
        split_corpus(corpus_of(bytes(40)), sequence_length=128)
    training, validation = split_corpus(corpus_of(bytes(40)), sequence_length=19)
    assert (training.size, validation.size) == (20, 20)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 5])
def test_validation_share_outside_zero_and_one_is_refused(share: float):
    with pytest.raises(UsageError, match=r"data\.validation_share = .* is not between 0 and 1: 0\.05 is a good value"):
        split_corpus(corpus_of(bytes(1000)), 8, share)


def test_share_that_leaves_no_training_sequence_is_refused_with_the_length_that_fits():
    with pytest.raises(UsageError, match=r"holds 1000 tokens, too few .*validation_share = 0\.99\) .* at most 9$"):
        split_corpus(corpus_of(bytes(1000)), 100, 0.99)
    assert split_corpus(corpus_of(bytes(1000)), 9, 0.99)[0].size == 10


def test_data_and_models_import_neither_torch_nor_transformers():
    code = (
        "import sys, unlockstep.data, unlockstep.models;"
        "sys.exit(' '.join({'torch', 'transformers', 'tokenizers'} & sys.modules.keys()) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""
