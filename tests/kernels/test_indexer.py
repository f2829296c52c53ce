"""The indexer against float64 loops."""

import math

import pytest
import torch
from ds4_kernels.cpu import indexer
from ds4_kernels.cpu.cache_layout import FP8, load_indexer_keys, store_indexer_keys

PAGE = 4


def example(tokens=70, heads=2, pages_per_request=3):
    torch.manual_seed(0)
    cache = torch.zeros(10, PAGE * 132, dtype=torch.uint8)
    store_indexer_keys(cache, torch.arange(10 * PAGE), PAGE, torch.randn(10 * PAGE, 128))
    return (
        torch.randn(tokens, heads, 128).to(FP8),
        cache,
        torch.randn(tokens, heads),
        torch.randint(0, pages_per_request * PAGE + 1, (tokens,), dtype=torch.int32),
        torch.stack([torch.randperm(10)[:pages_per_request] for _ in range(tokens)]).int(),
    )


def test_logits():
    queries, cache, weights, lens, table = example()
    lens[:3] = torch.tensor([0, 12, 5])
    got = indexer.paged_logits(queries, cache, weights, lens, table, PAGE, 13)
    assert got.shape == (70, 13)
    for t in range(70):
        for entry in range(13):
            if entry >= lens[t]:
                assert got[t, entry] == -math.inf
                continue
            slot = int(table[t, entry // PAGE]) * PAGE + entry % PAGE
            key = load_indexer_keys(cache, torch.tensor([slot]), PAGE)[0].double()
            expected = sum(
                float(weights[t, h]) * max(0.0, float(queries[t, h].double() @ key)) for h in range(2)
            )
            assert float(got[t, entry]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("raw", [True, False])
def test_topk_keeps_the_best_of_long_rows_and_all_of_short_ones(raw):
    torch.manual_seed(1)
    lens = torch.tensor([9, 4, 0, 6, 5])
    logits = torch.randn(5, 9).masked_fill(torch.arange(9) >= lens.unsqueeze(1), -torch.inf)
    out = torch.full((5, 5), 99, dtype=torch.int32)
    raw_out = torch.full((5, 5), 99, dtype=torch.int32) if raw else None
    indexer.topk_entries(logits, lens, torch.zeros(5, 3).int(), out, PAGE, raw_out)
    for t, length in enumerate(lens.tolist()):
        if length <= 5:
            assert out[t].tolist() == list(range(length)) + [-1] * (5 - length)
        else:
            assert set(out[t].tolist()) == set(sorted(range(length), key=lambda e: -logits[t, e])[:5])
    if raw_out is not None:
        assert torch.equal(raw_out, out)


def test_topk_of_fewer_columns_than_wanted():
    out = torch.full((1, 6), 99, dtype=torch.int32)
    indexer.topk_entries(torch.zeros(1, 2), torch.tensor([2]), torch.zeros(1, 1).int(), out, PAGE, None)
    assert out.tolist() == [[0, 1, -1, -1, -1, -1]]


def test_quantised_queries_times_their_weight_are_nearly_the_rotated_queries():
    torch.manual_seed(2)
    queries, weights = torch.randn(3, 2, 128) * 20, torch.rand(3, 2) + 0.5
    positions = torch.tensor([3, 0, 5])
    angles = torch.randn(6, 32, dtype=torch.float64)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).float()
    quantised, weights_out = torch.empty(3, 2, 128, dtype=FP8), torch.empty(3, 2)
    indexer.quantize_queries(positions, queries, cos_sin, quantised, weights, 0.5, 0.25, weights_out)
    pairs = torch.view_as_complex(queries[..., 64:].double().unflatten(-1, (32, 2)).contiguous())
    turned = pairs * torch.polar(torch.ones(3, 1, 32, dtype=torch.float64), angles[positions].unsqueeze(1))
    expected = torch.cat([queries[..., :64].double(), torch.view_as_real(turned).flatten(-2)], dim=-1)
    scale = weights_out.double() / (weights.double() * 0.5 * 0.25)
    torch.testing.assert_close(scale.log2().round(), scale.log2(), rtol=0, atol=1e-5)
    got = quantised.double() * scale.unsqueeze(-1)
    assert ((got - expected).abs() <= expected.abs().amax(-1, keepdim=True) / 16).all()
