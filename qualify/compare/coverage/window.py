"""Widths of the C128A metadata rows, and the contexts at which a wrong width can show."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

ENTRIES_AT_LEAST = 128
"""Narrowest active width of the C128A metadata rows, in entries, and the unit of their capacity."""


def capacity_entries(max_model_len: int, ratio: int) -> int:
    """Row width of the preallocated buffers: ``round_up(ceil(max_model_len / ratio), 128)``, as in vLLM.

    Args:
        max_model_len: Longest context that the server accepts, in tokens.
        ratio: Tokens for each compressed entry.

    Returns:
        Entries.
    """
    return math.ceil(math.ceil(max_model_len / ratio) / ENTRIES_AT_LEAST) * ENTRIES_AT_LEAST


def active_widths(longest: npt.NDArray[np.int32], max_model_len: int, ratio: int) -> npt.NDArray[np.int64]:
    """Columns that a step initialises: ``next_pow2(longest // ratio)``, at least 128, at most capacity.

    Args:
        longest: int32 [S], longest context of each step, in tokens.
        max_model_len: Longest context that the server accepts.
        ratio: Tokens for each compressed entry.

    Returns:
        int64 [S], entries.
    """
    entries = np.maximum(longest.astype(np.int64) // ratio, ENTRIES_AT_LEAST)
    powers = np.left_shift(1, np.ceil(np.log2(entries)).astype(np.int64))
    return np.minimum(powers, capacity_entries(max_model_len, ratio))


def shows_up_to(max_model_len: int, ratio: int) -> int | None:
    """Longest context in a batch at which a packed stride still differs from the capacity stride.

    The packed width is ``next_pow2(longest // ratio)``, at least 128 and at most capacity, so the rows differ
    while ``longest // ratio`` is at most the largest power of two below capacity.

    Args:
        max_model_len: Longest context that the server accepts, in tokens.
        ratio: Tokens for each compressed entry.

    Returns:
        Tokens; None where it never differs.
    """
    capacity = capacity_entries(max_model_len, ratio)
    if capacity <= ENTRIES_AT_LEAST:
        return None
    width = 1 << ((capacity - 1).bit_length() - 1)
    return (width + 1) * ratio - 1
