"""Is the subject the odd one out? Exact tests that need no model of the noise.

If candidate and baseline are equally right, their runs are exchangeable: for each request, whichever of the
B baseline runs and the one subject run lies farthest from all others is the subject with probability
1 / (B + 1), whatever the noise looks like and however it differs between requests. A fault makes the
subject the odd one out more often than that. (Exchangeability is the ground of all permutation tests: Fisher,
*The Design of Experiments*, 1935; Pitman, 1937. One-sided, since a fault can only move a run away.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

Scores = npt.NDArray[np.float64]

FEWEST = 4
"""Extreme units looked at first: fewer are no evidence with any usual number of baseline runs."""


@dataclass(frozen=True, slots=True)
class OddOneOut:
    """Outcome of one test.

    Attributes:
        odd: Units in which the subject is the odd one out.
        decided: Units in which exactly one run is the odd one out.
        p: Probability of at least `odd` of `decided` by chance, for a subject that is as right as the others.
    """

    odd: int
    decided: int
    p: float


def _binomial(odd: int, decided: int, runs: int) -> OddOneOut:
    return OddOneOut(odd, decided, float(special.bdtrc(odd - 1, decided, 1.0 / runs)) if odd else 1.0)


def shift_test(scores: Scores) -> OddOneOut:
    """Sign test: counts the units in which the subject lies farther from the others than any other run.

    Strong against faults that touch many units a little.

    Args:
        scores: float64 [U, R], distance of each run from the others; the subject last. Units with NaN decide
            nothing.
    """
    known = scores[~np.isnan(scores).any(axis=1)]
    best = known.max(axis=1, initial=0.0)
    alone = (best > 0) & ((known == best[:, None]).sum(axis=1) == 1)
    return _binomial(int((alone & (known[:, -1] == best)).sum()), int(alone.sum()), scores.shape[1])


def tail_test(scores: Scores) -> OddOneOut:
    """The same for the most extreme units only: strong against faults that touch few units a lot.

    Takes the k largest scores of all runs together for k = 4, 8, 16, ... up to the number of units that
    are not exactly equal in all runs; the threshold is thereby blind to which run is the subject. Counts the
    units where exactly one run is among them. The smallest p is multiplied by the number of thresholds tried.

    Args:
        scores: float64 [U, R], distance of each run to the nearest other run; the subject last.
    """
    differing = int((scores > 0).any(axis=1).sum())
    pooled = np.sort(scores[scores > 0])[::-1]
    tests = []
    k = FEWEST
    while k <= differing and k < len(pooled):
        beyond = scores > pooled[k]
        alone = beyond.sum(axis=1) == 1
        tests.append(_binomial(int((alone & beyond[:, -1]).sum()), int(alone.sum()), scores.shape[1]))
        k *= 2
    if not tests:
        return OddOneOut(0, 0, 1.0)
    best = min(tests, key=lambda test: (test.p, test.decided))
    return OddOneOut(best.odd, best.decided, min(1.0, best.p * len(tests)))
