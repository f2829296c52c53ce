"""The rules that decide whether an arm differs from the baseline, and how they share the run's error rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qualify.compare.exchange import shift_test, tail_test
from qualify.compare.extremes import extreme_test
from qualify.compare.figures import Evidence, rounded
from qualify.compare.summary import Summary
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
        negligible: Excess of the mean, in nats, below which a difference does not matter.
    """

    test: float
    ceiling: float
    negligible: float


def run_limits(policy: DecisionPolicy) -> Limits:
    """Limits of the tests over all requests of a run."""
    test = policy.false_rejection * RUN_SHARE / RUN_TESTS
    return Limits(test, policy.ceiling_kld, policy.negligible_kld)


def scenario_limits(policy: DecisionPolicy) -> Limits:
    """Limits for catching the control in one scenario: no other test shares the error rate there."""
    return Limits(policy.false_rejection / RUN_TESTS, policy.ceiling_kld, policy.negligible_kld)


def stratum_limits(policy: DecisionPolicy, strata: int) -> Limits:
    """Limits of the tests within one of so many strata."""
    test = policy.false_rejection * STRATA_SHARE / (STRATUM_TESTS * max(strata, 1))
    return Limits(test, policy.ceiling_kld, policy.negligible_kld)


def weigh(summary: Summary, scope: str, limits: Limits) -> tuple[Evidence, ...]:
    """Asks every rule about all requests of a run or scenario.

    Args:
        summary: The run beside the baseline's.
        scope: `RUN`, or the scenario that was summarised.
        limits: Error rate and ceiling.
    """
    asked = (exact_rule, shift_rule, tail_rule, extreme_rule, ceiling_rule)
    return tuple(rule(summary, scope, limits) for rule in asked)


def weigh_strata(strata: Mapping[str, Summary], policy: DecisionPolicy) -> tuple[Evidence, ...]:
    """Asks the exact tests within each stratum; the error rate is shared by them all.

    Args:
        strata: Summary of each stratum and scenario, by name.
        policy: Error rate and ceiling.
    """
    limits = stratum_limits(policy, len(strata))
    return tuple(rule(strata[name], name, limits) for name in strata for rule in (shift_rule, tail_rule))


def exact_rule(summary: Summary, scope: str, limits: Limits) -> Evidence:
    """Where the baseline's runs are identical everywhere, any difference is a finding."""
    hits = int((summary.beyond > 0).sum()) if summary.exact else 0
    return Evidence(
        rule="exact", scope=scope, hits=hits, of=summary.requests, p=None, limit=0.0, fired=hits > 0
    )


def shift_rule(summary: Summary, scope: str, limits: Limits) -> Evidence:
    """Many requests a little farther away than the baseline's runs are from each other."""
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
    """The most extreme requests of all runs are the subject's."""
    test = tail_test(summary.peak)
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
    """Several requests go far beyond everything that the floor shows."""
    test = extreme_test(summary.tail, summary.beyond, summary.watched, summary.floor_watched)
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
    """A request is beyond the ceiling. Void where the baseline's own runs are beyond it."""
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
