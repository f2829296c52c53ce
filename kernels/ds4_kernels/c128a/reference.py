"""The C128A metadata in plain torch: slow, obvious, and what every other implementation is compared with."""

from __future__ import annotations

import torch

from ds4_kernels.c128a.layout import (
    NO_DCP,
    NO_ENTRY,
    Batch,
    Buffers,
    Dcp,
    Result,
    ViewDesign,
    result_views,
    validate,
)


def build(
    batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP, design: ViewDesign = ViewDesign.WHOLE_ROW
) -> Result:
    """Write the metadata of one step into the buffers, token by token.

    A request or page outside ``block_table`` gives entries of -1 (padding tokens may carry such values);
    ``lens`` counts them all the same.

    Args:
        batch: the step's tokens.
        buffers: the preallocated outputs; columns from ``batch.width`` on and unused rows stay untouched.
        dcp: how entries are spread over ranks.
        design: what the returned decode view spans.

    Returns:
        Views of the buffers at the capacity stride.

    Raises:
        ValueError: an argument is outside the contract.
    """
    validate(batch, buffers, dcp)
    for token in range(batch.num_tokens):
        if token < batch.num_decode_tokens:
            _write_decode_row(token, batch, buffers, dcp)
        else:
            _write_prefill_row(token, batch, buffers)
    return result_views(batch, buffers, design)


def visible_entries(position: int, batch: Batch) -> int:
    """Count the entries that a token sees.

    Args:
        position: the token's position in its request.
        batch: gives the ratio and the width.

    Returns:
        Whole entries at or before the position, at most ``batch.width``.
    """
    return max(0, min((position + 1) // batch.compress_ratio, batch.width))


def owned_entries(count: int, block_size: int, dcp: Dcp) -> torch.Tensor:
    """List the entries that one rank keeps.

    Args:
        count: entries that the token sees.
        block_size: entries in one page.
        dcp: rank, number of ranks and interleave.

    Returns:
        int64 ``[kept]``, entry numbers in rising order.
    """
    entries = torch.arange(count)
    in_span = entries % (block_size * dcp.world_size)
    return entries[(in_span // dcp.interleave) % dcp.world_size == dcp.rank]


def entry_slots(entries: torch.Tensor, pages: torch.Tensor, block_size: int, dcp: Dcp) -> torch.Tensor:
    """Translate entry numbers into KV cache slots of one rank.

    Args:
        entries: int64 ``[K]``, entry numbers that this rank owns.
        pages: int32 ``[B]``, the request's row of the block table (``[0]`` for a request outside it).
        block_size: entries in one page.
        dcp: rank, number of ranks and interleave.

    Returns:
        int32 ``[K]``, slots; -1 where the page lies outside the table.
    """
    span = block_size * dcp.world_size
    in_span = entries % span
    round_length = dcp.world_size * dcp.interleave
    local = (in_span // round_length) * dcp.interleave + in_span % dcp.interleave
    page = entries // span
    slots = torch.full_like(entries, NO_ENTRY)
    known = page < pages.shape[0]
    slots[known] = pages[page[known]].long() * block_size + local[known]
    return slots.to(torch.int32)


def _write_decode_row(token: int, batch: Batch, buffers: Buffers, dcp: Dcp) -> None:
    seen = visible_entries(int(batch.positions[token]), batch)
    kept = owned_entries(seen, batch.block_size, dcp)
    request = int(batch.token_to_req[token])
    known = 0 <= request < batch.block_table.shape[0]
    pages = batch.block_table[request].cpu() if known else torch.empty(0, dtype=torch.int32)
    row = torch.full((batch.width,), NO_ENTRY, dtype=torch.int32)
    row[: kept.numel()] = entry_slots(kept, pages, batch.block_size, dcp)
    buffers.decode[token, : batch.width] = row.to(buffers.decode.device)
    # Under DCP, who writes the token's KV is rank-local, but every rank attends for every real query.
    writes, is_query = int(batch.slot_mapping[token]) >= 0, token < batch.query_tokens
    real = writes if dcp.world_size == 1 else is_query
    buffers.lens[token] = kept.numel() if real else 0


def _write_prefill_row(token: int, batch: Batch, buffers: Buffers) -> None:
    seen = visible_entries(int(batch.positions[token]), batch) if token < batch.query_tokens else 0
    columns = torch.arange(batch.width, dtype=torch.int32, device=buffers.prefill.device)
    columns[seen:] = NO_ENTRY
    buffers.prefill[token - batch.num_decode_tokens, : batch.width] = columns
