"""Torch versions of the small Triton kernels that build DeepSeek V4's attention metadata.

Argument names and order are those of the kernels in vLLM 0.32 that they stand in for. Outputs are written in
place.
"""

# ruff: noqa: N803 - the names are those of the kernels replaced

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch


def map_tokens_to_requests(
    query_start_loc: torch.Tensor,
    output: torch.Tensor,
    num_reqs: int,
    num_mapped: int,
    num_tokens: int,
    **_: int,
) -> None:
    """Write the request of each token.

    Args:
        query_start_loc: int32 ``[R + 1]``, first token of each request.
        output: int32 ``[>= num_tokens]``, written.
        num_reqs: ``R``.
        num_mapped: tokens from this one on get 0.
        num_tokens: tokens to write.
    """
    tokens = torch.arange(num_tokens, dtype=query_start_loc.dtype)
    requests = torch.searchsorted(query_start_loc[1 : num_reqs + 1].contiguous(), tokens, right=True)
    requests = requests.clamp(max=num_reqs - 1).masked_fill(tokens >= num_mapped, 0)
    output[:num_tokens] = requests.to(output.dtype)


def map_compressed_slots(
    compressed_slot_mapping_ptr: torch.Tensor,
    slot_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    block_size: int,
    dcp_world_size: int,
    cp_interleave: int,
    COMPRESS_RATIO: int,
    PAD_ID: int,
    TRITON_BLOCK_SIZE: int,
) -> None:
    """Write the slot of the compressed entry that each token completes.

    Args:
        compressed_slot_mapping_ptr: int64 ``[T]``, written; ``PAD_ID`` where no entry is completed.
        slot_mapping_ptr: int64 ``[T]``, slots of the tokens themselves.
        query_start_loc_ptr: int32 ``[R + 1]``.
        seq_lens_ptr: int32 ``[R]``.
        block_table_ptr: int32 ``[R, pages]``.
        block_table_stride: not used.
        block_size: entries in one page.
        dcp_world_size: must be 1.
        cp_interleave: not used without context parallelism.
        COMPRESS_RATIO: tokens an entry.
        PAD_ID: marks "none".
        TRITON_BLOCK_SIZE: not used.

    Raises:
        NotImplementedError: with context parallelism.
    """
    _refuse_context_parallelism(dcp_world_size)
    bounds = query_start_loc_ptr.tolist()
    for request in range(block_table_ptr.shape[0]):
        start, end = bounds[request], bounds[request + 1]
        positions = torch.arange(start, end) - end + int(seq_lens_ptr[request])
        done = ((positions + 1) % COMPRESS_RATIO == 0) & (slot_mapping_ptr[start:end] != PAD_ID)
        entries = positions[done] // COMPRESS_RATIO
        slots = torch.full((end - start,), PAD_ID, dtype=torch.int64)
        slots[done] = (
            block_table_ptr[request][entries // block_size].long() * block_size + entries % block_size
        )
        compressed_slot_mapping_ptr[start:end] = slots


def ignore_window_indices(*_: object, **__: object) -> None:
    """Write nothing: the CPU attention derives its window from positions and never reads these indices."""


def prefill_gather_lengths(
    prefill_gather_lens_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    replay_start_ptr: torch.Tensor,
    num_prefills: int,
    num_decodes: int,
    window_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Write how many tokens of KV each prefill request gathers: its query and the window before it.

    Args:
        prefill_gather_lens_ptr: int32 ``[>= num_prefills]``, written.
        seq_lens_ptr: int32 ``[R]``, decode requests first.
        query_start_loc_ptr: int32 ``[R + 1]``.
        replay_start_ptr: int32 ``[R]``, first position with window KV.
        num_prefills: prefill requests.
        num_decodes: decode requests.
        window_size: tokens of the sliding window.
        BLOCK_SIZE: not used.
    """
    prefills = slice(num_decodes, num_decodes + num_prefills)
    queries = query_start_loc_ptr.diff()[prefills]
    visible = (seq_lens_ptr[prefills] - queries - replay_start_ptr[prefills]).clamp(0, window_size - 1)
    prefill_gather_lens_ptr[:num_prefills] = (queries + visible).to(prefill_gather_lens_ptr.dtype)


def prefill_chunk_bounds(
    query_start_loc_ptr: torch.Tensor,
    uncompressed_seq_lens_ptr: torch.Tensor,
    cu_compressed_seq_lens_ptr: torch.Tensor,
    row_start_cu_compressed_seq_lens_ptr: torch.Tensor,
    token_to_seq_ptr: torch.Tensor,
    cu_compressed_seq_len_ks_ptr: torch.Tensor,
    cu_compressed_seq_len_ke_ptr: torch.Tensor,
    query_slice_start: int,
    query_slice_stop: int,
    DCP_RANK: int,
    DCP_WORLD: int,
    DCP_INTERLEAVE: int,
    BLOCK_SIZE: int,
    COMPRESS_RATIO: int,
) -> None:
    """Write, for the indexer, the range of compressed entries that each prefill token sees.

    Args:
        query_start_loc_ptr: int32 ``[R + 1]``, from 0.
        uncompressed_seq_lens_ptr: int32 ``[R]``, tokens.
        cu_compressed_seq_lens_ptr: int32 ``[R + 1]``, running sum of entries.
        row_start_cu_compressed_seq_lens_ptr: int32 ``[R + 1]``, first entry of each request in the gathered
            keys.
        token_to_seq_ptr: int32 ``[entries]``, written: request of each entry.
        cu_compressed_seq_len_ks_ptr: int32 ``[slice]``, written: first entry of each token.
        cu_compressed_seq_len_ke_ptr: int32 ``[slice]``, written: end of its entries.
        query_slice_start: first token of the slice.
        query_slice_stop: end of the slice.
        DCP_RANK: not used without context parallelism.
        DCP_WORLD: must be 1.
        DCP_INTERLEAVE: not used without context parallelism.
        BLOCK_SIZE: not used.
        COMPRESS_RATIO: tokens an entry.

    Raises:
        NotImplementedError: with context parallelism.
    """
    _refuse_context_parallelism(DCP_WORLD)
    bounds, entry_bounds = query_start_loc_ptr.tolist(), cu_compressed_seq_lens_ptr.tolist()
    for request, seq_len in enumerate(uncompressed_seq_lens_ptr.tolist()):
        start, end = bounds[request], bounds[request + 1]
        low, high = max(start, query_slice_start), min(end, query_slice_stop)
        token_to_seq_ptr[entry_bounds[request] : entry_bounds[request + 1]] = request
        if high <= low:
            continue
        rows = slice(low - query_slice_start, high - query_slice_start)
        first = row_start_cu_compressed_seq_lens_ptr[request]
        tokens_seen = torch.arange(low, high, dtype=torch.int32) - end + seq_len + 1
        cu_compressed_seq_len_ks_ptr[rows] = first
        cu_compressed_seq_len_ke_ptr[rows] = first + tokens_seen // COMPRESS_RATIO


def _refuse_context_parallelism(world_size: int) -> None:
    if world_size != 1:
        raise NotImplementedError(
            f"decode context parallelism over {world_size} ranks is not implemented on the CPU"
        )


_MLA = "vllm.v1.attention.backends.mla"
REPLACEMENTS: Mapping[str, Callable[..., None]] = {
    "vllm.v1.attention.ops.metadata._token_request_mapping_kernel": map_tokens_to_requests,
    f"{_MLA}.compressor_utils.CompressedSlotMappingKernel.kernel": map_compressed_slots,
    f"{_MLA}.sparse_swa.ComputeSWAIndicesAndLensKernel.kernel": ignore_window_indices,
    f"{_MLA}.sparse_swa.ComputePrefillMetadataKernel.kernel": prefill_gather_lengths,
    f"{_MLA}.indexer.BuildPrefillChunkMetadataKernel.kernel": prefill_chunk_bounds,
}
