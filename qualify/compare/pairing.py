"""Which positions of several runs may be compared: same request, same tokens before the position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from qualify.compare.divergence import Distances, symmetric_kld
from qualify.compare.inspect import equal_tokens, ranges
from qualify.runtable import RequestHead, RunTable

Indices = npt.NDArray[np.int64]
Pair = tuple[int, int]
Ranks = npt.NDArray[np.uint8]


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
        """Columns of `distances` that compare a run with any other.

        Args:
            run: Index of the run; the subject is the last.
        """
        return [column for column, pair in enumerate(self.pairs) if run in pair]

    @property
    def floor_columns(self) -> list[int]:
        """Columns that compare two runs of the baseline."""
        return [column for column, pair in enumerate(self.pairs) if self.runs - 1 not in pair]

    @property
    def floor(self) -> Distances:
        """float64 [P], largest distance between two baseline runs; NaN where none is comparable."""
        return np.asarray(np.fmax.reduce(self.distances[:, self.floor_columns], axis=1))

    def part(self, mask: npt.NDArray[np.bool_]) -> Layout:
        """The same with some positions only; requests without any are left out.

        Args:
            mask: bool [P], positions to keep.
        """
        if mask.all():
            return self
        kept = (
            np.add.reduceat(mask, self.starts[:-1], dtype=np.int64)
            if len(self.starts) > 1
            else self.starts[1:]
        )
        some = kept > 0
        return replace(
            self,
            starts=np.concatenate([[0], np.cumsum(kept[some])]),
            distances=self.distances[mask],
            scenarios=self.scenarios[some],
            asked=self.asked[some],
        )

    def nearest(self, run: int) -> Distances:
        """float64 [P], distance of a run to the nearest other run; NaN where none is comparable.

        The nearest and not the mean: one run that went astray must not make all others look far away.

        Args:
            run: Index of the run; the subject is the last.
        """
        first, *others = self.columns(run)
        nearest = self.distances[:, first].copy()
        for column in others:
            np.fmin(nearest, self.distances[:, column], out=nearest)
        return nearest


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
        own: int32 [P], the position in the subject's arrays; -1 where the subject has emitted no such token.
        subject: Agreement of the subject with the baseline's runs.
        floor: Agreement of the baseline's runs with each other.
    """

    layout: Layout
    heads: tuple[tuple[RequestHead, ...], ...]
    own: npt.NDArray[np.int32]
    subject: Agreement
    floor: Agreement


def align(runs: Sequence[RunTable], request_ids: Sequence[str], earlier: Aligned | None = None) -> Aligned:
    """Compares all pairs of runs at every position where the tokens before it are equal.

    The position at which two runs choose different tokens is still comparable: what was chosen there shows
    only in the next position's prefix.

    Args:
        runs: At least three runs; the subject last.
        request_ids: Requests that every run answered completely.
        earlier: The same baseline runs beside another subject; the floor is taken from it where it is the
            same.

    Returns:
        The comparison, requests in the given order.
    """
    by_id = [{head.request_id: head for head in run.heads} for run in runs]
    heads = tuple(tuple(known[request_id] for known in by_id) for request_id in request_ids)
    pairs = tuple(combinations(range(len(runs)), 2))
    shared = np.stack([_shared(runs, heads, pair) for pair in pairs])
    starts = np.concatenate([[0], np.cumsum(shared.max(axis=0))])
    floor = earlier if earlier is not None and _same_floor(earlier, heads, starts) else None
    distances, agreements = _distances(runs, heads, pairs, shared, floor)
    last = len(runs) - 1
    theirs = [item for pair, item in agreements.items() if last not in pair]
    return Aligned(
        layout=Layout(
            runs=len(runs),
            starts=starts,
            pairs=pairs,
            distances=distances,
            scenarios=np.array([group[-1].scenario for group in heads], dtype=str),
            asked=np.array([group[-1].max_tokens for group in heads], dtype=np.int64),
        ),
        heads=heads,
        own=_own(heads, starts),
        subject=_mean([item for pair, item in agreements.items() if last in pair]),
        floor=floor.floor if floor else _mean(theirs),
    )


def _distances(
    runs: Sequence[RunTable],
    heads: Sequence[tuple[RequestHead, ...]],
    pairs: Sequence[Pair],
    shared: Indices,
    floor: Aligned | None,
) -> tuple[Distances, dict[Pair, Agreement]]:
    """Distances of all pairs, [P, R (R - 1) / 2], and agreements of those that `floor` does not have."""
    starts = np.concatenate([[0], np.cumsum(shared.max(axis=0))])
    distances = np.full((int(starts[-1]), len(pairs)), np.nan)
    ranks = [_ranks(run) for run in runs]
    agreements: dict[Pair, Agreement] = {}
    for column, (left, right) in enumerate(pairs):
        if floor is not None and right < len(runs) - 1:
            distances[:, column] = floor.layout.distances[:, column]
            continue
        a, b = runs[left], runs[right]
        i = ranges([group[left].start for group in heads], shared[column])
        j = ranges([group[right].start for group in heads], shared[column])
        distances[ranges(starts[:-1], shared[column]), column] = symmetric_kld(
            a.top_ids, a.top_logprobs, b.top_ids, b.top_logprobs, rows=(i, j)
        )
        agreements[left, right] = _agreement((a, b), (i, j), (ranks[left], ranks[right]))
    return distances, agreements


def _same_floor(earlier: Aligned, heads: Sequence[tuple[RequestHead, ...]], starts: Indices) -> bool:
    """True where the baseline's answers of both alignments are the same and lie at the same places."""
    mine, theirs = [group[:-1] for group in heads], [group[:-1] for group in earlier.heads]
    return mine == theirs and np.array_equal(starts, earlier.layout.starts)


def _shared(runs: Sequence[RunTable], heads: Sequence[tuple[RequestHead, ...]], pair: Pair) -> Indices:
    """Positions of each request that two runs share: those with equal tokens before them."""
    left, right = pair
    mine, theirs = [group[left] for group in heads], [group[right] for group in heads]
    equal = equal_tokens(runs[left], mine, runs[right], theirs)
    shorter = [min(a.length, b.length) for a, b in zip(mine, theirs, strict=True)]
    return np.minimum(equal + 1, np.array(shorter, dtype=np.int64))


def _own(heads: Sequence[tuple[RequestHead, ...]], starts: Indices) -> npt.NDArray[np.int32]:
    own = np.full(int(starts[-1]), -1, dtype=np.int32)
    for number, group in enumerate(heads):
        length = min(group[-1].length, int(starts[number + 1] - starts[number]))
        own[starts[number] : starts[number] + length] = group[-1].start + np.arange(length)
    return own


def _agreement(
    runs: tuple[RunTable, RunTable], at: tuple[Indices, Indices], ranks: tuple[Ranks, Ranks]
) -> Agreement:
    """Figures at positions `at` of both runs; at a split the emitted tokens differ."""
    (a, b), (i, j) = runs, at
    if not len(i) or not a.top_ids.shape[1] or not b.top_ids.shape[1]:
        return Agreement(same_top=0.0, same_rank=0.0, delta_mean=0.0, delta_largest=0.0)
    same = a.token_ids[i] == b.token_ids[j]
    delta = np.abs(a.logprobs[i] - b.logprobs[j])[same]
    delta = delta[np.isfinite(delta)]
    return Agreement(
        same_top=float((a.top_ids[i, 0] == b.top_ids[j, 0]).mean()),
        same_rank=float((ranks[0][i] == ranks[1][j])[same].mean()) if same.any() else 0.0,
        delta_mean=float(delta.mean(dtype=np.float64)) if len(delta) else 0.0,
        delta_largest=float(delta.max()) if len(delta) else 0.0,
    )


def _ranks(run: RunTable) -> Ranks:
    """Rank of each emitted token among the listed ones, 0 is best; 255 where it is not listed."""
    ranks = np.zeros(len(run.token_ids), dtype=np.uint8)
    if run.top_ids.shape[1]:
        searched = np.flatnonzero(run.top_ids[:, 0] != run.token_ids)
        match = run.top_ids[searched] == run.token_ids[searched][:, None]
        ranks[searched] = np.where(match.any(axis=1), match.argmax(axis=1), 255)
    return ranks


def _mean(items: Sequence[Agreement]) -> Agreement:
    return Agreement(
        same_top=float(np.mean([item.same_top for item in items])),
        same_rank=float(np.mean([item.same_rank for item in items])),
        delta_mean=float(np.mean([item.delta_mean for item in items])),
        delta_largest=max(item.delta_largest for item in items),
    )
