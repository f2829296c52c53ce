"""Plots of what was served: graph replays by size, and requests over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from qualify.record import RunRecord
from qualify.reporting.html.plots.common import Plot, finish, legend_above
from qualify.reporting.html.svg import Ink, figure, label
from qualify.reporting.html.tables import Table
from qualify.runtable import RequestHead, RunTable
from qualify.steps import StepTable
from qualify.transcript import Arm, Decode

_MOST_REQUESTS = 120


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
    """When each request of the candidate's judged run was sent, answered and done.

    Args:
        record: The run record.
    """
    run = _judged_run(record)
    if run is None:
        return None
    heads = sorted(run.heads, key=lambda head: (head.sent_s, head.request_id))
    shown = heads[:_MOST_REQUESTS]
    drawn = figure(64 + min(max(7 * len(shown), 60), 420))
    axes = drawn.subplots()
    _bars(axes, shown)
    axes.set_ylim(len(shown), 0)
    axes.set_xlim(0, max(1e-6, *(head.finished_s for head in shown)) * 1.01)
    groups = _groups(shown)
    axes.set_yticks(
        [(first + last) / 2 for first, last, _ in groups], [label(name, 20) for *_, name in groups]
    )
    for _, last, _ in groups[:-1]:
        axes.axhline(last, color=str(Ink.GRID), lw=0.8)
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.set_xlabel("seconds since the run began")
    legend_above(axes)
    left_out = f" The first {len(shown)} of {len(heads)} are drawn." if len(shown) < len(heads) else ""
    told = (
        f"The {len(heads)} requests of {run.key}, in the order in which they were sent: waiting for the "
        f"first token, then decoding; warm-up and polluting requests are grey.{left_out}"
    )
    table = Table(
        caption=f"Requests of {run.key}",
        header=("request", "judged", "sent, s", "first token, s", "done, s", "tokens"),
        rows=tuple(_line(head) for head in shown),
    )
    return finish(drawn, "timeline", "Requests over time", told, table)


def _judged_run(record: RunRecord) -> RunTable | None:
    """The candidate's run that decides, or else the first that any arm has."""
    order = [
        key
        for arm in (Arm.CANDIDATE, Arm.BASELINE, Arm.CONTROL)
        for decode in (Decode.FORCED, Decode.FREE)
        for key in sorted(record.runs, key=lambda key: key.number)
        if (key.arm, key.decode) == (arm, decode) and record.runs[key].heads
    ]
    return record.runs[order[0]] if order else None


def _bars(axes: Axes, heads: Sequence[RequestHead]) -> None:
    at = np.arange(len(heads)) + 0.5
    sent = np.array([head.sent_s for head in heads])
    first = np.array(
        [head.first_token_s if head.first_token_s is not None else head.finished_s for head in heads]
    )
    done = np.array([head.finished_s for head in heads])
    judged = np.array([head.judged for head in heads])
    parts = (
        ("waiting", sent, first, judged, Ink.HEAT3),
        ("decoding", first, done, judged, Ink.CANDIDATE),
        ("not judged", sent, done, ~judged, Ink.QUIET),
    )
    for name, begin, end, mask, ink in parts:
        if mask.any():
            axes.barh(
                at[mask], (end - begin)[mask], left=begin[mask], height=0.72, color=str(ink), label=name
            )


def _groups(heads: Sequence[RequestHead]) -> list[tuple[int, int, str]]:
    """(first, end, scenario) of neighbours of one scenario."""
    found: list[tuple[int, int, str]] = []
    for number, head in enumerate(heads):
        if found and found[-1][2] == head.scenario:
            found[-1] = (found[-1][0], number + 1, head.scenario)
        else:
            found.append((number, number + 1, head.scenario))
    return found


def _line(head: RequestHead) -> tuple[str, ...]:
    first = f"{head.first_token_s:.2f}" if head.first_token_s is not None else "never"
    done = f"{head.finished_s:.2f}" + (f" ({head.failure.kind})" if head.failure else "")
    judged = "yes" if head.judged else "no"
    return (head.request_id, judged, f"{head.sent_s:.2f}", first, done, f"{head.length} of {head.max_tokens}")
