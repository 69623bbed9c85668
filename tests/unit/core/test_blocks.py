"""Blocks of integers: which numbers they hold, how they are packed, and what marks a block that is no number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unlockstep.core.blocks import BlockEncoder, block_count, code_bytes, decode
from unlockstep.core.formats import BLOCK_ELEMENTS

BITS = (8, 4, 2)
LARGEST = float(np.finfo(np.float32).max)


def encoded(values: np.ndarray, bits: int, chance: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and what was lost."""
    blocks = block_count(values.size)
    codes, scales = np.zeros(blocks * code_bytes(bits), np.uint8), np.zeros(blocks, np.uint16)
    lost = np.full(values.size, 7, np.float32)
    BlockEncoder(bits, values.size).encode(values, codes, scales, lost=lost, chance=chance)
    return codes, scales, lost


def there_and_back(values: list[float], bits: int, chance: int | None = None) -> np.ndarray:
    codes, scales, _ = encoded(np.array(values, np.float32), bits, chance)
    out = np.empty(len(values), np.float32)
    decode(codes, scales, bits, out)
    return out


def test_codes_are_twos_complement_from_the_lowest_bits_on() -> None:
    """The scale is 8 / -8 = -1, whose bfloat16 is 0xBF80; then a number is minus its code."""
    codes, scales, lost = encoded(np.array([8, 1, -7, 0, -1, 2], np.float32), 4)
    assert scales.tolist() == [0xBF80]
    assert codes.tolist() == [0xF8, 0x07, 0xE1, *[0] * 29]
    assert lost.tolist() == [0] * 6


def test_four_codes_of_two_bits_share_a_byte() -> None:
    """The scale is -4 / -2 = 2: codes -2, 1, -1, 0 and 1."""
    codes, scales, _ = encoded(np.array([-4, 2, -2, 0, 2], np.float32), 2)
    assert scales.tolist() == [0x4000]
    assert codes.tolist() == [0b00_11_01_10, 0b00_00_00_01, *[0] * 14]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("extreme", [1.0, -1.0])
def test_the_largest_number_has_the_lowest_code_and_a_step_is_its_share(bits: int, extreme: float) -> None:
    codes = 2 ** (bits - 1)
    of_one_block = range(-codes + 1, codes, max(1, codes // 16))
    values = [extreme, *(extreme * k / codes for k in of_one_block)]
    assert there_and_back(values, bits).tolist() == values


@pytest.mark.parametrize("bits", BITS)
def test_ties_go_to_the_even_code(bits: int) -> None:
    codes = 2 ** (bits - 1)
    assert there_and_back([-codes, 0.5, -0.5, -1.5], bits).tolist() == [-codes, 0, 0, -2]


@pytest.mark.parametrize("bits", BITS)
def test_almost_as_large_with_the_other_sign_loses_a_step(bits: int) -> None:
    codes = 2 ** (bits - 1)
    assert there_and_back([codes, -codes + 2.0**-10], bits).tolist() == [codes, -codes + 1]
    assert there_and_back([-codes, codes - 2.0**-10], bits).tolist() == [-codes, codes - 1]


@pytest.mark.parametrize("chance", [None, 5])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", [1, 63, 64, 65, 129])
def test_equal_numbers_zeros_and_a_single_one_come_back(size: int, bits: int, chance: int | None) -> None:
    """C13. The scale of a power of two is exact, rounding away from zero lengthens a step by one part in 128 at most;
    nothing is divided by 0."""
    assert there_and_back([0.0] * size, bits, chance).tolist() == [0.0] * size
    step = 0.0 if chance is None else 0.5 / (2 ** (bits - 1) - 1) * (1 + 2.0**-7)
    for value in (0.5, -0.5):
        assert np.abs(there_and_back([value] * size, bits, chance) - value).max() <= step


@pytest.mark.parametrize("chance", [None, 5])
@pytest.mark.parametrize("bits", BITS)
def test_one_outlier_costs_the_small_values_of_its_own_block_only(bits: int, chance: int | None) -> None:
    """C13"""
    values = np.full(4 * BLOCK_ELEMENTS, 1e-4)
    values[BLOCK_ELEMENTS + 3] = 1e4
    back = there_and_back(values.tolist(), bits, chance)
    step = 2.0**-8 if chance is None else 1.01 / (2 ** (bits - 1) - 1)
    others = np.r_[0:BLOCK_ELEMENTS, 2 * BLOCK_ELEMENTS : 4 * BLOCK_ELEMENTS]
    assert back[BLOCK_ELEMENTS + 3] == pytest.approx(1e4, rel=step)
    assert back[others] == pytest.approx(1e-4, rel=step)
    if chance is None:
        assert not np.delete(back[BLOCK_ELEMENTS : 2 * BLOCK_ELEMENTS], 3).any()


@pytest.mark.parametrize("chance", [None, 5])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("extreme", [LARGEST, -LARGEST])
def test_the_largest_numbers_there_are_stay_finite(extreme: float, bits: int, chance: int | None) -> None:
    back = there_and_back([extreme, extreme, -extreme, extreme / 2], bits, chance).astype(np.float64)
    step = LARGEST / (2 ** (bits - 1) - (chance is not None))
    assert np.isfinite(back).all()
    assert np.abs(back - [extreme, extreme, -extreme, extreme / 2]).max() <= step + LARGEST * 2.0**-8


@pytest.mark.parametrize("chance", [None, 5])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("tiny", [2.0**-149, 2.0**-133, 3e-39, 2.0**-126])
def test_below_the_normal_range_the_error_is_below_it_too(tiny: float, bits: int, chance: int | None) -> None:
    """Neighbours are 2**-133 apart there; a scale is off by half of that, or, away from zero, by all of it."""
    back = there_and_back([tiny, -tiny, tiny / 2, 0.0], bits, chance).astype(np.float64)
    step = tiny / (2 ** (bits - 1) - (chance is not None))
    assert np.abs(back - [tiny, -tiny, tiny / 2, 0.0]).max() <= step + 2.0 ** (bits - 1 - 133)


@pytest.mark.parametrize("chance", [None, 5])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_block_with_a_number_that_is_none_has_no_numbers_at_all(bad: float, bits: int, chance: int | None) -> None:
    """Never silently finite; and nothing of it is carried on as lost in rounding."""
    values = np.ones(3 * BLOCK_ELEMENTS - 5, np.float32)
    values[BLOCK_ELEMENTS + 1] = values[-1] = bad
    codes, scales, lost = encoded(values, bits, chance)
    assert scales.tolist()[1:] == [0x7FC0] * 2
    assert not codes[code_bytes(bits) :].any()
    out = np.empty(values.size, np.float32)
    decode(codes, scales, bits, out)
    assert np.isfinite(out).tolist() == [True] * BLOCK_ELEMENTS + [False] * (values.size - BLOCK_ELEMENTS)
    assert not lost[BLOCK_ELEMENTS:].any()


@pytest.mark.parametrize("chance", [None, 5])
@pytest.mark.parametrize("bits", BITS)
def test_what_is_lost_is_what_the_decoded_differ_by(bits: int, chance: int | None) -> None:
    values = np.random.default_rng(0).standard_normal(5 * BLOCK_ELEMENTS + 17).astype(np.float32)
    codes, scales, lost = encoded(values, bits, chance)
    out = np.empty(values.size, np.float32)
    decode(codes, scales, bits, out)
    assert lost.tobytes() == (values - out).tobytes()


@pytest.mark.parametrize("bits", BITS)
def test_every_scale_and_every_byte_decodes_to_code_times_scale(bits: int) -> None:
    """Whatever a stranger sends: no warning, no error, and this formula."""
    scales = np.arange(2**16, dtype=np.uint16)[::13]
    codes = np.random.default_rng(1).integers(0, 256, scales.size * code_bytes(bits)).astype(np.uint8)
    out = np.empty(scales.size * BLOCK_ELEMENTS, np.float32)
    decode(codes, scales, bits, out)
    unpacked = (codes[:, None] >> np.arange(0, 8, bits)) & (2**bits - 1)
    signed = np.where(unpacked < 2 ** (bits - 1), unpacked.astype(int), unpacked.astype(int) - 2**bits)
    with np.errstate(all="ignore"):
        factors = (scales.astype(np.uint32) << 16).view(np.float32)
        expected = signed.reshape(-1, BLOCK_ELEMENTS).astype(np.float32) * factors[:, None]
    assert np.array_equal(out, expected.reshape(-1), equal_nan=True)


def test_chance_makes_the_expected_value_exact() -> None:
    """Of 0.3 steps: the mean over 200 seeds is 0.3 within 4 standard deviations, and nearest gives 0."""
    values = [7.0, *[0.3] * (BLOCK_ELEMENTS - 1)]
    assert there_and_back(values, 4)[1] == 0
    mean = np.mean([there_and_back(values, 4, seed << 32)[1:] for seed in range(200)])
    deviation = math.sqrt(0.3 * 0.7 / (200 * (BLOCK_ELEMENTS - 1)))
    assert abs(mean - 0.3) <= 4 * deviation + 0.3 * 2**-7


def test_chance_cuts_nothing_off() -> None:
    """Two bits: -1, 0 and 1 times the extreme are drawn, so an element of the other sign keeps its expected value."""
    values = [1.0, -1.0, 0.5, -0.5] * 16
    drawn = np.array([there_and_back(values, 2, seed << 32) for seed in range(400)])
    assert set(np.unique(drawn).tolist()) == {-1.0, 0.0, 1.0}
    assert np.abs(drawn.mean(axis=0) - values).max() <= 5 * 0.5 / math.sqrt(400)


def test_chance_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    values = np.random.default_rng(2).standard_normal(1000).astype(np.float32).tolist()
    assert there_and_back(values, 4, 7).tobytes() == there_and_back(values, 4, 7).tobytes()
    assert there_and_back(values, 4, 7).tobytes() != there_and_back(values, 4, 8).tobytes()
    assert there_and_back(values, 4, 2**64 - 1).size == 1000
