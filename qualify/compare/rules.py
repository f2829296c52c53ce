"""The rules that decide whether an arm differs from the baseline, and how they share the run's error rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qualify.compare.exchange import shift_test, tail_test
from qualify.compare.extremes import extreme_test, rare_jump, reach
from qualify.compare.figures import Evidence, rounded
from qualify.compare.pairing import Layout
from qualify.compare.summary import Mask, Summary, summarise
from qualify.policy import DecisionPolicy

RUN = "run"

RUN_SHARE, STRATA_SHARE, ORACLE_SHARE = 0.5, 0.25, 0.25
"""Shares of the error rate: tests over the whole run, over its strata and scenarios, of invariants and
answers. The run is the unit of decision; strata and oracles are there for faults that drown in it."""

RUN_TESTS, STRATUM_TESTS = 3, 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What a test's p must not exceed to be believed.

    Attributes:
        test: Limit of each test (Bonferroni: a share of the error rate divided by the number of tests).
        ceiling: Ceiling in nats.
        negligible: Nats below which a difference does not matter, at a position or in the mean.
    """

    test: float
    ceiling: float
    negligible: float


def run_limits(policy: DecisionPolicy) -> Limits:
    """Limits of the tests over all requests of a run or scenario.

    Args:
        policy: The error rate of a whole run is shared out: `RUN_SHARE` of it over `RUN_TESTS` tests.

    Returns:
        The error rate of one test; ceiling and what matters in nats, as the policy has them.
    """
    test = policy.false_rejection * RUN_SHARE / RUN_TESTS
    return Limits(test, policy.ceiling_kld, policy.negligible_kld)


def stratum_limits(policy: DecisionPolicy, strata: int) -> Limits:
    """Limits of the tests within one of so many strata.

    Args:
        policy: `STRATA_SHARE` of the error rate of a whole run is shared out over all strata and their tests.
        strata: How many there are in the run.

    Returns:
        The error rate of one test; ceiling and what matters in nats, as the policy has them.
    """
    test = policy.false_rejection * STRATA_SHARE / (STRATUM_TESTS * max(strata, 1))
    return Limits(test, policy.ceiling_kld, policy.negligible_kld)


@dataclass(frozen=True, slots=True, eq=False)
class Sections:
    """What is judged as one: a run, or one scenario of it.

    Attributes:
        name: `RUN`, or the scenario.
        whole: Summary of all of it.
        parts: Summaries of its strata, by name.
    """

    name: str
    whole: Summary
    parts: Mapping[str, Summary]

    def weaker(self, factor: float) -> Sections:
        """The same with the subject so many times nearer to the baseline.

        Args:
            factor: Its distances are divided by it; the baseline's own stay.
        """
        parts = {name: part.weaker(factor) for name, part in self.parts.items()}
        return Sections(self.name, self.whole.weaker(factor), parts)


def section(
    name: str, layout: Layout, masks: Mapping[str, Mask], run_largest: float | None = None
) -> Sections:
    """Summarises a layout and its strata.

    Args:
        name: `RUN`, or the scenario that the layout is.
        layout: The runs laid beside each other.
        masks: bool [P] for each stratum.
        run_largest: Largest distance of the whole run's floor, where the layout is a part of it.
    """
    parts = {part: summarise(layout.part(mask), run_largest) for part, mask in masks.items() if mask.any()}
    return Sections(name, summarise(layout, run_largest), parts)


def ask(sections: Sections, policy: DecisionPolicy) -> tuple[Evidence, ...]:
    """Asks every rule about the whole, and the exact tests within each stratum.

    Args:
        sections: The run beside the baseline's.
        policy: Error rate and ceiling; the strata share theirs.
    """
    limits = stratum_limits(policy, len(sections.parts))
    within = tuple(
        rule(part, name, limits) for name, part in sections.parts.items() for rule in (shift_rule, tail_rule)
    )
    return weigh(sections.whole, sections.name, run_limits(policy)) + within


def weigh(summary: Summary, scope: str, limits: Limits) -> tuple[Evidence, ...]:
    """Asks every rule about all requests of a run or scenario.

    Args:
        summary: The run beside the baseline's.
        scope: `RUN`, or the scenario that was summarised.
        limits: Error rate and ceiling.

    Returns:
        What each rule says, in a fixed order; one that fired found the subject beyond the noise.
    """
    asked = (exact_rule, shift_rule, tail_rule, extreme_rule, ceiling_rule)
    return tuple(rule(summary, scope, limits) for rule in asked)


def quiet_limit(summary: Summary, limits: Limits) -> float | None:
    """Nats beyond which one position of a request is a finding; None where the floor is noisy.

    A floor is quiet where the baseline's runs are identical, or differ by nothing that matters anywhere.
    Where they are identical any difference counts. Otherwise it must matter, and lie beyond all that this
    noise would reach if its tail went on as a power law, at the error rate of one test: that of `extreme`,
    which says nothing where the floor is quiet.

    Args:
        summary: The run beside the baseline's.
        limits: Error rate of one test, and the nats below which no difference matters.

    Returns:
        Nats; 0 where the baseline's runs are identical.
    """
    if summary.exact:
        return 0.0
    if not summary.floor_positions or summary.floor_largest >= limits.negligible:
        return None
    if summary.floor_largest == 0:
        return limits.negligible
    noise = reach(summary.tail, summary.floor_largest, summary.floor_positions, summary.watched, limits.test)
    return max(limits.negligible, noise)


def exact_rule(summary: Summary, scope: str, limits: Limits) -> Evidence:
    """Where the floor is quiet, a difference beyond it in one request is a finding.

    It takes a server that never differed for one that cannot. The p beside it, which decides nothing, is the
    chance that right servers which differ now and then would show this.

    Args:
        summary: The run, or one scenario of it, beside the baseline's.
        scope: `RUN`, or the scenario that was summarised.
        limits: For where a quiet floor ends (see `quiet_limit`).

    Returns:
        Hits are the requests beyond the limit, which is in nats; 0 hits and no p where the floor is noisy.
    """
    limit = quiet_limit(summary, limits)
    hits = int((summary.beyond > limit).sum()) if limit is not None else 0
    return Evidence(
        rule="exact",
        scope=scope,
        hits=hits,
        of=summary.requests,
        p=rounded(rare_jump(hits, summary.watched, summary.floor_watched)) if hits else None,
        limit=rounded(limit or 0.0),
        fired=hits > 0,
    )


def shift_rule(summary: Summary, scope: str, limits: Limits) -> Evidence:
    """Many requests a little farther away than the baseline's runs are from each other.

    Args:
        summary: The run, or one scenario of it, beside the baseline's.
        scope: `RUN`, or the scenario that was summarised.
        limits: It fires at its error rate of one test, and only where the mean divergence in excess matters.

    Returns:
        Hits are the requests in which the subject is the farthest run, of those that decide.
    """
    test = shift_test(summary.apart)
    return Evidence(
        rule="shift",
        scope=scope,
        hits=test.odd,
        of=test.decided,
        p=rounded(test.p),
        limit=rounded(limits.test),
        fired=test.p <= limits.test and summary.excess >= limits.negligible,
    )


def tail_rule(summary: Summary, scope: str, limits: Limits) -> Evidence:
    """The most extreme requests of all runs are the subject's; what does not matter is taken for equal.

    Args:
        summary: The run, or one scenario of it, beside the baseline's.
        scope: `RUN`, or the scenario that was summarised.
        limits: It fires at its error rate of one test; peaks that do not matter count as 0.

    Returns:
        Hits are the subject's among the requests that decide.
    """
    test = tail_test(np.where(summary.peak < limits.negligible, 0.0, summary.peak))
    return Evidence(
        rule="tail",
        scope=scope,
        hits=test.odd,
        of=test.decided,
        p=rounded(test.p),
        limit=rounded(limits.test),
        fired=test.p <= limits.test,
    )


def extreme_rule(summary: Summary, scope: str, limits: Limits) -> Evidence:
    """Several requests go far beyond everything that a noisy floor shows (see `qualify.compare.extremes`).

    Args:
        summary: The run, or one scenario of it, beside the baseline's.
        scope: `RUN`, or the scenario that was summarised.
        limits: It fires at its error rate of one test; peaks that do not matter count as 0.

    Returns:
        Hits are the requests beyond the threshold that decided.
    """
    matters = np.where(summary.beyond < limits.negligible, 0.0, summary.beyond)
    tail = summary.tail if quiet_limit(summary, limits) is None else None
    test = extreme_test(tail, matters, summary.watched, summary.floor_watched)
    return Evidence(
        rule="extreme",
        scope=scope,
        hits=test.hits,
        of=summary.requests,
        p=rounded(test.p),
        limit=rounded(limits.test),
        fired=test.p <= limits.test,
    )


def ceiling_rule(summary: Summary, scope: str, limits: Limits) -> Evidence:
    """A request is beyond the ceiling. Void where the baseline's own runs are beyond it.

    Args:
        summary: The run, or one scenario of it, beside the baseline's.
        scope: `RUN`, or the scenario that was summarised.
        limits: Its ceiling, nats in the mean of a request's tokens.

    Returns:
        Hits are the requests beyond the ceiling; no p, since no chance is reckoned.
    """
    hits = int((summary.total[:, -1] > limits.ceiling).sum())
    floor = int((summary.total[:, :-1] > limits.ceiling).any(axis=1).sum())
    return Evidence(
        rule="ceiling",
        scope=scope,
        hits=hits,
        of=summary.requests,
        p=None,
        limit=limits.ceiling,
        fired=hits > 0 and floor == 0,
    )
