"""Names the requests and rows that were hit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualify.compare.extremes import STEPS_BEYOND, fit_tail
from qualify.compare.pairing import Aligned, Layout
from qualify.compare.rows import UNKNOWN, Placement
from qualify.compare.rules import RUN

Floats = npt.NDArray[np.float64]

CHANCE = 0.05
"""Right positions of a whole run that may lie beyond the threshold of a single position, on average. A
convention: what is located is told, and decides nothing."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What was hit.

    Attributes:
        request_ids: Requests, sorted.
        rows: Rows of the decode batch, sorted.
        positions: Positions of these requests beyond everything that the floor shows.
    """

    request_ids: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    positions: int = 0


def locate(aligned: Aligned, placement: Placement, scope: str, negligible: float) -> Damage:
    """Names the requests and rows that were hit.

    Among many right requests one or the other goes a little beyond the floor by chance. So a request is named
    only where its mean is at least twice the largest of the floor, or one position so far beyond the floor's
    tail that right positions would hardly do so. Where the floor is quiet, so that it shows nothing
    that matters, any difference that does is enough.

    A wrong step leaves wrong entries in the request's own KV cache, so its later tokens differ whatever row
    computes them: with a quiet floor the row of the first differing token that has one is named, else the row
    that computed most of the request's tokens beyond the floor.

    Args:
        aligned: The run beside the baseline's.
        placement: Rows of its tokens.
        scope: `RUN`, or the scenario to look at.
        negligible: Nats below which a difference at a position does not matter.
    """
    layout = aligned.layout
    score, floor = np.nan_to_num(layout.nearest(layout.runs - 1)), layout.floor
    largest = float(np.nan_to_num(floor).max(initial=0.0))
    if 0 < largest < negligible:
        score, floor, largest = np.where(score < negligible, 0.0, score), np.minimum(floor, 0.0), 0.0
    hit = _hit(layout, score, floor) & ((layout.scenarios == scope) | (scope == RUN))
    rows: set[int] = set()
    positions = 0
    for number in np.flatnonzero(hit).tolist():
        start, end = int(layout.starts[number]), int(layout.starts[number + 1])
        beyond = start + np.flatnonzero(score[start:end] > largest)
        positions += len(beyond)
        if not len(beyond):
            beyond = start + np.argmax(score[start:end], keepdims=True)
        own = aligned.own[beyond]
        computed = placement.row[own[own >= 0]]
        computed = computed[computed != UNKNOWN]
        if largest == 0:
            computed = computed[:1]
        if len(computed):
            rows.add(int(np.bincount(computed).argmax()))
    names = [aligned.heads[number][-1].request_id for number in np.flatnonzero(hit).tolist()]
    return Damage(tuple(sorted(names)), tuple(sorted(rows)), positions)


def _hit(layout: Layout, score: Floats, floor: Floats) -> npt.NDArray[np.bool_]:
    """Bool [U], requests that are clearly beyond the floor."""
    mean, peak = _means(layout, score), np.maximum.reduceat(score, layout.starts[:-1])
    usual = float(_means(layout, np.nan_to_num(floor)).max(initial=0.0))
    known = floor[~np.isnan(floor)]
    tail = fit_tail(known)
    if tail is None:
        far = STEPS_BEYOND[0] * float(known.max(initial=0.0))
    else:
        far = max(tail.largest, tail.start * (tail.share * len(score) / CHANCE) ** tail.exponent)
    return np.asarray((mean > STEPS_BEYOND[0] * usual) | (peak > far))


def _means(layout: Layout, values: Floats) -> Floats:
    """float64 [U], mean over each request's positions."""
    return np.asarray(np.add.reduceat(values, layout.starts[:-1]) / np.diff(layout.starts))
