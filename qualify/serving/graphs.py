"""Reads from a server's log which CUDA graphs it captured and how many steps it says each replayed.

vLLM with ``--cudagraph-metrics`` writes a table every few seconds (``VLLM_LOG_STATS_INTERVAL``) of the steps
since the last one. A server that is stopped soon after its last step has not written the last table: counts
are lower bounds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from qualify.record import GraphCounts

_MODE = re.compile(r"- Mode: (?P<mode>[A-Z_]+)\s*$")
_SIZES = re.compile(r"- Capture sizes: \[(?P<sizes>[0-9, ]*)\]\s*$")
_ROW = re.compile(
    r"\|\s*\d+\s*\|\s*(?P<padded>\d+)\s*\|\s*\d+\s*\|\s*(?P<mode>[A-Z_]+)\s*\|\s*(?P<count>\d+)\s*\|\s*$"
)


def read_graphs(lines: Iterable[str]) -> GraphCounts | None:
    """Adds up the tables of a log.

    Args:
        lines: The log, line by line, each with whatever its logger puts before the text.

    Returns:
        The counts; None where there is no table, which says nothing about graphs.
    """
    mode: str | None = None
    sizes: tuple[int, ...] = ()
    steps: Counter[tuple[str, int]] = Counter()
    for line in lines:
        if found := _MODE.search(line):
            mode = found["mode"]
        elif found := _SIZES.search(line):
            sizes = tuple(int(size) for size in found["sizes"].split(",") if size.strip())
        elif mode is not None and (found := _ROW.search(line)):
            steps[found["mode"], int(found["padded"])] += int(found["count"])
    if mode is None:
        return None
    counted = tuple((name, padded, count) for (name, padded), count in sorted(steps.items()))
    return GraphCounts(mode=mode, captured=sizes, steps=counted)
