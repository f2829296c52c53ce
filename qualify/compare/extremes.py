"""Does the subject go far beyond everything that the baseline's runs show among each other?

Counting alone cannot use how far beyond a request lies. This rule does, with two explanations that both have
to fail before it speaks:

- *a long tail*: the floor's tail goes on as a power law (the heaviest kind that extreme-value theory knows;
  Hill, Ann. Statist. 3, 1975), with its exponent at the upper end of what the floor allows;
- *a rare jump*: right servers jump that far now and then, and the baseline's runs happened not to, at
  whatever rate makes this most likely (an unconditional test in the sense of Barnard, Biometrika 34, 1947).

Requests are counted, not positions: a jump may last for the rest of its request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]

TAIL_SHARE = 0.1
"""Share of the floor's positive distances that its tail is taken from: usual for Hill's estimator."""

LEAST_TAIL = 5
"""Fewer tail positions than this say nothing about the tail."""

CONFIDENCE = 0.99
"""Upper confidence limit taken for the tail's exponent; a convention, on the side of right servers."""

STEPS_BEYOND = (2.0, 4.0, 8.0, 16.0)
"""Thresholds tried, in multiples of the largest floor distance. Doubling is a convention; p is multiplied by
their number."""

HEAVIEST = 1.0
"""Tail exponent taken where the floor is too thin to tell its own: from it on a power law has no mean."""

FARTHEST = 1e3
"""Nats; no divergence of listed tokens is larger, whatever a tail's power law says."""

JUMPS = np.geomspace(0.02, 50.0, 60)
"""Rare jumps tried: expected number of them on the subject's side."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Upper tail of the floor: beyond `start` u, P(distance > x) = share * (x / u) ** (-1 / exponent).

    Attributes:
        start: Where it starts, nats.
        share: Share of positions beyond the start.
        exponent: Upper confidence limit of its exponent.
        largest: Largest distance of the floor.
    """

    start: float
    share: float
    exponent: float
    largest: float


@dataclass(frozen=True, slots=True)
class Beyond:
    """Outcome of the rule.

    Attributes:
        hits: Requests of the subject beyond the threshold that decided.
        threshold: That threshold, in nats.
        p: The larger of both explanations' probabilities.
    """

    hits: int
    threshold: float
    p: float


def fit_tail(floor: Floats) -> Tail | None:
    """Fits the upper tail of the floor.

    Args:
        floor: float64 [N], the floor's distances.

    Returns:
        The tail; None where it has too few positions.
    """
    count = int(TAIL_SHARE * int((floor > 0).sum()))
    if count < LEAST_TAIL:
        return None
    top = np.sort(np.partition(floor, len(floor) - count - 1)[-count - 1 :])
    start, beyond = float(top[0]), top[1:]
    hill = float(np.log(beyond / start).mean())
    # 2 k hill / exponent is chi-squared with 2 k degrees of freedom.
    exponent = 2 * count * hill / float(special.chdtri(2 * count, CONFIDENCE))
    return Tail(start, count / len(floor), max(exponent, 1e-9), float(top[-1]))


def extreme_test(tail: Tail | None, largest: Floats, watched: Floats, floor_watched: Floats) -> Beyond:
    """Tests the subject's requests against the floor's extrapolated tail.

    Args:
        tail: Upper tail of the floor; without one nothing is found.
        largest: float64 [U], the subject's largest distance in each request.
        watched: float64 [U], positions times runs whose jump would show as the subject's.
        floor_watched: float64 [U], positions times runs whose jump would show in the floor.
    """
    best = Beyond(0, 0.0, 1.0)
    if tail is None:
        return best
    for factor in STEPS_BEYOND:
        threshold = factor * tail.largest
        hits = int((largest > threshold).sum())
        if not hits:
            break
        expected = float(watched.sum()) * tail.share * float((threshold / tail.start) ** (-1 / tail.exponent))
        # Several thresholds are several chances for a long tail; a jump's best chance is the lowest one.
        long_tail = float(special.pdtrc(hits - 1, expected)) * len(STEPS_BEYOND)
        p = min(1.0, max(long_tail, rare_jump(hits, watched, floor_watched)))
        if p < best.p:
            best = Beyond(hits, threshold, p)
    return best


def reach(tail: Tail | None, largest: float, positions: int, watched: Floats, limit: float) -> float:
    """How far right runs go at most, if the floor's tail goes on as a power law.

    Where the floor is too thin for a tail of its own, its largest distance is taken for one in so many
    positions, and `HEAVIEST` for the exponent.

    Args:
        tail: Upper tail of the floor; None where it is too thin.
        largest: Largest distance of the floor, nats; more than 0.
        positions: Positions that the floor was measured at.
        watched: float64 [U], positions times runs that are looked at.
        limit: Probability that any of them lies farther away.

    Returns:
        Nats.
    """
    if tail is None:
        tail = Tail(largest, 1 / positions, HEAVIEST, largest)
    expected = float(watched.sum()) * tail.share
    if not expected:
        return largest
    growth = tail.exponent * math.log(expected / limit)
    return min(max(largest, tail.start * math.exp(min(growth, 100.0))), max(largest, FARTHEST))


def rare_jump(hits: int, watched: Floats, floor_watched: Floats) -> float:
    """Largest probability, over all rates, that the floor shows no jump and the subject at least `hits`.

    A request counts once, however many jumps it has. The number of requests with a jump is a sum of
    independent events with different chances; beyond its mean plus one, equal chances of the same mean give
    the largest upper tail (Hoeffding, Ann. Math. Statist. 27, 1956). Below it, 1 is taken. A single one is
    exact.

    Args:
        hits: Requests of the subject with a jump.
        watched: float64 [U], exposure of each request on the subject's side.
        floor_watched: float64 [U], on the floor's side.
    """
    rates = JUMPS / float(watched.sum())
    silent = np.exp(-rates * float(floor_watched.sum()))
    chance = (1 - np.exp(-rates[:, None] * watched[None, :])).mean(axis=1)
    tail = special.bdtrc(hits - 1, len(watched), chance)
    bound = np.where(hits >= chance * len(watched) + 1, tail, 1.0)
    if hits == 1:
        bound = 1 - np.exp(-rates * float(watched.sum()))
    return float((silent * bound).max())
