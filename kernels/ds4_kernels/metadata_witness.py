"""Looks at the C128A decode rows of each step where a graph reads them, and says which are wrong.

``DS4_STEP_METADATA=1`` switches it on, beside ``DS4_STEP_LOG``. Rows are read out of the preallocated buffer
at the capacity stride, whatever views the builder returned, and compared with `ds4_kernels.c128a.reference`.
This waits for the device at each step and is slow: it is there to name the rank and the rows of a fault that
answers have shown, not to be served with.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ds4_kernels.c128a import reference
from ds4_kernels.c128a.layout import NO_DCP, Batch, Buffers, Builder, Dcp, Result, ViewDesign

METADATA_VARIABLE = "DS4_STEP_METADATA"


@dataclass(frozen=True)
class MetadataSeen:
    """One step's decode rows as they lie in the buffer.

    Attributes:
        crc32: of lengths and entries within them; ranks that share block tables have the same.
        wrong_rows: rows that are not what the reference makes of the same step.
    """

    crc32: int
    wrong_rows: tuple[int, ...]


def wants_metadata(environment: Mapping[str, str]) -> bool:
    """Read ``DS4_STEP_METADATA``.

    Args:
        environment: the process's environment.

    Returns:
        Whether rows are to be looked at.

    Raises:
        ValueError: it is neither 0 nor 1.
    """
    value = environment.get(METADATA_VARIABLE, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{METADATA_VARIABLE}={value!r}: expected 0 or 1")
    return value == "1"


class MetadataWitness:
    """Keeps what was seen of the step that is being built."""

    def __init__(self) -> None:
        """Nothing is seen yet."""
        self._seen: MetadataSeen | None = None

    def take(self) -> MetadataSeen | None:
        """Give what was seen since it was last taken; None where no decode row was built."""
        seen, self._seen = self._seen, None
        return seen

    def watch(self, builder: Builder) -> Builder:
        """Wrap a builder so that its decode rows are looked at.

        Args:
            builder: what builds, its faults included.

        Returns:
            A builder that does the same.
        """

        def build(
            batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP, design: ViewDesign = ViewDesign.WHOLE_ROW, /
        ) -> Result:
            result = builder(batch, buffers, dcp, design)
            if batch.num_decode_tokens:
                self._seen = _merged(self._seen, look(batch, buffers, dcp))
            return result

        return build


def look(batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP) -> MetadataSeen:
    """Compare the decode rows in the buffer with the reference.

    Args:
        batch: the step that was built.
        buffers: what it was built into.
        dcp: how entries are spread over ranks.

    Returns:
        What is there.
    """
    rows = batch.num_decode_tokens
    found, lens = buffers.decode[:rows].cpu(), buffers.lens[:rows].cpu()
    right = _reference(batch, buffers.capacity, dcp)
    # what is read of a row is bounded by its length; rows of other lengths are wrong whatever they hold
    read = torch.arange(buffers.capacity) < lens.unsqueeze(1)
    same = (lens == right.lens) & ((found == right.decode) | ~read).all(1)
    crc = zlib.crc32(lens.numpy().tobytes())
    crc = zlib.crc32(found[read].numpy().tobytes(), crc)
    return MetadataSeen(crc, tuple(torch.nonzero(~same).flatten().tolist()))


def _reference(batch: Batch, capacity: int, dcp: Dcp) -> Buffers:
    rows = batch.num_decode_tokens
    decodes = dataclasses.replace(
        batch,
        positions=batch.positions[:rows].cpu(),
        token_to_req=batch.token_to_req.cpu(),
        block_table=batch.block_table.cpu(),
        slot_mapping=batch.slot_mapping.cpu(),
        width=capacity,
        num_query_tokens=min(batch.query_tokens, rows),
    )
    buffers = Buffers.allocate(rows, capacity)
    reference.build(decodes, buffers, dcp)
    return buffers


def _merged(before: MetadataSeen | None, now: MetadataSeen) -> MetadataSeen:
    """Several layer groups may build in one step."""
    if before is None:
        return now
    crc = zlib.crc32(now.crc32.to_bytes(4, "little"), before.crc32)
    return MetadataSeen(crc, tuple(sorted({*before.wrong_rows, *now.wrong_rows})))
