"""What all plots share: their type, colours and the log axis with a line for exact zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from qualify.reporting.html.measured import Nats
from qualify.reporting.html.svg import Ink, inline_svg
from qualify.reporting.html.tables import Table, nats

MARKS = {"candidate": "o", "control": "^"}
INKS = {"floor": Ink.FLOOR, "candidate": Ink.CANDIDATE, "control": Ink.CONTROL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot.

    Attributes:
        name: Its id on the page.
        title: What it shows.
        told: How to read it, and what it shows in words.
        svg: The drawing.
        table: The same figures.
        heat: True where colours stand for nats, so that the page adds the key to them.
    """

    name: str
    title: str
    told: str
    svg: str
    table: Table
    heat: bool = False


def finish(drawn: Figure, name: str, title: str, told: str, table: Table, *, heat: bool = False) -> Plot:
    """Turns a drawn figure into a plot; see `Plot` for the arguments."""
    svg = inline_svg(drawn, f"plot-{name}", title, told)
    return Plot(name=name, title=title, told=told, svg=svg, table=table, heat=heat)


def legend_above(axes: Axes, columns: int = 3) -> None:
    """Puts the legend above the axes, where it hides nothing."""
    where: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0}
    axes.legend(ncols=columns, frameon=False, handlelength=1.5, **where)


@dataclass(frozen=True, slots=True)
class Scale:
    """A log axis with a line for exact zeros below it.

    Attributes:
        zero: Where that line lies, in the axis' own unit.
    """

    zero: float

    def place(self, values: Nats) -> Nats:
        """Where values are drawn: exact zeros, and only these, on their line."""
        return np.where(values > 0, values, self.zero)


def log_scale(axes: Axes, values: Sequence[Nats], what: str) -> Scale:
    """Gives axes a log scale in y.

    Args:
        axes: The axes.
        values: All that will be drawn, nats.
        what: Label of the axis.
    """
    together = np.concatenate([np.asarray(each, dtype=np.float64) for each in values])
    positive = together[together > 0]
    low = 10.0 ** np.floor(np.log10(positive.min())) if len(positive) else 1e-4
    high = 10.0 ** np.ceil(np.log10(positive.max()) + 0.02) if len(positive) else 1.0
    scale = Scale(low / 3)
    axes.set_yscale("log")
    axes.set_ylim(scale.zero / 1.6, high)
    axes.set_ylabel(what)
    axes.axhline(scale.zero, color=str(Ink.GRID), lw=1)
    decades = range(round(np.log10(low)), round(np.log10(high)) + 1)
    step = -(-len(decades) // 6)
    ticks = [10.0**power for power in decades][::-1][::step]
    axes.set_yticks([scale.zero, *ticks], ["0", *[f"{tick:g}" for tick in ticks]])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", lw=0.6)
    axes.set_axisbelow(True)
    return scale


def floor_line(axes: Axes, scale: Scale, value: float, name: str) -> None:
    """Draws the floor as a dashed line with its value in the legend."""
    at = float(scale.place(np.array([value]))[0])
    axes.axhline(at, color=str(Ink.FLOOR), ls="--", lw=1.5, label=f"{name} ({nats(value)})")
