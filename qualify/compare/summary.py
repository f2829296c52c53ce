"""Boils a layout down to a few figures a request, which is all that the rules look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qualify.compare.divergence import Distances
from qualify.compare.extremes import Tail, fit_tail
from qualify.compare.pairing import Layout, Pair

Mask = npt.NDArray[np.bool_]
Change = Callable[[Distances], Distances]

WILD = 1.0
"""Nats that one position counts at most towards the ceiling: one wild position is not a whole request. One
nat is a convention: it lies far above what noise does to a position (means of a few thousandths) and lets one
position in six be as wild before a request of any length reaches the default ceiling."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Summary:
    """U requests, R runs, the subject last.

    Attributes:
        pairs: Which two runs each column of `means` compares.
        means: float64 [U, R (R - 1) / 2], mean distance of each pair of runs over the positions that it
            shares; NaN where it shares none.
        peak: float64 [U, R], largest distance of each run to the nearest other run.
        total: float64 [U, R], sum of these distances, each at most `WILD`, divided by the tokens asked for.
        beyond: float64 [U], the subject's largest distance to the nearest baseline run.
        watched: float64 [U], positions times runs at which a run's jump would count against the subject.
        floor_watched: float64 [U], the same for the floor.
        tail: Upper tail of the floor; None where it is too short.
        floor_largest: Largest distance between two runs of the baseline.
        floor_positions: Positions at which two runs of the baseline were compared.
        run_largest: Largest distance between two runs of the baseline in the whole run, of which this may be
            a part: a part that is silent by chance is not silent.
    """

    pairs: tuple[Pair, ...]
    means: Distances
    peak: Distances
    total: Distances
    beyond: Distances
    watched: Distances
    floor_watched: Distances
    tail: Tail | None
    floor_largest: float
    floor_positions: int
    run_largest: float

    @property
    def requests(self) -> int:
        """U."""
        return len(self.beyond)

    @property
    def exact(self) -> bool:
        """True where the baseline's runs are identical wherever they were compared."""
        return self.floor_positions > 0 and self.run_largest == 0.0

    @property
    def runs(self) -> int:
        """R."""
        return int(self.peak.shape[1])

    @property
    def apart(self) -> Distances:
        """float64 [U, R], mean distance of each run from the others; NaN where a pair shares no position."""
        columns = [[n for n, pair in enumerate(self.pairs) if run in pair] for run in range(self.runs)]
        return np.stack([self.means[:, group].mean(axis=1) for group in columns], axis=1)

    @property
    def excess(self) -> float:
        """By how much the subject is farther from the baseline's runs than these from each other, nats."""
        known = self.means[~np.isnan(self.means).any(axis=1)]
        floor = [column for column in range(len(self.pairs)) if column not in self._mine]
        return float(known[:, self._mine].mean() - known[:, floor].mean()) if len(known) else 0.0

    def weaker(self, factor: float) -> Summary:
        """The same with the subject `factor` times nearer to the baseline.

        Args:
            factor: The subject's distances are divided by it; the baseline's own stay.
        """
        return self._changed(lambda values: values / factor)

    def shifted(self, nats: float) -> Summary:
        """The same with every request's mean distance from the baseline larger.

        Args:
            nats: Added to each mean distance of the subject from a run of the baseline.
        """
        means = self.means.copy()
        means[:, self._mine] += nats
        return replace(self, means=means)

    def struck(self, requests: int, nats: float) -> Summary:
        """The same with one position in each of the first so many requests `nats` away from the baseline.

        Each farther than the one before: real faults make no equal distances, which the rules cannot rank.

        Args:
            requests: How many requests are struck.
            nats: Distance of the first; that of the last of all requests would be twice as far.
        """
        number = np.arange(self.requests)
        hit, moved = number < requests, nats * (1 + number / max(self.requests, 1))
        beyond = np.where(hit, moved, self.beyond)
        peak = self.peak.copy()
        peak[:, -1] = np.where(hit, moved, peak[:, -1])
        return replace(self, beyond=beyond, peak=peak)

    @property
    def _mine(self) -> list[int]:
        return [column for column, pair in enumerate(self.pairs) if self.runs - 1 in pair]

    def _changed(self, change: Change) -> Summary:
        means, peak, total = self.means.copy(), self.peak.copy(), self.total.copy()
        means[:, self._mine] = change(means[:, self._mine])
        for values in (peak, total):
            values[:, -1] = change(values[:, -1])
        return replace(self, means=means, peak=peak, total=total, beyond=change(self.beyond))


def summarise(layout: Layout, run_largest: float | None = None) -> Summary:
    """Summarises the requests of a layout, or of a part of it.

    Args:
        layout: The runs laid beside each other.
        run_largest: Largest distance of the whole run's floor, where the layout is a part of it.
    """
    known = ~np.isnan(layout.distances)
    watched, floor_watched = _watched(layout, known)
    peak, total = _extremes(layout)
    floor = layout.distances[:, layout.floor_columns][known[:, layout.floor_columns]]
    largest = float(floor.max()) if len(floor) else 0.0
    return Summary(
        pairs=layout.pairs,
        means=_means(layout, known),
        peak=peak,
        total=total,
        beyond=peak[:, -1].copy(),
        watched=watched,
        floor_watched=floor_watched,
        tail=fit_tail(floor),
        floor_largest=largest,
        floor_positions=len(floor),
        run_largest=largest if run_largest is None else max(largest, run_largest),
    )


def _watched(layout: Layout, known: Mask) -> tuple[Distances, Distances]:
    """Positions of each request at which the subject, and at which the baseline's runs, could be compared."""
    comparable = known[:, layout.columns(layout.runs - 1)].sum(axis=1, dtype=np.int32)
    # With one baseline run left to compare with, that run's jump looks like the subject's.
    watched = np.where(comparable == 0, 0.0, np.where(comparable == 1, 2.0, 1.0))
    floor_runs = np.zeros(len(known))
    for run in range(layout.runs - 1):
        others = [column for column in layout.floor_columns if run in layout.pairs[column]]
        floor_runs += known[:, others].any(axis=1)
    return _per_request(watched, layout, np.add), _per_request(floor_runs, layout, np.add)


def _extremes(layout: Layout) -> tuple[Distances, Distances]:
    """Largest and mean distance of each run to the nearest other: two of [U, runs]."""
    peak, total = np.empty((2, len(layout.asked), layout.runs))
    for run in range(layout.runs):
        nearest = np.nan_to_num(layout.nearest(run), copy=False)
        peak[:, run] = _per_request(nearest, layout, np.maximum)
        np.minimum(nearest, WILD, out=nearest)
        total[:, run] = _per_request(nearest, layout, np.add) / np.maximum(layout.asked, 1)
    return peak, total


def _means(layout: Layout, known: Mask) -> Distances:
    mean = np.full((len(layout.asked), len(layout.pairs)), np.nan)
    for column in range(len(layout.pairs)):
        count = _per_request(known[:, column].astype(np.float64), layout, np.add)
        total = _per_request(np.nan_to_num(layout.distances[:, column]), layout, np.add)
        np.divide(total, count, out=mean[:, column], where=count > 0)
    return mean


def _per_request(values: Distances, layout: Layout, how: np.ufunc) -> Distances:
    """Reduces positions to requests, each of which has at least one: [P] to [U]."""
    return np.asarray(how.reduceat(values, layout.starts[:-1])) if len(layout.asked) else np.zeros(0)
