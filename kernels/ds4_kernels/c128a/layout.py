"""Types, sizes and argument checks shared by every implementation of the C128A metadata."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import torch

ALIGNMENT = 128  # widths and capacities are multiples of this many entries
MIN_RATIO = 128  # smaller ratios are the C4A layers, which choose their entries with an indexer
NO_ENTRY = -1  # what a column without an entry holds


class ViewDesign(enum.Enum):
    """What the returned decode view spans; its row stride is the capacity in both designs."""

    WHOLE_ROW = "whole-row"  # [D, capacity]
    ACTIVE_WIDTH = "active-width"  # [D, width]


@dataclass(frozen=True)
class Dcp:
    """How decode context parallelism spreads the entries over ranks.

    Attributes:
        world_size: number of ranks ``W``; 1 switches DCP off.
        rank: this rank, ``0 <= rank < world_size``.
        interleave: entries ``I`` that lie together on one rank; divides the page size.
    """

    world_size: int = 1
    rank: int = 0
    interleave: int = 1


NO_DCP = Dcp()


@dataclass(frozen=True)
class Buffers:
    """The preallocated outputs; a captured graph holds their addresses and strides.

    Attributes:
        decode: int32 ``[N, capacity]``, slot of each entry of a decode token.
        lens: int32 ``[N]``, how many entries a decode token may read.
        prefill: int32 ``[N, capacity]``, local entry numbers of a prefill token.
    """

    decode: torch.Tensor
    lens: torch.Tensor
    prefill: torch.Tensor

    @property
    def capacity(self) -> int:
        """Row width of the buffers, in entries."""
        return self.decode.shape[1]

    @staticmethod
    def allocate(
        max_tokens: int, capacity: int, device: torch.device | str = "cpu", fill: int = NO_ENTRY
    ) -> Buffers:
        """Allocate buffers filled with one value.

        Args:
            max_tokens: rows ``N``, in tokens (vLLM's ``max_num_batched_tokens``).
            capacity: row width, in entries; a multiple of 128.
            device: where the buffers live.
            fill: value of every element.

        Returns:
            Buffers of shapes ``[N, capacity]``, ``[N]`` and ``[N, capacity]``, all int32.
        """
        rows = (max_tokens, capacity)
        return Buffers(
            decode=torch.full(rows, fill, dtype=torch.int32, device=device),
            lens=torch.full((max_tokens,), fill, dtype=torch.int32, device=device),
            prefill=torch.full(rows, fill, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True)
class Batch:
    """The tokens of one step, decode tokens first.

    Attributes:
        positions: int64 ``[T]``, position of each token in its request.
        num_decode_tokens: ``D``, how many of the ``T`` tokens are decode tokens.
        token_to_req: int32 ``[>= T]``, row of ``block_table`` of each token.
        block_table: int32 ``[R, B]``, pages of each request.
        block_size: entries in one page (page tokens / ``compress_ratio``).
        slot_mapping: int64 ``[>= T]``; negative where the token writes no KV.
        width: columns of each row to initialise; a multiple of 128, at most the capacity.
        compress_ratio: tokens per entry, 128 or more.
        num_query_tokens: ``A``, tokens from this one on are padding; None means ``T``.
    """

    positions: torch.Tensor
    num_decode_tokens: int
    token_to_req: torch.Tensor
    block_table: torch.Tensor
    block_size: int
    slot_mapping: torch.Tensor
    width: int
    compress_ratio: int = 128
    num_query_tokens: int | None = None

    @property
    def num_tokens(self) -> int:
        """``T``: decode and prefill tokens, padding included."""
        return self.positions.shape[0]

    @property
    def num_prefill_tokens(self) -> int:
        """``T - D``."""
        return self.num_tokens - self.num_decode_tokens

    @property
    def query_tokens(self) -> int:
        """``A``, with the default filled in."""
        return self.num_tokens if self.num_query_tokens is None else self.num_query_tokens


@dataclass(frozen=True)
class Result:
    """Views of the buffers that hold this step's metadata.

    Attributes:
        decode: int32 ``[D, capacity]`` or ``[D, width]``, row stride = capacity.
        lens: int32 ``[D]``.
        prefill: int32 ``[T - D, width]``, row stride = capacity.
    """

    decode: torch.Tensor
    lens: torch.Tensor
    prefill: torch.Tensor


class Builder(Protocol):
    """An implementation of the metadata; writes the buffers and returns views of them."""

    def __call__(self, batch: Batch, buffers: Buffers, dcp: Dcp = ..., design: ViewDesign = ..., /) -> Result:
        """Write one step's metadata."""


def active_width(max_seq_len: int, capacity: int, compress_ratio: int = 128) -> int:
    """Give the fewest columns a step has to initialise.

    Args:
        max_seq_len: longest context of the step, in tokens.
        capacity: row width of the buffers, in entries.
        compress_ratio: tokens per entry.

    Returns:
        The next power of two of the longest context's entries, within 128 and the capacity.
    """
    longest = max(max_seq_len // compress_ratio, 1)
    return min(max(1 << (longest - 1).bit_length(), ALIGNMENT), capacity)


def result_views(batch: Batch, buffers: Buffers, design: ViewDesign) -> Result:
    """Cut a step's views out of the buffers, at the capacity stride.

    Args:
        batch: the step; gives ``D``, ``T`` and ``width``.
        buffers: the preallocated outputs.
        design: whether the decode view spans the whole row or the active width.

    Returns:
        Views that share memory with the buffers.
    """
    decode = buffers.decode[: batch.num_decode_tokens]
    return Result(
        decode=decode if design is ViewDesign.WHOLE_ROW else decode[:, : batch.width],
        lens=buffers.lens[: batch.num_decode_tokens],
        prefill=buffers.prefill[: batch.num_prefill_tokens, : batch.width],
    )


def validate(batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP) -> None:
    """Refuse arguments outside the contract, before anything is launched.

    Looks at shapes, types, strides, devices and sizes only, never at tensor values, so it does not
    synchronise with a GPU.

    Args:
        batch: the step.
        buffers: the preallocated outputs.
        dcp: how entries are spread over ranks.

    Raises:
        ValueError: an argument is wrong; names it, its value and the value it must agree with.
    """
    _check_tensors(batch, buffers)
    _check_sizes(batch, buffers)
    _check_dcp(batch, dcp)


def _wrong(argument: str, given: object, expected: object) -> ValueError:
    return ValueError(f"{argument}: got {given}, expected {expected}")


def _check_tensors(batch: Batch, buffers: Buffers) -> None:
    device = buffers.decode.device
    for name, tensor, dtype, dims in (
        ("decode buffer", buffers.decode, torch.int32, 2),
        ("lens buffer", buffers.lens, torch.int32, 1),
        ("prefill buffer", buffers.prefill, torch.int32, 2),
        ("positions", batch.positions, torch.int64, 1),
        ("token_to_req", batch.token_to_req, torch.int32, 1),
        ("block_table", batch.block_table, torch.int32, 2),
        ("slot_mapping", batch.slot_mapping, torch.int64, 1),
    ):
        if tensor.dtype != dtype:
            raise _wrong(f"{name} dtype", tensor.dtype, dtype)
        if tensor.dim() != dims:
            raise _wrong(f"{name} dimensions", tensor.dim(), dims)
        if tensor.device != device:
            raise _wrong(f"{name} device", tensor.device, f"{device} (decode buffer)")
        if not tensor.is_contiguous() and name != "block_table":
            raise _wrong(f"{name} strides", tensor.stride(), "a contiguous tensor")
    # a slice of a wider table is fine: its row stride is passed on
    if batch.block_table.stride(1) != 1 and batch.block_table.shape[1] > 1:
        raise _wrong("block_table column stride", batch.block_table.stride(1), 1)


def _check_sizes(batch: Batch, buffers: Buffers) -> None:
    capacity, width = buffers.capacity, batch.width
    if buffers.prefill.shape[1] != capacity:
        raise _wrong("prefill buffer width", buffers.prefill.shape[1], f"{capacity} (decode buffer)")
    if capacity % ALIGNMENT:
        raise _wrong("capacity", capacity, f"a multiple of {ALIGNMENT}")
    if width % ALIGNMENT:
        raise _wrong("width", width, f"a multiple of {ALIGNMENT}")
    if not 0 < width <= capacity:
        raise _wrong("width", width, f"at least {ALIGNMENT} and at most capacity {capacity}")
    if batch.compress_ratio < MIN_RATIO:
        raise _wrong("compress_ratio", batch.compress_ratio, f">= {MIN_RATIO}")
    if width * batch.compress_ratio >= 2**31:
        raise _wrong("width * compress_ratio", width * batch.compress_ratio, "below 2**31 tokens")
    if batch.block_size < 1:
        raise _wrong("block_size", batch.block_size, ">= 1")
    tokens, decodes, queries = batch.num_tokens, batch.num_decode_tokens, batch.query_tokens
    if not 0 <= decodes <= tokens:
        raise _wrong("num_decode_tokens", decodes, f"0 to {tokens} (positions)")
    if not 0 <= queries <= tokens:
        raise _wrong("num_query_tokens", queries, f"0 to {tokens} (positions)")
    for name, tensor, least in (
        ("token_to_req length", batch.token_to_req, tokens),
        ("slot_mapping length", batch.slot_mapping, tokens),
        ("decode buffer rows", buffers.decode, decodes),
        ("lens buffer length", buffers.lens, decodes),
        ("prefill buffer rows", buffers.prefill, tokens - decodes),
    ):
        if tensor.shape[0] < least:
            raise _wrong(name, tensor.shape[0], f">= {least}")


def _check_dcp(batch: Batch, dcp: Dcp) -> None:
    if dcp.world_size < 1:
        raise _wrong("dcp world_size", dcp.world_size, ">= 1")
    if not 0 <= dcp.rank < dcp.world_size:
        raise _wrong("dcp rank", dcp.rank, f"0 to {dcp.world_size - 1} (world_size - 1)")
    if dcp.interleave < 1:
        raise _wrong("dcp interleave", dcp.interleave, ">= 1")
    # otherwise entries of one page would collide on a rank
    if dcp.world_size > 1 and batch.block_size % dcp.interleave:
        raise _wrong("dcp interleave", dcp.interleave, f"a divisor of block_size {batch.block_size}")
