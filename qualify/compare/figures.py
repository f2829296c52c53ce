"""Figures of a comparison, as the verdict gives them. Rounded: a verdict must not depend on the last bit."""

from __future__ import annotations

import math
from dataclasses import dataclass

SIGNIFICANT_DIGITS = 6


def rounded(value: float) -> float:
    """The value with `SIGNIFICANT_DIGITS` significant digits; a verdict holds no NaN and no infinity.

    Raises:
        ValueError: The value is not finite.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot stand in a verdict")
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far runs are apart over one set of positions.

    Attributes:
        positions: How many were compared.
        differ: At how many the distributions are not exactly equal.
        mean: Mean Kullback-Leibler divergence, nats.
        p99: Its 99th percentile.
        largest: The largest.
        same_top: Share of positions at which both runs find the same token most probable.
        same_rank: Share of positions at which the emitted token has the same rank in both.
        delta_mean: Mean |difference of the emitted token's log probability|, nats.
        delta_largest: The largest of these.
    """

    positions: int
    differ: int
    mean: float
    p99: float
    largest: float
    same_top: float
    same_rank: float
    delta_mean: float
    delta_largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One rule's outcome for one subject.

    Attributes:
        rule: ``exact``, ``shift``, ``tail``, ``extreme`` or ``ceiling``.
        scope: ``run``, the name of a stratum, or ``scenario`` and its name.
        hits: What the rule counted against the subject.
        of: Out of how many.
        p: Probability of that by chance; None where the rule is not a test.
        limit: What `p` must not exceed; of ``ceiling`` and ``exact``, nats beyond which a request counts.
        fired: True where the rule found a difference.
    """

    rule: str
    scope: str
    hits: int
    of: int
    p: float | None
    limit: float
    fired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What a run without a finding could have seen.

    Attributes:
        requests: Requests compared.
        needed: Fewest requests that a clear fault must hit to be found; None where none is enough.
        share: Smallest share of faulty requests that would have been found with 95%; None where none would.
        gentle: Smallest excess of every request's mean that would have been found, nats; 0 where any
            difference is; None where none would.
    """

    requests: int
    needed: int | None
    share: float | None
    gentle: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmComparison:
    """One arm against the baseline.

    Attributes:
        arm: ``candidate`` or ``control``.
        decode: ``free`` or ``forced``.
        requests: Requests compared.
        spread: Divergence from the nearest baseline run.
        excess: By how much its mean exceeds the floor's, nats.
        evidence: What each rule found, in the order in which they were asked.
        rows: Rows of the decode batch that were hit, sorted.
        rows_recorded: False where rows were estimated from the sending order.
        margin: How many times weaker the difference could have been and still be found; None where nothing
            was found or where the floor is exactly zero and any difference is found.
        power: What it could have seen; None where something was found.
    """

    arm: str
    decode: str
    requests: int
    spread: Spread
    excess: float
    evidence: tuple[Evidence, ...]
    rows: tuple[int, ...]
    rows_recorded: bool
    margin: float | None
    power: Power | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All figures of one verdict.

    Attributes:
        floor: Divergence between the baseline's own runs.
        exact: True where the baseline's runs are identical at every position.
        baseline_runs: Runs that the floor comes from.
        arms: Each compared arm, candidate first.
    """

    floor: Spread
    exact: bool
    baseline_runs: int
    arms: tuple[ArmComparison, ...]


QUANTISATIONS = (("Q8_0", 0.00024), ("Q5_K_M", 0.0047), ("Q3_K_S", 0.164))
"""Mean divergence, nats, that quantising one 8B model costs, as llama.cpp's perplexity tool prints it."""


def in_known_units(nats: float) -> str:
    """Places a mean divergence on the scale of llama.cpp's quantisations."""
    names = [name for name, loss in QUANTISATIONS if loss <= nats]
    above = [name for name, loss in QUANTISATIONS if loss > nats]
    if not names:
        return f"less than {QUANTISATIONS[0][0]} costs"
    return f"between {names[-1]} and {above[0]}" if above else f"more than {names[-1]} costs"
