"""What a run had to show, one case for each requirement, scenario and contract, and whether it did.

A case passes only by evidence: where nothing is known of it, it is an error, never left out or skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from qualify.compare.integrity import expected_in, required_runs
from qualify.findings import CoverageCell, Finding, Result, Verdict, Weight, is_shortfall_of
from qualify.images.checks import contract_rule
from qualify.record import ArmState, RunRecord, ScenarioExpectation
from qualify.reporting.coverage import Standing, full_name, standing
from qualify.runtable import duration_s
from qualify.transcript import Arm

_CONTRACT = contract_rule("")
_ARM_RULES = frozenset({"arm-state", "start-up"})


class Kind(StrEnum):
    """What a case is about."""

    VERDICT = "verdict"
    REQUIREMENT = "requirement"
    SCENARIO = "scenario"
    CONTRACT = "contract"


class Outcome(StrEnum):
    """How a case came out; the worst first."""

    FAILED = "failed"  # the candidate is wrong
    ERROR = "error"  # it is not known: evidence is missing or not good enough
    WAIVED = "waived"  # wrong or not known, and the policy accepts that for now
    PASSED = "passed"


_OF_WEIGHT = {Weight.DEFECT: Outcome.FAILED, Weight.UNTESTED: Outcome.ERROR, Weight.WAIVED: Outcome.WAIVED}
_OF_STANDING = {
    Standing.MISSED: Outcome.ERROR,
    Standing.LIMITATION: Outcome.WAIVED,
    Standing.REACHED: Outcome.PASSED,
}
_OF_RESULT = {
    Result.QUALIFIED: Outcome.PASSED,
    Result.REJECTED: Outcome.FAILED,
    Result.INCONCLUSIVE: Outcome.ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that the run had to show.

    Attributes:
        kind: What it is about.
        name: Its name; no two cases of one kind share it.
        outcome: How it came out.
        message: One sentence; may be empty where it passed.
        details: Further lines: advice, evidence.
        seconds: How long it was served or driven, over all its runs; None where there is no such time.
    """

    kind: Kind
    name: str
    outcome: Outcome
    message: str = ""
    details: tuple[str, ...] = ()
    seconds: float | None = None


def cases(verdict: Verdict, record: RunRecord) -> tuple[Case, ...]:
    """Says of everything that a run had to show whether it did.

    Args:
        verdict: What follows from the run.
        record: The evidence.

    Returns:
        The verdict's own case, then requirements, scenarios and contracts.
    """
    outcome = _OF_RESULT[verdict.result]
    reasons = "; ".join(verdict.reasons[:1])
    own = Case(
        kind=Kind.VERDICT, name="verdict", outcome=outcome, message=reasons, details=verdict.reasons[1:]
    )
    return tuple(_distinct([own, *_requirements(verdict, record), *_scenarios(verdict, record)]))


def _served_s(record: RunRecord, arm: Arm) -> float | None:
    """Seconds in which an arm was loaded and driven."""
    entry = record.arms.get(arm)
    spans = [duration_s(run.heads) for key, run in record.runs.items() if key.arm is arm and run.heads]
    started_s = entry.started_s if entry else None
    return None if started_s is None and not spans else (started_s or 0.0) + sum(spans)


def _driven_s(record: RunRecord, scenario: str) -> float | None:
    """Seconds in which any run drove a scenario; time is counted for each run that did."""
    runs = [[head for head in run.heads if head.scenario == scenario] for run in record.runs.values()]
    spans = [duration_s(heads) for heads in runs if heads]
    return sum(spans) if spans else None


def _requirements(verdict: Verdict, record: RunRecord) -> list[Case]:
    found = [
        replace(_arm(verdict, record, arm), seconds=_served_s(record, arm)) for arm in record.expected_arms
    ]
    found.append(_compared(verdict, "floor", "the baseline's noise is known"))
    found.append(_compared(verdict, "divergence", "the candidate differs no more than the baseline's noise"))
    cells = [cell for cell in verdict.coverage if cell.satisfied is not None]
    for finding in verdict.findings:
        told = finding.rule in (*_ARM_RULES, "floor", "divergence") or any(
            is_shortfall_of(finding, cell) for cell in cells
        )
        if finding.weight is not Weight.NOTE and not told:
            found.append(_finding(finding))
    return found + [_cell(verdict, cell) for cell in cells]


def _arm(verdict: Verdict, record: RunRecord, arm: Arm) -> Case:
    name = f"the {arm} is served to the end"
    findings = [item for item in verdict.findings if item.rule in _ARM_RULES and item.arm is arm]
    if findings:
        return _from(Kind.REQUIREMENT, name, findings)
    entry = record.arms.get(arm)
    if entry is None or entry.state is not ArmState.SERVED:
        state = entry.state if entry else ArmState.NOT_STARTED
        return Case(kind=Kind.REQUIREMENT, name=name, outcome=Outcome.ERROR, message=f"its state is {state}")
    return Case(kind=Kind.REQUIREMENT, name=name, outcome=Outcome.PASSED)


def _compared(verdict: Verdict, rule: str, name: str) -> Case:
    """A requirement of which a finding tells only where it is not met."""
    findings = [item for item in verdict.findings if item.rule == rule]
    if findings:
        return _from(Kind.REQUIREMENT, name, findings)
    if verdict.comparison is None or Arm.CANDIDATE not in {arm.arm for arm in verdict.comparison.arms}:
        said = "the candidate could not be compared with the baseline"
        return Case(kind=Kind.REQUIREMENT, name=name, outcome=Outcome.ERROR, message=said)
    return Case(kind=Kind.REQUIREMENT, name=name, outcome=Outcome.PASSED)


def _finding(finding: Finding) -> Case:
    if finding.rule.startswith(_CONTRACT):
        return _from(Kind.CONTRACT, finding.rule.removeprefix(_CONTRACT), [finding])
    if finding.rule == "control":
        where = f" in {finding.scenario}" if finding.scenario else ""
        return _from(Kind.REQUIREMENT, f"the control is caught{where}", [finding])
    name = " ".join(str(part) for part in (finding.rule, finding.arm, finding.scenario) if part)
    return _from(Kind.REQUIREMENT, name, [finding])


def _cell(verdict: Verdict, cell: CoverageCell) -> Case:
    how = f" (measured by: {cell.how})" if cell.how else ""
    return Case(
        kind=Kind.REQUIREMENT,
        name=full_name(cell),
        outcome=_OF_STANDING[standing(verdict, cell)],
        message=f"reached {cell.reached}, required {cell.required}{how}",
    )


def _from(kind: Kind, name: str, findings: Sequence[Finding]) -> Case:
    """A case from what was found about it; the worst finding decides."""
    ranked = sorted(findings, key=lambda item: list(Outcome).index(_outcome(item)))
    worst, *others = ranked
    details = [worst.advice, *worst.evidence, *(item.summary for item in others)]
    return Case(
        kind=kind,
        name=name,
        outcome=_outcome(worst),
        message=worst.summary,
        details=tuple(line for line in details if line),
    )


def _outcome(finding: Finding) -> Outcome:
    return _OF_WEIGHT.get(finding.weight, Outcome.PASSED)


def _scenarios(verdict: Verdict, record: RunRecord) -> list[Case]:
    return [
        replace(_scenario(verdict, record, scenario), seconds=_driven_s(record, scenario.name))
        for scenario in record.scenarios
    ]


def _scenario(verdict: Verdict, record: RunRecord, scenario: ScenarioExpectation) -> Case:
    against = [item for item in verdict.findings if item.weight in _OF_WEIGHT and _about(item, scenario)]
    if against:
        return _from(Kind.SCENARIO, scenario.name, against)
    missing = _unanswered(record, scenario)
    compared = verdict.comparison is not None
    if missing or not compared:
        said = "not everything was answered" if missing else "nothing could be compared"
        return Case(
            kind=Kind.SCENARIO,
            name=scenario.name,
            outcome=Outcome.ERROR,
            message=f"scenario {scenario.name}: {said}",
            details=tuple(missing),
        )
    return Case(
        kind=Kind.SCENARIO,
        name=scenario.name,
        outcome=Outcome.PASSED,
        message=f"{len(scenario.requests)} requests answered in every run; nothing found against it",
    )


def _about(finding: Finding, scenario: ScenarioExpectation) -> bool:
    """True where a finding concerns a scenario: by name, by a request, or as a control that can act in it."""
    if finding.scenario is not None:
        return finding.scenario == scenario.name
    if finding.rule == "control":
        return scenario.control_can_act
    return any(name.startswith(f"{scenario.name}/") for name in finding.request_ids)


def _unanswered(record: RunRecord, scenario: ScenarioExpectation) -> list[str]:
    """For each run that must have driven a scenario and did not to the end, a sentence."""
    keys = {*record.runs, *required_runs(record, 1)}
    said = []
    for key in sorted((key for key in keys if key.decode in scenario.decode_ways), key=str):
        expected = {name for name, item in expected_in(record, key).items() if item.scenario == scenario.name}
        run = record.runs.get(key)
        whole = {head.request_id for head in run.heads if head.complete} if run else set()
        if left := expected - whole:
            said.append(f"{key}: {len(left)} of {len(expected)} requests without a complete answer")
    return said


def _distinct(found: Sequence[Case]) -> Iterable[Case]:
    """The same cases with a number behind a name that another case of its kind has already."""
    seen: dict[tuple[Kind, str], int] = {}
    for case in found:
        number = seen[case.kind, case.name] = seen.get((case.kind, case.name), 0) + 1
        yield case if number == 1 else replace(case, name=f"{case.name} ({number})")
