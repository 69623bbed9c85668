"""Small real images in a stream of tokens: scikit-learn's handwritten digits, each with its label as text.

::

    document:  patch patch ... patch  label  end            16 patches of 2 x 2 pixels, row by row, then text
    patch id:  text vocabulary + sum(grey[i] * 17 ** i)     all four pixels, without loss

Decides how an image travels as token ids, and which images there are. Does not decide how a model sees them
(``models.vision``) nor which of them are trained on: the split is that of any corpus (``corpus``). Shards, leases and
recovery need not know that some tokens are pixels.

The file is read as it lies in the installed package, which is not imported.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unlockstep.core.errors import UsageError

DIGITS = "digits"
IMAGE_SIDE = 8
"""Pixels in a row and in a column."""
PATCH_SIDE = 2
GREY_LEVELS = 17
PATCHES = (IMAGE_SIDE // PATCH_SIDE) ** 2
"""Token ids an image takes."""
PATCH_IDS = GREY_LEVELS ** (PATCH_SIDE**2)
"""Ids above those of text: one for every patch there can be."""

_PLACES = GREY_LEVELS ** np.arange(PATCH_SIDE**2)


def read_digits() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The images, int64 [1797, 8, 8] of grey levels 0 to 16, and their labels, int64 [1797] of digits.

    Raises:
        UsageError: scikit-learn, which brings them, is not installed.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise UsageError(
            f"data.source = {DIGITS!r} needs the images that scikit-learn brings, which is not installed here: "
            "pip install 'unlockstep[vision]'"
        )
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",").astype(np.int64)
    return table[:, :-1].reshape(-1, IMAGE_SIDE, IMAGE_SIDE), table[:, -1]


def patch_ids(images: NDArray[np.int64]) -> NDArray[np.int64]:
    """Grey levels [n, 8, 8] as patch ids below ``PATCH_IDS``: int64 [n, 16]."""
    across = IMAGE_SIDE // PATCH_SIDE
    patches = images.reshape(-1, across, PATCH_SIDE, across, PATCH_SIDE).swapaxes(2, 3)
    return patches.reshape(-1, PATCHES, PATCH_SIDE**2) @ _PLACES
