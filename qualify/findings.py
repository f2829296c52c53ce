"""Findings and the verdict: what a run observed and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qualify.compare.figures import Comparison
from qualify.errors import ExitCode
from qualify.transcript import Arm


class Weight(StrEnum):
    """What a finding means for the release. Defect, trouble and untested are three different things."""

    DEFECT = "defect"  # the candidate is wrong: rejects
    UNTESTED = "untested"  # evidence is missing or not good enough: at best inconclusive
    WAIVED = "waived"  # a defect that the policy accepts for now
    NOTE = "note"  # worth knowing, changes nothing
    SATISFIED = "satisfied"  # a requirement that was met


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing observed that counts for or against the release.

    Attributes:
        rule: Name of the rule that found it, e.g. ``divergence``, ``start-up``, ``control``.
        weight: What it means for the release.
        summary: One plain sentence.
        advice: What to do about it; empty where nothing is to be done.
        arm: The arm it is about; None where it is about the run.
        scenario: The scenario; None where it is about the arm or run.
        request_ids: Requests concerned, sorted.
        rows: Rows of the batch concerned, sorted; empty where unknown.
        evidence: Paths within the bundle, or short quoted lines.
    """

    rule: str
    weight: Weight
    summary: str
    advice: str = ""
    arm: Arm | None = None
    scenario: str | None = None
    request_ids: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()


class Result(StrEnum):
    """The three verdicts."""

    QUALIFIED = "qualified"
    REJECTED = "rejected"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> ExitCode:
        """The process's exit code for this verdict."""
        return {
            Result.QUALIFIED: ExitCode.QUALIFIED,
            Result.REJECTED: ExitCode.REJECTED,
            Result.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        }[self]


COVERAGE = "coverage"
"""Rule of the findings that tell which required cells were not reached."""

NOT_MEASURED = "not measured"
"""What a cell of the coverage table says was reached where nothing was measured."""

STEP_LOG, TRANSCRIPTS, SERVER_LOG, SERVER_METRICS = "step log", "transcripts", "server log", "server metrics"
STEPS_OF_ANSWERS, ARM_FILES = "step log beside transcripts", "files of the arms"
"""How a cell was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageCell:
    """One required or observed cell of the coverage table.

    Attributes:
        name: What is counted, e.g. ``rows in one decode step``.
        reached: What was measured, with its unit; "not measured" where nothing was.
        required: What the policy asks for; empty where it only shows.
        satisfied: None where nothing is required.
        how: How it was measured (step log, transcripts, server metrics).
        scenario: The scenario that demands it; None for a cell of the whole run.
        kind: Name of that demand, as in `qualify.requirements.Requirements`; empty just so.
    """

    name: str
    reached: str
    required: str = ""
    satisfied: bool | None = None
    how: str = ""
    scenario: str | None = None
    kind: str = ""

    @property
    def shortfall(self) -> str:
        """The sentence that the finding says which tells that the cell was not reached."""
        where = f" in scenario {self.scenario}" if self.scenario else ""
        return f"Coverage: {self.name}: {self.reached}; required {self.required}{where}."


def is_shortfall_of(finding: Finding, cell: CoverageCell) -> bool:
    """True where a finding tells that this cell was not reached.

    Args:
        finding: A finding of the verdict that the cell belongs to.
        cell: A cell of its coverage table.
    """
    return finding.rule == COVERAGE and finding.summary == cell.shortfall


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on one bundle, with its reasons.

    Attributes:
        result: qualified, rejected or inconclusive.
        scope: Exactly what the verdict covers, as `label: value` pairs, sorted by label.
        subject: Digest that the verdict is bound to, or ``unbound``.
        reasons: Sentences that decided, the most important first.
        findings: All findings, defects first.
        coverage: The coverage table.
        limitations: What was not covered, generated from the coverage table and the findings.
        comparison: Figures of the comparison; None where nothing could be compared.
        policy_sha256: Digest of the policy that judged.
        release: Name of the release.
        run_date: Date of the run (ISO), with which waivers' expiry was compared.
    """

    result: Result
    release: str
    run_date: str
    subject: str
    scope: tuple[tuple[str, str], ...]
    policy_sha256: str
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    coverage: tuple[CoverageCell, ...]
    limitations: tuple[str, ...]
    comparison: Comparison | None = None
