"""Emulated replay: a CPU server reads its C128A decode slots as a FULL CUDA graph would.

CUDA graphs do not exist on a CPU. What the stride defect needs of them is little: the metadata of each step
is written into buffers that were allocated once, and the attention reads those at the addresses and strides
it saw when it was captured. Here the buffers are vLLM's own, the builder is
:mod:`ds4_kernels.c128a.reference`, and the read uses a view made at start-up. As with FULL graphs only steps
of nothing but decode rows are replayed; other steps read the builder's returned view.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from ds4_kernels.c128a import reference
from ds4_kernels.c128a.layout import NO_ENTRY, Batch, Buffers, Result
from ds4_kernels.faults import FAULT_VARIABLE, Fault, FaultForm, requested_fault

REPLAY_VARIABLE = "DS4_REPLAY"
ROWS_VARIABLE = "DS4_FAULT_ROWS"
STEPS_VARIABLE = "DS4_FAULT_STEPS"
DEFAULT_ABORT_ROWS = 4
DEFAULT_ABORT_STEPS = 20
FAULTY_STEP_INTERVAL = 8

Writer = Callable[[Batch, Buffers, int], Result]


class ReplayMode(enum.Enum):
    """Where the decode rows of C128A layers get their slots."""

    FRESH = "fresh"  # computed anew by each layer, no buffers
    EMULATED = "emulated"  # through preallocated buffers

    @property
    def label(self) -> str:
        """What logs and records call it."""
        return "emulated replay" if self is ReplayMode.EMULATED else "none"


@dataclass(frozen=True)
class ReplaySettings:
    """What the environment asks for.

    Attributes:
        mode: source of the decode slots.
        fault: fault to put in, if any.
        abort_rows: decode rows that make a step count for ``abort-under-load``.
        abort_steps: such steps until the engine aborts.
    """

    mode: ReplayMode
    fault: Fault | None
    abort_rows: int = DEFAULT_ABORT_ROWS
    abort_steps: int = DEFAULT_ABORT_STEPS


def read_settings(environment: Mapping[str, str]) -> ReplaySettings:
    """Read ``DS4_REPLAY``, ``DS4_FAULT``, ``DS4_FAULT_CONFIRM``, ``DS4_FAULT_ROWS`` and ``DS4_FAULT_STEPS``.

    Args:
        environment: the process's environment.

    Returns:
        The settings.

    Raises:
        ValueError: a value is unknown, or a metadata fault is asked for without the emulated replay it acts
            on.
    """
    value = environment.get(REPLAY_VARIABLE, ReplayMode.FRESH.value)
    modes = {mode.value: mode for mode in ReplayMode}
    if value not in modes:
        raise ValueError(f"{REPLAY_VARIABLE}={value!r}: expected one of {', '.join(modes)}")
    mode = modes[value]
    fault = requested_fault(environment, FaultForm.CPU_EMULATED)
    if fault is not None and fault.in_metadata and mode is not ReplayMode.EMULATED:
        raise ValueError(
            f"{FAULT_VARIABLE}={fault.name} acts on emulated replay: also set "
            f"{REPLAY_VARIABLE}={ReplayMode.EMULATED.value} (now {value})"
        )
    return ReplaySettings(
        mode,
        fault,
        _positive(environment, ROWS_VARIABLE, DEFAULT_ABORT_ROWS),
        _positive(environment, STEPS_VARIABLE, DEFAULT_ABORT_STEPS),
    )


def _positive(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")
    return int(value)


def write_right(batch: Batch, buffers: Buffers, step: int) -> Result:
    """Write a step's decode rows as the contract asks.

    Args:
        batch: the step's decode tokens.
        buffers: the preallocated buffers.
        step: not used (a :data:`Writer` gets the number of the decode step).

    Returns:
        Views of the buffers.
    """
    return reference.build(batch, buffers)


def _packed(batch: Batch, buffers: Buffers) -> Buffers:
    """View buffers as if their rows were only the active width apart."""

    def pack(rows: torch.Tensor) -> torch.Tensor:
        fitting = rows.numel() // batch.width
        return rows.view(-1)[: fitting * batch.width].view(fitting, batch.width)

    return Buffers(pack(buffers.decode), buffers.lens, pack(buffers.prefill))


def _rows(batch: Batch, start: int, end: int) -> Batch:
    """Cut decode rows ``start`` to ``end`` out of a batch of nothing but decode rows."""
    cut = slice(start, end)
    return replace(
        batch,
        positions=batch.positions[cut],
        num_decode_tokens=end - start,
        token_to_req=batch.token_to_req[cut],
        slot_mapping=batch.slot_mapping[cut],
    )


def write_packed(batch: Batch, buffers: Buffers, step: int) -> Result:
    """Write rows one active width apart: right only for row 0, or if the active width is the capacity."""
    return reference.build(batch, _packed(batch, buffers))


def write_packed_last_row(batch: Batch, buffers: Buffers, step: int) -> Result:
    """Write the last row where :func:`write_packed` would, then the others right, over it where they meet."""
    last = batch.num_decode_tokens - 1
    packed = _packed(batch, buffers)
    shifted = Buffers(packed.decode[last:], buffers.lens[last:], packed.prefill[last:])
    reference.build(_rows(batch, last, last + 1), shifted)
    reference.build(_rows(batch, 0, last), buffers)
    return Result(buffers.decode[: last + 1], buffers.lens[: last + 1], buffers.prefill[:0])


def write_packed_every_8th_step(batch: Batch, buffers: Buffers, step: int) -> Result:
    """Write as :func:`write_packed` in steps 8, 16, ..., right in the others."""
    faulty = step % FAULTY_STEP_INTERVAL == 0
    return write_packed(batch, buffers, step) if faulty else write_right(batch, buffers, step)


def write_stale_tail(batch: Batch, buffers: Buffers, step: int) -> Result:
    """Write each row's entries and leave the columns after them alone."""
    before = buffers.decode[: batch.num_decode_tokens].clone()
    result = reference.build(batch, buffers)
    result.decode.copy_(torch.where(result.decode == NO_ENTRY, before, result.decode))
    return result


def write_short_lengths(batch: Batch, buffers: Buffers, step: int) -> Result:
    """Write lengths that are one too small."""
    result = reference.build(batch, buffers)
    result.lens.sub_(1).clamp_(min=0)
    return result


def write_neighbour(batch: Batch, buffers: Buffers, step: int) -> Result:
    """Resolve each row through the next row's request, the last through the first's."""
    neighbours = batch.token_to_req[: batch.num_decode_tokens].roll(-1)
    return reference.build(replace(batch, token_to_req=neighbours), buffers)


def write_without_newest(batch: Batch, buffers: Buffers, step: int) -> Result:
    """Write -1 in place of each row's newest entry."""
    result = reference.build(batch, buffers)
    rows = (result.lens > 0).nonzero().squeeze(-1)
    result.decode[rows, result.lens[rows].long() - 1] = NO_ENTRY
    return result


FAULTY_WRITERS: Mapping[str, Writer] = {
    "packed-stride": write_packed,
    "packed-stride-last-row": write_packed_last_row,
    "packed-stride-every-8th-step": write_packed_every_8th_step,
    "stale-tail": write_stale_tail,
    "lengths-off-by-one": write_short_lengths,
    "neighbour-block-table": write_neighbour,
    "newest-entry-missing": write_without_newest,
}


def writer_for(fault: Fault | None) -> Writer:
    """Choose how decode rows are written.

    Args:
        fault: the fault put in, if any.

    Returns:
        The right writer, unless the fault is one of metadata.
    """
    return FAULTY_WRITERS[fault.name] if fault is not None and fault.in_metadata else write_right


class EmulatedReplay:
    """The buffers of one layer group, and the read that was captured over them at start-up.

    Attributes:
        rows_replayed: decode rows of the last step that were read through the captured view.
    """

    def __init__(self, buffers: Buffers, writer: Writer) -> None:
        """Fill the buffers with -1 and capture the read.

        Args:
            buffers: vLLM's preallocated buffers.
            writer: writes a step's decode rows into them.
        """
        buffers.decode.fill_(NO_ENTRY)
        buffers.lens.zero_()
        self.rows_replayed = 0
        self._buffers = buffers
        self._writer = writer
        self._decode_steps = 0
        self._captured = buffers.decode.as_strided(buffers.decode.shape, (buffers.capacity, 1))

    def step(self, batch: Batch, only_decodes: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the decode rows of one step and say what the attention reads.

        Args:
            batch: the decode tokens of the step.
            only_decodes: whether the step has no prefill tokens, and is therefore replayed.

        Returns:
            Slots int32 ``[D, capacity or width]`` and lengths int32 ``[D]``; only the first ``length``
            columns of a row count, and -1 among them is no entry.
        """
        rows = batch.num_decode_tokens
        self.rows_replayed = rows if only_decodes else 0
        if rows:
            self._decode_steps += 1
            fresh = self._writer(batch, self._buffers, self._decode_steps)
        if not only_decodes and rows:
            return fresh.decode, fresh.lens
        return self._captured[:rows], self._buffers.lens[:rows]


class AbortUnderLoad:
    """The fault ``abort-under-load``: counts loaded decode steps and ends the process by ``os.abort()``."""

    def __init__(self, rows: int, steps: int, abort: Callable[[], None] = os.abort) -> None:
        """Start counting.

        Args:
            rows: decode rows that make a step count.
            steps: such steps until the abort.
            abort: ends the process.
        """
        self._rows = rows
        self._steps_left = steps
        self._abort = abort

    def step(self, decode_rows: int, only_decodes: bool) -> None:
        """Count one step, and abort if it is the last that was allowed.

        Args:
            decode_rows: decode rows of the step.
            only_decodes: whether the step has no prefill tokens.
        """
        if only_decodes and decode_rows >= self._rows:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self._abort()
