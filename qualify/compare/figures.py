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
    """Divergences of one set of positions, in nats.

    Attributes:
        positions: How many were compared.
        differ: How many are not exactly equal.
        mean: Their mean.
        p99: Their 99th percentile.
        largest: The largest.
        same_top: Share of positions at which both runs find the same token most probable.
    """

    positions: int
    differ: int
    mean: float
    p99: float
    largest: float
    same_top: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One rule's outcome for one subject.

    Attributes:
        rule: ``exact``, ``shift``, ``tail`` or ``ceiling``.
        scope: ``run`` or the name of a scenario.
        hits: What the rule counted against the subject.
        of: Out of how many.
        p: Probability of that by chance; None where the rule is not a test.
        limit: What `p` must not exceed, or the ceiling in nats.
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
class ArmComparison:
    """One arm against the baseline.

    Attributes:
        arm: ``candidate`` or ``control``.
        decode: ``free`` or ``forced``.
        requests: Requests compared.
        spread: Divergence from the nearest baseline run.
        evidence: What each rule found, in the order in which they were asked.
        rows: Rows of the decode batch that were hit, sorted.
        rows_recorded: False where rows were estimated from the sending order.
        margin: How many times weaker the difference could have been and still be found; None where nothing
            was found or where the floor is exactly zero and any difference is found.
    """

    arm: str
    decode: str
    requests: int
    spread: Spread
    evidence: tuple[Evidence, ...]
    rows: tuple[int, ...]
    rows_recorded: bool
    margin: float | None


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
