"""What is said where runs are missing: once for each arm, and naming every run."""

from __future__ import annotations

from dataclasses import replace

from qualify.compare.integrity import check_runs, required_runs
from qualify.findings import Result, Weight
from qualify.gate import judge
from qualify.record import ArmState, RunRecord
from qualify.transcript import Arm, Decode, RunKey
from tests.judgefactory import POLICY, World, build, with_arm, without_runs

WORLD = World(scenarios={"four": 4}, tokens=4)


def missing(record: RunRecord) -> dict[Arm | None, tuple[Weight, str]]:
    found = check_runs(record, required_runs(record, 2), {})
    assert {finding.rule for finding in found} == {"run-missing"}
    said = {finding.arm: (finding.weight, finding.summary) for finding in found}
    assert len(said) == len(found), "one finding for each arm"
    return said


def test_the_missing_runs_of_one_arm_are_one_finding() -> None:
    record = build(WORLD)
    for arm in Arm:
        record = with_arm(without_runs(record, arm), arm, ArmState.NOT_STARTED)
    assert missing(record) == {
        Arm.BASELINE: (
            Weight.UNTESTED,
            "Runs baseline.forced.run1, baseline.forced.run2, baseline.free.run1 have no transcripts; "
            "the arm's state is not-started.",
        ),
        Arm.CANDIDATE: (
            Weight.UNTESTED,
            "Runs candidate.forced.run1, candidate.free.run1 have no transcripts; "
            "the arm's state is not-started.",
        ),
        Arm.CONTROL: (
            Weight.UNTESTED,
            "Runs control.forced.run1, control.free.run1 have no transcripts; "
            "the arm's state is not-started.",
        ),
    }


def test_one_run_that_an_arm_lacks_keeps_the_run_inconclusive() -> None:
    record = build(World(scenarios={"eight": 8, "sixteen": 16}))
    key = RunKey(Arm.CANDIDATE, Decode.FREE, 1)
    lacking = replace(record, runs={other: run for other, run in record.runs.items() if other != key})
    assert judge(record, POLICY, "").result is Result.QUALIFIED
    verdict = judge(lacking, POLICY, "")
    assert verdict.result is Result.INCONCLUSIVE
    (finding,) = [item for item in verdict.findings if item.rule == "run-missing"]
    assert finding.summary == f"Run {key} has no transcripts; the arm's state is served."
