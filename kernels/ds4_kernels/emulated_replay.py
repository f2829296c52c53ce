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
from dataclasses import dataclass

import torch

from ds4_kernels.c128a import reference
from ds4_kernels.c128a.faulty import MetadataFault, with_fault
from ds4_kernels.c128a.layout import NO_DCP, NO_ENTRY, Batch, Buffers, Builder, ViewDesign
from ds4_kernels.faults import FAULT_VARIABLE, Fault, FaultForm, requested_fault
from ds4_kernels.metadata_witness import MetadataWitness
from ds4_kernels.ranks import on_ranks, read_fault_ranks

REPLAY_VARIABLE = "DS4_REPLAY"
ROWS_VARIABLE = "DS4_FAULT_ROWS"
STEPS_VARIABLE = "DS4_FAULT_STEPS"
DEFAULT_ABORT_ROWS = 4
DEFAULT_ABORT_STEPS = 20


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
        fault_ranks: ranks that the fault is put into; None for all.
    """

    mode: ReplayMode
    fault: Fault | None
    abort_rows: int = DEFAULT_ABORT_ROWS
    abort_steps: int = DEFAULT_ABORT_STEPS
    fault_ranks: frozenset[int] | None = None


def read_settings(environment: Mapping[str, str]) -> ReplaySettings:
    """Read ``DS4_REPLAY``, and ``DS4_FAULT`` with its ``_CONFIRM``, ``_ROWS``, ``_STEPS`` and ``_RANKS``.

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
        read_fault_ranks(environment),
    )


def _positive(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")
    return int(value)


def builder_for(fault: Fault | None, ranks: frozenset[int] | None = None) -> Builder:
    """Choose how the metadata is built.

    Args:
        fault: the fault put in, if any.
        ranks: ranks that it is put into; None for all.

    Returns:
        The reference builder, with the fault in it if it is one of metadata; it may keep state across steps.
    """
    if fault is None or not fault.in_metadata:
        return reference.build
    return on_ranks(with_fault(reference.build, MetadataFault(fault.name)), reference.build, ranks)


def captured_view(buffers: Buffers) -> torch.Tensor:
    """Give the read that is captured over the decode buffer, at its full width.

    Args:
        buffers: vLLM's preallocated buffers.

    Returns:
        int32 ``[N, capacity]``, a view of the buffer at the capacity stride.
    """
    return buffers.decode.as_strided(buffers.decode.shape, (buffers.capacity, 1))


class EmulatedReplay:
    """The buffers of one layer group, and the read that was captured over them at start-up.

    Attributes:
        rows_replayed: decode rows of the last step that were read through the captured view.
    """

    def __init__(self, buffers: Buffers, builder: Builder) -> None:
        """Fill the buffers with -1 and capture the read.

        Args:
            buffers: vLLM's preallocated buffers.
            builder: writes a step's decode rows into them.
        """
        buffers.decode.fill_(NO_ENTRY)
        buffers.lens.zero_()
        self.rows_replayed = 0
        self._buffers = buffers
        self._builder = builder
        self._captured = captured_view(buffers)

    def watched_by(self, witness: MetadataWitness) -> None:
        """Have every later step's rows looked at."""
        self._builder = witness.watch(self._builder)

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
            built = self._builder(batch, self._buffers, NO_DCP, ViewDesign.ACTIVE_WIDTH)
            if not only_decodes:
                return built.decode, built.lens
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
