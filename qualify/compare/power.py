"""How weak a fault could have been and still be found."""

from __future__ import annotations

from collections.abc import Callable

from scipy import special

from qualify.compare.figures import Power, rounded
from qualify.compare.rules import RUN, Limits, Sections, ask, run_limits, shift_rule, weigh
from qualify.compare.summary import Summary
from qualify.policy import DecisionPolicy

MARGIN_LIMIT = 1e6
CLEAR_FAULT = 1e3
"""Nats: far beyond any floor; what counts is only how many requests are hit."""

ASSURED = 0.95


def margin(sections: Sections, policy: DecisionPolicy) -> float | None:
    """How many times weaker the difference could have been and still be found.

    Args:
        sections: The candidate beside the baseline; the rules are asked again with it ever nearer.
        policy: Gives the limits.

    Returns:
        The factor, to three digits; None where nothing is found at full strength, or where the floor is
        exactly zero, so that a difference of any size is found.
    """
    limits = run_limits(policy)

    def found(factor: float) -> bool:
        return any(item.fired for item in weigh(sections.whole.weaker(factor), sections.name, limits))

    def found_in_parts(factor: float) -> bool:
        return any(item.fired for item in ask(sections.weaker(factor), policy))

    if sections.whole.exact:
        return None
    for seen in (found, found_in_parts):
        if seen(1.0):
            return float(f"{_largest(seen, 1.0):.3g}")
    return None


def power(summary: Summary, limits: Limits) -> Power:
    """What this run could have seen, had the subject been faulty.

    A clear fault is put into so many requests, and a gentle one into the mean of all of them, until a rule
    speaks: the figures hold for this run's own floor, requests and baseline runs.

    Args:
        summary: A run in which nothing was found.
        limits: Limits of the tests over the whole run.
    """
    needed = _needed(summary, limits)

    def unseen(nats: float) -> bool:
        return not shift_rule(summary.shifted(nats), RUN, limits).fired

    gentle = None
    if not summary.exact and not unseen(CLEAR_FAULT):
        # What was added to this run's own excess, which may hide a fault already.
        gentle = rounded(summary.shifted(_largest(unseen, limits.negligible / 16)).excess)
    return Power(
        requests=summary.requests,
        needed=needed,
        share=rounded(_share(summary.requests, needed)) if needed is not None else None,
        gentle=0.0 if summary.exact else gentle,
    )


def _needed(summary: Summary, limits: Limits) -> int | None:
    """Fewest requests that a clear fault must hit to be found; None where hitting all is not enough."""

    def seen(count: int) -> bool:
        return any(item.fired for item in weigh(summary.struck(count, CLEAR_FAULT), RUN, limits))

    low, high = 0, summary.requests
    if not high or not seen(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high


def _share(requests: int, needed: int) -> float:
    """Smallest share of faulty requests of which at least `needed` of `requests` are hit with 95%."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if special.bdtrc(needed - 1, requests, middle) >= ASSURED:
            high = middle
        else:
            low = middle
    return high


def _largest(holds: Callable[[float], bool], start: float) -> float:
    """Largest value, within 0.5%, up to which `holds` is true; it is taken to be true at `start`."""
    low, high = start, start * 2
    while high < start * MARGIN_LIMIT and holds(high):
        low, high = high, high * 2
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
