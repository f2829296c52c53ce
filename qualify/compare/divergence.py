"""How far apart two next-token distributions are, from the most probable tokens that each server listed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qualify.runtable import NO_TOKEN, Floats, Tokens

Distances = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

REST_FLOOR = 1e-9
"""Smallest probability given to the tokens that are not listed; rounding alone can make the listed sum 1."""

ABSENT = -1e9
"""Log probability that stands for a token that is not listed: no mass, and finite."""

CHUNK = 1 << 11
"""Positions compared at once: their temporaries fit into the processor's cache."""


def symmetric_kld(
    ids: Tokens,
    logprobs: Floats,
    other_ids: Tokens,
    other_logprobs: Floats,
    rows: tuple[Rows, Rows] | None = None,
) -> Distances:
    """Mean of the two Kullback-Leibler divergences, position by position.

    Symmetric, so that it does not matter which of two runs is called first. A token that only one run lists
    has in the other at most the lowest listed probability of both; that bound is taken for it. All tokens
    that a list leaves out are one more outcome, the rest bucket.

    Args:
        ids: int32 [N, K], most probable tokens of one run.
        logprobs: float32 [N, K], their natural-log probabilities.
        other_ids: int32 [M, L], those of the other run.
        other_logprobs: float32 [M, L].
        rows: Positions to compare, in the one run and in the other; all of both where left out.

    Returns:
        float64, nats, one a position. Exactly 0 where both lists are equal. NaN where either run lists
        nothing or a value that is not finite.
    """
    left, right = rows if rows is not None else (np.arange(len(ids)), np.arange(len(other_ids)))
    total = np.zeros(len(left))
    for start in range(0, len(left), CHUNK):
        i, j = left[start : start + CHUNK], right[start : start + CHUNK]
        total[start : start + CHUNK] = _chunk(ids[i], logprobs[i], other_ids[j], other_logprobs[j])
    return total


def _chunk(ids: Tokens, logprobs: Floats, other_ids: Tokens, other_logprobs: Floats) -> Distances:
    width = max(ids.shape[1], other_ids.shape[1])
    if not width:
        return np.full(len(ids), np.nan)
    ids, p = _ranked(ids, logprobs, width)
    other_ids, q = _ranked(other_ids, other_logprobs, width)
    usable = (p[0] > ABSENT) & (q[0] > ABSENT) & np.isfinite(p).all(axis=0) & np.isfinite(q).all(axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(usable, _both_ways(ids, p, other_ids, q), np.nan)


def _ranked(ids: Tokens, logprobs: Floats, width: int) -> tuple[Tokens, Distances]:
    """Ids [N, K], and log probabilities rank by rank: [K, N], so that sums over ranks run over whole rows."""
    missing = width - ids.shape[1]
    if missing:
        ids = np.pad(ids, ((0, 0), (0, missing)), constant_values=NO_TOKEN)
        logprobs = np.pad(logprobs, ((0, 0), (0, missing)), constant_values=np.nan)
    ranked = logprobs.T.astype(np.float64, order="C")
    ranked[ids.T == NO_TOKEN] = ABSENT
    return ids, ranked


def lists_any(ids: Tokens) -> npt.NDArray[np.bool_]:
    """Positions that list at least one token.

    Args:
        ids: int32 [N, K].

    Returns:
        bool [N].
    """
    # Tokens are listed from the first column on.
    return ids[:, 0] != NO_TOKEN if ids.shape[1] else np.zeros(len(ids), dtype=bool)


def finite(ids: Tokens, logprobs: Floats) -> npt.NDArray[np.bool_]:
    """Positions whose listed log probabilities, if any, are all finite.

    Args:
        ids: int32 [N, K].
        logprobs: float32 [N, K].

    Returns:
        bool [N].
    """
    usable: npt.NDArray[np.bool_] = (np.isfinite(logprobs) | (ids == NO_TOKEN)).all(axis=1)
    return usable


def _both_ways(ids: Tokens, p: Distances, other_ids: Tokens, q: Distances) -> Distances:
    p_mass, q_mass = np.exp(p), np.exp(q)
    lowest = np.minimum(_lowest(p), _lowest(q))
    matched = _match(ids, other_ids)
    bounds = lowest[matched.row], np.exp(lowest)[matched.row]
    there = _seen_as((q, q_mass), bounds, matched.moved, matched.mine, matched.theirs)
    back = _seen_as((p, p_mass), bounds, matched.moved, matched.theirs, matched.mine)
    return 0.5 * (_one_way(p, p_mass, *there) + _one_way(q, q_mass, *back))


def _lowest(values: Distances) -> Distances:
    return np.asarray(np.where(values > ABSENT, values, np.inf).min(axis=0))


class _Match(NamedTuple):
    """Tokens whose rank differs between two lists, as flat indices into [K, N].

    Attributes:
        row: Position of each such token.
        moved: Where they stand.
        mine: Where those stand that both lists have, in the one list.
        theirs: Where the same ones stand in the other list.
    """

    row: Rows
    moved: Rows
    mine: Rows
    theirs: Rows


def _match(ids: Tokens, other_ids: Tokens) -> _Match:
    """Finds tokens in the other list. Most have the same rank in both; only the rest is searched for."""
    height, width = ids.shape
    at = np.flatnonzero(ids.ravel() != other_ids.ravel())
    row, rank = np.divmod(at, width)
    match = other_ids[row] == ids.ravel()[at][:, None]
    theirs = match.argmax(axis=1)
    found = match.ravel()[np.arange(len(at)) * width + theirs]
    moved = rank * height + row
    return _Match(row, moved, moved[found], (theirs * height + row)[found])


def _seen_as(
    listed: tuple[Distances, Distances],
    bounds: tuple[Distances, Distances],
    moved: Rows,
    mine: Rows,
    theirs: Rows,
) -> tuple[Distances, Distances]:
    """Log probability and probability that a run gives the other's tokens; if not listed, its upper bound."""
    seen = []
    for values, bound in zip(listed, bounds, strict=True):
        there = values.copy()
        flat = there.ravel()
        flat[moved] = bound
        flat[mine] = values.ravel()[theirs]
        seen.append(there)
    return seen[0], seen[1]


def _one_way(p: Distances, p_mass: Distances, q: Distances, q_mass: Distances) -> Distances:
    """Sums p log(p/q) over the listed tokens, plus the same for one bucket that holds all other tokens."""
    listed = p > ABSENT
    inside = (p_mass * (p - q)).sum(axis=0)
    p_rest = np.maximum(1.0 - p_mass.sum(axis=0), REST_FLOOR)
    q_rest = np.maximum(
        1.0 - (q_mass.sum(axis=0) if listed.all() else (q_mass * listed).sum(axis=0)), REST_FLOOR
    )
    # Rounding can leave a few 1e-17 below zero; a divergence is never negative.
    return np.asarray(np.maximum(inside + p_rest * np.log(p_rest / q_rest), 0.0))
