"""Timing launches inside CUDA graphs, with inputs that are not in the L2."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import triton

LAUNCHES = 64  # different steps in one graph
_REPLAYS = 30
_WARM_UP = 3000  # reads of the large buffer, 0.4 s: the clocks rise first
_FLUSH_BYTES = 512 * 2**20  # several times the L2 of any GPU today
_COPY_BYTES = 2 * 2**30


@triton.jit
def _nothing():
    pass


class GraphTimer:
    """Times a row of launches captured in one graph.

    Before the launches, the graph reads a large buffer, so that the L2 holds nothing of theirs. A graph with
    that read alone is replayed in turn with it, and the difference is taken each time: the read takes a
    hundred times as long as a launch, and its time drifts.
    """

    def __init__(self, device: torch.device) -> None:
        """Allocate the buffer and capture its read."""
        self._filler = torch.zeros(_FLUSH_BYTES // 4, dtype=torch.float32, device=device)
        self._sink = torch.zeros((), dtype=torch.float32, device=device)
        self._flush_graph = self._graph([])
        for _ in range(_WARM_UP):
            self._flush_graph.replay()
        torch.cuda.synchronize()

    def microseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        """Time launches.

        Args:
            launches: each launches its kernel on the current stream; warmed up here.

        Returns:
            Microseconds of one launch: the median difference over replays, over the number of launches.
        """
        for launch in launches:
            launch()
        torch.cuda.synchronize()
        graph = self._graph(launches)
        for warm_up in (graph, self._flush_graph):
            _replay_us(warm_up)
        differences = [_replay_us(graph) - _replay_us(self._flush_graph) for _ in range(_REPLAYS)]
        return statistics.median(differences) / len(launches)

    def _graph(self, launches: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
        self._flush()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._flush()
            for launch in launches:
                launch()
        return graph

    def _flush(self) -> None:
        torch.sum(self._filler, dim=0, out=self._sink)


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1000


def empty_kernel_us(timer: GraphTimer) -> float:
    """Time an empty kernel of one block in a graph, in microseconds."""
    return timer.microseconds([_nothing[(1,)]] * LAUNCHES)


def copy_bytes_per_us(device: torch.device) -> float:
    """Measure the bandwidth of a large copy on the device.

    Args:
        device: the GPU.

    Returns:
        Bytes read plus bytes written, per microsecond.
    """
    source = torch.ones(_COPY_BYTES // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    times = []
    for _ in range(_REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return 2 * _COPY_BYTES / statistics.median(times)


def host_us(launch: Callable[[], object], calls: int = 300) -> float:
    """Time what a launch costs the CPU, outside graphs.

    Args:
        launch: launches a kernel.
        calls: how many calls to time.

    Returns:
        Microseconds of one call.
    """
    for _ in range(10):
        launch()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        launch()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / calls * 1e6
