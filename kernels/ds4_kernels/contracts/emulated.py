"""The emulated path as a subject: what a CPU server builds, read as its captured view reads it."""

from __future__ import annotations

from ds4_kernels import __version__ as __version__
from ds4_kernels.c128a.layout import NO_DCP, Batch, Buffers, Dcp, Result, ViewDesign
from ds4_kernels.emulated_replay import builder_for, captured_view


def build(
    batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP, design: ViewDesign = ViewDesign.WHOLE_ROW
) -> Result:
    """Write one step's metadata as a CPU server does, and view its decode rows at the captured stride.

    Args:
        batch: the step.
        buffers: the preallocated outputs.
        dcp: how entries are spread over ranks.
        design: what the decode view spans.

    Returns:
        Views as the contract asks for them.
    """
    built = builder_for(None)(batch, buffers, dcp, ViewDesign.ACTIVE_WIDTH)
    rows = captured_view(buffers)[: batch.num_decode_tokens]
    decode = rows if design is ViewDesign.WHOLE_ROW else rows[:, : batch.width]
    return Result(decode=decode, lens=buffers.lens[: batch.num_decode_tokens], prefill=built.prefill)
