"""Which positions of several runs may be compared: same request, same tokens before the position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from qualify.compare.divergence import Distances, symmetric_kld
from qualify.runtable import RequestHead, RunTable

Indices = npt.NDArray[np.int64]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layout:
    """R runs laid beside each other, request after request, position after position; the subject is the last.

    Attributes:
        runs: R.
        starts: int64 [U + 1], first position of each of the U requests; the last entry is P.
        pairs: Which two runs each column of `distances` compares.
        distances: float64 [P, R (R - 1) / 2], nats; NaN where that pair cannot be compared any more because
            its tokens have split before, or where a value is not finite.
        scenarios: str [U], scenario of each request.
        asked: int64 [U], tokens that each request was asked for.
    """

    runs: int
    starts: Indices
    pairs: tuple[Pair, ...]
    distances: Distances
    scenarios: npt.NDArray[np.str_]
    asked: Indices

    def columns(self, run: int) -> list[int]:
        """Columns of `distances` that compare a run with any other."""
        return [column for column, pair in enumerate(self.pairs) if run in pair]

    @property
    def floor_columns(self) -> list[int]:
        """Columns that compare two runs of the baseline."""
        return [column for column, pair in enumerate(self.pairs) if self.runs - 1 not in pair]

    @property
    def floor(self) -> Distances:
        """float64 [P], largest distance between two baseline runs; NaN where none is comparable."""
        return np.asarray(np.fmax.reduce(self.distances[:, self.floor_columns], axis=1))

    def nearest(self, run: int) -> Distances:
        """float64 [P], distance of a run to the nearest other run; NaN where none is comparable.

        The nearest and not the mean: one run that went astray must not make all others look far away.
        """
        return np.asarray(np.fmin.reduce(self.distances[:, self.columns(run)], axis=1))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Agreement:
    """How the emitted tokens' own figures agree between runs, mean over the pairs of runs.

    Attributes:
        same_top: Share of positions with the same most probable token.
        same_rank: Share of positions at which the emitted token has the same rank in both lists.
        delta_mean: Mean of |difference of the emitted token's log probability|, nats.
        delta_largest: Largest of them.
    """

    same_top: float
    same_rank: float
    delta_mean: float
    delta_largest: float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Aligned:
    """A layout of real transcripts.

    Attributes:
        layout: The distances.
        heads: For each request its heads, one a run.
        own: int64 [P], the position in the subject's arrays; -1 where the subject has emitted no such token.
        subject: Agreement of the subject with the baseline's runs.
        floor: Agreement of the baseline's runs with each other.
    """

    layout: Layout
    heads: tuple[tuple[RequestHead, ...], ...]
    own: Indices
    subject: Agreement
    floor: Agreement


def align(runs: Sequence[RunTable], request_ids: Sequence[str]) -> Aligned:
    """Compares all pairs of runs at every position where the tokens before it are equal.

    The position at which two runs choose different tokens is still comparable: what was chosen there shows
    only in the next position's prefix.

    Args:
        runs: At least three runs; the subject last.
        request_ids: Requests that every run answered completely.

    Returns:
        The comparison, requests in the given order.
    """
    by_id = [{head.request_id: head for head in run.heads} for run in runs]
    heads = tuple(tuple(known[request_id] for known in by_id) for request_id in request_ids)
    pairs = tuple(combinations(range(len(runs)), 2))
    shared = np.array([[_shared(runs, group, pair) for group in heads] for pair in pairs], dtype=np.int64)
    shared = shared.reshape(len(pairs), len(heads))
    lengths = shared.max(axis=0)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    distances = np.full((int(starts[-1]), len(pairs)), np.nan)
    agreements: dict[Pair, Agreement] = {}
    for column, (left, right) in enumerate(pairs):
        a, b = runs[left], runs[right]
        i = _ranges([group[left].start for group in heads], shared[column])
        j = _ranges([group[right].start for group in heads], shared[column])
        distances[_ranges(starts[:-1], shared[column]), column] = symmetric_kld(
            a.top_ids, a.top_logprobs, b.top_ids, b.top_logprobs, rows=(i, j)
        )
        agreements[left, right] = _agreement(a, i, b, j)
    layout = Layout(
        runs=len(runs),
        starts=starts,
        pairs=pairs,
        distances=distances,
        scenarios=np.array([group[-1].scenario for group in heads], dtype=str),
        asked=np.array([group[-1].max_tokens for group in heads], dtype=np.int64),
    )
    last = len(runs) - 1
    return Aligned(
        layout=layout,
        heads=heads,
        own=_own(heads, starts),
        subject=_mean([item for pair, item in agreements.items() if last in pair]),
        floor=_mean([item for pair, item in agreements.items() if last not in pair]),
    )


def _shared(runs: Sequence[RunTable], group: tuple[RequestHead, ...], pair: Pair) -> int:
    left, right = pair
    a = runs[left].token_ids[group[left].positions]
    b = runs[right].token_ids[group[right].positions]
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) + 1 if len(differ) else length


def _ranges(starts: Sequence[int] | Indices, counts: Indices) -> Indices:
    """Concatenation of ``start .. start + count - 1``: int64."""
    ends = np.cumsum(counts)
    return np.repeat(np.asarray(starts, dtype=np.int64) - (ends - counts), counts) + np.arange(
        int(counts.sum())
    )


def _own(heads: Sequence[tuple[RequestHead, ...]], starts: Indices) -> Indices:
    own = np.full(int(starts[-1]), -1, dtype=np.int64)
    for number, group in enumerate(heads):
        length = min(group[-1].length, int(starts[number + 1] - starts[number]))
        own[starts[number] : starts[number] + length] = group[-1].start + np.arange(length)
    return own


def _agreement(a: RunTable, i: Indices, b: RunTable, j: Indices) -> Agreement:
    """Figures at positions `i` of one run and `j` of the other; at a split the emitted tokens differ."""
    same = a.token_ids[i] == b.token_ids[j]
    delta = np.abs(a.logprobs[i].astype(np.float64) - b.logprobs[j])[same]
    delta = delta[np.isfinite(delta)]
    if not len(i) or not a.top_ids.shape[1] or not b.top_ids.shape[1]:
        return Agreement(same_top=0.0, same_rank=0.0, delta_mean=0.0, delta_largest=0.0)
    ranks = [_rank(run, at)[same] for run, at in ((a, i), (b, j))]
    return Agreement(
        same_top=float((a.top_ids[i, 0] == b.top_ids[j, 0]).mean()),
        same_rank=float((ranks[0] == ranks[1]).mean()) if same.any() else 0.0,
        delta_mean=float(delta.mean()) if len(delta) else 0.0,
        delta_largest=float(delta.max()) if len(delta) else 0.0,
    )


def _rank(run: RunTable, at: Indices) -> Indices:
    """Rank of the emitted token among the listed ones, 0 is best; the list's width where it is not listed."""
    rank = np.full(len(at), run.top_ids.shape[1], dtype=np.int64)
    for column in range(run.top_ids.shape[1] - 1, -1, -1):
        rank[run.top_ids[at, column] == run.token_ids[at]] = column
    return rank


def _mean(items: Sequence[Agreement]) -> Agreement:
    return Agreement(
        same_top=float(np.mean([item.same_top for item in items])),
        same_rank=float(np.mean([item.same_rank for item in items])),
        delta_mean=float(np.mean([item.delta_mean for item in items])),
        delta_largest=max(item.delta_largest for item in items),
    )
