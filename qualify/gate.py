"""(run record, policy) -> verdict: pure, so that an old bundle gives the same verdict, byte for byte."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace

from qualify.compare import coverage
from qualify.compare.alone import check_alone
from qualify.compare.arm import Judged, compare_arm
from qualify.compare.armstates import check_arms
from qualify.compare.figures import Comparison, Evidence, in_known_units
from qualify.compare.inspect import Flaws, inspect_runs
from qualify.compare.integrity import check_compared, check_runs, only_here_not_finite, required_runs
from qualify.compare.locate import locate
from qualify.compare.oracles import check_oracles, unnoticed_answers
from qualify.compare.origin import check_origin
from qualify.compare.power import margin
from qualify.compare.probes import check_probes
from qualify.compare.ranks import check_ranks
from qualify.compare.rules import ask
from qualify.compare.table import decide, facts
from qualify.findings import CoverageCell, Finding, Result, Verdict, Weight
from qualify.policy import Policy, Waiver
from qualify.record import RunRecord
from qualify.transcript import Arm, Decode, RunKey

_ALIKE = "The candidate differs from the baseline by no more than the baseline's own runs differ."

_ORDER = (Weight.DEFECT, Weight.UNTESTED, Weight.WAIVED, Weight.SATISFIED, Weight.NOTE)


def judge(record: RunRecord, policy: Policy, policy_sha256: str) -> Verdict:
    """Gives the verdict on one run.

    Args:
        record: Everything the run left behind.
        policy: What must hold.
        policy_sha256: Digest of the policy's file, quoted in the verdict.
    """
    flaws = inspect_runs(record)
    candidate = compare_arm(record, policy.decision, Arm.CANDIDATE, flaws)
    control = compare_arm(record, policy.decision, Arm.CONTROL, flaws, candidate)
    judged = [entry for entry in (candidate, control) if entry is not None]
    compared = candidate.comparison.spread.positions if candidate else 0
    cells = coverage.measure(record, policy.coverage, compared)
    findings = [
        *[_incomplete(reason) for reason in record.incomplete],
        *record.inspections,
        *check_arms(record),
        *check_runs(record, required_runs(record, policy.floor.baseline_forced_runs), flaws),
        *_floor(candidate, policy),
        *_not_compared(record, candidate),
        *_divergence(candidate),
        *check_oracles(record, policy.decision),
        *check_alone(record, policy.decision),
        *check_probes(record, policy.probes),
        *check_ranks(record),
        *check_origin(record),
        *_control(record, policy, control, flaws),
        *coverage.shortfalls(cells, policy.coverage),
    ]
    findings = [_waive(finding, policy.waivers, record.run_date) for finding in findings]
    return _verdict(record, policy, policy_sha256, findings, cells, judged)


def _incomplete(reason: str) -> Finding:
    return Finding(
        rule="incomplete",
        weight=Weight.UNTESTED,
        summary=f"The evidence is incomplete: {reason}",
        advice="Run again to the end.",
    )


def _floor(candidate: Judged | None, policy: Policy) -> list[Finding]:
    if candidate is None:
        return [
            Finding(
                rule="floor",
                weight=Weight.UNTESTED,
                summary="Nothing could be compared: two runs of the baseline and one of the candidate with "
                "common complete requests are needed.",
                advice="See the findings about runs and requests.",
            )
        ]
    requests, needed = candidate.comparison.requests, policy.floor.minimum_requests
    if requests >= needed:
        return []
    return [
        Finding(
            rule="floor",
            weight=Weight.UNTESTED,
            summary=f"Only {requests} requests could be compared; the policy needs {needed}.",
            advice="Send more judged requests.",
            request_ids=tuple(heads[-1].request_id for heads in candidate.aligned.heads),
        )
    ]


def _not_compared(record: RunRecord, candidate: Judged | None) -> list[Finding]:
    if candidate is None:
        return []
    names = [heads[-1].request_id for heads in candidate.aligned.heads]
    return check_compared(record, Decode(candidate.comparison.decode), names)


def _divergence(candidate: Judged | None) -> list[Finding]:
    if candidate is None:
        return []
    fired = [item for item in candidate.comparison.evidence if item.fired]
    if not fired:
        return []
    damage = candidate.damage
    rows = ", ".join(str(row) for row in damage.rows) or "unknown"
    how = "" if candidate.comparison.rows_recorded else " (estimated from the sending order)"
    excess = max(candidate.comparison.excess, 0.0)
    return [
        Finding(
            rule="divergence",
            weight=Weight.DEFECT,
            arm=Arm.CANDIDATE,
            request_ids=damage.request_ids,
            rows=damage.rows,
            evidence=tuple(describe(item) for item in fired),
            summary="The candidate differs from the baseline by more than the baseline's own runs differ: "
            f"{len(damage.request_ids)} of {candidate.comparison.requests} requests are clearly hit; "
            f"rows hit{how}: {rows}; mean excess {excess:.2g} nats ({in_known_units(excess)}).",
            advice="Compare the metadata of those rows between a replayed and a fresh step.",
        )
    ]


def describe(item: Evidence) -> str:
    """One rule's outcome in a sentence."""
    where = "" if item.scope == "run" else f" in {item.scope}"
    if item.rule == "exact":
        seen = (
            f"the baseline's runs differ by nothing that matters, {item.hits} of {item.of} requests "
            f"by more than {item.limit:.2g} nats"
            if item.limit
            else f"the baseline's runs are identical, {item.hits} of {item.of} requests differ"
        )
        return (
            f"exact{where}: {seen}; right servers that differ now and then would show this "
            f"with probability {item.p:.2g} at most"
        )
    if item.rule == "ceiling":
        return f"ceiling{where}: {item.hits} of {item.of} requests have a mean over {item.limit:g} nats"
    counted = (
        f"{item.hits} of {item.of} requests far beyond the floor"
        if item.rule == "extreme"
        else f"odd one out in {item.hits} of {item.of} decided requests"
    )
    return f"{item.rule}{where}: {counted}; by chance with probability {item.p:.2g}, limit {item.limit:.2g}"


def _control(
    record: RunRecord, policy: Policy, control: Judged | None, flaws: Mapping[RunKey, Flaws]
) -> list[Finding]:
    entry = record.arms.get(Arm.CONTROL)
    fault = entry.fault if entry and entry.fault else "unknown fault"
    scenarios = [scenario.name for scenario in record.scenarios if scenario.control_can_act]
    if not record.control_configured:
        return [
            _not_caught("The control arm is switched off.", "Configure it: a pass needs a caught control.")
        ]
    if not scenarios:
        return [
            _not_caught(
                "No scenario is named in which the control's fault can act.",
                "Name them in the release (caught_in).",
            )
        ]
    if control is None:
        return [
            _not_caught(
                f"The control ({fault}) could not be compared, so it was not caught.",
                "See the findings about the control's runs.",
            )
        ]
    wild = _not_finite(record, flaws)
    return [_caught(control, scenario, fault, policy, wild) for scenario in scenarios]


def _not_finite(record: RunRecord, flaws: Mapping[RunKey, Flaws]) -> dict[str, list[str]]:
    """The control's requests with NaN where the baseline has none, by scenario: what rejects a candidate."""
    found: dict[str, list[str]] = {}
    for key in record.runs:
        if key.arm is Arm.CONTROL:
            names = only_here_not_finite(record, key, flaws)
            for head in record.runs[key].heads:
                if head.judged and head.request_id in names:
                    found.setdefault(head.scenario, []).append(head.request_id)
    return {scenario: sorted(set(names)) for scenario, names in found.items()}


def _not_caught(summary: str, advice: str, scenario: str | None = None) -> Finding:
    return Finding(
        rule="control",
        weight=Weight.UNTESTED,
        arm=Arm.CONTROL,
        scenario=scenario,
        summary=summary,
        advice=advice,
    )


def _caught(
    control: Judged, scenario: str, fault: str, policy: Policy, wild: Mapping[str, Sequence[str]]
) -> Finding:
    sections = control.scenario(scenario)
    fired = [item for item in ask(sections, policy.decision) if item.fired]
    if not fired and (names := wild.get(scenario)):
        return Finding(
            rule="control",
            weight=Weight.SATISFIED,
            arm=Arm.CONTROL,
            scenario=scenario,
            request_ids=tuple(names),
            summary=f"The control ({fault}) was caught in scenario {scenario}: its logprobs are not finite "
            f"in {len(names)} {'request' if len(names) == 1 else 'requests'}, where the baseline's are.",
        )
    if not fired:
        return _not_caught(
            f"The control ({fault}) was not caught in scenario {scenario}: this run cannot see the fault "
            "that it is there to see.",
            "Serve the baseline more often, send more requests, or check that the fault acts.",
            scenario,
        )
    damage = locate(control.aligned, control.placement, scenario, policy.decision.negligible_kld)
    factor = margin(sections, policy.decision)
    how = (
        f"it could have been {factor:g} times weaker and still be caught"
        if factor is not None
        else f"the floor is exactly zero, one differing position is enough, and {damage.positions} differ"
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
    day = datetime.date.fromisoformat(run_date)
    for waiver in waivers:
        if (
            waiver.rule == finding.rule
            and waiver.scenario in (None, finding.scenario)
            and day <= waiver.expires
        ):
            note = f"waived by {waiver.owner} until {waiver.expires.isoformat()}: {waiver.reason}"
            return replace(finding, weight=Weight.WAIVED, evidence=(*finding.evidence, note))
    return finding


def _verdict(
    record: RunRecord,
    policy: Policy,
    policy_sha256: str,
    findings: Sequence[Finding],
    cells: tuple[CoverageCell, ...],
    judged: Sequence[Judged],
) -> Verdict:
    ordered = tuple(sorted(findings, key=_rank))
    row = decide(facts(ordered, record.control_configured))
    return Verdict(
        result=row.result,
        release=record.release,
        run_date=record.run_date,
        subject=record.subject,
        scope=tuple(sorted(record.scope)),
        policy_sha256=policy_sha256,
        reasons=_reasons(row.result, ordered),
        findings=ordered,
        coverage=cells,
        limitations=_limitations(record, policy, cells, ordered, judged),
        comparison=_figures(judged),
    )


def _rank(finding: Finding) -> tuple[int, str, str, str, str]:
    return (
        _ORDER.index(finding.weight),
        finding.rule,
        finding.arm or "",
        finding.scenario or "",
        finding.summary,
    )


def _reasons(result: Result, ordered: Sequence[Finding]) -> tuple[str, ...]:
    decisive = {Result.REJECTED: Weight.DEFECT, Result.INCONCLUSIVE: Weight.UNTESTED}.get(result)
    first = [item.summary for item in ordered if item.weight is decisive]
    if result is Result.QUALIFIED:
        waived = [item for item in ordered if item.weight is Weight.WAIVED]
        # the waiver's note is what was added last
        first = [f"Qualified by waiver: {item.summary} ({item.evidence[-1]})" for item in waived]
        if not any(item.rule == "divergence" for item in waived):
            first.insert(0, _ALIKE)
    return (*first, *[item.summary for item in ordered if item.weight is Weight.SATISFIED])


def _limitations(
    record: RunRecord,
    policy: Policy,
    cells: tuple[CoverageCell, ...],
    ordered: Sequence[Finding],
    judged: Sequence[Judged],
) -> tuple[str, ...]:
    said = coverage.limitations(record, cells)
    for entry in judged:
        if entry.arm is Arm.CANDIDATE and entry.comparison.power is not None:
            said += coverage.unseen(entry.comparison.power)
            said += coverage.quiet(entry.floor, entry.quiet) if entry.quiet is not None else []
    if not any(item.rule == "known-answer" and item.weight is not Weight.NOTE for item in ordered):
        said += unnoticed_answers(record, policy.decision)
    said += [f"Waived: {item.summary}" for item in ordered if item.weight is Weight.WAIVED]
    return tuple(said)


def _figures(judged: Sequence[Judged]) -> Comparison | None:
    if not judged:
        return None
    first = judged[0]
    return Comparison(
        floor=first.floor,
        exact=first.exact,
        baseline_runs=first.aligned.layout.runs - 1,
        arms=tuple(entry.comparison for entry in judged),
    )
