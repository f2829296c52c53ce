"""The replaced methods of vLLM's attention layer, without a server."""

from types import SimpleNamespace

import pytest
import torch
from ds4_kernels.cpu import attention_layer
from ds4_kernels.cpu.step_hook import count_decodes

TABLE = torch.tensor([[4, 9, 2], [7, 1, 3]], dtype=torch.int32)


def naive_slots(entries, requests, page):
    return [
        [-1 if e < 0 else int(TABLE[r, e // page]) * page + e % page for e in row]
        for row, r in zip(entries, requests, strict=True)
    ]


def test_entries_become_slots():
    entries = [[0, 5, -1], [3, 4, 1]]
    got = attention_layer.local_to_slots(torch.tensor(entries), torch.tensor([1, 0]), TABLE, 2)
    assert got.tolist() == naive_slots(entries, [1, 0], 2)


@pytest.mark.parametrize("position", [0, 2, 3, 4, 100])
def test_the_window_ends_with_the_token_itself(position):
    got = attention_layer.window_entries(torch.tensor([position]), 4)[0].tolist()
    expected = list(range(max(0, position - 3), position + 1))
    assert got == expected + [-1] * (4 - len(expected))


def test_a_token_sees_whole_entries_only():
    got = attention_layer.whole_entries(torch.tensor([126, 127, 384]), 128)
    assert got.tolist() == [[-1, -1, -1], [0, -1, -1], [0, 1, 2]]
    assert attention_layer.whole_entries(torch.tensor([5]), 128).shape == (1, 0)


def test_metadata_is_read_up_to_its_length_at_any_stride():
    memory = torch.arange(40, dtype=torch.int32)
    slots = memory.as_strided((3, 6), (10, 1))
    got = attention_layer.slots_from_metadata(slots, torch.tensor([2, 0, 4], dtype=torch.int32))
    assert got.tolist() == [[0, 1, -1, -1], [-1] * 4, [20, 21, 22, 23]]


def metadata(slots=None, lens=None):
    return SimpleNamespace(
        c128a_global_decode_topk_indices=slots, c128a_decode_topk_lens=lens, block_table=TABLE
    )


POSITIONS = torch.tensor([300, 400, 128, 700])
REQUESTS = torch.tensor([0, 1, 1, 1])


def fresh():
    return attention_layer.c128a_slots(metadata(), POSITIONS, REQUESTS, 2)


def test_fresh_slots():
    entries = [[0, 1, -1, -1, -1], [0, 1, 2, -1, -1], [0, -1, -1, -1, -1], [0, 1, 2, 3, 4]]
    assert fresh().tolist() == naive_slots(entries, REQUESTS.tolist(), 2)


@pytest.mark.parametrize("decodes", [1, 2, 4])
def test_decode_rows_come_from_the_metadata_and_prefill_rows_do_not(decodes):
    slots = torch.full((decodes, 1, 256), 1000, dtype=torch.int32)
    lens = torch.full((decodes,), 3, dtype=torch.int32)
    got = attention_layer.c128a_slots(metadata(slots, lens), POSITIONS, REQUESTS, 2)
    assert (got[:decodes, :3] == 1000).all()
    assert (got[:decodes, 3:] == -1).all()
    assert torch.equal(got[decodes:], fresh()[decodes:, : got.shape[1]])


def test_right_metadata_gives_the_fresh_slots():
    right = fresh()
    slots = torch.full((4, 256), -7, dtype=torch.int32)
    slots[:, : right.shape[1]] = right
    lens = (right >= 0).sum(1).int()
    got = attention_layer.c128a_slots(metadata(slots.unsqueeze(1), lens), POSITIONS, REQUESTS, 2)
    assert torch.equal(got, right)


def test_output_projection_is_float32_and_grouped(monkeypatch):
    torch.manual_seed(0)
    tokens, heads, groups, rank, hidden = 3, 4, 2, 5, 6
    angles = torch.randn(20, 32, dtype=torch.float64)
    weight_a = torch.randn(groups * rank, heads // groups * 512)
    weight_b = torch.randn(hidden, groups * rank)
    layer = SimpleNamespace(
        n_local_groups=groups,
        o_lora_rank=rank,
        hidden_size=hidden,
        rotary_emb=SimpleNamespace(cos_sin_cache=torch.cat([angles.cos(), angles.sin()], dim=1).float()),
        wo_a=SimpleNamespace(quant_method=SimpleNamespace()),
        wo_b=lambda x: x @ weight_b.t(),
    )
    attention_layer.keep_output_weight(layer)
    loaded = SimpleNamespace(weight=torch.nn.Parameter(weight_a.clone()))
    layer.wo_a.quant_method.process_weights_after_loading(loaded)
    loaded.weight.data.zero_()  # vLLM may repack it
    monkeypatch.setattr(attention_layer, "get_forward_context", lambda: SimpleNamespace(attn_metadata={}))
    outputs, positions = torch.randn(tokens, heads, 512), torch.tensor([0, 7, 19])
    got = attention_layer.project_output(layer, outputs, positions)
    for t in range(tokens):
        reduced = []
        for group in range(groups):
            inputs = []
            for head in range(group * 2, group * 2 + 2):
                turned = torch.view_as_complex(outputs[t, head, 448:].double().view(32, 2))
                turned = turned * torch.polar(torch.ones(32, dtype=torch.float64), -angles[positions[t]])
                inputs += [outputs[t, head, :448].double(), torch.view_as_real(turned).flatten()]
            rows = weight_a[group * rank : (group + 1) * rank].double()
            reduced.append(rows @ torch.cat(inputs))
        expected = weight_b.double() @ torch.cat(reduced)
        torch.testing.assert_close(got[t].double(), expected, rtol=1e-4, atol=1e-3)


def test_a_profiling_run_gives_zeros(monkeypatch):
    monkeypatch.setattr(attention_layer, "get_forward_context", lambda: SimpleNamespace(attn_metadata=None))
    layer = SimpleNamespace(hidden_size=6)
    assert (attention_layer.project_output(layer, torch.ones(3, 4, 512), torch.arange(3)) == 0).all()
    out = torch.ones(3, 4, 512)
    attention_layer.forward_mqa(layer, out, out, torch.arange(3), out)
    assert (out == 0).all()


def test_other_types_than_float32_are_refused():
    def config(dtype):
        return SimpleNamespace(model_config=SimpleNamespace(dtype=dtype))

    attention_layer.require_float32(config(torch.float32))
    with pytest.raises(ValueError, match="--dtype float32"):
        attention_layer.require_float32(config(torch.bfloat16))


def test_decodes_are_counted_from_the_metadata():
    layers = {"a": SimpleNamespace(), "b": SimpleNamespace(num_decodes=3)}
    assert count_decodes(layers) == 3
    with pytest.raises(LookupError, match="DeepSeek V4"):
        count_decodes({"a": SimpleNamespace()})
