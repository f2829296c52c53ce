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


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """Requests that all R runs answered, and how far apart the runs are at each of their positions.

    Positions are laid out request after request; a request has as many as its longest comparable pair.

    Attributes:
        heads: For each of the U requests its heads, one a run.
        starts: int64 [U + 1], first position of each request.
        distances: float64 [P, R, R], symmetric, nats; NaN where that pair cannot be compared any more because
            its tokens have split before, or where a value is not finite.
        same_top: float64 [R, R], share of a pair's positions at which both find the same token most probable.
    """

    heads: tuple[tuple[RequestHead, ...], ...]
    starts: Indices
    distances: Distances
    same_top: Distances


def align(runs: Sequence[RunTable], request_ids: Sequence[str]) -> Aligned:
    """Compares all pairs of runs at every position where the tokens before it are equal.

    The position at which two runs choose different tokens is still comparable: what was chosen there shows
    only in the next position's prefix.

    Args:
        runs: R runs; the subject last.
        request_ids: Requests that every run answered completely.

    Returns:
        The comparison, requests in the given order.
    """
    by_id = [{head.request_id: head for head in run.heads} for run in runs]
    heads = tuple(tuple(known[request_id] for known in by_id) for request_id in request_ids)
    pairs = combinations(range(len(runs)), 2)
    shared = {pair: [_shared(runs, group, pair) for group in heads] for pair in pairs}
    lengths = np.max(np.array(list(shared.values()), dtype=np.int64).reshape(len(shared), len(heads)), axis=0)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    distances = np.full((int(starts[-1]), len(runs), len(runs)), np.nan)
    same_top = np.zeros((len(runs), len(runs)))
    for (left, right), counts in shared.items():
        at = _ranges(starts[:-1], counts)
        i = _ranges([group[left].start for group in heads], counts)
        j = _ranges([group[right].start for group in heads], counts)
        a, b = runs[left], runs[right]
        apart = symmetric_kld(a.top_ids[i], a.top_logprobs[i], b.top_ids[j], b.top_logprobs[j])
        distances[at, left, right] = distances[at, right, left] = apart
        if len(at):
            same = float((a.top_ids[i, 0] == b.top_ids[j, 0]).mean())
            same_top[left, right] = same_top[right, left] = same
    return Aligned(heads=heads, starts=starts, distances=distances, same_top=same_top)


def _shared(runs: Sequence[RunTable], group: tuple[RequestHead, ...], pair: tuple[int, int]) -> int:
    left, right = pair
    a = runs[left].token_ids[group[left].positions]
    b = runs[right].token_ids[group[right].positions]
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) + 1 if len(differ) else length


def _ranges(starts: Sequence[int] | Indices, counts: Sequence[int]) -> Indices:
    """Concatenation of ``start .. start + count - 1``: int64."""
    sizes = np.asarray(counts, dtype=np.int64)
    ends = np.cumsum(sizes)
    return np.repeat(np.asarray(starts, dtype=np.int64) - (ends - sizes), sizes) + np.arange(int(sizes.sum()))


def per_request(aligned: Aligned) -> tuple[Distances, Distances]:
    """Mean and largest distance of each pair of runs over the positions that the pair shares.

    Returns:
        Two float64 [U, R, R], NaN where a request has no finite position.
    """
    shape = aligned.distances.shape[1:]
    mean = np.full((len(aligned.heads), *shape), np.nan)
    largest = mean.copy()
    if not len(aligned.distances):
        return mean, largest
    known = ~np.isnan(aligned.distances)
    values = np.where(known, aligned.distances, 0.0)
    counts = np.add.reduceat(known, aligned.starts[:-1], axis=0)
    total = np.add.reduceat(values, aligned.starts[:-1], axis=0)
    np.divide(total, counts, out=mean, where=counts > 0)
    peak = np.maximum.reduceat(values, aligned.starts[:-1], axis=0)
    largest[counts > 0] = peak[counts > 0]
    return mean, largest
