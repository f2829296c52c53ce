"""Each probe fires where the candidate differs from the baseline, and is silent where it does not."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from qualify.compare.coverage import measure
from qualify.compare.probes import acceptance, check_probes
from qualify.findings import Finding, Weight
from qualify.gate import judge
from qualify.policy import CoveragePolicy, ProbePolicy, Waiver
from qualify.probe import (
    ACCEPTED,
    CACHE_USED,
    DRAFTED,
    GENERATED,
    ILLEGAL_MEMORY,
    NAN,
    PREFIX_HITS,
    PREFIX_QUERIES,
    STARTED,
    TRACEBACK,
    LogSigns,
    ProbeRecord,
    Sample,
)
from qualify.record import ArmState, RunRecord
from qualify.transcript import Arm, Decode
from tests.judgefactory import POLICY, World, build

WORLD = World(scenarios={"eight": 8}, tokens=6)
MIB = 2**20


def samples(
    arm: str, values: Sequence[Mapping[str, float]], memory: Sequence[int] = (), decode: str = "free"
) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            time_s=float(number),
            run=f"{arm}.{decode}.run1",
            scenario="eight",
            in_flight=8,
            answered=bool(each),
            values=each,
            rss_bytes=memory[number] if memory else None,
        )
        for number, each in enumerate(values)
    )


def found(baseline: ProbeRecord, candidate: ProbeRecord, policy: ProbePolicy | None = None) -> list[Finding]:
    return check_probes(measured(baseline, candidate), policy or ProbePolicy())


def measured(baseline: ProbeRecord, candidate: ProbeRecord) -> RunRecord:
    return replace(build(WORLD), probes={Arm.BASELINE: baseline, Arm.CANDIDATE: candidate})


def drafting(arm: str, *shares: float, drafts: int = 200, decode: str = "free") -> ProbeRecord:
    """One sample after each window; `shares` of the drafts are accepted."""
    values = [{DRAFTED: 0.0, ACCEPTED: 0.0}]
    for share in shares:
        last = values[-1]
        values.append({DRAFTED: last[DRAFTED] + drafts, ACCEPTED: last[ACCEPTED] + share * drafts})
    return ProbeRecord(samples=samples(arm, values, decode=decode))


@pytest.mark.parametrize(
    ("shares", "fires"),
    [
        ((0.74, 0.7, 0.72), False),
        ((0.4, 0.45, 0.5), False),  # lower, and not a collapse
        ((0.041, 0.04, 0.05), True),  # from the start
        ((0.75, 0.4, 0.015), True),  # over time
        ((0.0, 0.0, 0.0), True),
    ],
)
def test_acceptance_that_collapses_only_in_the_candidate(shares: tuple[float, ...], fires: bool) -> None:
    findings = found(drafting("baseline", 0.758, 0.74, 0.76), drafting("candidate", *shares))
    assert [(item.rule, item.weight) for item in findings] == [("acceptance", Weight.DEFECT)] * fires


def test_acceptance_low_in_both_is_silent_and_unknown_in_the_candidate_is_untested() -> None:
    assert not found(drafting("baseline", 0.02, 0.03), drafting("candidate", 0.02, 0.015))
    assert not found(ProbeRecord(), drafting("candidate", 0.0))
    (finding,) = found(drafting("baseline", 0.7), ProbeRecord())
    assert (finding.rule, finding.weight) == ("acceptance", Weight.UNTESTED)


def test_acceptance_needs_a_whole_window_and_keeps_ways_of_decoding_apart() -> None:
    assert acceptance(drafting("candidate", 0.5, 0.5, drafts=150), Decode.FREE, 200) == [0.5]
    assert acceptance(drafting("candidate", 0.5, drafts=150), Decode.FREE, 200) == []
    assert acceptance(drafting("candidate", 0.5), Decode.FORCED, 200) == []


@pytest.mark.parametrize(
    ("later", "fires"),
    [
        ({GENERATED: 90.0, STARTED: 5.0}, False),
        ({GENERATED: 10.0, STARTED: 5.0}, True),
        ({GENERATED: 90.0, STARTED: 6.0}, True),
    ],
)
def test_a_server_that_was_started_anew_leaves_the_run_untested(later: dict[str, float], fires: bool) -> None:
    values = [{GENERATED: 50.0, STARTED: 5.0}, {}, later]
    findings = found(ProbeRecord(samples=samples("baseline", values)), ProbeRecord())
    assert [(item.rule, item.weight) for item in findings] == [("restart", Weight.UNTESTED)] * fires


def growing(arm: str, start: int, end: int, count: int = 16) -> ProbeRecord:
    memory = [start + (end - start) * number // (count - 1) for number in range(count)]
    return ProbeRecord(samples=samples(arm, [{GENERATED: float(n)} for n in range(count)], memory))


def test_memory_that_grows_only_in_the_candidate() -> None:
    steady, leaking = growing("a", 2000 * MIB, 2100 * MIB), growing("a", 2000 * MIB, 4000 * MIB)
    (finding,) = found(steady, leaking)
    assert (finding.rule, finding.weight) == ("memory", Weight.DEFECT)
    assert not found(steady, steady)
    assert not found(leaking, leaking)
    assert not found(steady, growing("a", 2000 * MIB, 2500 * MIB))  # below 512 MiB between the quarters
    assert not found(steady, growing("a", 2000 * MIB, 4000 * MIB, count=6))  # too few samples


def log(counts: dict[str, int] | None = None, warnings: dict[str, int] | None = None) -> ProbeRecord:
    signs = counts or {}
    return ProbeRecord(
        log=LogSigns(counts=signs, first=dict.fromkeys(signs, "line"), warnings=warnings or {})
    )


@pytest.mark.parametrize("sign", [TRACEBACK, ILLEGAL_MEMORY, NAN])
def test_signs_in_the_candidates_log_alone(sign: str) -> None:
    (finding,) = found(log(), log({sign: 3}))
    assert (finding.rule, finding.weight) == ("log", Weight.DEFECT)
    assert sign in finding.summary
    assert not found(log({sign: 1}), log({sign: 3}))
    assert not found(log({sign: 1}), log())
    assert not found(ProbeRecord(), log({sign: 3}))


@pytest.mark.parametrize(
    ("state", "weight"),
    [
        (ArmState.DIED, Weight.DEFECT),
        (ArmState.START_FAILED, Weight.DEFECT),
        (ArmState.HUNG, Weight.DEFECT),
        (ArmState.KILLED, Weight.NOTE),
        (ArmState.INTERRUPTED, Weight.NOTE),
        (ArmState.MACHINERY, Weight.NOTE),
        (ArmState.NEVER_READY, Weight.NOTE),
    ],
)
def test_the_log_of_a_server_that_was_ended_from_outside_is_not_held_against_it(
    state: ArmState, weight: Weight
) -> None:
    record = measured(log(), log({TRACEBACK: 5}, {"shutting down": 500}))
    candidate = replace(record.arms[Arm.CANDIDATE], state=state)
    record = replace(record, arms={**record.arms, Arm.CANDIDATE: candidate})
    assert {item.rule: item.weight for item in check_probes(record, ProbePolicy())} == {
        "log": weight,
        "warnings": weight,
    }


def test_a_flood_of_one_warning_is_found_and_a_few_are_not() -> None:
    text = "width # was never tuned"
    (finding,) = found(log(), log(warnings={text: 944}))
    assert (finding.rule, finding.evidence) == ("warnings", (text,))
    assert not found(log(), log(warnings={text: 99}))
    assert not found(log(warnings={text: 900}), log(warnings={text: 944}))


OWN = "[3] NVRM: Xid (PCI:0000:c1:00): 31, pid=12, name=VLLM::EngineCor, MMU Fault"
MACHINE = "[3] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus"
OTHERS = "[3] NVRM: Xid (PCI:0000:c1:00): 31, pid=12, name=trainer, MMU Fault"


@pytest.mark.parametrize(
    ("baseline", "line", "weight"),
    [
        ((), OWN, Weight.DEFECT),
        ((OWN,), OWN, Weight.UNTESTED),
        ((), MACHINE, Weight.UNTESTED),
        ((), OTHERS, Weight.UNTESTED),
        (None, OWN, Weight.UNTESTED),
    ],
)
def test_errors_of_the_card(baseline: tuple[str, ...] | None, line: str, weight: Weight) -> None:
    findings = found(ProbeRecord(gpu_errors=baseline), ProbeRecord(gpu_errors=(line,)))
    assert [item.weight for item in findings if item.arm is Arm.CANDIDATE] == [weight]
    assert not found(ProbeRecord(gpu_errors=()), ProbeRecord(gpu_errors=()))


def test_a_finding_of_a_probe_decides_and_can_be_waived() -> None:
    record = measured(log(), log({NAN: 3}))
    assert judge(record, POLICY, "").result == "rejected"
    waiver = Waiver(
        rule="log",
        owner="somebody",
        reason="a line about another thing",
        expires=datetime.date(2027, 1, 1),
    )
    lenient = POLICY.model_copy(update={"waivers": (waiver,)})
    assert judge(record, lenient, "").result == "qualified"


def test_what_was_measured_is_in_the_coverage_table() -> None:
    values = [
        {PREFIX_QUERIES: 100.0, PREFIX_HITS: 0.0, CACHE_USED: 0.25},
        {},
        {PREFIX_QUERIES: 500.0, PREFIX_HITS: 100.0, CACHE_USED: 0.5},
    ]
    probes = ProbeRecord(samples=samples("candidate", values, [1000 * MIB, 1100 * MIB, 1050 * MIB]))
    cells = measure(measured(ProbeRecord(), probes), CoveragePolicy(), 48)
    reached = [cell.reached for cell in cells if cell.how in ("server metrics", "processes")]
    assert reached == ["2 of 3 answered", "100 of 400 (25.0%)", "at most 50.0%", "1000 to 1100 MiB"]
    assert not [
        cell
        for cell in measure(build(WORLD), CoveragePolicy(), 48)
        if cell.how in ("server metrics", "processes")
    ]
