"""Building a step with the subject, and what it should have written."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds4_kernels.c128a import reference
from ds4_kernels.c128a.layout import NO_ENTRY, Batch, Result, ViewDesign
from ds4_kernels.contracts.cases import ROWS, Case
from ds4_kernels.contracts.memory import GuardedBuffers, copy_to, differences, guarded
from ds4_kernels.contracts.subjects import Subject

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Built:
    """A step that the subject has built.

    Attributes:
        case: the step.
        batch: the step on the subject's device.
        result: what the subject returned.
        before: the buffers before, on the CPU.
        memory: the buffers after.
    """

    case: Case
    batch: Batch
    result: Result
    before: GuardedBuffers
    memory: GuardedBuffers


def build(subject: Subject, case: Case, design: ViewDesign, memory: GuardedBuffers | None = None) -> Built:
    """Let the subject build one step.

    Args:
        subject: the implementation under test.
        case: the step.
        design: what the returned decode view should span.
        memory: buffers that an earlier step used; None takes freshly poisoned ones.

    Returns:
        The step with its outcome; the GPU's work is done.
    """
    memory = memory or guarded(ROWS, case.capacity, subject.device)
    before = copy_to(memory, _CPU)
    batch = case.batch(subject.device)
    result = subject.builder(batch, memory.buffers, case.dcp, design)
    if subject.device.type == "cuda":
        torch.cuda.synchronize()
    return Built(case, batch, result, before, memory)


def expected_memory(built: Built) -> GuardedBuffers:
    """Give what the buffers must hold, by the reference.

    The contract bounds what is read of a padding token's decode row under DCP by its length, 0: the row may
    hold the token's entries or none.
    """
    case = built.case
    wanted = copy_to(built.before, _CPU)
    reference.build(case.batch(_CPU), wanted.buffers, case.dcp)
    if case.dcp.world_size > 1:
        for row in range(case.query_tokens, case.decodes):
            found = built.memory.buffers.decode[row, : case.width]
            if bool((found == NO_ENTRY).all()):
                wanted.buffers.decode[row, : case.width] = NO_ENTRY
    return wanted


def assert_memory_is_right(built: Built) -> None:
    """Compare every element of the buffers and their guard bands with the reference."""
    lines = differences(expected_memory(built), copy_to(built.memory, _CPU), built.batch)
    assert not lines, "\n".join(lines)


def readable(view: torch.Tensor, lens: torch.Tensor) -> list[list[int]]:
    """Give the entries that a consumer reads: of each row, as many as its length says."""
    rows = view.cpu()
    return [rows[row, :length].tolist() for row, length in enumerate(lens.cpu().tolist())]
