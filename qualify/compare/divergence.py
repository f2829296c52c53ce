"""How far apart two next-token distributions are, from the most probable tokens that each server listed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qualify.runtable import NO_TOKEN, Floats, Tokens

Distances = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

REST_FLOOR = 1e-9
"""Smallest probability given to the tokens that are not listed; rounding alone can make the listed sum 1."""

CHUNK = 1 << 13
"""Positions compared at once: K x K comparisons of ids for each would not fit in memory for a whole run."""


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
    usable = finite(ids, logprobs) & finite(other_ids, other_logprobs)
    result = np.where(usable, 0.0, np.nan)
    same = usable.copy()
    if ids.shape == other_ids.shape:
        # Padding is NaN in both, so equality is asked of what is listed.
        equal = (ids == other_ids) & ((logprobs == other_logprobs) | (ids == NO_TOKEN))
        same &= equal.all(axis=1)
    else:
        same[:] = False
    work = np.flatnonzero(usable & ~same)
    if len(work):
        p, q = logprobs[work].astype(np.float64), other_logprobs[work].astype(np.float64)
        result[work] = _both_ways(ids[work], p, other_ids[work], q)
    return result


def finite(ids: Tokens, logprobs: Floats) -> npt.NDArray[np.bool_]:
    """Positions that list at least one token and only finite log probabilities.

    Args:
        ids: int32 [N, K].
        logprobs: float32 [N, K].

    Returns:
        bool [N].
    """
    listed = ids != NO_TOKEN
    usable: npt.NDArray[np.bool_] = listed.any(axis=1) & (np.isfinite(logprobs) | ~listed).all(axis=1)
    return usable


def _both_ways(ids: Tokens, p: Distances, other_ids: Tokens, q: Distances) -> Distances:
    listed, other_listed = ids != NO_TOKEN, other_ids != NO_TOKEN
    lowest = np.minimum(
        np.where(listed, p, np.inf).min(axis=1), np.where(other_listed, q, np.inf).min(axis=1)
    )
    match = (ids[:, :, None] == other_ids[:, None, :]) & listed[:, :, None]
    q_of_p = _counterpart(match, q, lowest)
    p_of_q = _counterpart(match.transpose(0, 2, 1), p, lowest)
    return 0.5 * (_one_way(listed, p, q_of_p) + _one_way(other_listed, q, p_of_q))


def _counterpart(match: npt.NDArray[np.bool_], values: Distances, lowest: Distances) -> Distances:
    """Log probability that the other run gives each token; where it does not list it, the most it can be."""
    found = match.any(axis=2)
    taken = np.take_along_axis(values, match.argmax(axis=2), axis=1)
    return np.where(found, taken, lowest[:, None])


def _one_way(listed: npt.NDArray[np.bool_], p: Distances, q: Distances) -> Distances:
    """Sums p log(p/q) over the listed tokens, plus the same for one bucket that holds all other tokens."""
    p_mass, q_mass = np.where(listed, np.exp(p), 0.0), np.where(listed, np.exp(q), 0.0)
    inside = np.where(listed, p_mass * (p - q), 0.0).sum(axis=1)
    p_rest = np.maximum(1.0 - p_mass.sum(axis=1), REST_FLOOR)
    q_rest = np.maximum(1.0 - q_mass.sum(axis=1), REST_FLOOR)
    # Rounding can leave a few 1e-17 below zero; a divergence is never negative.
    return np.asarray(np.maximum(inside + p_rest * np.log(p_rest / q_rest), 0.0))
