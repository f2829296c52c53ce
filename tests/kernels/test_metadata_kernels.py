"""The metadata kernels against loops over single tokens, with two or more requests."""

import inspect

import pytest
import torch
from ds4_kernels.cpu import metadata_kernels

STARTS = torch.tensor([0, 1, 4, 4, 9], dtype=torch.int32)  # queries of 1, 3, 0 and 5 tokens
LENS = torch.tensor([300, 130, 7, 5], dtype=torch.int32)


def request_of(token: int) -> int:
    return next(r for r in range(4) if STARTS[r] <= token < STARTS[r + 1])


def position_of(token: int) -> int:
    request = request_of(token)
    return int(LENS[request] - (STARTS[request + 1] - STARTS[request]) + token - STARTS[request])


def test_tokens_to_requests():
    output = torch.full((12,), 99, dtype=torch.int32)
    metadata_kernels.map_tokens_to_requests(STARTS, output, 4, 8, 11, num_warps=4)
    assert output[:8].tolist() == [request_of(t) for t in range(8)]
    assert output[8:].tolist() == [0, 0, 0, 99]


@pytest.mark.parametrize("ratio", [4, 128])
def test_compressed_slots(ratio):
    page = 256 // ratio
    table = torch.tensor([[7, 3], [5, 1], [2, 0], [9, 4]], dtype=torch.int32)
    own = torch.arange(9)
    own[6] = -1
    out = torch.full((9,), -5)
    metadata_kernels.map_compressed_slots(out, own, STARTS, LENS, table, 2, page, 1, 1, ratio, -1, 1024)
    for token in range(9):
        position = position_of(token)
        expected = -1
        if (position + 1) % ratio == 0 and own[token] >= 0:
            entry = position // ratio
            expected = int(table[request_of(token), entry // page]) * page + entry % page
        assert out[token] == expected, token


def test_some_token_completes_an_entry():
    assert any((position_of(t) + 1) % 4 == 0 for t in range(9))
    assert any((position_of(t) + 1) % 128 == 0 for t in range(9))


def test_prefill_gather_lengths():
    out = torch.full((4,), 99, dtype=torch.int32)
    replay_start = torch.tensor([0, 120, 0, 0], dtype=torch.int32)
    metadata_kernels.prefill_gather_lengths(out, LENS, STARTS, replay_start, 3, 1, 128, 64)
    for prefill, request in enumerate((1, 2, 3)):
        query = int(STARTS[request + 1] - STARTS[request])
        before = int(LENS[request]) - query
        assert out[prefill] == query + min(max(before - int(replay_start[request]), 0), 127)
    assert out[3] == 99


@pytest.mark.parametrize(("start", "stop"), [(0, 9), (2, 7)])
def test_prefill_chunk_bounds(start, stop):
    ratio = 4
    entries = LENS // ratio
    bounds = torch.cat([torch.zeros(1), entries.cumsum(0)]).int()
    token_to_seq = torch.full((int(bounds[-1]),), 99, dtype=torch.int32)
    first, end = (torch.full((stop - start,), 99, dtype=torch.int32) for _ in range(2))
    metadata_kernels.prefill_chunk_bounds(
        STARTS, LENS, bounds, bounds, token_to_seq, first, end, start, stop, 0, 1, 1, 1024, ratio
    )
    assert token_to_seq.tolist() == [r for r in range(4) for _ in range(int(entries[r]))]
    for token in range(start, stop):
        request = request_of(token)
        assert first[token - start] == bounds[request]
        assert end[token - start] == bounds[request] + (position_of(token) + 1) // ratio


def test_context_parallelism_is_refused():
    with pytest.raises(NotImplementedError, match="2 ranks"):
        metadata_kernels.map_compressed_slots(
            LENS, LENS, STARTS, LENS, LENS.unsqueeze(0), 1, 64, 2, 1, 4, -1, 1024
        )
    with pytest.raises(NotImplementedError, match="2 ranks"):
        metadata_kernels.prefill_chunk_bounds(
            STARTS, LENS, STARTS, STARTS, LENS, LENS, LENS, 0, 1, 0, 2, 1, 1024, 4
        )


@pytest.mark.parametrize("name", metadata_kernels.REPLACEMENTS)
def test_arguments_are_those_of_the_kernel_replaced(name):
    """vLLM passes launch arguments by name or in the kernel's order: both must agree."""
    from vllm.triton_utils import dispatcher

    host, attribute = dispatcher._resolve_kernel(name)
    kernel_names = list(dispatcher._kernel_arg_names(getattr(host, attribute)))
    parameters = inspect.signature(metadata_kernels.REPLACEMENTS[name]).parameters.values()
    if all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return
    ours = {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert ours == set(kernel_names)
