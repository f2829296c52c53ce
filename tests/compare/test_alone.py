"""The one-at-a-time oracle: what depends on the batch in both arms shows against the same requests alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qualify.compare.alone import RULE, check_alone
from qualify.findings import Finding, Weight
from qualify.gate import judge
from qualify.policy import DecisionPolicy
from qualify.record import RunRecord
from qualify.runtable import collect
from qualify.transcript import Arm, Decode, RunKey, Transcript
from tests.judgefactory import POLICY, Fault, World, build, no_fault, packed, transcript

WORLD = World(scenarios={"eight": 8}, tokens=16)
SENT = (0, 2, 5, 7)
FREE = RunKey(Arm.BASELINE, Decode.FREE, 1)


def served(baseline: Fault, candidate: Fault, sent: tuple[int, ...] = SENT) -> RunRecord:
    """Arms with these faults among others, whose requests alone are right: alone, each is in row 0."""
    record = build(WORLD, candidate=candidate)
    faults = {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate}
    runs = dict(record.runs)
    for arm, fault in faults.items():
        key = RunKey(arm, Decode.ALONE, 1)
        runs[key] = collect(key, [transcript(WORLD, key, "eight", index, no_fault) for index in sent])
        for number in (1, 2) if arm is Arm.BASELINE else (1,):
            key = RunKey(arm, Decode.FORCED, number)
            runs[key] = collect(key, [transcript(WORLD, key, "eight", index, fault) for index in range(8)])
    (scenario,) = record.scenarios
    asked = tuple(replace(request, alone=index in SENT) for index, request in enumerate(scenario.requests))
    ways = (*scenario.decode_ways, "alone")
    return replace(record, runs=runs, scenarios=(replace(scenario, requests=asked, decode_ways=ways),))


def about(record: RunRecord) -> list[Finding]:
    return check_alone(record, DecisionPolicy())


def test_a_right_server_answers_alone_as_among_others() -> None:
    (finding,) = about(served(no_fault, no_fault))
    assert finding.weight is Weight.SATISFIED
    assert "4 requests alone as among others" in finding.summary
    assert judge(served(no_fault, no_fault), POLICY, "").result == "qualified"


def test_a_defect_of_batches_that_both_arms_share_is_found_alone() -> None:
    record = served(packed, packed)
    (finding,) = about(record)
    assert (finding.rule, finding.weight) == (RULE, Weight.DEFECT)
    assert finding.request_ids == ("eight/main/0002", "eight/main/0005", "eight/main/0007")
    assert "so does the baseline with 3" in finding.summary
    verdict = judge(record, POLICY, "")
    assert verdict.result == "rejected"
    assert {item.rule for item in verdict.findings if item.weight is Weight.DEFECT} == {RULE}


def test_nothing_is_said_where_nothing_was_sent_alone() -> None:
    assert about(build(WORLD)) == []


@pytest.mark.parametrize("missing", ["run", "request"])
def test_what_is_missing_alone_is_no_pass(missing: str) -> None:
    record = served(no_fault, no_fault, SENT if missing == "run" else SENT[:3])
    if missing == "run":
        key = RunKey(Arm.CANDIDATE, Decode.ALONE, 1)
        record = replace(record, runs={other: run for other, run in record.runs.items() if other != key})
    verdict = judge(record, POLICY, "")
    assert verdict.result == "inconclusive"
    assert any(item.rule == f"{missing}-missing" for item in verdict.findings)


def test_only_positions_with_equal_prefixes_are_compared() -> None:
    record = served(no_fault, no_fault)
    key = RunKey(Arm.CANDIDATE, Decode.ALONE, 1)

    def other_after_two(item: Transcript) -> Transcript:
        return replace(
            item,
            token_ids=(*item.token_ids[:2], *(63 for _ in item.token_ids[2:])),
            top_logprobs=tuple(
                tuple(-0.1 if rank == 0 else -9.0 for rank in range(len(each))) if at > 2 else each
                for at, each in enumerate(item.top_logprobs)
            ),
        )

    items = [other_after_two(transcript(WORLD, key, "eight", index, no_fault)) for index in SENT]
    record = replace(record, runs={**record.runs, key: collect(key, items)})
    (finding,) = about(record)
    assert finding.weight is Weight.SATISFIED
    # tokens that were not the forced ones are a finding of their own
    assert judge(record, POLICY, "").result == "inconclusive"
