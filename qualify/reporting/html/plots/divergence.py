"""Plots of the divergences: their distributions, over time, and over the size of the batch."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from qualify.reporting.html.measured import Measured, Nats, Numbers
from qualify.reporting.html.plots.common import INKS, MARKS, Plot, finish, floor_line, legend_above, log_scale
from qualify.reporting.html.svg import Ink, figure
from qualify.reporting.html.tables import Table, nats

_MOST_TIMES = 48


def distributions(measured: Measured) -> Plot | None:
    """Histograms on a log scale beside a bar of the exact zeros."""
    spreads = measured.spreads
    if not spreads:
        return None
    positive = np.concatenate([values[values > 0] for _, values in spreads])
    low, high = (positive.min(), positive.max()) if len(positive) else (1e-4, 1.0)
    edges = np.logspace(np.floor(np.log10(low)), np.ceil(np.log10(high) + 1e-9), 41)
    drawn = figure(20 + 92 * len(spreads))
    axes = drawn.subplots(len(spreads), 2, width_ratios=(1, 6), squeeze=False)
    for (zero, rest), (name, values) in zip(axes, spreads, strict=True):
        equal = int((values == 0).sum())
        zero.bar(
            [0], [equal / max(len(values), 1)], color=str(Ink.ZERO), edgecolor=str(INKS[name]), width=0.7
        )
        zero.set_ylim(0, 1)
        zero.set_xlim(-0.6, 0.6)
        zero.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
        zero.set_xticks([0], ["exactly 0"])
        counts = np.histogram(np.clip(values[values > 0], edges[0], edges[-1]), edges)[0]
        rest.stairs(counts, edges, fill=True, color=str(INKS[name]))
        rest.set_xscale("log")
        rest.set_xlim(edges[0], edges[-1])
        rest.set_ylim(0, max(1.0, float(counts.max()) * 1.05))
        rest.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        rest.set_title(f"{name}: {equal} of {len(values)} exactly 0", loc="left")
        rest.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        rest.xaxis.set_minor_locator(NullLocator())
        if not counts.any():
            rest.text(0.5, 0.45, "no position differs", transform=rest.transAxes, ha="center")
    axes[-1][1].set_xlabel("divergence, nats (log scale)")
    rows = [
        (
            name,
            str(len(values)),
            str(int((values == 0).sum())),
            *(nats(float(np.quantile(values, part))) if len(values) else "" for part in (0.5, 0.9, 0.99, 1)),
        )
        for name, values in spreads
    ]
    table = Table(
        caption="Divergence of floor, candidate and control",
        header=("", "comparisons", "exactly 0", "median", "90%", "99%", "largest"),
        rows=tuple(rows),
    )
    said = "; ".join(f"{row[0]}: {row[2]} of {row[1]} exactly 0, largest {row[6]}" for row in rows)
    told = (
        "Each comparison is one position in two runs: of the floor two of the baseline, of an arm its own "
        "and one of the baseline. A right candidate lies where the floor lies, what is wrong to the right of "
        "it. "
        f"{said[:1].upper()}{said[1:]}."
    )
    return finish(drawn, "distributions", "Floor, candidate and control", told, table)


def over_time(measured: Measured) -> Plot | None:
    """Largest divergence of each moment of the judged runs."""
    shown = [s for s in measured.series if (~np.isnan(s.seconds)).any()]
    if not shown:
        return None
    last = max(float(np.nanmax(series.seconds)) for series in shown)
    edges = np.linspace(0.0, max(last, 1e-6) * 1.000001, _MOST_TIMES + 1)
    points: list[tuple[str, Nats, Nats]] = []
    for series in shown:
        known = ~np.isnan(series.seconds)
        peak = _largest(np.digitize(series.seconds[known], edges) - 1, series.nats[known], _MOST_TIMES)
        some = ~np.isnan(peak)
        points.append((series.name, edges[:-1][some], peak[some]))
    drawn = figure(210)
    axes = drawn.subplots()
    floor = float(measured.floor.max(initial=0.0))
    scale = log_scale(
        axes, [*(values for *_, values in points), np.array([floor])], "largest divergence, nats"
    )
    for name, at, values in points:
        ink = str(INKS[name])
        axes.plot(at, scale.place(values), ls="none", marker=MARKS[name], ms=5, color=ink, label=name)
    floor_line(axes, scale, floor, "floor, its largest")
    axes.set_xlabel("seconds since the run began")
    legend_above(axes)
    lines = [
        (f"{second:.2f}", name, nats(value))
        for name, at, values in points
        for second, value in zip(at.tolist(), values.tolist(), strict=True)
    ]
    table = Table(
        caption=f"Largest divergence in each {edges[1]:.2f} s",
        header=("from second", "arm", "largest divergence"),
        rows=tuple(lines),
    )
    told = (
        f"Largest divergence in each {edges[1]:.2g} s of the judged run. A request's tokens are taken as "
        "evenly spread between its first and its last. Exact zeros lie on the line marked 0."
    )
    return finish(drawn, "time", "Divergence over time", told, table)


def _largest(cell: Numbers, values: Nats, cells: int) -> Nats:
    """float64 [cells], NaN where there is none."""
    found = np.full(cells, -np.inf)
    np.maximum.at(found, np.clip(cell, 0, cells - 1), values)
    return np.where(np.isinf(found), np.nan, found)


def by_batch(measured: Measured) -> Plot | None:
    """Mean divergence by the rows of the decode step."""
    shown = [s for s in measured.series if (s.batch > 0).any()]
    if not shown:
        return None
    lines, points = [], []
    for series in shown:
        sizes = np.unique(series.batch[series.batch > 0])
        groups = [series.nats[series.batch == size] for size in sizes]
        lines += [
            (
                *(str(size), series.name, str(len(here)), str(int((here > 0).sum()))),
                *(nats(float(here.mean())), nats(float(here.max()))),
            )
            for size, here in zip(sizes, groups, strict=True)
        ]
        points.append((series.name, sizes, np.array([here.mean() for here in groups])))
    drawn = figure(210)
    axes = drawn.subplots()
    floor = float(measured.floor.mean()) if len(measured.floor) else 0.0
    scale = log_scale(axes, [*(values for *_, values in points), np.array([floor])], "mean divergence, nats")
    for name, sizes, means in points:
        ink = str(INKS[name])
        axes.plot(sizes, scale.place(means), ls="none", marker=MARKS[name], ms=6, color=ink, label=name)
    floor_line(axes, scale, floor, "floor, its mean")
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.set_xlabel("rows in the decode step")
    legend_above(axes)
    table = Table(
        caption="Divergence by rows in the decode step",
        header=("rows", "arm", "comparisons", "that differ", "mean", "largest"),
        rows=tuple(lines),
    )
    told = (
        "Mean divergence of the tokens computed in decode steps of each size; tokens computed beside a "
        "prefill are not in it. Exact zeros lie on the line marked 0."
    )
    return finish(drawn, "batch", "Divergence over batch size", told, table)
