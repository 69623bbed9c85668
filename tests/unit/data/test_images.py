"""Images as token ids: nothing of them is lost, and no image is on both sides of the split."""

from __future__ import annotations

import numpy as np
import pytest

from unlockstep.core.errors import UsageError
from unlockstep.data import load_corpus, split_corpus
from unlockstep.data.images import GREY_LEVELS, PATCH_IDS, PATCHES, patch_ids, read_digits

TEXT_IDS = 256


@pytest.fixture(scope="module")
def parts() -> tuple[np.ndarray, np.ndarray]:
    return split_corpus(load_corpus("digits"), sequence_length=64, validation_share=0.1)


def images_of(tokens: np.ndarray) -> set[bytes]:
    """Every whole image of a part, with its label."""
    ends = np.flatnonzero((tokens[:-1] >= TEXT_IDS) & (tokens[1:] < TEXT_IDS))
    return {tokens[end - PATCHES + 1 : end + 2].tobytes() for end in ends}


def test_there_are_1797_images_of_8_by_8_in_17_greys():
    images, labels = read_digits()
    assert images.shape == (1797, 8, 8)
    assert (images.min(), images.max()) == (0, GREY_LEVELS - 1)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_a_patch_is_a_number_in_base_17_of_its_pixels_row_by_row():
    image = np.arange(64).reshape(1, 8, 8) % GREY_LEVELS
    (ids,) = patch_ids(image)
    assert ids.shape == (PATCHES,)
    # The second patch of the first row holds columns 2 and 3 of rows 0 and 1: 2, 3, then 10, 11.
    assert ids[1] == 2 + 3 * 17 + 10 * 17**2 + 11 * 17**3
    # The first patch of the second row holds columns 0 and 1 of rows 2 and 3: 16, 17 % 17, then 24 % 17, 25 % 17.
    assert ids[4] == 16 + 0 * 17 + 7 * 17**2 + 8 * 17**3
    assert ids.max() < PATCH_IDS


def test_half_of_the_tokens_are_of_images_and_text_is_measured_by_itself():
    corpus = load_corpus("digits")
    assert corpus.vocabulary_size == TEXT_IDS + PATCH_IDS
    assert corpus.bytes_per_token == 1.0
    assert 0.40 < (corpus.tokens >= TEXT_IDS).mean() < 0.48


def test_no_image_is_trained_on_and_validated_on(parts: tuple[np.ndarray, np.ndarray]):
    training, validation = (images_of(part) for part in parts)
    assert len(training) + len(validation) == 1797
    assert len(validation) > 100
    assert not training & validation


def test_the_corpus_is_the_same_each_time():
    one, other = load_corpus("digits"), load_corpus("digits")
    assert one.digest == other.digest
    assert np.array_equal(one.tokens, other.tokens)


def test_without_the_package_that_brings_them_it_is_said_how_to_get_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"scikit-learn.*pip install 'unlockstep\[vision\]'"):
        load_corpus("digits")
