"""Compression of KV against float64 loops over single channels."""

import math

import pytest
import torch
from ds4_kernels.cpu import compressor
from ds4_kernels.cpu.cache_layout import load_indexer_keys, load_latents

EPS = 1e-3


def test_partial_states_are_stored_with_their_position_bias():
    torch.manual_seed(0)
    keys, scores, bias = torch.randn(4, 6), torch.randn(4, 6), torch.randn(3, 6)
    positions, slots = torch.tensor([5, 6, 7, 8]), torch.tensor([9, -1, 0, 4])
    cache = torch.full((4, 3, 12), 7.0)
    compressor.save_partial_states(keys, scores, bias, positions, cache, slots)
    expected = torch.full((12, 12), 7.0)
    for token, slot in ((0, 9), (2, 0), (3, 4)):
        expected[slot, :6] = keys[token]
        expected[slot, 6:] = scores[token] + bias[int(positions[token]) % 3]
    torch.testing.assert_close(cache.view(12, 12), expected)


def naive_entry(states, slots, ratio, dim, weight, cos_sin, position):
    """Compress one entry; states ``[slots, 2 W]`` in float64."""
    width = states.shape[1] // 2
    overlap = len(slots) > ratio
    merged = []
    for channel in range(dim):
        pairs = []
        for place, slot in enumerate(slots):
            if slot < 0:
                continue
            column = channel + (dim if overlap and place >= ratio else 0)
            pairs.append((float(states[slot, width + column]), float(states[slot, column])))
        top = max(s for s, _ in pairs)
        total = sum(math.exp(s - top) for s, _ in pairs)
        merged.append(sum(math.exp(s - top) * k for s, k in pairs) / total)
    root = math.sqrt(sum(x * x for x in merged) / dim + EPS)
    normed = [x / root * float(w) for x, w in zip(merged, weight, strict=True)]
    first = position // ratio * ratio
    for pair in range(32):
        number = complex(normed[dim - 64 + 2 * pair], normed[dim - 63 + 2 * pair])
        number *= complex(cos_sin[first, pair], cos_sin[first, 32 + pair])
        normed[dim - 64 + 2 * pair], normed[dim - 63 + 2 * pair] = number.real, number.imag
    return torch.tensor(normed, dtype=torch.float64)


@pytest.mark.parametrize(("ratio", "dim", "overlap"), [(4, 512, True), (128, 512, False), (4, 128, True)])
def test_compress(ratio, dim, overlap):
    torch.manual_seed(ratio + dim)
    width, page = dim * (2 if overlap else 1), 16
    window = ratio * (2 if overlap else 1)
    state_cache = torch.randn(20, page, 2 * width)
    states = state_cache.view(-1, 2 * width).double()
    angles = torch.randn(600, 32, dtype=torch.float64)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    weight = torch.rand(dim) + 0.5
    positions = torch.tensor([2 * ratio - 1, 2 * ratio, ratio - 1, 3 * ratio - 1])
    slots = torch.stack([torch.randperm(20 * page)[:window] for _ in range(4)])
    slots[2, : window - ratio] = -1  # the first entry of a request has no entry before it
    entry_slots = torch.tensor([3, 4, 5, -1])  # token 1 completes nothing, token 3 is not written
    done = compressor.compress(
        state_cache, slots, positions, entry_slots, weight, EPS, cos_sin.float(), ratio, dim
    )
    assert done.slots.tolist() == [3, 5]
    for row, token in enumerate((0, 2)):
        expected = naive_entry(
            states, slots[token].tolist(), ratio, dim, weight, cos_sin, int(positions[token])
        )
        torch.testing.assert_close(done.values[row].double(), expected, rtol=1e-4, atol=1e-5)


def test_entries_are_stored_in_their_cache():
    torch.manual_seed(3)
    cos_sin = torch.cat([torch.ones(600, 32), torch.zeros(600, 32)], dim=1)
    positions, entry_slots = torch.tensor([127]), torch.tensor([3])
    slots = torch.arange(128).unsqueeze(0)
    states = torch.randn(8, 16, 1024)
    latents = torch.zeros(2, 2 * 584, dtype=torch.uint8)
    arguments = (states, slots, positions, entry_slots, torch.ones(512), EPS, cos_sin)
    compressor.compress_into_latents(*arguments, latents, 2, 128)
    expected = compressor.compress(*arguments, 128, 512).values
    torch.testing.assert_close(load_latents(latents, entry_slots, 2), expected, rtol=0.07, atol=0.04)

    states = torch.randn(8, 16, 512)
    keys = torch.zeros(2, 2 * 132, dtype=torch.uint8)
    slots, positions = torch.arange(8).unsqueeze(0), torch.tensor([7])
    arguments = (states, slots, positions, entry_slots, torch.ones(128), EPS, cos_sin)
    compressor.compress_into_indexer_keys(*arguments, keys, 2, 4)
    expected = compressor.compress(*arguments, 4, 128).values
    torch.testing.assert_close(load_indexer_keys(keys, entry_slots, 2), expected, rtol=0.07, atol=0.04)


def test_nothing_to_compress_changes_nothing():
    latents = torch.full((1, 2 * 584), 3, dtype=torch.uint8)
    compressor.compress_into_latents(
        torch.zeros(1, 16, 1024),
        torch.zeros(1, 128, dtype=torch.int64),
        torch.tensor([5]),
        torch.tensor([-1]),
        torch.ones(512),
        EPS,
        torch.zeros(10, 64),
        latents,
        2,
        128,
    )
    assert (latents == 3).all()


def test_nan_in_a_state_reaches_the_entry():
    states = torch.zeros(8, 16, 1024)
    states[0, 5, 3] = math.nan
    done = compressor.compress(
        states,
        torch.arange(128).unsqueeze(0),
        torch.tensor([127]),
        torch.tensor([0]),
        torch.ones(512),
        EPS,
        torch.zeros(200, 64),
        128,
        512,
    )
    assert done.values[0, 3].isnan()
