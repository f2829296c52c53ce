"""(run record, policy) -> verdict: pure, so that an old bundle gives the same verdict, byte for byte."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qualify.compare import coverage
from qualify.compare.armstates import check_arms
from qualify.compare.decide import (
    RUN,
    Damage,
    Subject,
    lay_beside,
    locate,
    margin,
    position_scores,
    spread,
    weigh,
)
from qualify.compare.figures import ArmComparison, Comparison, Evidence
from qualify.compare.integrity import check_runs, required_runs, usable
from qualify.compare.rows import Placement, place
from qualify.findings import CoverageCell, Finding, Result, Verdict, Weight
from qualify.policy import Policy, Waiver
from qualify.record import RunRecord
from qualify.runtable import RunTable
from qualify.transcript import Arm, Decode


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One arm laid beside the baseline.

    Attributes:
        arm: The arm.
        subject: Its run beside the baseline's.
        placement: Rows of its tokens.
        comparison: Figures.
        damage: What was hit.
    """

    arm: Arm
    subject: Subject
    placement: Placement
    comparison: ArmComparison
    damage: Damage


def judge(record: RunRecord, policy: Policy, policy_sha256: str) -> Verdict:
    """Gives the verdict on one run.

    Args:
        record: Everything the run left behind.
        policy: What must hold.
        policy_sha256: Digest of the policy's file, quoted in the verdict.
    """
    findings = [_incomplete(reason) for reason in record.incomplete]
    findings += check_arms(record)
    findings += check_runs(record, required_runs(record, policy.floor.baseline_forced_runs))
    judged = {arm: entry for arm in (Arm.CANDIDATE, Arm.CONTROL) if (entry := _compare(record, policy, arm))}
    candidate, control = judged.get(Arm.CANDIDATE), judged.get(Arm.CONTROL)
    findings += _floor_findings(candidate, policy)
    findings += _divergence(candidate)
    findings += _control(record, policy, control)
    compared = candidate.comparison.spread.positions if candidate else 0
    cells = coverage.measure(record, policy.coverage, compared)
    findings += coverage.shortfalls(cells)
    findings = [_waive(finding, policy.waivers, record.run_date) for finding in findings]
    return _verdict(record, policy_sha256, findings, cells, judged)


def _incomplete(reason: str) -> Finding:
    return Finding(
        rule="incomplete",
        weight=Weight.UNTESTED,
        summary=f"The evidence is incomplete: {reason}",
        advice="Run again to the end.",
    )


def _compare(record: RunRecord, policy: Policy, arm: Arm) -> Judged | None:
    """Lays an arm's run beside the baseline's; None where either is not there."""
    for decode in (Decode.FORCED, Decode.FREE):
        baselines = _runs(record, Arm.BASELINE, decode)
        runs = _runs(record, arm, decode)
        if len(baselines) < 2 or not runs:
            continue
        names = _common([*baselines, runs[0]])
        if not names:
            continue
        subject = lay_beside(baselines, runs[0], names)
        placement = place(runs[0], record.steps.get(arm))
        evidence = weigh(subject, RUN, policy.decision)
        fired = any(item.fired for item in evidence)
        damage = locate(subject, placement, RUN) if fired else Damage((), (), 0)
        comparison = ArmComparison(
            arm=str(arm),
            decode=str(decode),
            requests=len(names),
            spread=spread(position_scores(subject)[1], subject.same_top),
            evidence=evidence,
            rows=damage.rows,
            rows_recorded=placement.recorded,
            margin=margin(subject, RUN, policy.decision),
        )
        return Judged(arm, subject, placement, comparison, damage)
    return None


def _runs(record: RunRecord, arm: Arm, decode: Decode) -> list[RunTable]:
    keys = sorted(
        (key for key in record.runs if (key.arm, key.decode) == (arm, decode)), key=lambda key: key.number
    )
    return [record.runs[key] for key in keys]


def _common(runs: Sequence[RunTable]) -> list[str]:
    """Judged requests that every run answered completely, to the same prompt."""
    names: set[tuple[str, str]] | None = None
    for run in runs:
        own = {(head.request_id, head.prompt_sha256) for head in run.heads if head.judged and usable(head)}
        names = own if names is None else names & own
    return sorted(name for name, _ in names or ())


def _floor_findings(candidate: Judged | None, policy: Policy) -> list[Finding]:
    if candidate is None:
        return [
            Finding(
                rule="floor",
                weight=Weight.UNTESTED,
                summary="Nothing could be compared: two runs of the baseline and one of the candidate "
                "with common complete requests are needed.",
                advice="See the findings about runs and requests.",
            )
        ]
    requests, needed = candidate.comparison.requests, policy.floor.minimum_requests
    if requests < needed:
        return [
            Finding(
                rule="floor",
                weight=Weight.UNTESTED,
                summary=f"Only {requests} requests could be compared; the policy needs {needed}.",
                advice="Send more judged requests.",
            )
        ]
    return []


def _divergence(candidate: Judged | None) -> list[Finding]:
    if candidate is None:
        return []
    fired = [item for item in candidate.comparison.evidence if item.fired]
    if not fired:
        return []
    damage, recorded = candidate.damage, candidate.comparison.rows_recorded
    rows = ", ".join(str(row) for row in damage.rows) or "unknown"
    how = "" if recorded else " (estimated from the sending order)"
    return [
        Finding(
            rule="divergence",
            weight=Weight.DEFECT,
            arm=Arm.CANDIDATE,
            request_ids=damage.request_ids,
            rows=damage.rows,
            evidence=tuple(describe(item) for item in fired),
            summary="The candidate differs from the baseline by more than the baseline's own runs differ: "
            f"{len(damage.request_ids)} of {candidate.comparison.requests} requests; rows hit{how}: {rows}.",
            advice="Compare the metadata of those rows between a replayed and a fresh step.",
        )
    ]


def describe(item: Evidence) -> str:
    """One rule's outcome in a sentence."""
    if item.rule == "exact":
        return f"exact: the baseline's runs are identical; {item.hits} of {item.of} requests differ from them"
    if item.rule == "ceiling":
        return f"ceiling: {item.hits} of {item.of} requests have a mean divergence over {item.limit:g} nats"
    return (
        f"{item.rule}: odd one out in {item.hits} of {item.of} decided requests; by chance with probability "
        f"{item.p:.2g}, limit {item.limit:.2g}"
    )


def _control(record: RunRecord, policy: Policy, control: Judged | None) -> list[Finding]:
    if not record.control_configured:
        return [
            Finding(
                rule="control",
                weight=Weight.UNTESTED,
                summary="The control arm is switched off.",
                advice="Without a caught control nothing can be qualified; configure it.",
            )
        ]
    entry = record.arms.get(Arm.CONTROL)
    fault = entry.fault if entry and entry.fault else "unknown fault"
    scenarios = [scenario.name for scenario in record.scenarios if scenario.control_can_act]
    if not scenarios:
        return [
            Finding(
                rule="control",
                weight=Weight.UNTESTED,
                arm=Arm.CONTROL,
                summary="No scenario is named in which the control's fault can act.",
                advice="Name them in the release (caught_in).",
            )
        ]
    if control is None:
        return [
            Finding(
                rule="control",
                weight=Weight.UNTESTED,
                arm=Arm.CONTROL,
                summary=f"The control ({fault}) could not be compared, so it was not caught.",
                advice="See the findings about the control's runs.",
            )
        ]
    return [_caught(control, scenario, fault, policy) for scenario in scenarios]


def _caught(control: Judged, scenario: str, fault: str, policy: Policy) -> Finding:
    fired = [item for item in weigh(control.subject, scenario, policy.decision) if item.fired]
    if not fired:
        return Finding(
            rule="control",
            weight=Weight.UNTESTED,
            arm=Arm.CONTROL,
            scenario=scenario,
            summary=f"The control ({fault}) was not caught in scenario {scenario}: this run cannot see "
            "the fault that it is there to see.",
            advice="Serve the baseline more often, send more requests, or check that the fault acts.",
        )
    damage = locate(control.subject, control.placement, scenario)
    factor = margin(control.subject, scenario, policy.decision)
    how = (
        f"it could have been {factor:g} times weaker"
        if factor is not None
        else f"the floor is exactly zero and {damage.positions} positions differ"
    )
    return Finding(
        rule="control",
        weight=Weight.SATISFIED,
        arm=Arm.CONTROL,
        scenario=scenario,
        request_ids=damage.request_ids,
        rows=damage.rows,
        evidence=tuple(describe(item) for item in fired),
        summary=f"The control ({fault}) was caught in scenario {scenario}: {how}.",
    )


def _waive(finding: Finding, waivers: Sequence[Waiver], run_date: str) -> Finding:
    """A waiver turns a defect into a waived finding; never missing evidence into a pass."""
    if finding.weight is not Weight.DEFECT:
        return finding
    today = datetime.date.fromisoformat(run_date)
    for waiver in waivers:
        fits = waiver.rule == finding.rule and waiver.scenario in (None, finding.scenario)
        if fits and today <= waiver.expires:
            note = f"waived by {waiver.owner} until {waiver.expires.isoformat()}: {waiver.reason}"
            return replace(finding, weight=Weight.WAIVED, evidence=(*finding.evidence, note))
    return finding


_ORDER = (Weight.DEFECT, Weight.UNTESTED, Weight.WAIVED, Weight.SATISFIED, Weight.NOTE)


def _verdict(
    record: RunRecord,
    policy_sha256: str,
    findings: Sequence[Finding],
    cells: tuple[CoverageCell, ...],
    judged: dict[Arm, Judged],
) -> Verdict:
    ordered = sorted(
        findings,
        key=lambda item: (
            _ORDER.index(item.weight),
            item.rule,
            item.arm or "",
            item.scenario or "",
            item.summary,
        ),
    )
    weights = {finding.weight for finding in ordered}
    caught = any(item.rule == "control" and item.weight is Weight.SATISFIED for item in ordered)
    if Weight.DEFECT in weights:
        result, decided = Result.REJECTED, Weight.DEFECT
    elif Weight.UNTESTED in weights or not caught:
        result, decided = Result.INCONCLUSIVE, Weight.UNTESTED
    else:
        result, decided = Result.QUALIFIED, Weight.SATISFIED
    reasons = [item.summary for item in ordered if item.weight is decided]
    reasons += [
        item.summary for item in ordered if item.weight is Weight.SATISFIED and decided != item.weight
    ]
    if result is Result.QUALIFIED:
        reasons.insert(
            0,
            "The candidate's answers differ from the baseline's by no more than the baseline's own "
            "runs differ among themselves.",
        )
    limits = coverage.limitations(record, cells)
    limits += [f"Waived: {item.summary}" for item in ordered if item.weight is Weight.WAIVED]
    return Verdict(
        result=result,
        release=record.release,
        run_date=record.run_date,
        subject=record.subject,
        scope=tuple(sorted(record.scope)),
        policy_sha256=policy_sha256,
        reasons=tuple(reasons),
        findings=tuple(ordered),
        coverage=cells,
        limitations=tuple(limits),
        comparison=_figures(judged),
    )


def _figures(judged: dict[Arm, Judged]) -> Comparison | None:
    candidate = judged.get(Arm.CANDIDATE) or judged.get(Arm.CONTROL)
    if candidate is None:
        return None
    floor, _ = position_scores(candidate.subject)
    runs = candidate.subject.aligned.distances.shape[1] - 1
    return Comparison(
        floor=spread(floor, candidate.subject.floor_same_top),
        exact=candidate.subject.floor_is_zero,
        baseline_runs=runs,
        arms=tuple(judged[arm].comparison for arm in (Arm.CANDIDATE, Arm.CONTROL) if arm in judged),
    )
