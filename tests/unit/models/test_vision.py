"""Images in a stream of tokens: where their soft tokens go, what the model is asked for, and what it sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from unlockstep.core.errors import UsageError
from unlockstep.data.images import PATCH_IDS, PATCHES, patch_ids, read_digits
from unlockstep.models import build_model, causal_loss, causal_scores, save_model
from unlockstep.models.vision import IGNORED, ImageReader

TEXT_IDS = 256


@pytest.fixture(scope="module")
def reader() -> ImageReader:
    model = build_model("gemma4-vlm-tiny", TEXT_IDS + PATCH_IDS, seed=0)
    assert isinstance(model, ImageReader)
    return model.eval()


@pytest.fixture(scope="module")
def image() -> Callable[[int], list[int]]:
    ids = patch_ids(read_digits()[0][:20]) + TEXT_IDS
    return lambda number: ids[number].tolist()


def row(*parts: list[int]) -> Tensor:
    return torch.tensor([[token for part in parts for token in part]])


@torch.no_grad()
def logits(reader: ImageReader, tokens: Tensor) -> Tensor:
    return reader(tokens).logits


def test_text_alone_is_read_as_the_network_reads_it(reader: ImageReader):
    tokens = row([5, 6, 7, 8])
    with torch.no_grad():
        expected = reader.network(input_ids=tokens).logits
    torch.testing.assert_close(logits(reader, tokens), expected)


def test_what_follows_an_image_depends_on_each_of_its_pixels(reader: ImageReader, image: Callable[[int], list[int]]):
    before = logits(reader, row([5], image(0), [6]))
    for patch in range(PATCHES):
        changed = image(0)
        changed[patch] += 1 if changed[patch] % 17 < 16 else -1
        after = logits(reader, row([5], changed, [6]))
        assert torch.equal(after[0, 0], before[0, 0])
        assert not torch.equal(after[0, PATCHES], before[0, PATCHES])


def test_pixels_arrive_as_greys_from_0_to_1_in_three_channels(reader: ImageReader):
    """Greys 0, 16, 8 and 4 of 16."""
    patch = 0 + 16 * 17 + 8 * 17**2 + 4 * 17**3
    pixels = reader._pixels(torch.full((1, PATCHES), TEXT_IDS + patch))
    assert pixels.shape == (1, PATCHES, 12)
    assert pixels[0, 3].tolist() == [0.0] * 3 + [1.0] * 3 + [0.5] * 3 + [0.25] * 3


def test_each_row_is_read_as_if_it_were_alone(reader: ImageReader, image: Callable[[int], list[int]]):
    """Rows with two images, with one and with none: kept tokens differ in number, so that the others are padded."""
    rows = [
        row(image(1), [7, 0], image(2), [8, 0, 3, 4, 5]),
        row(list(range(1, 10)), image(3), [9, 0], list(range(10, 22))),
        row(list(range(40, 40 + 2 * PATCHES + 7))),
    ]
    together = logits(reader, torch.cat(rows))
    for index, alone in enumerate(rows):
        torch.testing.assert_close(together[index], logits(reader, alone)[0], atol=2e-5, rtol=2e-5)


def test_an_image_that_is_cut_off_is_left_out(reader: ImageReader, image: Callable[[int], list[int]]):
    cut = row(image(1)[5:], [7, 0], [3, 4], image(2)[:9])
    kept = logits(reader, row([7, 0], [3, 4]))
    found = logits(reader, cut)
    torch.testing.assert_close(found[:, PATCHES - 5 : PATCHES - 1], kept)
    assert found[:, : PATCHES - 5].abs().max() == 0
    assert found[:, PATCHES - 1 :].abs().max() == 0


def test_text_and_labels_are_asked_for_where_everything_before_them_was_seen(
    reader: ImageReader, image: Callable[[int], list[int]]
):
    #            inputs: end of a cut image, its label, end │ an image, label, end, text │ an image cut off
    batch = row(image(1)[14:], [7, 0], image(2), [8, 0, 65], image(3)[:4])
    asked = reader.named_targets(batch)
    nothing = [IGNORED]
    assert asked["text"].tolist() == [2 * nothing + [0] + PATCHES * nothing + nothing + [0, 65] + 4 * nothing]
    assert asked["label"].tolist() == [2 * nothing + nothing + (PATCHES - 1) * nothing + nothing + [8] + 6 * nothing]


def test_loss_is_the_mean_over_all_that_is_asked_for(reader: ImageReader, image: Callable[[int], list[int]]):
    batch = row([5, 6], image(2), [8, 0, 65], image(3)[:4])
    with torch.no_grad():
        sums, loss = causal_scores(reader, batch), causal_loss(reader, batch)
    assert {name: int(part[2]) for name, part in sums.items()} == {"text": 3, "label": 1}
    assert loss.item() == pytest.approx((sums["text"][0] + sums["label"][0]).item() / 4, rel=1e-6)
    assert 0 < sums["label"][0] < 3 * math.log(257)


def test_where_nothing_is_asked_the_loss_is_zero(reader: ImageReader, image: Callable[[int], list[int]]):
    loss = causal_loss(reader, row(image(0), image(1)[:4]))
    assert loss.item() == 0


def test_the_network_alone_is_saved_and_reads_images_again(
    reader: ImageReader, image: Callable[[int], list[int]], tmp_path: Path
):
    save_model(reader, tmp_path / "model")
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path / "model").eval()
    assert type(loaded).__name__ == "Gemma4ForConditionalGeneration"
    tokens = row([5], image(4), [6])
    torch.testing.assert_close(logits(ImageReader(loaded, TEXT_IDS), tokens), logits(reader, tokens))


def test_a_corpus_without_images_is_refused():
    with pytest.raises(UsageError, match=r"set data\.source to 'digits', or choose a model of text"):
        build_model("gemma4-vlm-tiny", TEXT_IDS, seed=0)


def test_digits_are_learned(image: Callable[[int], list[int]]):
    """Ten images of known labels, learned by heart: the label comes from the pixels alone."""
    model = build_model("gemma4-vlm-tiny", TEXT_IDS + PATCH_IDS, seed=0)
    labels = read_digits()[1][:10]
    assert labels.tolist() == list(range(10))
    batch = torch.tensor(np.array([[*image(n), 48 + n, 0] for n in range(10)]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        causal_loss(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        _, hits, asked = causal_scores(model, batch)["label"].tolist()
    assert (hits, asked) == (10, 10)
