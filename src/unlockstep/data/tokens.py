"""Documents to token ids: bytes as they are, or a Hugging Face ``tokenizer.json``.

Decides how one document ends and the next begins, and the smallest integer type that holds every id.
Does not decide which documents there are or which of them are trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlockstep.core.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = "bytes"
BYTE_COUNT = 256
_CHUNK_BYTES = 4 << 20
"""Text tokenized at once: the library's records of a chunk take about a hundred times its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Documents as token ids.

    Args:
        tokens: all documents one after the other, each with what ends or begins it; uint8, uint16 or uint32 [N].
        document_starts: where each document begins, then N; int64 [documents + 1].
        vocabulary_size: one more than the largest id the tokenizer can give.
        tokenizer_digest: names the tokenizer: equal digests give equal ids for equal text.
    """

    tokens: NDArray[np.unsignedinteger]
    document_starts: NDArray[np.int64]
    vocabulary_size: int
    tokenizer_digest: bytes


def encode_documents(texts: Sequence[bytes], tokenizer: str = BYTES) -> Encoded:
    """Tokenize ``texts`` with ``"bytes"`` (each document ends in a 0 byte) or the ``tokenizer.json`` at a path.

    A tokenizer file says itself which special tokens open or close a document (its post-processor).

    Raises:
        UsageError: the tokenizer file is absent or cannot be read.
    """
    if tokenizer == BYTES:
        tokens: NDArray[np.unsignedinteger] = np.frombuffer(b"\0".join([*texts, b""]), dtype=np.uint8)
        lengths = [len(text) + 1 for text in texts]
        return Encoded(
            tokens=tokens,
            document_starts=_starts(lengths),
            vocabulary_size=BYTE_COUNT,
            tokenizer_digest=hashlib.sha256(BYTES.encode()).digest(),
        )
    definition, encoder = _read_tokenizer(tokenizer)
    vocabulary_size = 1 + max(encoder.get_vocab(with_added_tokens=True).values(), default=0)
    dtype = np.min_scalar_type(vocabulary_size - 1)
    encoded = [np.array(ids, dtype=dtype) for ids in _token_ids(encoder, texts)]
    return Encoded(
        tokens=np.concatenate(encoded),
        document_starts=_starts([len(ids) for ids in encoded]),
        vocabulary_size=vocabulary_size,
        tokenizer_digest=hashlib.sha256(definition).digest(),
    )


def _starts(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _read_tokenizer(path: str) -> tuple[bytes, Tokenizer]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError(
            f"data.tokenizer = {path!r} needs the `tokenizers` library: install unlockstep[torch] or use {BYTES!r}"
        ) from error
    try:
        definition = Path(path).expanduser().read_bytes()
        tokenizer = Tokenizer.from_buffer(definition)
    except OSError as error:
        reason = error.strerror
    except Exception as error:  # the library raises bare Exception for a file it does not understand
        reason = str(error)
    else:
        # A file may carry the truncation and padding of its last use, which would cut or pad every document.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return definition, tokenizer
    raise UsageError(
        f"data.tokenizer = {path!r} cannot be read ({reason}): "
        f"give {BYTES!r} or the path of a Hugging Face tokenizer.json"
    )


def _token_ids(encoder: Tokenizer, texts: Sequence[bytes]) -> Iterator[list[int]]:
    chunk: list[str] = []
    chunk_bytes = 0
    for text in texts:
        chunk.append(text.decode())
        chunk_bytes += len(text)
        if chunk_bytes >= _CHUNK_BYTES:
            yield from (encoding.ids for encoding in encoder.encode_batch_fast(chunk))
            chunk, chunk_bytes = [], 0
    yield from (encoding.ids for encoding in encoder.encode_batch_fast(chunk))
