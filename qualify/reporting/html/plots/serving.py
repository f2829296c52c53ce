"""Plots of what was served: graph replays by size, and requests over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from qualify.record import RunRecord
from qualify.reporting.html.plots.common import Plot, finish, legend_above
from qualify.reporting.html.svg import Ink, figure, label
from qualify.reporting.html.tables import Table
from qualify.runtable import RequestHead, RunTable
from qualify.steps import StepTable
from qualify.transcript import Arm, Decode

_MOST_REQUESTS = 80
_LEAST_LABEL_PT = 9.0
"""Between two names of scenarios; one that would lie nearer to the name above it is only in the table."""
_WAITING, _DECODING = Ink.HEAT3, Ink.CANDIDATE
_LANE = 2.0
"""Height of the lane of requests that are not judged, in judged requests."""


def replays(record: RunRecord) -> Plot | None:
    """Decode steps of the candidate by their rows, replayed or not."""
    steps = {str(arm): table for arm, table in record.steps.items() if table.decode.any()}
    lines = [
        (str(size), name, str(whole), str(total - whole))
        for name, table in steps.items()
        for size, total, whole in _by_size(table)
    ]
    candidate = steps.get("candidate")
    if candidate is None:
        return None
    sizes, totals, wholes = (np.array(column) for column in zip(*_by_size(candidate), strict=True))
    drawn = figure(200)
    axes = drawn.subplots()
    at = np.arange(len(sizes))
    axes.bar(at, wholes, color=str(Ink.CANDIDATE), label=label(record.replay))
    axes.bar(at, totals - wholes, bottom=wholes, color=str(Ink.CONTROL), label="not replayed as a whole")
    every = -(-len(sizes) // 20)
    axes.set_xticks(at[::every], [str(size) for size in sizes[::every]])
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("rows in the decode step")
    axes.set_ylabel("decode steps")
    axes.set_ylim(0, 1.06 * totals.max())
    legend_above(axes, 2)
    table = Table(
        caption="Decode steps of each arm by rows",
        header=("rows", "arm", "replayed", "not replayed as a whole"),
        rows=tuple(lines),
    )
    told = (
        f"Decode steps of the candidate by their rows: {int(wholes.sum())} of {int(totals.sum())} were "
        "replayed as a whole. The baseline must have none; see the table."
    )
    return finish(drawn, "replays", "Graph replays by size", told, table)


def _by_size(steps: StepTable) -> list[tuple[int, int, int]]:
    """(rows, decode steps, of these replayed as a whole)."""
    return [
        (int(size), int(here.sum()), int((here & steps.whole).sum()))
        for size in np.unique(steps.rows[steps.decode])
        for here in [steps.decode & (steps.rows == size)]
    ]


def timeline(record: RunRecord) -> Plot | None:
    """When each judged request of each arm was sent, answered and done.

    Args:
        record: The run record.
    """
    runs = _judged_runs(record)
    if not runs:
        return None
    shown = [_shown(run) for run in runs]
    heights = [min(max(5.0 * (len(heads) + _LANE), 60.0), 260.0) for heads in shown]
    drawn = figure(50 + sum(heights) + 22 * len(runs))
    panels = drawn.subplots(len(runs), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, run, heads, height in zip(panels, runs, shown, heights, strict=True):
        _panel(axes, run, heads, height)
    panels[-1].set_xlim(0, max(1e-6, *(head.finished_s for run in runs for head in run.heads)) * 1.01)
    panels[-1].set_xlabel("seconds since each run began")
    _key(drawn)
    counted = [sum(head.judged for head in run.heads) for run in runs]
    cut = [
        f" Of {run.key} {len(heads)} of {count} judged requests are drawn, of each scenario its first."
        for run, heads, count in zip(runs, shown, counted, strict=True)
        if len(heads) < count
    ]
    told = (
        "Judged requests, each a line, in the order in which they were sent: waiting for the first token, "
        "then decoding. The grey lane below them is when requests that are not judged were in flight: "
        f"warm-up and what pollutes.{''.join(cut)}"
    )
    table = Table(
        caption="Requests of each run, judged ones first",
        header=("request", "run", "judged", "sent, s", "first token, s", "done, s", "tokens"),
        rows=tuple(
            _line(run, head)
            for judged in (True, False)
            for run in runs
            for head in _in_order(run)
            if head.judged is judged
        ),
    )
    return finish(drawn, "timeline", "Requests over time", told, table)


def _judged_runs(record: RunRecord) -> list[RunTable]:
    """Each arm's first run of the way of decoding that decides: forced where any was."""
    for decode in (Decode.FORCED, Decode.FREE):
        firsts: dict[Arm, RunTable] = {}
        for key in sorted(record.runs, key=lambda key: key.number):
            if key.decode is decode and record.runs[key].heads:
                firsts.setdefault(key.arm, record.runs[key])
        if firsts:
            return [firsts[arm] for arm in Arm if arm in firsts]
    return []


def _in_order(run: RunTable) -> list[RequestHead]:
    return sorted(run.heads, key=lambda head: (head.sent_s, head.request_id))


def _shown(run: RunTable) -> list[RequestHead]:
    """Judged requests by time; where there is not room for all, each scenario has the same share of it."""
    judged = [head for head in _in_order(run) if head.judged]
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int]] = []  # place within its scenario, place in the run
    for place, head in enumerate(judged):
        ranked.append((seen[head.scenario], place))
        seen[head.scenario] += 1
    return [judged[place] for place in sorted(place for _, place in sorted(ranked)[:_MOST_REQUESTS])]


def _panel(axes: Axes, run: RunTable, heads: Sequence[RequestHead], height_pt: float) -> None:
    """One run: a bar for each judged request, and a lane for all others."""
    _bars(axes, heads)
    others = _union([(head.sent_s, head.finished_s) for head in run.heads if not head.judged])
    if others:
        spans = [(begin, end - begin) for begin, end in others]
        axes.broken_barh(spans, (len(heads) + 0.4, _LANE - 0.6), facecolors=str(Ink.QUIET))
    lines = len(heads) + _LANE
    axes.set_ylim(lines, 0)
    axes.set_title(str(run.key), loc="left")
    groups = _groups(heads)
    named: list[tuple[float, str]] = []
    for first, last, name in groups:
        middle = (first + last) / 2
        if not named or (middle - named[-1][0]) * height_pt / lines >= _LEAST_LABEL_PT:
            named.append((middle, label(name, 20)))
    axes.set_yticks([middle for middle, _ in named], [name for _, name in named])
    for _, last, _ in groups:
        axes.axhline(last, color=str(Ink.GRID), lw=0.8)
    axes.tick_params(axis="y", length=0, labelsize=9)


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The spans of time that any of these covers, in order: hundreds of requests are few spans."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _bars(axes: Axes, heads: Sequence[RequestHead]) -> None:
    at = np.arange(len(heads)) + 0.5
    sent = np.array([head.sent_s for head in heads])
    first = np.array(
        [head.first_token_s if head.first_token_s is not None else head.finished_s for head in heads]
    )
    done = np.array([head.finished_s for head in heads])
    for begin, end, ink in ((sent, first, _WAITING), (first, done, _DECODING)):
        axes.barh(at, end - begin, left=begin, height=0.72, color=str(ink))


def _key(drawn: Figure) -> None:
    """The key to the colours, above all panels."""
    inks = {"waiting": _WAITING, "decoding": _DECODING, "not judged": Ink.QUIET}
    marks = [Patch(color=str(ink), label=name) for name, ink in inks.items()]
    drawn.legend(handles=marks, loc="outside upper left", ncols=3, frameon=False, handlelength=1.5)


def _groups(heads: Sequence[RequestHead]) -> list[tuple[int, int, str]]:
    """(first, end, scenario) of neighbours of one scenario."""
    found: list[tuple[int, int, str]] = []
    for number, head in enumerate(heads):
        if found and found[-1][2] == head.scenario:
            found[-1] = (found[-1][0], number + 1, head.scenario)
        else:
            found.append((number, number + 1, head.scenario))
    return found


def _line(run: RunTable, head: RequestHead) -> tuple[str, ...]:
    first = f"{head.first_token_s:.2f}" if head.first_token_s is not None else "never"
    done = f"{head.finished_s:.2f}" + (f" ({head.failure.kind})" if head.failure else "")
    judged = "yes" if head.judged else "no"
    times = (f"{head.sent_s:.2f}", first, done)
    return (head.request_id, str(run.key), judged, *times, f"{head.length} of {head.max_tokens}")
