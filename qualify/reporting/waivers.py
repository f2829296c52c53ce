"""Findings that the policy waives, where the reasons of a verdict do not tell of them."""

from __future__ import annotations

from qualify.findings import Finding, Verdict, Weight


def untold_waivers(verdict: Verdict) -> tuple[Finding, ...]:
    """Waived findings that no reason names: of a verdict that is qualified by them the reasons name all.

    Args:
        verdict: The verdict.
    """
    return tuple(
        finding
        for finding in verdict.findings
        if finding.weight is Weight.WAIVED and not any(finding.summary in said for said in verdict.reasons)
    )
