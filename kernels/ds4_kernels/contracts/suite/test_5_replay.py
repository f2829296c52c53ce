"""Invariant 5, replay: a consumer that keeps the captured address and stride reads what a fresh one reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given

from ds4_kernels.c128a.layout import NO_ENTRY, Result, ViewDesign, result_views
from ds4_kernels.contracts.cases import ROWS, Case, cases, histories
from ds4_kernels.contracts.memory import GuardedBuffers, copy_to, guarded
from ds4_kernels.contracts.subjects import Need, Subject
from ds4_kernels.contracts.suite.harness import (
    Built,
    assert_memory_is_right,
    build,
    expected_memory,
    readable,
)


def _capture(subject: Subject, first: Case, design: ViewDesign) -> tuple[Result, GuardedBuffers]:
    """Build as a server does when it captures a FULL graph: the width is the capacity."""
    memory = guarded(ROWS, first.capacity, subject.device)
    pages = -(-first.capacity // (first.page_size * first.dcp.world_size))
    table = tuple(tuple(row[0] + page for page in range(pages)) for row in first.table)
    full = replace(first, width=first.capacity, table=table)
    return build(subject, full, design, memory).result, memory


def _assert_read_as_fresh(built: Built, replayed: list[list[int]]) -> None:
    rows, case = built.case.decodes, built.case
    true = expected_memory(built).buffers
    truth = readable(true.decode[:rows], true.lens[:rows])
    fresh = readable(built.result.decode, built.result.lens)
    for row in range(rows):
        where = f"row {row} of {rows}, width {case.width}, capacity {case.capacity}"
        assert replayed[row] == fresh[row], (
            f"{where}: at the captured stride a replay reads {replayed[row][:4]}..., a fresh read gives "
            f"{fresh[row][:4]}..."
        )
        assert replayed[row] == truth[row], f"{where}: read {replayed[row][:4]}..., right {truth[row][:4]}..."


def _check_history(subject: Subject, history: list[Case], design: ViewDesign) -> None:
    captured, memory = _capture(subject, max(history, key=lambda case: case.decodes), design)
    for case in history:
        built = build(subject, case, design, memory)
        _assert_read_as_fresh(built, readable(captured.decode[: case.decodes], built.result.lens))


def test_captured_stride_reads_as_fresh(subject: Subject, design: ViewDesign) -> None:
    """Emulated replay: read through the view that was captured first, after each later step."""

    @given(histories())
    def check(history: list[Case]) -> None:
        _check_history(subject, history, design)

    check()


@pytest.mark.needs(Need.DCP)
@pytest.mark.needs(Need.QUERY_TOKENS)
def test_captured_stride_reads_as_fresh_under_dcp(subject: Subject, design: ViewDesign) -> None:
    """The same on one of 2 to 8 ranks."""

    @given(histories(dcp=True))
    def check(history: list[Case]) -> None:
        _check_history(subject, history, design)

    check()


@pytest.mark.needs(Need.GRAPHS)
def test_cuda_graph_reads_as_fresh(subject: Subject, design: ViewDesign) -> None:
    """A consumer captured in a real CUDA graph, replayed after each later step with other contexts."""

    @given(histories())
    def check(history: list[Case]) -> None:
        captured, memory = _capture(subject, max(history, key=lambda case: case.decodes), design)
        rows, capacity = captured.decode.shape[0], history[0].capacity
        out = torch.empty((rows, capacity), dtype=torch.int32, device=subject.device)
        columns = torch.arange(capacity, device=subject.device)  # read at every replay: stays alive
        graph = _captured_consumer(captured, columns, out)
        for case in history:
            built = build(subject, case, design, memory)
            out.fill_(NO_ENTRY)
            graph.replay()
            torch.cuda.synchronize()
            _assert_read_as_fresh(built, readable(out[: case.decodes], built.result.lens))

    check()


@pytest.mark.needs(Need.GRAPHS)
def test_builder_itself_can_be_captured(subject: Subject, design: ViewDesign) -> None:
    """The launch goes to the current stream: captured, it reads its inputs anew at each replay."""

    @given(cases())
    def check(case: Case) -> None:
        memory = guarded(ROWS, case.capacity, subject.device)
        batch = case.batch(subject.device)
        positions = batch.positions.clone()
        batch.positions.zero_()
        graph = _captured(lambda: subject.builder(batch, memory.buffers, case.dcp, design))
        memory.restore_poison()
        batch.positions.copy_(positions)
        before = copy_to(memory, torch.device("cpu"))
        graph.replay()
        torch.cuda.synchronize()
        views = result_views(batch, memory.buffers, design)
        assert_memory_is_right(Built(case, batch, views, before, memory))

    check()


def _captured_consumer(captured: Result, columns: torch.Tensor, out: torch.Tensor) -> torch.cuda.CUDAGraph:
    """Capture a consumer that copies what the lengths let it read, through the captured views."""

    def consume() -> None:
        inside = columns < captured.lens.unsqueeze(1)
        out.copy_(torch.where(inside, captured.decode, NO_ENTRY))

    return _captured(consume)


def _captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Run some work once on a side stream, as capture demands, and capture it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph
