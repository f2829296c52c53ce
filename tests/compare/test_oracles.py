from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from qualify.compare import coverage
from qualify.compare.inspect import usable
from qualify.compare.oracles import check_oracles, flag_test, unnoticed_answers
from qualify.compare.traits import BOS, DOUBLED, ENDS, LIMIT, RUN, STOP, contains, traits
from qualify.findings import Finding, Weight
from qualify.gate import judge
from qualify.policy import CoveragePolicy, DecisionPolicy
from qualify.record import RunRecord
from qualify.runtable import collect
from qualify.transcript import Arm, Decode, RunKey, Transcript
from tests.judgefactory import POLICY, World, build, no_fault, transcript

BOS_ID = 0
KEY = RunKey(Arm.CANDIDATE, Decode.FREE, 1)
WORLD = World(scenarios={"forty": 40}, tokens=24)


def scored(*answers: list[int], finish: str = "length") -> dict[str, list[float]]:
    world = World(scenarios={"some": len(answers)}, tokens=2)
    made = [transcript(world, KEY, "some", index, no_fault) for index in range(len(answers))]
    items = [
        replace(
            item,
            token_ids=tuple(answer),
            logprobs=(-1.0,) * len(answer),
            top_ids=((1, 2),) * len(answer),
            top_logprobs=((-1.0, -2.0),) * len(answer),
            max_tokens=len(answer),
            finish_reason=finish,
        )
        for item, answer in zip(made, answers, strict=True)
    ]
    run = collect(KEY, items)
    assert all(usable(head) for head in run.heads)
    return {name: list(values) for name, values in traits(run, run.heads, BOS_ID).items()}


PLAIN = list(range(1, 25))


def test_plain_text_has_no_traits() -> None:
    found = scored(PLAIN)
    assert [found[name] for name in (BOS, RUN, ENDS, STOP, DOUBLED)] == [[0.0]] * 5
    assert found[LIMIT] == [1.0]
    assert scored(PLAIN, finish="stop")[STOP] == [1.0]


@pytest.mark.parametrize(
    ("trait", "answer", "almost"),
    [
        (BOS, [5, 0, 0, 0, 0, 6], [5, 0, 0, 0, 6, 7]),
        (RUN, [5, *[9] * 8, 6], [5, *[9] * 7, 6]),
        (ENDS, [1, 2, 3] * 4, [*[1, 2, 3] * 3, 1, 2, 9]),
        (ENDS, [8, *list(range(20)) * 4], [*list(range(20)) * 4, 99]),
    ],
)
def test_traits_are_seen_and_near_misses_are_not(trait: str, answer: list[int], almost: list[int]) -> None:
    assert scored(answer)[trait] == [1.0]
    assert scored(almost)[trait] == [0.0]


def test_doubled_tokens_are_counted() -> None:
    assert scored([1, 1, 2, 2, 3])[DOUBLED] == [0.5]


def test_an_answer_does_not_continue_the_one_before() -> None:
    found = scored([1, 2, 0, 0], [0, 0, 1, 2], [7, 8, 7, 8, 7, 8], [7, 8, 1, 2])
    assert found[BOS] == [0.0] * 4
    assert found[ENDS] == [0.0] * 4


def test_known_answer_must_occur_in_one_piece() -> None:
    tokens = np.array([1, 2, 3, 4], dtype=np.int32)
    assert contains(tokens, [2, 3])
    assert contains(tokens, [1, 2, 3, 4])
    for other in ([3, 2], [1, 3], [4, 5], [1, 2, 3, 4, 5], []):
        assert not contains(tokens, other)


def test_sign_that_the_baseline_never_shows_needs_fewer_requests() -> None:
    scores = np.zeros((40, 2))
    scores[:8, 1] = 1
    silent = flag_test(scores).p
    scores[39, 0] = 1
    assert silent < flag_test(scores).p
    assert flag_test(np.ones((40, 2))).p == 1.0


def free(arm: Arm, change: Callable[[Transcript], Transcript]) -> Callable[[Transcript], Transcript]:
    def edit(item: Transcript) -> Transcript:
        return change(item) if item.run == RunKey(arm, Decode.FREE, 1) else item

    return edit


def looping(share: int) -> Callable[[Transcript], Transcript]:
    def change(item: Transcript) -> Transcript:
        tokens = (3, 4, 5, 6) * 6
        return replace(item, token_ids=tokens) if item.index < share else item

    return change


def damaged(record: RunRecord) -> list[Finding]:
    return [item for item in check_oracles(record, DecisionPolicy()) if item.weight is Weight.DEFECT]


def test_loops_of_the_candidate_alone_are_a_defect() -> None:
    record = build(WORLD, edit=free(Arm.CANDIDATE, looping(20)))
    (found,) = [item for item in damaged(record) if ENDS in item.summary]
    assert len(found.request_ids) == 20
    assert judge(record, POLICY, "").result == "rejected"


def test_few_loops_or_loops_of_both_are_none() -> None:
    assert not damaged(build(WORLD, edit=free(Arm.CANDIDATE, looping(3))))
    both = build(
        WORLD,
        edit=lambda item: looping(20)(item) if item.run.decode is Decode.FREE else item,
    )
    assert not damaged(both)
    assert not damaged(build(WORLD, edit=free(Arm.BASELINE, looping(20))))


def test_one_run_of_bos_is_enough_where_the_baseline_has_none() -> None:
    def change(item: Transcript) -> Transcript:
        tokens = (*item.token_ids[:-4], 63, 63, 63, 63)
        return replace(item, token_ids=tokens) if item.index == 5 else item

    record = replace(build(WORLD, edit=free(Arm.CANDIDATE, change)), bos_token_id=63)
    (found,) = damaged(record)
    assert BOS in found.summary
    assert found.request_ids == ("forty/main/0005",)
    assert not damaged(replace(record, bos_token_id=None))


def stopping(item: Transcript) -> Transcript:
    short = 5
    return replace(
        item,
        token_ids=item.token_ids[:short],
        logprobs=item.logprobs[:short],
        top_ids=item.top_ids[:short],
        top_logprobs=item.top_logprobs[:short],
        finish_reason="stop",
    )


def test_answers_that_only_the_candidate_cuts_short_are_a_defect() -> None:
    record = build(WORLD, edit=free(Arm.CANDIDATE, lambda item: stopping(item) if item.index < 20 else item))
    assert any(STOP in item.summary for item in damaged(record))


def asking(record: RunRecord, first: int = 40) -> RunRecord:
    """The needle is the first two tokens of the true answer, different for each of so many requests."""
    run = record.runs[RunKey(Arm.BASELINE, Decode.FORCED, 1)]
    answers = {
        head.request_id: tuple(int(token) for token in run.token_ids[head.positions][:2])
        for head in run.heads
    }
    return replace(
        record,
        scenarios=tuple(
            replace(
                scenario,
                requests=tuple(
                    replace(request, answer_ids=((999,), answers[request.request_id]))
                    if number < first
                    else request
                    for number, request in enumerate(scenario.requests)
                ),
            )
            for scenario in record.scenarios
        ),
    )


def missing(share: int) -> Callable[[Transcript], Transcript]:
    def change(item: Transcript) -> Transcript:
        tokens = tuple(range(100, 100 + len(item.token_ids)))
        return replace(item, token_ids=tokens) if item.index < share else item

    return change


def about_answers(record: RunRecord) -> Finding:
    (found,) = [item for item in check_oracles(record, DecisionPolicy()) if item.rule == "known-answer"]
    return found


def test_answers_that_only_the_candidate_misses_are_a_defect() -> None:
    found = about_answers(asking(build(WORLD, edit=free(Arm.CANDIDATE, missing(15)))))
    assert found.weight is Weight.DEFECT
    assert len(found.request_ids) == 15


@pytest.mark.parametrize("asked", [1, 40])
def test_how_many_answers_may_be_lost_unnoticed_is_said(asked: int) -> None:
    good = asking(build(WORLD), asked)
    (said,) = unnoticed_answers(good, DecisionPolicy())
    lost = int(re.findall(r"lost (\d+) of the (\d+) ", said)[0][0])
    assert f"of the {asked} known answers" in said
    assert "1 free run of the baseline" in said
    assert said in judge(good, POLICY, "").limitations
    for share, weight in ((lost, Weight.NOTE), (lost + 1, Weight.DEFECT)):
        if share <= asked:
            record = asking(build(WORLD, edit=free(Arm.CANDIDATE, missing(share))), asked)
            assert about_answers(record).weight is weight
    assert (lost == asked) is (asked == 1)
    assert unnoticed_answers(build(WORLD), DecisionPolicy()) == []


def test_answers_count_only_where_the_baseline_gets_them_right() -> None:
    found = about_answers(asking(build(WORLD)))
    assert found.weight is Weight.NOTE
    assert "misses 0 of the 40" in found.summary
    both = build(WORLD, edit=lambda item: missing(15)(item) if item.run.decode is Decode.FREE else item)
    assert "misses 0 of the 25" in about_answers(asking(both)).summary
    none = build(WORLD, edit=lambda item: missing(40)(item) if item.run.decode is Decode.FREE else item)
    assert "misses all 40" in about_answers(asking(none)).summary


@pytest.mark.parametrize(("required", "enough"), [(0, None), (25, True), (26, False)])
def test_policy_asks_for_answers_of_the_baseline_itself(required: int, enough: bool | None) -> None:
    """What both arms miss is no difference between them, and yet no pass where the model can answer it."""
    both = asking(
        build(WORLD, edit=lambda item: missing(15)(item) if item.run.decode is Decode.FREE else item)
    )
    policy = CoveragePolicy(known_answers=required)
    (cell,) = [cell for cell in coverage.measure(both, policy, 960) if "known answers" in cell.name]
    assert (cell.reached, cell.satisfied) == ("25 of 40", enough)
    short = coverage.shortfalls((cell,), policy)
    assert [item.weight for item in short] == [Weight.UNTESTED] * (enough is False)
