"""A corpus in memory, and its split into a training and a validation part that never overlap.

Decides which tokens are trained on. Does not decide their order (``stream``) or how text becomes tokens (``tokens``).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlockstep.core.errors import UsageError
from unlockstep.data.sources import STANDARD_LIBRARY, read_documents
from unlockstep.data.tokens import BYTES, encode_documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Every document of a source as token ids.

    Args:
        tokens: uint8, uint16 or uint32 [N], documents one after the other.
        document_starts: int64 [documents + 1]; document i is ``tokens[document_starts[i]:document_starts[i + 1]]``.
        vocabulary_size: token ids are below it.
        bytes_per_token: UTF-8 bytes (one between documents included) per token; nats/byte = nats/token divided by it.
        digest: hexadecimal; equal where text, order and tokenizer are equal.
        skipped_count: files left out because they are not UTF-8 text.
        repeated_count: documents left out because an equal one came before.
    """

    tokens: NDArray[np.unsignedinteger]
    document_starts: NDArray[np.int64]
    vocabulary_size: int
    bytes_per_token: float
    digest: str
    skipped_count: int
    repeated_count: int

    @property
    def document_count(self) -> int:
        return len(self.document_starts) - 1


def load_corpus(source: str = STANDARD_LIBRARY, tokenizer: str = BYTES, text_field: str = "text") -> Corpus:
    """Read and tokenize everything at ``source``.

    Args:
        source: one of
            ``"stdlib"``: the Python standard library's own source, about 11 MB, without tests and installed packages
            (it differs between Python versions: compare digests where learners run on several machines);
            a folder: each UTF-8 text file in it, at any depth, is one document; hidden and binary files are left out;
            a file: one document;
            a ``.jsonl`` file: each line's ``text_field`` is one document.
        tokenizer: ``"bytes"`` (256 ids, a document ends in id 0) or the path of a Hugging Face ``tokenizer.json``.
        text_field: name of the field of a ``.jsonl`` line.

    Raises:
        UsageError: nothing there, nothing readable in it, a line without the field, an unreadable tokenizer.
    """
    documents = read_documents(source, text_field)
    encoded = encode_documents(documents.texts, tokenizer)
    if encoded.tokens.size == 0:
        raise UsageError(f"data.source = {source!r} holds no text that data.tokenizer = {tokenizer!r} has a token for")
    digest = hashlib.sha256(encoded.tokenizer_digest)
    for text in documents.texts:
        digest.update(hashlib.sha256(text).digest())
    byte_count = sum(map(len, documents.texts)) + len(documents.texts)
    return Corpus(
        tokens=encoded.tokens,
        document_starts=encoded.document_starts,
        vocabulary_size=encoded.vocabulary_size,
        bytes_per_token=byte_count / encoded.tokens.size,
        digest=digest.hexdigest(),
        skipped_count=documents.skipped_count,
        repeated_count=documents.repeated_count,
    )


def split_corpus(
    corpus: Corpus, sequence_length: int, validation_share: float = 0.05
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]]:
    """Cut ``corpus`` into (training, validation) tokens: the same two parts for every seed and every learner.

    Whole documents go to validation in the order of their content's hash as long as they fit into the share. Where
    that leaves it less than half full (documents are few and long), the rest is cut off the end of the longest one.

    Args:
        sequence_length: inputs per sequence; each part holds at least one sequence and the target that follows it.
        validation_share: of all tokens, in (0, 1).

    Raises:
        UsageError: the share is out of range or the corpus too short for both parts.
    """
    if not 0 < validation_share < 1:
        raise UsageError(f"data.validation_share = {validation_share} is not between 0 and 1: 0.05 is a good value")
    token_count, sequence_tokens = corpus.tokens.size, sequence_length + 1
    share_tokens = round(validation_share * token_count)
    validation_target = max(share_tokens, sequence_tokens)
    if token_count - validation_target < sequence_tokens:
        sequence_length_max = min(token_count // 2, token_count - share_tokens) - 1
        raise UsageError(
            f"data.source holds {token_count} tokens, too few to train and to validate (data.validation_share = "
            f"{validation_share}) on one sequence of data.sequence_length = {sequence_length} each: give a longer "
            f"corpus or set it to at most {max(sequence_length_max, 0)}"
        )
    pieces = np.split(corpus.tokens, corpus.document_starts[1:-1])
    is_validation = _documents_that_fit(pieces, validation_target)
    training = [piece for piece, chosen in zip(pieces, is_validation, strict=True) if not chosen]
    validation = [piece for piece, chosen in zip(pieces, is_validation, strict=True) if chosen]
    filled = sum(map(len, validation))
    if filled < max(validation_target // 2, sequence_tokens):
        longest = max(range(len(training)), key=lambda i: len(training[i]))
        # What did not fit is longer than what is still missing, so something of it stays.
        training[longest], rest = np.split(training[longest], [filled - validation_target])
        validation.append(rest)
    return np.concatenate(training), np.concatenate(validation)


def _documents_that_fit(pieces: list[NDArray[np.unsignedinteger]], token_count_max: int) -> list[bool]:
    """Which documents are taken, in the order of their content's hash, while their sum stays within the limit."""
    chosen = [False] * len(pieces)
    room = token_count_max
    for index in sorted(range(len(pieces)), key=lambda i: hashlib.sha256(pieces[i].data).digest()):
        if len(pieces[index]) <= room:
            chosen[index] = True
            room -= len(pieces[index])
    return chosen
