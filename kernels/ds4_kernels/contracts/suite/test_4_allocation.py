"""Invariant 4, allocation unchanged: the buffers stay where and what they are, and the views are theirs."""

from __future__ import annotations

import torch
from hypothesis import given

from ds4_kernels.c128a.layout import Buffers, ViewDesign
from ds4_kernels.contracts.cases import ROWS, Case, cases
from ds4_kernels.contracts.memory import guarded
from ds4_kernels.contracts.subjects import Subject
from ds4_kernels.contracts.suite.harness import build


def _identity(buffers: Buffers) -> list[tuple[int, torch.Size, tuple[int, ...]]]:
    tensors = (buffers.decode, buffers.lens, buffers.prefill)
    return [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]


def test_buffers_stay_and_views_are_theirs(subject: Subject, design: ViewDesign) -> None:
    """Same addresses, shapes and strides after a step; every returned view shares its buffer's memory."""

    @given(cases())
    def check(case: Case) -> None:
        memory = guarded(ROWS, case.capacity, subject.device)
        identity = _identity(memory.buffers)
        result = build(subject, case, design, memory).result
        assert _identity(memory.buffers) == identity, "the step replaced or reshaped a buffer"
        pairs = zip((result.decode, result.lens, result.prefill), memory.allocations, strict=True)
        for view, (name, allocation, _) in pairs:
            shared = view.untyped_storage().data_ptr() == allocation.untyped_storage().data_ptr()
            assert shared, f"the view of the {name} has memory of its own"

    check()
