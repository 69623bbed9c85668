"""A corpus in memory, and its split into a training and a validation part that never overlap.

Decides which tokens are trained on. Does not decide their order (``stream``) or how text becomes tokens (``tokens``).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlockstep.core.errors import UsageError
from unlockstep.data.images import DIGITS, PATCH_IDS, patch_ids, read_digits
from unlockstep.data.sources import STANDARD_LIBRARY, Documents, read_documents
from unlockstep.data.stream import sequences_at
from unlockstep.data.tokens import BYTES, Encoded, encode_documents

DIGITS_TEXT_BYTES = 1_000_000
"""Text beside the digits, which are repeated until they take as many tokens: a short run sees enough of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Every document of a source as token ids.

    Args:
        tokens: uint8, uint16 or uint32 [N], documents one after the other.
        document_starts: int64 [documents + 1]; document i is ``tokens[document_starts[i]:document_starts[i + 1]]``.
        vocabulary_size: token ids are below it.
        bytes_per_token: UTF-8 bytes (one between documents included) per token of text; nats/byte = nats/token divided
            by it.
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
            a ``.jsonl`` file: each line's ``text_field`` is one document;
            ``"digits"``: a megabyte of the standard library and as many tokens of images with labels (``images``), for
            models that see (``models.vision``).
        tokenizer: ``"bytes"`` (256 ids, a document ends in id 0) or the path of a Hugging Face ``tokenizer.json``.
        text_field: name of the field of a ``.jsonl`` line.

    Raises:
        UsageError: nothing there, nothing readable in it, a line without the field, an unreadable tokenizer.
    """
    documents = _first(read_documents(STANDARD_LIBRARY)) if source == DIGITS else read_documents(source, text_field)
    encoded = encode_documents(documents.texts, tokenizer)
    if encoded.tokens.size == 0:
        raise UsageError(f"data.source = {source!r} holds no text that data.tokenizer = {tokenizer!r} has a token for")
    digest = hashlib.sha256(encoded.tokenizer_digest)
    for text in documents.texts:
        digest.update(hashlib.sha256(text).digest())
    byte_count = sum(map(len, documents.texts)) + len(documents.texts)
    bytes_per_token = byte_count / encoded.tokens.size
    if source == DIGITS:
        encoded = _with_digits(encoded, tokenizer)
        digest.update(hashlib.sha256(encoded.tokens.data).digest())
    return Corpus(
        tokens=encoded.tokens,
        document_starts=encoded.document_starts,
        vocabulary_size=encoded.vocabulary_size,
        bytes_per_token=bytes_per_token,
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
    """Which documents are taken, in the order of their content's hash, while their sum stays within the limit.

    Equal documents are taken together or not at all.
    """
    chosen = [False] * len(pieces)
    equal: dict[bytes, list[int]] = {}
    for index, piece in enumerate(pieces):
        equal.setdefault(hashlib.sha256(piece.data).digest(), []).append(index)
    room = token_count_max
    for _, indices in sorted(equal.items()):
        size = len(indices) * len(pieces[indices[0]])
        if size <= room:
            room -= size
            for index in indices:
                chosen[index] = True
    return chosen


def _first(documents: Documents) -> Documents:
    """As many of the documents as make ``DIGITS_TEXT_BYTES``, in the order of their content's hash."""
    chosen: list[bytes] = []
    size = 0
    for text in sorted(documents.texts, key=lambda text: hashlib.sha256(text).digest()):
        if size + len(text) <= DIGITS_TEXT_BYTES:
            chosen.append(text)
            size += len(text)
    return Documents(texts=chosen, skipped_count=0, repeated_count=0)


def _with_digits(text: Encoded, tokenizer: str) -> Encoded:
    """The text, then every image again and again, each time in another order, until half of the tokens are theirs."""
    images, labels = read_digits()
    answers = [encode_documents([str(digit).encode()], tokenizer).tokens for digit in range(10)]
    seen = patch_ids(images) + text.vocabulary_size
    documents = [np.concatenate([patches, answers[label]]) for patches, label in zip(seen, labels, strict=True)]
    repeats = max(1, round(text.tokens.size / sum(map(len, documents))))
    turns, places = np.divmod(np.arange(repeats * len(documents)), len(documents))
    order = sequences_at(turns, places, len(documents), seed=0).tolist()
    lengths = [len(documents[index]) for index in order]
    vocabulary_size = text.vocabulary_size + PATCH_IDS
    dtype = np.min_scalar_type(vocabulary_size - 1)
    tokens = np.concatenate([text.tokens, *(documents[index] for index in order)], dtype=dtype, casting="unsafe")
    return Encoded(
        tokens=tokens,
        document_starts=np.concatenate([text.document_starts, text.tokens.size + np.cumsum(lengths)]),
        vocabulary_size=vocabulary_size,
        tokenizer_digest=text.tokenizer_digest,
    )
