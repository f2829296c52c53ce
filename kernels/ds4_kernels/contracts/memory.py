"""Buffers with poison and guard bands, and the exact comparison of everything that they hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds4_kernels.c128a.layout import Batch, Buffers

POISON = -77  # neither an entry nor -1: whoever finds it looks at memory that no step wrote
_GUARD = 1024  # elements before and after each buffer


@dataclass(frozen=True)
class GuardedBuffers:
    """Buffers inside larger allocations.

    Attributes:
        buffers: what a builder is given.
        allocations: per buffer its name, the whole allocation (int32, flat) and the buffer's columns.
    """

    buffers: Buffers
    allocations: tuple[tuple[str, torch.Tensor, int], ...]

    def restore_poison(self) -> None:
        """Overwrite everything with poison."""
        for _, allocation, _ in self.allocations:
            allocation.fill_(POISON)


def guarded(rows: int, capacity: int, device: torch.device) -> GuardedBuffers:
    """Allocate poisoned buffers with guard bands.

    Args:
        rows: rows ``N`` of the buffers, in tokens.
        capacity: row width, in entries.
        device: where they live.

    Returns:
        The buffers and their allocations, all ``POISON``.
    """
    flats, views = [], []
    for name, columns in (("decode buffer", capacity), ("lens buffer", 1), ("prefill buffer", capacity)):
        inner = rows * columns
        flat = torch.full((inner + 2 * _GUARD,), POISON, dtype=torch.int32, device=device)
        flats.append((name, flat, columns))
        views.append(flat[_GUARD : _GUARD + inner])
    decode, lens, prefill = views
    buffers = Buffers(decode.view(rows, capacity), lens, prefill.view(rows, capacity))
    return GuardedBuffers(buffers, tuple(flats))


def copy_to(source: GuardedBuffers, device: torch.device) -> GuardedBuffers:
    """Copy guarded buffers, with all that they hold, to a device."""
    rows, capacity = source.buffers.decode.shape
    copy = guarded(rows, capacity, device)
    for (_, target, _), (_, content, _) in zip(copy.allocations, source.allocations, strict=True):
        target.copy_(content)
    return copy


def differences(expected: GuardedBuffers, found: GuardedBuffers, batch: Batch) -> list[str]:
    """Compare every element, guard bands included.

    Args:
        expected: what the buffers must hold.
        found: what they hold.
        batch: the step that was built; tells which elements it may write.

    Returns:
        One line for the first difference in each buffer, empty where all is equal.
    """
    lines = []
    rows_written = (batch.num_decode_tokens, batch.num_decode_tokens, batch.num_prefill_tokens)
    for (name, want, columns), (_, have, _), rows in zip(
        expected.allocations, found.allocations, rows_written, strict=True
    ):
        wrong = torch.nonzero(want != have).flatten()
        if not wrong.numel():
            continue
        flat = int(wrong[0])
        width = 1 if columns == 1 else batch.width
        place = _place(flat - _GUARD, columns, have.numel() - 2 * _GUARD, rows, width)
        lines.append(
            f"{name}, {place}: expected {int(want[flat])}, found {int(have[flat])} "
            f"({wrong.numel()} elements differ)"
        )
    return lines


def _place(index: int, columns: int, size: int, rows: int, width: int) -> str:
    if index < 0:
        return f"{-index} elements before its start"
    if index >= size:
        return f"{index - size} elements behind its end"
    row, column = divmod(index, columns)
    where = f"row {row} column {column}"
    if row >= rows:
        return f"{where} (no row of the batch, which has {rows})"
    return f"{where} (outside the active width {width})" if column >= width else where
