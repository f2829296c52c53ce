"""The steps that are timed: decode rows, their contexts and the bytes that each step has to move."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from ds4_kernels.c128a.layout import Batch, Buffers, active_width

RATIO = 128
PAGE_SIZE = 2  # DeepSeek V4: pages of 256 tokens
ROWS = (1, 8, 64, 256)
CAPACITIES = (128, 1024, 8192)
_SHORT_ENTRIES = 100  # at most; a context of 12,800 tokens
_SECTOR_BYTES = 32  # the least that the GPU reads from memory


class Lengths(enum.Enum):
    """Which contexts the rows of a step have."""

    SHORT = "all short"
    LONG = "all long"
    ONE_LONG = "one long among short"


@dataclass(frozen=True)
class Shape:
    """A kind of step.

    Attributes:
        rows: decode tokens.
        capacity: row width of the buffers, in entries.
        lengths: which contexts the rows have.
    """

    rows: int
    capacity: int
    lengths: Lengths

    def __str__(self) -> str:
        return f"{self.rows} rows, capacity {self.capacity}, {self.lengths.value}"


@dataclass(frozen=True)
class Step:
    """One step with buffers of its own.

    Attributes:
        batch: the step's tokens, on the GPU.
        buffers: its outputs.
    """

    batch: Batch
    buffers: Buffers


def all_shapes() -> list[Shape]:
    """Give every shape that is timed."""
    return [Shape(rows, capacity, lengths) for rows in ROWS for capacity in CAPACITIES for lengths in Lengths]


def make_step(shape: Shape, seed: int, device: torch.device) -> Step:
    """Draw a step of a shape.

    Args:
        shape: rows, capacity and kind of contexts.
        seed: of the random contexts and tables.
        device: where the step lives.

    Returns:
        A step without prefill tokens, whose every row writes KV; the width is the active width.
    """
    generator = torch.Generator().manual_seed(seed)
    short = torch.randint(1, _SHORT_ENTRIES + 1, (shape.rows,), generator=generator)
    long = torch.randint(shape.capacity * 3 // 4, shape.capacity + 1, (shape.rows,), generator=generator)
    entries = long if shape.lengths is Lengths.LONG else short
    if shape.lengths is Lengths.ONE_LONG:
        entries[shape.rows // 2] = long[0]
    positions = entries * RATIO - 1 + torch.randint(0, RATIO, (shape.rows,), generator=generator)
    pages = torch.randint(0, 2**20, (shape.rows, shape.capacity // PAGE_SIZE), generator=generator)
    longest = int(entries.max()) * RATIO
    batch = Batch(
        positions=positions.to(device),
        num_decode_tokens=shape.rows,
        token_to_req=torch.arange(shape.rows, dtype=torch.int32, device=device),
        block_table=pages.to(torch.int32).to(device),
        block_size=PAGE_SIZE,
        slot_mapping=torch.zeros(shape.rows, dtype=torch.int64, device=device),
        width=active_width(longest, shape.capacity, RATIO),
        compress_ratio=RATIO,
    )
    buffers = Buffers.allocate(shape.rows, shape.capacity, device)
    return Step(batch, buffers)


def bytes_moved(step: Step) -> int:
    """Count the bytes that a step cannot do without.

    Args:
        step: a step without prefill tokens.

    Returns:
        Bytes of the active prefixes, the lengths, the tokens' inputs, and the sectors of the block table that
        hold pages of visible entries.
    """
    batch = step.batch
    written = 4 * batch.num_tokens * (batch.width + 1)
    inputs = batch.num_tokens * (8 + 4 + 8)
    entries = ((batch.positions + 1) // RATIO).clamp(max=batch.width)
    page_bytes = (entries + PAGE_SIZE - 1) // PAGE_SIZE * 4
    sectors = (page_bytes + _SECTOR_BYTES - 1) // _SECTOR_BYTES
    return written + inputs + int(sectors.sum()) * _SECTOR_BYTES
