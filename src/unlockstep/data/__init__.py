"""Text in, fixed-length token sequences out. Decides what a run trains and validates on, never how.

::

    sources (documents) ─> tokens (ids) ─> corpus (split in two) ─> stream, leased (batches)
"""

from unlockstep.data.corpus import Corpus, load_corpus, split_corpus
from unlockstep.data.leased import LeasedStream
from unlockstep.data.stream import TokenStream, validation_batches

__all__ = [
    "Corpus",
    "LeasedStream",
    "TokenStream",
    "load_corpus",
    "split_corpus",
    "validation_batches",
]
