"""Known faults put into any builder, to show that a check which ought to catch them does."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

import torch

from ds4_kernels.c128a.layout import (
    NO_DCP,
    NO_ENTRY,
    Batch,
    Buffers,
    Builder,
    Dcp,
    Result,
    ViewDesign,
    result_views,
)

PERIOD = 8  # packed-stride-every-8th-step


class MetadataFault(enum.Enum):
    """The faults, by the names of the fault catalogue."""

    PACKED_STRIDE = "packed-stride"
    PACKED_STRIDE_LAST_ROW = "packed-stride-last-row"
    PACKED_STRIDE_EVERY_8TH_STEP = "packed-stride-every-8th-step"
    STALE_TAIL = "stale-tail"
    LENGTHS_OFF_BY_ONE = "lengths-off-by-one"
    NEIGHBOUR_BLOCK_TABLE = "neighbour-block-table"
    NEWEST_ENTRY_MISSING = "newest-entry-missing"
    WRONG_DCP_OWNER = "wrong-dcp-owner"


_BrokenBuild = Callable[[Builder, Batch, Buffers, Dcp, ViewDesign], Result]


def width_of_batch(batch: Batch) -> int:
    """Give the width that a step asks for; what packed rows have where nothing else is known."""
    return batch.width


def with_fault(
    builder: Builder, fault: MetadataFault, packed_width: Callable[[Batch], int] = width_of_batch
) -> Builder:
    """Put one fault into a builder; the builder itself does the work and stays as it is.

    Args:
        builder: a right builder.
        fault: what to break.
        packed_width: gives the width of packed rows, in entries, for callers that always ask for whole rows.

    Returns:
        A builder with the fault. It keeps state across steps where the fault has a history (stale rows, every
        8th step), so use one per server or test.
    """
    broken = _broken_build(fault, packed_width)

    def build(
        batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP, design: ViewDesign = ViewDesign.WHOLE_ROW, /
    ) -> Result:
        return broken(builder, batch, buffers, dcp, design)

    return build


def packed_buffers(batch: Batch, buffers: Buffers) -> Buffers:
    """View the buffers as the packed layout does: rows of the active width, one right behind the other.

    Args:
        batch: the step; gives the numbers of rows and the width.
        buffers: the preallocated outputs.

    Returns:
        Views whose row stride is ``batch.width``.
    """

    def packed(buffer: torch.Tensor, rows: int) -> torch.Tensor:
        return buffer.view(-1)[: rows * batch.width].view(rows, batch.width)

    return Buffers(
        decode=packed(buffers.decode, batch.num_decode_tokens),
        lens=buffers.lens,
        prefill=packed(buffers.prefill, batch.num_prefill_tokens),
    )


def _broken_build(fault: MetadataFault, packed_width: Callable[[Batch], int]) -> _BrokenBuild:
    match fault:
        case MetadataFault.PACKED_STRIDE:
            return _PackedStride(packed_width)
        case MetadataFault.PACKED_STRIDE_LAST_ROW:
            return _PackedRows(packed_width, lambda _, rows: slice(rows - 1, rows))
        case MetadataFault.PACKED_STRIDE_EVERY_8TH_STEP:
            return _PackedRows(packed_width, lambda step, rows: slice(0, 0 if step % PERIOD else rows))
        case MetadataFault.STALE_TAIL:
            return _stale_tail
        case MetadataFault.LENGTHS_OFF_BY_ONE:
            return _lengths_off_by_one
        case MetadataFault.NEIGHBOUR_BLOCK_TABLE:
            return _neighbour_block_table
        case MetadataFault.NEWEST_ENTRY_MISSING:
            return _newest_entry_missing
        case MetadataFault.WRONG_DCP_OWNER:
            return _wrong_dcp_owner


@dataclasses.dataclass(frozen=True)
class _PackedStride:
    """Packs every row of every step."""

    packed_width: Callable[[Batch], int]

    def __call__(self, builder: Builder, batch: Batch, buffers: Buffers, dcp: Dcp, _: ViewDesign) -> Result:
        packed = dataclasses.replace(batch, width=self.packed_width(batch))
        return builder(packed, packed_buffers(packed, buffers), dcp, ViewDesign.ACTIVE_WIDTH)


class _PackedRows:
    """Puts some decode rows where a reader at the capacity stride would find them had all steps been packed.

    Keeps a shadow of the decode buffer, -1 at first (what capture leaves), that every step packs into.
    """

    def __init__(self, packed_width: Callable[[Batch], int], broken: Callable[[int, int], slice]) -> None:
        """Take ``broken(step number from 1, decode rows)``, which selects the rows to break."""
        self._packed_width = packed_width
        self._broken = broken
        self._shadows: dict[int, torch.Tensor] = {}
        self._step = 0

    def __call__(
        self, builder: Builder, batch: Batch, buffers: Buffers, dcp: Dcp, design: ViewDesign
    ) -> Result:
        result = builder(batch, buffers, dcp, design)
        if batch.num_decode_tokens:
            self._step += 1
            shadow = self._shadow(buffers.decode)
            spare = Buffers(shadow, torch.empty_like(buffers.lens), torch.empty_like(buffers.prefill))
            packed = dataclasses.replace(batch, width=self._packed_width(batch))
            builder(packed, packed_buffers(packed, spare), dcp, ViewDesign.ACTIVE_WIDTH)
            rows = self._broken(self._step, batch.num_decode_tokens)
            buffers.decode[rows, : batch.width] = shadow[rows, : batch.width]
        return result

    def _shadow(self, decode: torch.Tensor) -> torch.Tensor:
        shadow = self._shadows.get(decode.data_ptr())
        if shadow is None or shadow.shape != decode.shape:
            shadow = self._shadows[decode.data_ptr()] = torch.full_like(decode, NO_ENTRY)
        return shadow


def _stale_tail(builder: Builder, batch: Batch, buffers: Buffers, dcp: Dcp, design: ViewDesign) -> Result:
    views = result_views(batch, buffers, ViewDesign.ACTIVE_WIDTH)
    before = (views.decode.clone(), views.prefill.clone())
    result = builder(batch, buffers, dcp, design)
    for view, old in zip((views.decode, views.prefill), before, strict=True):
        view.copy_(torch.where(view == NO_ENTRY, old, view))
    return result


def _lengths_off_by_one(
    builder: Builder, batch: Batch, buffers: Buffers, dcp: Dcp, design: ViewDesign
) -> Result:
    result = builder(batch, buffers, dcp, design)
    result.lens.sub_(1).clamp_(min=0)
    return result


def _neighbour_block_table(
    builder: Builder, batch: Batch, buffers: Buffers, dcp: Dcp, design: ViewDesign
) -> Result:
    table = batch.block_table.roll(-1, dims=0)
    return builder(dataclasses.replace(batch, block_table=table), buffers, dcp, design)


def _newest_entry_missing(
    builder: Builder, batch: Batch, buffers: Buffers, dcp: Dcp, design: ViewDesign
) -> Result:
    result = builder(batch, buffers, dcp, design)
    if batch.num_decode_tokens:
        newest = (result.lens.long() - 1).clamp(min=0).unsqueeze(1)
        result.decode.scatter_(1, newest, NO_ENTRY)
    return result


def _wrong_dcp_owner(
    builder: Builder, batch: Batch, buffers: Buffers, dcp: Dcp, design: ViewDesign
) -> Result:
    other = Dcp(dcp.world_size, (dcp.rank + 1) % dcp.world_size, dcp.interleave)
    return builder(batch, buffers, other, design)
