"""The receipt: the short statement made from a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from qualify.evidence.bundle import RunState
from qualify.evidence.digests import sha256_value
from qualify.findings import Verdict, Weight
from qualify.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What somebody who publishes needs to know of a run.

    Attributes:
        format: Version of this format.
        verdict: qualified, rejected or inconclusive.
        release: Name of the release.
        subject: Digest that the verdict is bound to, or ``unbound``.
        scope: What the verdict covers.
        date: When the run began (UTC).
        status: Whether the run came to its end.
        plan_id: SHA-256 of the plan.
        policy_sha256: Digest of the policy that judged.
        verdict_sha256: Digest of ``verdict.json``.
        reasons: Sentences that decided.
        defects: Summaries of the findings that count against the release.
        limitations: What was not covered.
        adopted: (arm, bundle) of evidence that was taken from an earlier run with the same inputs.
    """

    format: str
    verdict: str
    release: str
    subject: str
    scope: dict[str, str]
    date: str
    status: str
    plan_id: str
    policy_sha256: str
    verdict_sha256: str
    reasons: tuple[str, ...]
    defects: tuple[str, ...]
    limitations: tuple[str, ...]
    adopted: tuple[tuple[str, str], ...]


def make_receipt(plan: Plan, state: RunState, verdict: Verdict) -> Receipt:
    """Makes the receipt of a run.

    Args:
        plan: What was run.
        state: How the run ended.
        verdict: What follows from it.

    Returns:
        The receipt; all of it is derived, none of it is written by hand.
    """
    return Receipt(
        format="qualify/receipt/1",
        verdict=verdict.result,
        release=verdict.release,
        subject=verdict.subject,
        scope=dict(verdict.scope),
        date=state.date,
        status=state.status,
        plan_id=plan.plan_id,
        policy_sha256=verdict.policy_sha256,
        verdict_sha256=sha256_value(verdict),
        reasons=verdict.reasons,
        defects=tuple(finding.summary for finding in verdict.findings if finding.weight is Weight.DEFECT),
        limitations=verdict.limitations,
        adopted=state.adopted,
    )
