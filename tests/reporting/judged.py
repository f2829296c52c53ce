"""Judged runs of known truth, for tests of what is reported of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qualify.compare.figures import Comparison
from qualify.findings import Finding, Verdict, Weight
from qualify.gate import judge
from qualify.record import ArmRecord, ArmState, RunRecord
from qualify.transcript import Arm
from tests.judgefactory import POLICY, World, build, packed, with_arm, without_runs

WORLD = World(scenarios={"alone": 1, "mixed": 10})
SHA256 = "5" * 64
HOSTILE = "]]> <script>alert(1)</script>\x00 \x1b[31mred\x1b[0m | `a` **b** [c](http://d) @all #1 &amp;\ufffe"


def good() -> RunRecord:
    return build(WORLD)


def rejected() -> RunRecord:
    return build(WORLD, candidate=packed)


def inconclusive() -> RunRecord:
    return build(WORLD, control=None)


def machinery() -> RunRecord:
    """The baseline could not be started: nothing was served, nothing is known."""
    record = good()
    for arm in Arm:
        record = without_runs(record, arm)
    detail = f"127.0.0.1:8001 is taken {HOSTILE}"
    record = with_arm(record, Arm.BASELINE, ArmState.MACHINERY, detail)
    for arm in (Arm.CANDIDATE, Arm.CONTROL):
        record = replace(
            record, arms={**record.arms, arm: ArmRecord(arm=arm, state=ArmState.NOT_STARTED, fault=None)}
        )
    return replace(record, steps={}, incomplete=(f"baseline: machinery: {detail}",))


RECORDS: dict[str, Callable[[], RunRecord]] = {
    "good": good,
    "rejected": rejected,
    "inconclusive": inconclusive,
    "machinery": machinery,
}


def judged(name: str) -> tuple[Verdict, RunRecord]:
    record = RECORDS[name]()
    return judge(record, POLICY, SHA256), record


def contract(subject: str, weight: Weight) -> Finding:
    return Finding(rule=f"inspect-contract-{subject}", weight=weight, summary=f"The contract on {subject}.")


def figures(verdict: Verdict) -> Comparison:
    assert verdict.comparison is not None
    return verdict.comparison
