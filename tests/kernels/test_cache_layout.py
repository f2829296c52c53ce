"""The paged layouts, against bytes put together by hand with the standard library and float64."""

import math
import struct

import pytest
import torch
from ds4_kernels.cpu import cache_layout as layout
from hypothesis import given
from hypothesis import strategies as st

PAGE = 4
LATENT_PAGE_BYTES = PAGE * (576 + 8)
INDEXER_PAGE_BYTES = PAGE * (128 + 4)


def fp8_value(byte: int) -> float:
    """Decode e4m3fn: 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities, 0x7F and 0xFF are NaN."""
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = (byte >> 3) & 0xF, byte & 0x7
    if byte & 0x7F == 0x7F:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def bfloat16_value(low: int, high: int) -> float:
    return struct.unpack("<f", bytes([0, 0, low, high]))[0]


def decode_latent(page: list[int], offset: int) -> list[float]:
    data = page[offset * 576 : (offset + 1) * 576]
    scales = page[PAGE * 576 + offset * 8 :][:8]
    nope = [fp8_value(data[i]) * 2.0 ** (scales[i // 64] - 127) for i in range(448)]
    rope = [bfloat16_value(data[448 + 2 * i], data[449 + 2 * i]) for i in range(64)]
    return nope + rope


def test_stored_latents_decode_by_hand_to_nearly_what_was_stored():
    torch.manual_seed(0)
    latents = torch.randn(3, 512) * torch.tensor([[0.01], [1.0], [300.0]])
    cache = torch.zeros(2, LATENT_PAGE_BYTES, dtype=torch.uint8)
    slots = torch.tensor([1, 3, 6])
    layout.store_latents(cache, slots, PAGE, latents)
    for row, slot in enumerate(slots.tolist()):
        by_hand = torch.tensor(decode_latent(cache[slot // PAGE].tolist(), slot % PAGE), dtype=torch.float64)
        exact = latents[row].double()
        groups = exact[:448].view(7, 64)
        # half a step of 3 mantissa bits at the top of the group's range, which reaches at most twice the
        # maximum
        allowed = groups.abs().amax(1, keepdim=True) / 8
        assert ((by_hand[:448].view(7, 64) - groups).abs() <= allowed).all()
        torch.testing.assert_close(by_hand[448:], exact[448:], rtol=2**-8, atol=0)


def test_loading_gives_what_the_bytes_mean():
    generator = torch.Generator().manual_seed(1)
    cache = torch.randint(0, 256, (3, LATENT_PAGE_BYTES), dtype=torch.uint8, generator=generator)
    data, scales = layout.split_page(cache, PAGE, 576, 8)
    scales.copy_(torch.randint(110, 140, scales.shape, dtype=torch.uint8, generator=generator))
    data[..., 449::2] = 0x3F  # tame bfloat16 exponents
    slots = torch.tensor([11, 0, 5])
    loaded = layout.load_latents(cache, slots, PAGE)
    for row, slot in enumerate(slots.tolist()):
        expected = torch.tensor(decode_latent(cache[slot // PAGE].tolist(), slot % PAGE))
        torch.testing.assert_close(loaded[row], expected, rtol=0, atol=0, equal_nan=True)


def test_round_trip_is_stable_and_touches_nothing_else():
    torch.manual_seed(2)
    wide = torch.full((4, LATENT_PAGE_BYTES + 40), 77, dtype=torch.uint8)
    cache = wide[:, :LATENT_PAGE_BYTES]  # pages further apart than they are long
    slots = torch.tensor([2, 9])
    layout.store_latents(cache, slots, PAGE, torch.randn(2, 512))
    once = layout.load_latents(cache, slots, PAGE)
    other = torch.zeros_like(cache)
    layout.store_latents(other, slots, PAGE, once)
    torch.testing.assert_close(layout.load_latents(other, slots, PAGE), once, rtol=0, atol=0)
    assert (wide[:, LATENT_PAGE_BYTES:] == 77).all()
    untouched = torch.ones(4 * PAGE, dtype=torch.bool)
    untouched[slots] = False
    data, scales = layout.split_page(cache, PAGE, 576, 8)
    assert (data.flatten(0, 1)[untouched] == 77).all()
    assert (scales.flatten(0, 1)[untouched] == 77).all()


def test_indexer_keys_decode_by_hand():
    torch.manual_seed(3)
    keys = torch.randn(2, 128) * torch.tensor([[0.5], [40.0]])
    cache = torch.zeros(2, INDEXER_PAGE_BYTES, dtype=torch.uint8)
    slots = torch.tensor([3, 4])
    layout.store_indexer_keys(cache, slots, PAGE, keys)
    loaded = layout.load_indexer_keys(cache, slots, PAGE)
    for row, slot in enumerate(slots.tolist()):
        page, offset = cache[slot // PAGE].tolist(), slot % PAGE
        (scale,) = struct.unpack("<f", bytes(page[PAGE * 128 + offset * 4 :][:4]))
        by_hand = [fp8_value(byte) * scale for byte in page[offset * 128 : (offset + 1) * 128]]
        assert math.log2(scale).is_integer()
        torch.testing.assert_close(loaded[row], torch.tensor(by_hand), rtol=0, atol=0)
        assert (loaded[row] - keys[row]).abs().max() <= keys[row].abs().max() / 8


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_comes_back_as_nan(bad):
    latents = torch.ones(1, 512)
    latents[0, 5] = bad
    cache = torch.zeros(1, LATENT_PAGE_BYTES, dtype=torch.uint8)
    layout.store_latents(cache, torch.tensor([0]), PAGE, latents)
    loaded = layout.load_latents(cache, torch.tensor([0]), PAGE)
    assert loaded[0, 5].isnan()
    assert loaded[0, 64:].isfinite().all()


@given(st.lists(st.integers(min_value=-1, max_value=29), min_size=1, max_size=40))
def test_distinct_slots(slots):
    used, places = layout.distinct_slots(torch.tensor(slots), 30)
    assert used.tolist() == sorted(set(slots) - {-1})
    assert [used[place].item() if place >= 0 else -1 for place in places] == slots


def test_storing_nothing_is_allowed():
    cache = torch.full((1, LATENT_PAGE_BYTES), 5, dtype=torch.uint8)
    nothing = torch.zeros(0, dtype=torch.int64)
    layout.store_latents(cache, nothing, PAGE, torch.zeros(0, 512))
    layout.store_indexer_keys(cache[:, :INDEXER_PAGE_BYTES], nothing, PAGE, torch.zeros(0, 128))
    assert (cache == 5).all()


@given(st.floats(min_value=2.0**-13, max_value=2.0**99, width=32))
def test_the_exponent_is_the_smallest_that_fits(maximum):
    exponent = int(layout.power_of_two_exponent(torch.tensor([maximum])))
    ratio = float(torch.tensor(maximum) / 448.0)  # the scale is chosen for the float32 quotient
    assert ratio <= 2.0**exponent
    assert ratio > 2.0 ** (exponent - 1)


@given(st.integers(min_value=-126, max_value=127))
def test_powers_of_two_are_exact(exponent):
    assert float(layout.power_of_two(torch.tensor([exponent]))) == 2.0**exponent


@pytest.mark.parametrize("inverse", [False, True])
def test_rope_rotates_each_pair_as_a_complex_number(inverse):
    torch.manual_seed(4)
    values, positions = torch.randn(5, 3, 64), torch.tensor([0, 7, 7, 2, 40])
    angles = torch.randn(50, 32, dtype=torch.float64)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).float()
    rotated = layout.apply_rope(values, cos_sin, positions, inverse)
    for token, position in enumerate(positions.tolist()):
        for head in range(3):
            for pair in range(32):
                number = complex(values[token, head, 2 * pair], values[token, head, 2 * pair + 1])
                angle = float(angles[position, pair]) * (-1 if inverse else 1)
                expected = number * complex(math.cos(angle), math.sin(angle))
                got = complex(rotated[token, head, 2 * pair], rotated[token, head, 2 * pair + 1])
                assert abs(got - expected) < 1e-5
