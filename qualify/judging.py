"""From evidence to a verdict: of a bundle, or of transcripts that were made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qualify.evidence.bundle import MANIFEST, Bundle, verify
from qualify.evidence.recording import read_policy, read_policy_file, read_record
from qualify.findings import Verdict
from qualify.foreign.importing import read_foreign
from qualify.gate import judge
from qualify.policy import Policy
from qualify.record import RunRecord


@dataclass(frozen=True, slots=True)
class JudgedBundle:
    """A bundle's evidence, what it was judged by, and the verdict.

    Attributes:
        record: The evidence.
        policy: The policy.
        verdict: The verdict.
    """

    record: RunRecord
    policy: Policy
    verdict: Verdict


def judge_bundle(bundle: Bundle, policy_file: Path | None = None) -> Verdict:
    """Judges a bundle; needs nothing but the bundle.

    Args:
        bundle: A bundle, complete or not.
        policy_file: Used instead of the bundle's own policy.

    Returns:
        The verdict: the same for the same bundle and policy, byte for byte in its canonical JSON.

    Raises:
        EvidenceError: The bundle is damaged.
        UsageError: The policy is wrong.
    """
    return judge_evidence(bundle, policy_file).verdict


def judge_evidence(bundle: Bundle, policy_file: Path | None = None) -> JudgedBundle:
    """Judges a bundle as `judge_bundle` does, and gives the evidence with the verdict.

    Args:
        bundle: A bundle, complete or not.
        policy_file: Used instead of the bundle's own policy.

    Returns:
        Evidence, policy and verdict.

    Raises:
        EvidenceError: The bundle is damaged.
        UsageError: The policy is wrong.
    """
    if (bundle.root / MANIFEST).exists():
        verify(bundle)
    policy, digest = read_policy(bundle, policy_file)
    record = read_record(bundle)
    return JudgedBundle(record, policy, judge(record, policy, digest))


def judge_foreign(
    baseline: Sequence[Path],
    candidate: Sequence[Path],
    control: Sequence[Path],
    *,
    run_date: str,
    policy_file: Path | None = None,
) -> Verdict:
    """Judges transcripts that were made elsewhere.

    Args:
        baseline: Files of the baseline's runs.
        candidate: Files of the candidate's run.
        control: Files of the control's run; none leaves the verdict at best inconclusive.
        run_date: ISO date that waivers' expiry is compared with.
        policy_file: The policy; None takes the defaults of the format.

    Returns:
        The verdict.

    Raises:
        UsageError: A file is not what it should be, or the policy is wrong.
    """
    policy, digest = read_policy_file(policy_file)
    return judge(read_foreign(baseline, candidate, control, run_date=run_date), policy, digest)
