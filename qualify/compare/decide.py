"""Decides whether one arm differs from the baseline's runs by more than these differ among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualify.compare.divergence import Distances
from qualify.compare.exchange import nearest, shift_test, tail_test
from qualify.compare.figures import Evidence, Spread, rounded
from qualify.compare.pairing import Aligned, align, per_request
from qualify.compare.rows import UNKNOWN, Placement
from qualify.policy import DecisionPolicy
from qualify.runtable import RunTable

RUN = "run"
TESTS = 2
"""Tests that share the run's error rate: shift and tail. Exact mode and the ceiling are not tests."""

MARGIN_LIMIT = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One arm's run laid beside the baseline's runs.

    Attributes:
        aligned: All runs, the subject last.
        mean: float64 [U, R, R], mean distance of each request and pair.
        largest: float64 [U, R, R], largest distance of each request and pair.
        scenarios: Scenario of each request.
    """

    aligned: Aligned
    mean: Distances
    largest: Distances
    scenarios: npt.NDArray[np.str_]

    @property
    def floor_is_zero(self) -> bool:
        """True where the baseline's runs are identical at every position."""
        floor = self.largest[:, :-1, :-1]
        return bool(len(floor)) and not np.any(np.nan_to_num(floor) > 0)

    @property
    def floor_same_top(self) -> float:
        """Share of positions with the same most probable token in two baseline runs, mean over pairs."""
        upper = np.triu_indices(len(self.aligned.same_top) - 1, k=1)
        return float(self.aligned.same_top[upper].mean())

    @property
    def same_top(self) -> float:
        """The same of the subject and each baseline run."""
        return float(self.aligned.same_top[-1, :-1].mean())


def lay_beside(baselines: Sequence[RunTable], run: RunTable, request_ids: Sequence[str]) -> Subject:
    """Aligns a run with the baseline's runs.

    Args:
        baselines: At least two runs of the baseline, decoded the same way.
        run: The run to judge.
        request_ids: Requests that all of them answered completely, sorted.
    """
    aligned = align([*baselines, run], request_ids)
    mean, largest = per_request(aligned)
    # A pair without a finite position is the business of the integrity rules, not of the statistics.
    return Subject(
        aligned,
        np.nan_to_num(mean),
        np.nan_to_num(largest),
        np.array([heads[-1].scenario for heads in aligned.heads], dtype=str),
    )


def weigh(subject: Subject, scope: str, policy: DecisionPolicy, weaker: float = 1.0) -> tuple[Evidence, ...]:
    """Asks every rule.

    Args:
        subject: The run beside the baseline's.
        scope: `RUN`, or the scenario whose requests alone are judged.
        policy: Error rate and ceiling.
        weaker: The subject's distances are divided by it first (for the margin).
    """
    chosen = np.ones(len(subject.scenarios), dtype=bool) if scope == RUN else subject.scenarios == scope
    mean = _weaker(subject.mean[chosen], weaker)
    largest = _weaker(subject.largest[chosen], weaker)
    limit = policy.false_rejection / TESTS
    shift, tail = shift_test(nearest(mean)), tail_test(nearest(largest))
    found = [
        Evidence(
            rule="shift",
            scope=scope,
            hits=shift.odd,
            of=shift.decided,
            p=rounded(shift.p),
            limit=limit,
            fired=shift.p <= limit,
        ),
        Evidence(
            rule="tail",
            scope=scope,
            hits=tail.odd,
            of=tail.decided,
            p=rounded(tail.p),
            limit=limit,
            fired=tail.p <= limit,
        ),
        _ceiling(mean, scope, policy.ceiling_kld),
    ]
    if subject.floor_is_zero:
        differ = int((nearest(largest)[:, -1] > 0).sum()) if len(largest) else 0
        found.insert(
            0,
            Evidence(
                rule="exact", scope=scope, hits=differ, of=len(largest), p=None, limit=0.0, fired=differ > 0
            ),
        )
    return tuple(found)


def _weaker(distances: Distances, factor: float) -> Distances:
    scaled = distances.copy()
    scaled[:, -1, :] /= factor
    scaled[:, :, -1] /= factor
    return scaled


def _ceiling(mean: Distances, scope: str, ceiling: float) -> Evidence:
    """Requests of the subject beyond the ceiling; void where the baseline's own runs are beyond it."""
    scores = nearest(mean)
    beyond = int((scores[:, -1] > ceiling).sum())
    floor_beyond = int((scores[:, :-1] > ceiling).any(axis=1).sum())
    return Evidence(
        rule="ceiling",
        scope=scope,
        hits=beyond,
        of=len(scores),
        p=None,
        limit=ceiling,
        fired=beyond > 0 and floor_beyond == 0,
    )


def margin(subject: Subject, scope: str, policy: DecisionPolicy) -> float | None:
    """How many times weaker the difference could have been and still be found.

    Returns:
        The factor, to three digits; None where nothing is found at full strength, or where the floor is
        exactly zero, so that a difference of any size is found.
    """

    def found(factor: float) -> bool:
        return any(item.fired for item in weigh(subject, scope, policy, factor))

    if subject.floor_is_zero or not found(1.0):
        return None
    low, high = 1.0, 2.0
    while high < MARGIN_LIMIT and found(high):
        low, high = high, high * 2
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if found(middle) else (low, middle)
    return float(f"{low:.3g}")


def position_scores(subject: Subject) -> tuple[Distances, Distances]:
    """Distances position by position: the baseline's runs among each other, the subject to the nearest.

    Returns:
        Two float64 [P]; NaN where nothing can be compared.
    """
    distances = subject.aligned.distances
    runs = distances.shape[1]
    upper = np.triu_indices(runs - 1, k=1)
    floor = _reduce(distances[:, upper[0], upper[1]], np.fmax)
    return floor, _reduce(distances[:, -1, :-1], np.fmin)


def _reduce(columns: Distances, function: np.ufunc) -> Distances:
    return np.asarray(function.reduce(columns, axis=1)) if columns.shape[1] else np.full(len(columns), np.nan)


def spread(values: Distances, same_top: float) -> Spread:
    """Summary of divergences; positions that cannot be compared are left out.

    Args:
        values: float64 [P], nats; NaN where not comparable.
        same_top: Share of positions with the same most probable token.
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return Spread(positions=0, differ=0, mean=0.0, p99=0.0, largest=0.0, same_top=0.0)
    return Spread(
        positions=len(known),
        differ=int((known > 0).sum()),
        mean=rounded(float(known.mean())),
        p99=rounded(float(np.quantile(known, 0.99))),
        largest=rounded(float(known.max())),
        same_top=rounded(same_top),
    )


@dataclass(frozen=True, slots=True)
class Damage:
    """What was hit.

    Attributes:
        request_ids: Requests, sorted.
        rows: Rows of the decode batch, sorted.
        positions: Positions beyond everything the floor shows.
    """

    request_ids: tuple[str, ...]
    rows: tuple[int, ...]
    positions: int


def locate(subject: Subject, placement: Placement, scope: str) -> Damage:
    """Names the requests and rows that were hit.

    A request is hit where it exceeds everything that the baseline's runs show among each other. A wrong
    step leaves wrong entries in the request's own KV cache, so its later tokens differ whatever row computes
    them: with a floor of zero the row of the first differing token is named, otherwise the row that computed
    most of the request's exceeding tokens.
    """
    floor, score = position_scores(subject)
    threshold = float(np.nanmax(floor)) if np.any(~np.isnan(floor)) else 0.0
    hit_requests, rows, positions = set(), set(), 0
    for number, heads in enumerate(subject.aligned.heads):
        head = heads[-1]
        if scope not in (RUN, head.scenario):
            continue
        start = int(subject.aligned.starts[number])
        beyond = np.flatnonzero(score[start : int(subject.aligned.starts[number + 1])] > threshold)
        if not len(beyond):
            continue
        positions += len(beyond)
        hit_requests.add(head.request_id)
        computed = placement.row[head.start + beyond]
        computed = computed[:1] if threshold == 0 else computed
        known = computed[computed != UNKNOWN]
        if len(known):
            rows.add(int(np.bincount(known).argmax()))
    return Damage(tuple(sorted(hit_requests)), tuple(sorted(rows)), positions)
