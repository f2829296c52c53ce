from __future__ import annotations

import datetime
from dataclasses import replace

import msgspec
import pytest

from qualify.findings import Finding, Result, Verdict, Weight
from qualify.gate import judge
from qualify.policy import Waiver
from qualify.record import ArmState, RunRecord
from qualify.transcript import Arm, Decode, RequestFailure, RunKey, Transcript
from tests.judgefactory import (
    POLICY,
    World,
    build,
    no_fault,
    packed,
    with_arm,
    without_runs,
)

WORLD = World(scenarios={"eight": 8, "sixteen": 16})


@pytest.fixture(scope="module")
def good() -> RunRecord:
    return build(WORLD)


def verdict_of(record: RunRecord) -> Verdict:
    return judge(record, POLICY, "0" * 64)


def found(verdict: Verdict, rule: str, arm: Arm | None = None) -> list[Finding]:
    return [item for item in verdict.findings if item.rule == rule and arm in (None, item.arm)]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_good_release_with_caught_control_is_qualified(noise: float) -> None:
    verdict = verdict_of(build(replace(WORLD, noise=noise)))
    assert verdict.result is Result.QUALIFIED, verdict.reasons
    caught = found(verdict, "control")
    assert [item.scenario for item in caught] == ["eight", "sixteen"]
    assert all(item.weight is Weight.SATISFIED for item in caught)
    assert any("weaker" in item.summary or "exactly zero" in item.summary for item in caught)
    premise = [text for text in verdict.limitations if "noise at fewer than 1 of 256 positions" in text]
    assert bool(premise) is (noise == 0)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_packed_candidate_is_rejected_and_its_rows_named(noise: float) -> None:
    verdict = verdict_of(build(replace(WORLD, noise=noise), candidate=packed))
    assert verdict.result is Result.REJECTED
    assert verdict.result.exit_code == 1
    (divergence,) = found(verdict, "divergence")
    assert divergence.rows == tuple(range(1, 16))
    assert not any(name.endswith("/0000") for name in divergence.request_ids)


def test_row_zero_is_not_named_after_a_request_has_moved_there() -> None:
    """Row 3's request is moved to row 0 for most of its tokens; its own cache stays wrong."""
    record = build(replace(WORLD, noise=0.0), candidate=packed)
    steps = record.steps[Arm.CANDIDATE]
    row = steps.row.copy()
    late = (row == 3) & (steps.reached > 1000 + 300 + 5)
    assert late.any()
    row[late] = 0
    record = replace(record, steps={**record.steps, Arm.CANDIDATE: replace(steps, row=row)})
    (divergence,) = found(verdict_of(record), "divergence")
    assert 0 not in divergence.rows
    assert 3 in divergence.rows


@pytest.mark.parametrize("seed", range(8))
def test_right_rows_are_not_named_whatever_the_noise(seed: int) -> None:
    for noise in (0.02, 0.2):
        record = build(replace(WORLD, noise=noise, seed=seed), candidate=packed, control=None)
        (divergence,) = found(verdict_of(record), "divergence")
        assert 0 not in divergence.rows
        assert len(divergence.rows) >= 10


def test_rejection_needs_no_control() -> None:
    verdict = verdict_of(build(WORLD, candidate=packed, control=None))
    assert verdict.result is Result.REJECTED


def test_control_switched_off_is_inconclusive() -> None:
    verdict = verdict_of(build(WORLD, control=None))
    assert verdict.result is Result.INCONCLUSIVE
    assert "switched off" in verdict.reasons[0]


def test_control_that_is_not_caught_is_inconclusive() -> None:
    verdict = verdict_of(build(WORLD, control=no_fault))
    assert verdict.result is Result.INCONCLUSIVE
    assert {item.weight for item in found(verdict, "control")} == {Weight.UNTESTED}


def test_negligible_noise_neither_blinds_the_run_nor_catches_an_idle_control() -> None:
    """One logprob of one position of the second baseline run, moved by 1e-6: 1e-14 nats."""

    def noisy(item: Transcript) -> Transcript:
        if (item.run, item.request_id) != (RunKey(Arm.BASELINE, Decode.FORCED, 2), "eight/main/0003"):
            return item
        best = (item.top_logprobs[3][0] or 0.0) - 1e-6
        lists = (*item.top_logprobs[:3], (best, *item.top_logprobs[3][1:]), *item.top_logprobs[4:])
        return replace(item, top_logprobs=lists)

    def one(row: int, token: int) -> float:
        return 1.5 if (row, token) == (7, 20) else 0.0

    world = replace(WORLD, noise=0.0)
    good = verdict_of(build(world, edit=noisy))
    assert good.result is Result.QUALIFIED, good.reasons
    assert any("1 of 24 requests must be hit" in said for said in good.limitations)
    assert any("so one difference over 0.00024 nats counts" in said for said in good.limitations)
    bad = verdict_of(build(world, edit=noisy, candidate=one))
    assert bad.result is Result.REJECTED
    (divergence,) = found(bad, "divergence")
    assert divergence.request_ids == ("eight/main/0007", "sixteen/main/0007")
    assert divergence.rows == (7,)
    assert "differ by nothing that matters" in divergence.evidence[0]
    idle = verdict_of(build(world, edit=noisy, control=lambda row, token: 1e-6 * packed(row, token)))
    assert idle.result is Result.INCONCLUSIVE
    assert {item.weight for item in found(idle, "control")} == {Weight.UNTESTED}


def test_control_must_be_caught_in_every_scenario_where_it_can_act() -> None:
    world = replace(WORLD, scenarios={"eight": 8, "sixteen": 16})
    acts = build(world)
    idle = build(world, control=no_fault)
    key = RunKey(Arm.CONTROL, Decode.FORCED, 1)
    half = acts.runs[key]
    mixed = [
        next(head for head in table.heads if head.request_id == mine.request_id)
        for mine in half.heads
        for table in [half if mine.scenario == "sixteen" else idle.runs[key]]
    ]
    assert len(mixed) == 24
    quiet = replace(half, top_logprobs=half.top_logprobs.copy(), top_ids=half.top_ids.copy())
    for head in half.heads:
        if head.scenario == "eight":
            quiet.top_ids[head.positions] = idle.runs[key].top_ids[head.positions]
            quiet.top_logprobs[head.positions] = idle.runs[key].top_logprobs[head.positions]
    verdict = verdict_of(replace(acts, runs={**acts.runs, key: quiet}))
    assert verdict.result is Result.INCONCLUSIVE
    assert {item.scenario: item.weight for item in found(verdict, "control")} == {
        "eight": Weight.UNTESTED,
        "sixteen": Weight.SATISFIED,
    }


@pytest.mark.parametrize("state", [ArmState.START_FAILED, ArmState.DIED, ArmState.HUNG])
@pytest.mark.parametrize("control", [packed, None])
def test_candidate_that_fails_by_itself_is_rejected(state: ArmState, control: object) -> None:
    record = build(WORLD, control=packed if control else None)
    record = without_runs(with_arm(record, Arm.CANDIDATE, state, "exit code 139"), Arm.CANDIDATE)
    verdict = verdict_of(record)
    assert verdict.result is Result.REJECTED
    assert "exit code 139" in verdict.reasons[0]


@pytest.mark.parametrize("state", [ArmState.START_FAILED, ArmState.DIED, ArmState.HUNG])
def test_candidate_is_not_blamed_where_the_baseline_failed_too(good: RunRecord, state: ArmState) -> None:
    record = with_arm(with_arm(good, Arm.CANDIDATE, state), Arm.BASELINE, state)
    assert verdict_of(record).result is Result.INCONCLUSIVE


@pytest.mark.parametrize(
    "state",
    [
        ArmState.KILLED,
        ArmState.NEVER_READY,
        ArmState.MACHINERY,
        ArmState.INTERRUPTED,
        ArmState.NOT_STARTED,
    ],
)
@pytest.mark.parametrize("arm", list(Arm))
def test_trouble_from_outside_is_inconclusive(good: RunRecord, arm: Arm, state: ArmState) -> None:
    assert verdict_of(with_arm(good, arm, state)).result is Result.INCONCLUSIVE


def test_control_that_died_is_inconclusive(good: RunRecord) -> None:
    record = without_runs(with_arm(good, Arm.CONTROL, ArmState.DIED), Arm.CONTROL)
    assert verdict_of(record).result is Result.INCONCLUSIVE


def fail(kind: str, arm: Arm, status: int | None = None):  # type: ignore[no-untyped-def]
    def edit(item: Transcript) -> Transcript:
        if item.run.arm is arm and item.request_id == "eight/main/0003":
            return replace(item, failure=RequestFailure(kind=kind, message="broken", status=status))
        return item

    return edit


@pytest.mark.parametrize("kind", ["http", "malformed", "timeout", "disconnected", "incomplete", "refused"])
def test_request_that_only_the_candidate_fails_is_a_defect(kind: str) -> None:
    verdict = verdict_of(build(WORLD, edit=fail(kind, Arm.CANDIDATE)))
    assert verdict.result is Result.REJECTED
    assert {item.request_ids for item in found(verdict, "request-failed")} == {("eight/main/0003",)}


@pytest.mark.parametrize("state", [ArmState.KILLED, ArmState.INTERRUPTED])
def test_request_that_failed_with_a_killed_server_is_untested(state: ArmState) -> None:
    record = with_arm(build(WORLD, edit=fail("disconnected", Arm.CANDIDATE)), Arm.CANDIDATE, state)
    assert verdict_of(record).result is Result.INCONCLUSIVE


def test_cancelled_request_is_untested() -> None:
    verdict = verdict_of(build(WORLD, edit=fail("cancelled", Arm.CANDIDATE)))
    assert verdict.result is Result.INCONCLUSIVE


@pytest.mark.parametrize("arm", [Arm.BASELINE, Arm.CONTROL])
def test_request_that_another_arm_fails_is_untested(arm: Arm) -> None:
    assert verdict_of(build(WORLD, edit=fail("http", arm))).result is Result.INCONCLUSIVE


@pytest.mark.parametrize("arm", list(Arm))
def test_missing_transcript_is_untested(arm: Arm) -> None:
    record = build(
        WORLD,
        edit=lambda item: None if (item.run.arm, item.request_id) == (arm, "eight/main/0003") else item,
    )
    verdict = verdict_of(record)
    assert verdict.result is Result.INCONCLUSIVE
    assert all(item.request_ids == ("eight/main/0003",) for item in found(verdict, "request-missing"))


def test_answer_without_logprobs_is_a_defect_of_the_candidate() -> None:
    record = build(
        WORLD,
        edit=lambda item: (
            replace(item, logprobs=(), top_ids=(), top_logprobs=())
            if (item.run.arm, item.request_id) == (Arm.CANDIDATE, "eight/main/0003")
            else item
        ),
    )
    verdict = verdict_of(record)
    assert verdict.result is Result.REJECTED
    assert any("without logprobs" in reason for reason in verdict.reasons)


def test_nan_is_a_finding() -> None:
    def edit(item: Transcript) -> Transcript:
        if (item.run.arm, item.request_id) != (Arm.CANDIDATE, "eight/main/0003"):
            return item
        broken = list(item.top_logprobs)
        broken[5] = (None, *broken[5][1:])
        return replace(item, top_logprobs=tuple(broken))

    verdict = verdict_of(build(WORLD, edit=edit))
    assert verdict.result is Result.REJECTED
    assert found(verdict, "not-finite", Arm.CANDIDATE)[0].request_ids == ("eight/main/0003",)


def nan_in(*arms: Arm, listed: bool = True, name: str = "eight/main/0003"):  # type: ignore[no-untyped-def]
    """One position of one forced request is NaN, or lists nothing at all, in these arms."""

    def edit(item: Transcript) -> Transcript:
        if item.run.arm not in arms or item.request_id != name or item.run.decode is not Decode.FORCED:
            return item
        ids, values = list(item.top_ids), list(item.top_logprobs)
        values[5] = (None, *values[5][1:]) if listed else ()
        ids[5] = ids[5] if listed else ()
        chosen = (*item.logprobs[:5], None, *item.logprobs[6:])
        return replace(item, logprobs=chosen, top_ids=tuple(ids), top_logprobs=tuple(values))

    return edit


def test_what_the_baseline_has_not_either_is_not_the_candidates() -> None:
    for listed, rule in ((True, "not-finite"), (False, "not-listed")):
        verdict = verdict_of(build(WORLD, edit=nan_in(*Arm, listed=listed)))
        assert verdict.result is Result.INCONCLUSIVE
        said = found(verdict, rule)
        assert {item.arm for item in said} == set(Arm)
        assert {item.weight for item in said} == {Weight.UNTESTED}
        assert not [item for item in verdict.findings if item.rule.startswith("not-") and item.rule != rule]
    lost = verdict_of(build(WORLD, edit=nan_in(Arm.CANDIDATE, listed=False)))
    assert lost.result is Result.INCONCLUSIVE


def test_lists_that_are_missing_altogether_are_no_traceback() -> None:
    def bare(item: Transcript) -> Transcript:
        none = tuple(() for _ in item.token_ids)
        return replace(item, top_ids=none, top_logprobs=none)

    verdict = verdict_of(build(WORLD, edit=bare))
    assert verdict.result is Result.INCONCLUSIVE
    assert found(verdict, "not-listed")


def test_a_control_that_gives_nan_is_caught_by_what_would_reject_a_candidate() -> None:
    """The rest of its answers is right, so nothing else can catch it."""
    both = [nan_in(Arm.CONTROL, name=f"{name}/main/0003") for name in ("eight", "sixteen")]
    verdict = verdict_of(build(WORLD, control=no_fault, edit=lambda item: both[1](both[0](item))))
    assert verdict.result is Result.QUALIFIED, verdict.reasons
    assert [item.summary for item in found(verdict, "control")] == [
        f"The control (packed-stride) was caught in scenario {name}: its logprobs are not finite "
        "in 1 request, where the baseline's are."
        for name in ("eight", "sixteen")
    ]
    half = verdict_of(build(WORLD, control=no_fault, edit=both[0]))
    assert half.result is Result.INCONCLUSIVE
    seen = verdict_of(build(WORLD, edit=both[0]))
    assert seen.result is Result.QUALIFIED, seen.reasons
    shared = verdict_of(build(WORLD, control=no_fault, edit=nan_in(Arm.BASELINE, Arm.CONTROL)))
    assert shared.result is Result.INCONCLUSIVE


def test_forced_tokens_that_did_not_come_are_untested() -> None:
    def edit(item: Transcript) -> Transcript:
        key = RunKey(Arm.CANDIDATE, Decode.FORCED, 1)
        if (item.run, item.request_id) != (key, "eight/main/0003"):
            return item
        return replace(item, token_ids=(*item.token_ids[:-1], item.token_ids[-1] + 1))

    verdict = verdict_of(build(WORLD, edit=edit))
    assert verdict.result is Result.INCONCLUSIVE
    assert found(verdict, "forced-tokens")[0].request_ids == ("eight/main/0003",)


def test_replay_that_was_not_measured_or_not_reached_is_inconclusive(good: RunRecord) -> None:
    steps = good.steps[Arm.CANDIDATE]
    attached = replace(good, steps={})
    eager = replace(good, steps={**good.steps, Arm.CANDIDATE: replace(steps, whole=~steps.whole)})
    replayed = replace(good, steps={**good.steps, Arm.BASELINE: steps})
    for record in (attached, eager, replayed):
        verdict = verdict_of(record)
        assert verdict.result is Result.INCONCLUSIVE
        assert found(verdict, "coverage")
    assert any("not measured" in said for said in verdict_of(attached).limitations)


def test_rows_without_step_log_are_called_estimated() -> None:
    verdict = verdict_of(replace(build(WORLD, candidate=packed), steps={}))
    (divergence,) = found(verdict, "divergence")
    assert "estimated" in divergence.summary
    assert verdict.comparison is not None
    assert not verdict.comparison.arms[0].rows_recorded


def test_incomplete_evidence_is_inconclusive(good: RunRecord) -> None:
    assert verdict_of(replace(good, incomplete=("the run was cut",))).result is Result.INCONCLUSIVE


def test_too_few_requests_are_inconclusive() -> None:
    verdict = verdict_of(build(World(scenarios={"four": 4})))
    assert verdict.result is Result.INCONCLUSIVE
    assert found(verdict, "floor")


def test_one_baseline_run_gives_no_floor(good: RunRecord) -> None:
    second = RunKey(Arm.BASELINE, Decode.FORCED, 2)
    verdict = verdict_of(replace(good, runs={key: run for key, run in good.runs.items() if key != second}))
    assert verdict.result is Result.INCONCLUSIVE


def test_waiver_lets_a_defect_pass_until_it_expires() -> None:
    record = build(WORLD, candidate=packed)
    for expires, result in (("2026-12-01", Result.QUALIFIED), ("2026-11-30", Result.REJECTED)):
        waiver = Waiver(
            rule="divergence",
            owner="a person",
            reason="known and accepted",
            expires=datetime.date.fromisoformat(expires),
        )
        verdict = judge(record, POLICY.model_copy(update={"waivers": (waiver,)}), "0" * 64)
        assert verdict.result is result
        (divergence,) = found(verdict, "divergence")
        alike = "The candidate differs from the baseline by no more than the baseline's own runs differ."
        if result is Result.QUALIFIED:
            note = "(waived by a person until 2026-12-01: known and accepted)"
            assert verdict.reasons[0] == f"Qualified by waiver: {divergence.summary} {note}"
        assert alike not in verdict.reasons


def test_a_waiver_of_something_else_is_said_after_what_was_found(good: RunRecord) -> None:
    inspected = Finding(rule="inspection", weight=Weight.DEFECT, summary="No fix is in the image.")
    waiver = Waiver(rule="inspection", owner="me", reason="known and accepted", expires=datetime.date.max)
    policy = POLICY.model_copy(update={"waivers": (waiver,)})
    verdict = judge(replace(good, inspections=(inspected,)), policy, "")
    assert verdict.result is Result.QUALIFIED
    assert verdict.reasons[0].endswith("by no more than the baseline's own runs differ.")
    assert verdict.reasons[1].startswith("Qualified by waiver: No fix is in the image. (waived by me until ")


@pytest.mark.parametrize("rule", ["control", "coverage", "incomplete"])
def test_no_waiver_turns_missing_evidence_into_a_pass(good: RunRecord, rule: str) -> None:
    waiver = Waiver(rule=rule, owner="me", reason="it is too much work", expires=datetime.date.max)
    records = {
        "control": build(WORLD, control=no_fault),
        "coverage": replace(good, steps={}),
        "incomplete": replace(good, incomplete=("the run was cut",)),
    }
    policy = POLICY.model_copy(update={"waivers": (waiver,)})
    assert judge(records[rule], policy, "").result is Result.INCONCLUSIVE


def test_request_that_nobody_asked_for_is_untested(good: RunRecord) -> None:
    (first, *rest) = good.scenarios[0].requests
    scenario = replace(good.scenarios[0], requests=tuple(rest))
    verdict = verdict_of(replace(good, scenarios=(scenario, *good.scenarios[1:])))
    assert verdict.result is Result.INCONCLUSIVE
    assert {item.request_ids for item in found(verdict, "request-unknown")} == {(first.request_id,)}


def test_request_that_was_recorded_twice_is_untested(good: RunRecord) -> None:
    key = RunKey(Arm.CANDIDATE, Decode.FORCED, 1)
    twice = replace(good.runs[key], duplicates=("eight/main/0003",))
    verdict = verdict_of(replace(good, runs={**good.runs, key: twice}))
    assert verdict.result is Result.INCONCLUSIVE
    assert found(verdict, "request-duplicate")[0].request_ids == ("eight/main/0003",)


def test_verdict_is_the_same_bytes_whatever_the_order() -> None:
    forth, back = build(WORLD), build(WORLD, order=lambda items: items[::-1])
    back = replace(back, runs=dict(reversed(list(back.runs.items()))))
    encoded = [msgspec.json.encode(verdict_of(record), order="sorted") for record in (forth, back)]
    assert encoded[0] == encoded[1]
    assert msgspec.json.decode(encoded[0], type=Verdict) == verdict_of(forth)


def only(arm: Arm, decode: Decode, **changes: object) -> RunRecord:
    """A good run in which one request of one arm's run is changed."""

    def edit(item: Transcript) -> Transcript:
        mine = (item.run.arm, item.run.decode, item.request_id) == (arm, decode, "eight/main/0003")
        return replace(item, **changes) if mine else item  # type: ignore[arg-type]

    return build(WORLD, edit=edit)


@pytest.mark.parametrize("arm", list(Arm))
def test_other_forced_tokens_are_untested_and_not_compared(arm: Arm) -> None:
    verdict = verdict_of(only(arm, Decode.FORCED, forced_sha256="other tokens"))
    assert verdict.result is Result.INCONCLUSIVE
    untested = {name for item in found(verdict, "forced-tokens") for name in item.request_ids}
    assert untested == {"eight/main/0003"}
    if arm is not Arm.CONTROL:
        assert found(verdict, "not-compared")[0].request_ids == ("eight/main/0003",)


def test_tokens_that_strayed_from_the_forced_ones_are_not_compared() -> None:
    tokens = tuple(range(100, 100 + WORLD.tokens))
    verdict = verdict_of(only(Arm.CANDIDATE, Decode.FORCED, token_ids=tokens))
    assert found(verdict, "forced-tokens")[0].request_ids == ("eight/main/0003",)
    assert found(verdict, "not-compared")[0].request_ids == ("eight/main/0003",)


def test_a_scenario_that_is_decoded_freely_only_beside_forced_ones_is_untested(good: RunRecord) -> None:
    """Its answers are other tokens altogether, and nobody looks at them."""
    free = RunKey(Arm.CANDIDATE, Decode.FREE, 1)
    other = replace(good.runs[free], token_ids=good.runs[free].token_ids + 1)
    eight = replace(good.scenarios[0], decode_ways=("free",), control_can_act=False)
    runs = {
        key: run
        if key.decode is Decode.FREE
        else replace(run, heads=tuple(head for head in run.heads if head.scenario != "eight"))
        for key, run in {**good.runs, free: other}.items()
    }
    verdict = verdict_of(replace(good, runs=runs, scenarios=(eight, good.scenarios[1])))
    assert verdict.result is Result.INCONCLUSIVE
    (finding,) = found(verdict, "not-compared")
    assert finding.scenario == "eight"
    assert len(finding.request_ids) == 8


def test_another_prompt_is_not_compared() -> None:
    verdict = verdict_of(only(Arm.CANDIDATE, Decode.FORCED, prompt_sha256="another prompt"))
    assert verdict.result is Result.INCONCLUSIVE
    assert found(verdict, "prompt-differs")[0].request_ids == ("eight/main/0003",)
    assert found(verdict, "not-compared")[0].request_ids == ("eight/main/0003",)


def test_warm_up_requests_are_checked_but_not_compared(good: RunRecord) -> None:
    record = build(WORLD, edit=lambda item: replace(item, judged=item.index > 0))
    verdict, all_judged = verdict_of(record), verdict_of(good)
    assert verdict.comparison is not None
    assert all_judged.comparison is not None
    assert verdict.comparison.arms[0].requests == 22
    assert all_judged.comparison.arms[0].requests == 24
