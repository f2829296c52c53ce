"""Attention against a float64 loop, and the C version against the torch one."""

import math

import pytest
import torch
from ds4_kernels.cpu import attention, native
from ds4_kernels.cpu.cache_layout import load_latents, store_latents


def runnable_variants() -> list[str]:
    order = ["baseline", "avx2", "avx512"]
    return order[: order.index(native.cpu_variant()) + 1]


IMPLEMENTATIONS = {
    "torch": lambda: attention.attend_torch,
    **{f"c-{variant}": (lambda variant=variant: native.load(variant)) for variant in runnable_variants()},
}


@pytest.fixture(params=IMPLEMENTATIONS)
def attend(request):
    return IMPLEMENTATIONS[request.param]()


def naive(queries, keys, indices, sinks, scale):
    """The formula in the module's docstring, in float64, without the shift by the maximum."""
    out = torch.zeros(queries.shape, dtype=torch.float64)
    for t in range(queries.shape[0]):
        for h in range(queries.shape[1]):
            total = math.exp(float(sinks[h]))
            summed = torch.zeros(queries.shape[2], dtype=torch.float64)
            for index in indices[t].tolist():
                if index < 0:
                    continue
                key = keys[index].double()
                weight = math.exp(scale * float(queries[t, h].double() @ key))
                total += weight
                summed += weight * key
            out[t, h] = summed / total if total else summed
    return out


def example(tokens=7, heads=3, count=20, width=11, dim=512, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(tokens, heads, dim, generator=generator),
        torch.randn(count, dim, generator=generator),
        torch.randint(-1, count, (tokens, width), generator=generator),
        torch.randn(heads, generator=generator),
        dim**-0.5,
    )


def test_follows_the_formula(attend):
    arguments = example()
    torch.testing.assert_close(attend(*arguments).double(), naive(*arguments), rtol=1e-5, atol=1e-6)


def test_c_equals_torch_over_many_rows():
    arguments = example(tokens=130, heads=4, count=400, width=300, seed=1)
    for variant in runnable_variants():
        torch.testing.assert_close(
            native.load(variant)(*arguments), attention.attend_torch(*arguments), rtol=1e-5, atol=1e-6
        )


def test_large_scores_do_not_overflow(attend):
    queries, keys, indices, sinks, scale = example()
    out = attend(queries * 100, keys, indices.clamp(min=0), sinks, scale)
    best = (queries * 100 @ keys.t() * scale).gather(2, indices.clamp(min=0).unsqueeze(1).expand(-1, 3, -1))
    picked = indices.clamp(min=0).gather(1, best.argmax(2))
    margin = best.sort(2, descending=True).values
    clear = (margin[..., 0] - margin[..., 1] > 30) & (margin[..., 0] - sinks > 30)
    assert clear.any()
    torch.testing.assert_close(out[clear], keys[picked][clear], rtol=1e-5, atol=1e-5)


def test_a_row_without_keys_gives_zero(attend):
    queries, keys, indices, sinks, scale = example()
    indices[2] = -1
    out = attend(queries, keys, indices, sinks, scale)
    assert (out[2] == 0).all()
    assert (out[3] != 0).any()


def test_no_keys_and_no_sink_give_zero_not_nan(attend):
    queries, keys, indices, _, scale = example()
    out = attend(queries, keys, torch.full_like(indices, -1), torch.full((3,), -torch.inf), scale)
    assert (out == 0).all()


def test_no_key_at_all(attend):
    queries, keys, indices, sinks, scale = example()
    assert (attend(queries, keys[:0], torch.full_like(indices, -1), sinks, scale) == 0).all()
    assert (attend(queries, keys, indices[:, :0], sinks, scale) == 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_key_reaches_the_rows_that_use_it_and_no_other(attend, bad):
    queries, keys, indices, sinks, scale = example()
    keys[4, 9] = bad
    indices[0], indices[1] = 4, 5
    out = attend(queries, keys, indices, sinks, scale)
    uses = (indices == 4).any(1)
    assert out[uses].isnan().any(-1).all()
    assert out[~uses].isfinite().all()


def test_a_bad_query_reaches_its_own_head_only(attend):
    queries, keys, indices, sinks, scale = example()
    queries[3, 1, 0] = math.nan
    out = attend(queries, keys, indices.clamp(min=0), sinks, scale)
    assert out[3, 1].isnan().all()
    out[3, 1] = 0
    assert out.isfinite().all()


def test_order_of_keys_does_not_matter_much(attend):
    queries, keys, indices, sinks, scale = example()
    flipped = attend(queries, keys, indices.flip(1), sinks, scale)
    torch.testing.assert_close(attend(queries, keys, indices, sinks, scale), flipped, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", runnable_variants())
def test_c_gives_the_same_bits_again(variant):
    arguments = example(tokens=50, width=200, seed=3)
    assert torch.equal(native.load(variant)(*arguments), native.load(variant)(*arguments))


def test_paged_attention_reads_window_and_compressed_entries():
    torch.manual_seed(5)
    page, entries = 4, 16
    window, compressed = (torch.zeros(entries // page, page * 584, dtype=torch.uint8) for _ in range(2))
    every = torch.arange(entries)
    store_latents(window, every, page, torch.randn(entries, 512))
    store_latents(compressed, every, page, torch.randn(entries, 512))
    queries, sinks = torch.randn(3, 2, 512), torch.zeros(2)
    window_slots = torch.tensor([[0, -1, -1], [3, 9, -1], [15, 2, 7]])
    compressed_slots = torch.tensor([[-1, -1], [5, -1], [5, 0]])
    out = torch.full((4, 2, 512), 7.0)
    attention.paged_attention(
        out, queries, window, window_slots, page, compressed, compressed_slots, page, sinks, 0.05
    )
    keys = torch.cat([load_latents(window, every, page), load_latents(compressed, every, page)])
    indices = torch.cat(
        [window_slots, torch.where(compressed_slots < 0, -1, compressed_slots + entries)], dim=1
    )
    torch.testing.assert_close(
        out[:3].double(), naive(queries, keys, indices, sinks, 0.05), rtol=1e-5, atol=1e-6
    )
    assert (out[3] == 7).all()


def test_queries_are_normalised_and_keys_stored_where_asked():
    torch.manual_seed(6)
    queries, latents = torch.randn(3, 2, 512) * 5, torch.randn(3, 512)
    positions, slots = torch.tensor([4, 0, 9]), torch.tensor([6, -1, 1])
    angles = torch.randn(10, 32, dtype=torch.float64)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).float()
    cache = torch.full((2, 4 * 584), 9, dtype=torch.uint8)
    out = attention.norm_queries_and_store_keys(
        queries, latents, positions, cache, slots, cos_sin, 3, 1e-6, 4
    )
    assert out.shape == (3, 3, 512)
    assert (out[:, 2] == 0).all()
    mean_square = queries.double().square().mean(-1, keepdim=True)
    normed = queries.double() / (mean_square + 1e-6).sqrt()
    torch.testing.assert_close(out[:, :2, :448].double(), normed[..., :448], rtol=1e-5, atol=1e-6)
    # a rotation keeps the length of each pair and, undone, gives the pair back
    rotated = out[:, :2, 448:].double().unflatten(-1, (32, 2))
    pairs = normed[..., 448:].unflatten(-1, (32, 2))
    torch.testing.assert_close(rotated.norm(dim=-1), pairs.norm(dim=-1), rtol=1e-5, atol=1e-6)
    turned = torch.view_as_complex(rotated) / torch.view_as_complex(pairs.contiguous())
    expected = torch.polar(torch.ones(3, 1, 32, dtype=torch.float64), angles[positions].unsqueeze(1))
    torch.testing.assert_close(turned, expected.expand(3, 2, 32), rtol=1e-4, atol=1e-4)
    stored = load_latents(cache, torch.tensor([6, 1]), 4)
    torch.testing.assert_close(stored[:, :448], latents[[0, 2], :448], rtol=0.07, atol=0.04)
    rest = torch.ones(8, dtype=torch.bool)
    rest[[6, 1]] = False
    assert (cache[:, : 4 * 576].reshape(8, 576)[rest] == 9).all()


def test_undoing_the_rotation_depends_on_distance_only():
    torch.manual_seed(7)
    frequencies = torch.rand(32, dtype=torch.float64)
    angles = torch.arange(20, dtype=torch.float64).unsqueeze(1) * frequencies
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).float()
    value = torch.randn(1, 1, 512)
    at = {}
    for key_position, query_position in ((3, 5), (11, 13)):
        rotated = attention.apply_rope(value[..., 448:], cos_sin, torch.tensor([key_position]))
        seen = torch.cat([value[..., :448], rotated], dim=-1)
        at[key_position] = attention.undo_rope(seen, torch.tensor([query_position]), cos_sin, 64)
    torch.testing.assert_close(at[3], at[11], rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError, match="32"):
        attention.undo_rope(value, torch.tensor([0]), cos_sin, 32)


@pytest.fixture
def _fresh_selection():
    attention.selected_attention.cache_clear()
    native.load.cache_clear()
    yield
    attention.selected_attention.cache_clear()
    native.load.cache_clear()


@pytest.mark.usefixtures("_fresh_selection")
class TestSelection:
    def test_c_is_the_default(self, monkeypatch):
        monkeypatch.delenv(attention.ATTENTION_VARIABLE, raising=False)
        assert attention.selected_attention() is native.load(native.cpu_variant())
        assert attention.describe_selection() == f"C, {native.cpu_variant()}"

    def test_torch_only_when_asked_for(self, monkeypatch):
        monkeypatch.setenv(attention.ATTENTION_VARIABLE, "torch")
        assert attention.selected_attention() is attention.attend_torch
        assert attention.describe_selection() == "torch"

    def test_an_unknown_choice_is_refused(self, monkeypatch):
        monkeypatch.setenv(attention.ATTENTION_VARIABLE, "fast")
        with pytest.raises(ValueError, match=r"DS4_CPU_ATTENTION='fast': expected one of c, torch"):
            attention.selected_attention()

    def test_a_missing_library_is_an_error_and_no_fallback(self, monkeypatch):
        monkeypatch.delenv(attention.ATTENTION_VARIABLE, raising=False)
        monkeypatch.setattr(native, "LIBRARY", "_no_such_library_{variant}")
        with pytest.raises(FileNotFoundError, match="pip install"):
            attention.selected_attention()
