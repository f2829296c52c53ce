"""Invariant 1, capture-stable stride: rows lie at the capacity stride, whatever the batch."""

from __future__ import annotations

import pytest
from hypothesis import given

from ds4_kernels.c128a.layout import ViewDesign
from ds4_kernels.contracts.cases import Case, cases
from ds4_kernels.contracts.subjects import Subject
from ds4_kernels.contracts.suite.harness import Built, build


def _assert_stable(built: Built, design: ViewDesign) -> None:
    capacity, width, buffers = built.case.capacity, built.case.width, built.memory.buffers
    views = {
        "decode": (built.result.decode, buffers.decode, built.case.decodes),
        "prefill": (built.result.prefill, buffers.prefill, built.batch.num_prefill_tokens),
    }
    for name, (view, buffer, rows) in views.items():
        assert view.stride() == (capacity, 1), (
            f"{name} view of {rows} rows at width {width}: row stride {view.stride()[0]}, "
            f"the capacity is {capacity}"
        )
        assert view.shape[0] == rows, f"{name} view: {view.shape[0]} rows for {rows} tokens"
        assert view.shape[1] in (width, capacity), (
            f"{name} view: {view.shape[1]} columns, neither the width {width} nor the capacity {capacity}"
        )
        assert view.data_ptr() == buffer.data_ptr(), f"{name} view does not begin where its buffer begins"
    assert built.result.lens.data_ptr() == buffers.lens.data_ptr(), "lens view: not the buffer's memory"
    assert built.result.lens.shape == (built.case.decodes,), "lens view: one length for each decode token"


def test_row_stride_is_the_capacity(subject: Subject, design: ViewDesign) -> None:
    """For drawn batches, widths and capacities."""

    @given(cases())
    def check(case: Case) -> None:
        _assert_stable(build(subject, case, design), design)

    check()


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_row_stride_at_every_width(subject: Subject, design: ViewDesign, rows: int) -> None:
    """For every width of one server, and several batch sizes."""
    capacity = 512
    for width in range(128, capacity + 1, 128):
        tokens = 2 * rows
        positions = tuple(width * 128 - 1 - 300 * token for token in range(tokens))
        pages = tuple(tuple(range(row * 1000, row * 1000 + 256)) for row in range(2))
        requests = tuple(token % 2 for token in range(tokens))
        case = Case(positions, rows, requests, pages, 2, (True,) * tokens, width, capacity, tokens)
        _assert_stable(build(subject, case, design), design)
