"""The receipt: the short statement made from a verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from qualify.evidence.bundle import RunState
from qualify.evidence.digests import sha256_value
from qualify.findings import Result, Verdict, Weight
from qualify.plan import Plan
from qualify.reporting.coverage import Standing, cells_that_are, full_name

RECEIPT = "receipt.json"
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_OPEN = (Weight.DEFECT, Weight.UNTESTED, Weight.WAIVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptFinding:
    """One finding that counts against the release, or would without its waiver.

    Attributes:
        rule: Name of the rule that found it.
        weight: ``defect``, ``untested`` or ``waived``.
        summary: One plain sentence.
        arm: The arm that it is about; null where it is about the run.
        scenario: The scenario; null where it is about the arm or run.
    """

    rule: str
    weight: Weight
    summary: str
    arm: str | None
    scenario: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What somebody who publishes needs to know of a run.

    Attributes:
        format: Version of this format.
        verdict: ``qualified``, ``rejected`` or ``inconclusive``.
        release: Name of the release.
        subject: What the verdict is bound to: ``image@sha256:...``, ``sha256:...`` or ``unbound``.
        scope: What the verdict covers.
        date: When the run began (UTC).
        status: Whether the run came to its end.
        why: Why it did not; empty where it did.
        harness: Version of the harness.
        plan_id: SHA-256 of the plan.
        policy_sha256: SHA-256 of the policy that judged.
        verdict_sha256: SHA-256 of ``verdict.json``.
        reasons: Sentences that decided.
        findings: Findings that count against the release, waived ones too; defects first.
        counts: Number of findings by weight; notes and satisfied requirements too.
        missed: Names of the required cells of the coverage table that were not reached.
        limitations: What was not covered.
        adopted: (arm, bundle) of evidence that was taken from an earlier run with the same inputs.
        evidence_date: When the run began (UTC) that made the oldest evidence; the date where none was taken
            over.
    """

    format: Literal["qualify/receipt/3"]
    verdict: Result
    release: str
    subject: str
    scope: dict[str, str]
    date: str
    status: Literal["complete", "incomplete"]
    why: str
    harness: str
    plan_id: Sha256
    policy_sha256: Sha256
    verdict_sha256: Sha256
    reasons: tuple[str, ...]
    findings: tuple[ReceiptFinding, ...]
    counts: dict[str, int]
    missed: tuple[str, ...]
    limitations: tuple[str, ...]
    adopted: tuple[tuple[str, str], ...]
    evidence_date: str


def make_receipt(plan: Plan, state: RunState, verdict: Verdict) -> Receipt:
    """Makes the receipt of a run.

    Args:
        plan: What was run.
        state: How the run ended.
        verdict: What follows from it.

    Returns:
        The receipt; all of it is derived, none of it is written by hand.
    """
    counted = Counter(finding.weight for finding in verdict.findings)
    return Receipt(
        format="qualify/receipt/3",
        verdict=verdict.result,
        release=verdict.release,
        subject=verdict.subject,
        scope=dict(verdict.scope),
        date=state.date,
        status="complete" if state.status == "complete" else "incomplete",
        why=state.why,
        harness=state.harness,
        plan_id=plan.plan_id,
        policy_sha256=verdict.policy_sha256,
        verdict_sha256=sha256_value(verdict),
        reasons=verdict.reasons,
        findings=tuple(
            ReceiptFinding(
                rule=finding.rule,
                weight=finding.weight,
                summary=finding.summary,
                arm=finding.arm,
                scenario=finding.scenario,
            )
            for finding in verdict.findings
            if finding.weight in _OPEN
        ),
        counts={str(weight): counted[weight] for weight in Weight},
        missed=tuple(full_name(cell) for cell in cells_that_are(verdict, Standing.MISSED)),
        limitations=verdict.limitations,
        adopted=state.adopted,
        evidence_date=state.oldest,
    )
