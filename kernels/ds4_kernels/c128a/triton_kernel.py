"""The C128A metadata in Triton: one program per token and stretch of columns."""

from __future__ import annotations

import triton
import triton.language as tl

from ds4_kernels.c128a.layout import (
    NO_DCP,
    Batch,
    Buffers,
    Dcp,
    Result,
    ViewDesign,
    result_views,
    validate,
)

# Columns of one program: two 16-byte stores a thread. One size, so that one compilation serves all widths.
COLUMNS = 1024
WARPS = 4


@triton.jit
def _kept_entries(
    seen, page_size: tl.constexpr, world: tl.constexpr, rank: tl.constexpr, interleave: tl.constexpr
):
    """Count how many of a token's first ``seen`` entries this rank owns.

    Entries are dealt out in rounds of world * interleave; whole spans of page_size * world give
    page_size each.
    """
    span = page_size * world
    in_span = seen % span
    round_length = world * interleave
    share = in_span % round_length - rank * interleave
    share = tl.minimum(tl.maximum(share, 0), interleave)
    return seen // span * page_size + in_span // round_length * interleave + share


@triton.jit(do_not_specialize=["table_rows", "table_pages", "num_decode_tokens", "num_query_tokens"])
def _metadata_kernel(
    positions,
    token_to_req,
    block_table,
    slot_mapping,
    decode,
    lens,
    prefill,
    table_rows,
    table_pages,
    table_stride,
    capacity,
    width,
    num_decode_tokens,
    num_query_tokens,
    ratio: tl.constexpr,
    page_size: tl.constexpr,
    world: tl.constexpr,
    rank: tl.constexpr,
    interleave: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0)
    first = tl.program_id(1) * block
    columns = first + tl.arange(0, block)
    inside = columns < width
    position = tl.load(positions + token)
    seen = tl.maximum(tl.minimum((position + 1) // ratio, width), 0).to(tl.int32)
    is_query = token < num_query_tokens
    if token < num_decode_tokens:
        request = tl.load(token_to_req + token)
        if world == 1:
            kept = seen
            real = tl.load(slot_mapping + token) >= 0
        else:
            kept = _kept_entries(seen, page_size, world, rank, interleave)
            real = is_query
        # The k-th entry that a rank keeps lies in its k-th slot, so W > 1 changes the count and nothing else.
        page = columns // page_size
        known = (columns < kept) & (page < table_pages) & (request >= 0) & (request < table_rows)
        number = tl.load(block_table + request.to(tl.int64) * table_stride + page, mask=known, other=0)
        slots = tl.where(known, number * page_size + columns % page_size, -1)
        tl.store(decode + token.to(tl.int64) * capacity + columns, slots, mask=inside)
        if first == 0:
            tl.store(lens + token, tl.where(real, kept, 0))
    else:
        visible = tl.where(is_query, seen, 0)
        row = (token - num_decode_tokens).to(tl.int64)
        entries = tl.where(columns < visible, columns, -1)
        tl.store(prefill + row * capacity + columns, entries, mask=inside)


def build(
    batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP, design: ViewDesign = ViewDesign.WHOLE_ROW
) -> Result:
    """Write the metadata of one step into the buffers with one launch on the current stream.

    A request or page outside ``block_table`` gives entries of -1 and is never read.

    Args:
        batch: the step's tokens.
        buffers: the preallocated outputs; columns from ``batch.width`` on and unused rows stay untouched.
        dcp: how entries are spread over ranks.
        design: what the returned decode view spans.

    Returns:
        Views of the buffers at the capacity stride.

    Raises:
        ValueError: an argument is outside the contract; nothing was launched.
    """
    validate(batch, buffers, dcp)
    if batch.num_tokens:
        _metadata_kernel[(batch.num_tokens, triton.cdiv(batch.width, COLUMNS))](
            batch.positions,
            batch.token_to_req,
            batch.block_table,
            batch.slot_mapping,
            buffers.decode,
            buffers.lens,
            buffers.prefill,
            batch.block_table.shape[0],
            batch.block_table.shape[1],
            batch.block_table.stride(0),
            buffers.capacity,
            batch.width,
            batch.num_decode_tokens,
            batch.query_tokens,
            ratio=batch.compress_ratio,
            page_size=batch.block_size,
            world=dcp.world_size,
            rank=dcp.rank,
            interleave=dcp.interleave,
            block=COLUMNS,
            num_warps=WARPS,
        )
    return result_views(batch, buffers, design)
