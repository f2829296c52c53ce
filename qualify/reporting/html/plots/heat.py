"""The heat map: divergence by position in the answer and row of the decode batch."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from qualify.compare.rows import UNKNOWN
from qualify.reporting.html.measured import Measured, Nats, Series
from qualify.reporting.html.plots.common import Plot, finish
from qualify.reporting.html.svg import HEAT, figure
from qualify.reporting.html.tables import Table, nats

HEAT_EDGES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""Nats at which the heat map's colour changes; half decades where floors and faults were seen to lie."""

_MOST_CELLS = 64


def heat_map(measured: Measured) -> Plot | None:
    """Largest divergence of each position in each row of the batch."""
    shown = [series for series in measured.series if (series.row != UNKNOWN).any()]
    if not shown:
        return None
    rows = 1 + max(int(series.row.max()) for series in shown)
    tokens = 1 + max(int(series.token.max()) for series in shown)
    width, height = -(-tokens // _MOST_CELLS), -(-rows // _MOST_CELLS)
    grids = [_largest_by_cell(series, (rows, tokens), (height, width)) for series in shown]
    drawn = figure(36 + len(shown) * (34 + min(max(9 * grids[0].shape[0], 60), 260)))
    panels = drawn.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
    for axes, series, grid in zip(panels, shown, grids, strict=True):
        _cells(axes, grid, (height, width))
        recorded = "" if series.rows_recorded else " (rows estimated)"
        axes.set_title(f"{series.name}{recorded}", loc="left")
        axes.set_ylabel("row")
        axes.set_xlim(-0.5, tokens - 0.5)
        axes.set_ylim(rows - 0.5, -0.5)
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    panels[-1].set_xlabel("position in the answer")
    lines = []
    for row in range(grids[0].shape[0]):
        for series, grid in zip(shown, grids, strict=True):
            cells = grid[row][~np.isnan(grid[row])]
            if len(cells):
                span = _span(row, height, rows)
                lines.append(
                    (span, series.name, str(len(cells)), str(int((cells > 0).sum())), nats(cells.max()))
                )
    table = Table(
        caption="Largest divergence by row of the decode batch",
        header=("row", "arm", "cells", "that differ", "largest"),
        rows=tuple(lines),
    )
    told = (
        "Each cell is the largest divergence of any request at that position while it was in that row of the "
        "decode batch. Empty: nothing was computed there. A fault of the batch's stride begins after row 0; "
        "what differs in row 0 then is of requests that were hit before they moved there."
    )
    return finish(drawn, "heat", "Divergence by position and row", told, table, heat=True)


def _span(cell: int, size: int, end: int) -> str:
    first, last = cell * size, min((cell + 1) * size, end) - 1
    return str(first) if first == last else f"{first} to {last}"


def _largest_by_cell(series: Series, shape: tuple[int, int], size: tuple[int, int]) -> Nats:
    """float64 [rows, positions] in cells; NaN where nothing was computed."""
    grid = np.full((-(-shape[0] // size[0]), -(-shape[1] // size[1])), -np.inf)
    known = series.row != UNKNOWN
    np.maximum.at(grid, (series.row[known] // size[0], series.token[known] // size[1]), series.nats[known])
    return np.where(np.isinf(grid), np.nan, grid)


def _cells(axes: Axes, grid: Nats, size: tuple[int, int]) -> None:
    """Draws cells of one colour as one collection of bars: small, and coloured by the style sheet.

    Cells lie around their numbers, so that the tick of row 3 is in the middle of row 3.
    """
    classes = np.where(grid == 0, 0, 1 + np.searchsorted(HEAT_EDGES, grid))
    for number, ink in enumerate(HEAT):
        for row, cells in enumerate((classes == number) & ~np.isnan(grid)):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], cells.astype(np.int8), [0]])))
            spans = [
                (start * size[1] - 0.5, (end - start) * size[1])
                for start, end in edges.reshape(-1, 2).tolist()
            ]
            if spans:
                axes.broken_barh(spans, (row * size[0] - 0.5, size[0]), facecolors=str(ink), linewidth=0)
